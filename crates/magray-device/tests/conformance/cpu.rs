//! The CPU under test: every path of the machine, alone and in a team, in every precision it has.
//! Skips a path that the machine lacks, and says so.

use crate::rig::{Rig, Stored, Subject};
use crate::variables;
use magray_core::{CpuPath, Precision};
use magray_device::cpu::{Cpu, CpuOps, available_paths};
use magray_skip::Need;
use std::sync::Arc;

/// Threads of a team: odd, so that shares are uneven.
const TEAM: usize = 3;

/// The CPU in one of its variants.
pub(crate) struct CpuSubject {
    cpu: Arc<Cpu>,
    threads: Threads,
    precision: Precision,
}

/// Who does the work.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Threads {
    Solo,
    Team,
}

/// Runs a test on every rig of the CPU.
pub(crate) fn each_rig(test: impl Fn(&mut Rig<CpuSubject>)) {
    let seed = variables::seed();
    let available = available_paths();
    for path in CpuPath::ALL {
        if !available.contains(&path) {
            magray_skip::part(Need::CpuPath(path.to_string()), "the CPU has no such path");
            continue;
        }
        let cpu = Arc::new(Cpu::new(Some(path), Some(TEAM)).expect("the path is available"));
        for threads in [Threads::Solo, Threads::Team] {
            for precision in Precision::ALL.into_iter().filter(|precision| precision.is_for_cpu()) {
                let name = format!("{path} {threads:?} {precision} (seed {seed})");
                let subject = CpuSubject { cpu: Arc::clone(&cpu), threads, precision };
                test(&mut Rig::new(name, subject, seed));
            }
        }
    }
}

impl CpuSubject {
    fn ops_of(&self, threads: Threads) -> CpuOps {
        match threads {
            Threads::Solo => self.cpu.solo(),
            Threads::Team => self.cpu.team(),
        }
    }
}

impl Subject for CpuSubject {
    type Device = Cpu;

    // There are two dozen rigs, and developers wait for them.
    const AFFORDED: usize = 10_000_000;

    fn device(&self) -> &Cpu {
        &self.cpu
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn stored(&self) -> Stored {
        match (self.cpu.path(), self.precision) {
            (CpuPath::Amx, Precision::Bf16 | Precision::Int8) => Stored::Bf16,
            _ => Stored::F32,
        }
    }

    fn ops(&self) -> CpuOps {
        self.ops_of(self.threads)
    }

    fn other_ops(&self) -> CpuOps {
        self.ops_of(if self.threads == Threads::Solo { Threads::Team } else { Threads::Solo })
    }

    fn feeder(&self) -> Option<CpuOps> {
        Some(self.cpu.solo())
    }

    fn batch_tolerance(&self) -> f32 {
        // Rows at the edge of a block are summed in another order than those inside.
        1e-5
    }

    fn function_tolerance(&self) -> f64 {
        match self.stored() {
            Stored::F32 => 0.0,
            Stored::F16 | Stored::Bf16 => 1e-4,
        }
    }
}
