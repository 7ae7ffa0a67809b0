//! What rounds of leaving and waking came to, for people and for programs.
//! Only counts what was counted: nothing here is estimated.

use std::time::Duration;

use magray_core::pool::PoolStats;
use magray_engine::DeviceName;
use serde::Serialize;

use super::device_memory::StateMemory;
use crate::terminal::aligned;

/// A step of loading and unloading a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// From nothing to the first answer.
    FirstLoad,
    /// An answer while the model is on the GPU.
    Warm,
    /// The first after a load: the copy in the memory of the host is not whole yet.
    FirstOffload,
    /// To an answer, right after that.
    EarlyWake,
    Offload,
    /// From the memory of the host to an answer.
    Wake,
    /// From the memory of the host onto the GPU, without a request.
    Preheat,
    /// From the memory of the host to an answer, with a worker that must be started first.
    ColdWake,
    Release,
    /// From nothing to an answer, once more.
    Reload,
}

impl Phase {
    const ALL: [Self; 10] = [
        Self::FirstLoad,
        Self::Warm,
        Self::FirstOffload,
        Self::EarlyWake,
        Self::Offload,
        Self::Wake,
        Self::Preheat,
        Self::ColdWake,
        Self::Release,
        Self::Reload,
    ];

    pub(super) fn code(self) -> &'static str {
        match self {
            Self::FirstLoad => "first_load",
            Self::Warm => "warm",
            Self::FirstOffload => "first_offload",
            Self::EarlyWake => "early_wake",
            Self::Offload => "offload",
            Self::Wake => "wake",
            Self::Preheat => "preheat",
            Self::ColdWake => "cold_wake",
            Self::Release => "release",
            Self::Reload => "reload",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::FirstLoad => "first load to answer",
            Self::Warm => "answer while it is there",
            Self::FirstOffload => "first offload after a load",
            Self::EarlyWake => "wake to answer right after it",
            Self::Offload => "offload",
            Self::Wake => "wake to answer",
            Self::Preheat => "preheat",
            Self::ColdWake => "cold wake to answer",
            Self::Release => "release",
            Self::Reload => "load again to answer",
        }
    }

    /// Whether it copies all weights to the GPU.
    fn moves_weights(self) -> bool {
        matches!(self, Self::FirstLoad | Self::EarlyWake | Self::Wake | Self::Preheat | Self::ColdWake | Self::Reload)
    }
}

/// All that was measured with one model; the names are those of `--json`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cycle {
    pub(super) model: String,
    pub(super) device: String,
    /// Whether it is loaded from files that were just written.
    pub(super) from_files: bool,
    /// Of its weights on the GPU.
    pub(super) bytes: u64,
    /// Requests and moves that failed.
    pub(super) failed: u64,
    /// Answers with other bits than the first.
    pub(super) wrong: u64,
    #[serde(rename = "phases", serialize_with = "as_phases")]
    times: Vec<(Phase, Duration)>,
    pub(super) memory: Vec<StateMemory>,
    pub(super) complaints: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct PhaseTimes {
    phase: &'static str,
    runs: usize,
    median_ms: f64,
    min_ms: f64,
    max_ms: f64,
}

impl Cycle {
    const COMPLAINTS_MAX: usize = 5;

    pub(super) fn new(model: String, device: DeviceName, from_files: bool) -> Self {
        Self {
            model,
            device: device.to_string(),
            from_files,
            bytes: 0,
            failed: 0,
            wrong: 0,
            times: Vec::new(),
            memory: Vec::new(),
            complaints: Vec::new(),
        }
    }

    pub(super) fn record(&mut self, phase: Phase, took: Duration) {
        self.times.push((phase, took));
    }

    pub(super) fn complain(&mut self, complaint: String) {
        if self.complaints.len() < Self::COMPLAINTS_MAX {
            self.complaints.push(complaint);
        }
    }

    pub(super) fn fault(&self) -> Option<String> {
        let Self { failed, wrong, complaints, .. } = self;
        let is_fine = *failed == 0 && *wrong == 0;
        (!is_fine).then(|| format!("failed {failed}, wrong {wrong}: {}", complaints.join("; ")))
    }
}

fn as_phases<S: serde::Serializer>(times: &[(Phase, Duration)], to: S) -> Result<S::Ok, S::Error> {
    phases(times).map(|(_, times)| times).collect::<Vec<_>>().serialize(to)
}

fn phases(times: &[(Phase, Duration)]) -> impl Iterator<Item = (Phase, PhaseTimes)> {
    Phase::ALL.into_iter().filter_map(|phase| {
        let mut ms: Vec<f64> =
            times.iter().filter(|(of, _)| *of == phase).map(|(_, took)| took.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        let (min_ms, max_ms) = (*ms.first()?, *ms.last()?);
        Some((phase, PhaseTimes { phase: phase.code(), runs: ms.len(), median_ms: ms[ms.len() / 2], min_ms, max_ms }))
    })
}

pub(super) fn cycle_table(cycle: &Cycle) -> String {
    let cells = |(phase, times): (Phase, PhaseTimes)| {
        let speed = cycle.bytes as f64 / (times.median_ms / 1e3) / 1e9;
        vec![
            phase.words().to_owned(),
            times.runs.to_string(),
            format!("{:.2}", times.median_ms),
            format!("{:.2}", times.min_ms),
            format!("{:.2}", times.max_ms),
            if phase.moves_weights() { format!("{speed:.1}") } else { String::new() },
        ]
    };
    let head = ["step", "runs", "median ms", "min", "max", "GB/s"].map(str::to_owned).to_vec();
    let times: Vec<Vec<String>> = std::iter::once(head).chain(phases(&cycle.times).map(cells)).collect();
    let head =
        ["state", "whole GPU MB", "magray MB", "pool reserved", "used", "peak", "parked", "driver calls", "worker"];
    let memory: Vec<Vec<String>> =
        std::iter::once(head.map(str::to_owned).to_vec()).chain(cycle.memory.iter().map(memory_cells)).collect();
    let from = if cycle.from_files { " from files" } else { "" };
    let mut text = format!(
        "{}{from} on {}, {:.2} GB of weights\n\n{}\n{}\nfailed {}, answers with other bits {}\n",
        cycle.model,
        cycle.device,
        cycle.bytes as f64 / 1e9,
        aligned(&times),
        aligned(&memory),
        cycle.failed,
        cycle.wrong,
    );
    cycle.complaints.iter().for_each(|complaint| text.push_str(&format!("  {complaint}\n")));
    text
}

fn memory_cells(memory: &StateMemory) -> Vec<String> {
    let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
    let of_pool = |figure: fn(&PoolStats) -> u64| {
        memory.pool.as_ref().map_or_else(|| "-".to_owned(), |pool| megabytes(figure(pool)))
    };
    vec![
        memory.state.to_owned(),
        memory.device_used_bytes.map_or_else(|| "-".to_owned(), megabytes),
        megabytes(memory.magray_used_bytes),
        of_pool(|pool| pool.reserved),
        of_pool(|pool| pool.used),
        of_pool(|pool| pool.peak_used),
        of_pool(|pool| pool.parked),
        memory.pool.as_ref().map_or_else(|| "-".to_owned(), |pool| pool.driver_calls.to_string()),
        if memory.has_worker { "yes" } else { "no" }.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn cycle() -> Cycle {
        let mut cycle = Cycle::new("synthetic:x".to_owned(), DeviceName::Simulated(0), false);
        cycle.bytes = 2_000_000_000;
        for ms in [110, 90, 100] {
            cycle.record(Phase::Wake, Duration::from_millis(ms));
        }
        cycle.record(Phase::Offload, Duration::from_millis(7));
        cycle.memory = vec![StateMemory {
            state: "on_cpu_cold",
            device_used_bytes: Some(0),
            magray_used_bytes: 0,
            has_worker: false,
            pool: None,
        }];
        cycle
    }

    #[test]
    fn times_and_memory_line_up() {
        expect![[r#"
            synthetic:x on sim:0, 2.00 GB of weights

            step            runs  median ms  min    max     GB/s
            offload         1     7.00       7.00   7.00
            wake to answer  3     100.00     90.00  110.00  20.0

            state        whole GPU MB  magray MB  pool reserved  used  peak  parked  driver calls  worker
            on_cpu_cold  0.0           0.0        -              -     -     -       -             no

            failed 0, answers with other bits 0
        "#]]
        .assert_eq(&cycle_table(&cycle()));
    }

    #[test]
    fn what_failed_is_a_fault_and_programs_get_every_step() {
        let mut cycle = cycle();
        assert_eq!(cycle.fault(), None);
        let json = serde_json::to_value(&cycle).unwrap();
        assert_eq!((&json["phases"][1]["phase"], &json["phases"][1]["median_ms"]), (&"wake".into(), &100.0.into()));
        assert_eq!((&json["wrong"], &json["memory"][0]["has_worker"]), (&0.into(), &false.into()));
        cycle.wrong = 1;
        cycle.complain("other bits".to_owned());
        assert_eq!(cycle.fault().as_deref(), Some("failed 0, wrong 1: other bits"));
    }
}
