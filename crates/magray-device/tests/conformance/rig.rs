//! A device to test, in one precision on one path, and the way of rows into its activations and out again.
//! Expects no values: the tests do.

use crate::rows::{Random, Rows, Tolerance};
use magray_core::{CpuPath, Pooling, Precision};
use magray_device::cpu::{Acts, Cpu, CpuOps, available_paths};
use magray_device::{Device, Embedding, Norm, Ops, PoolShape, Table, TokenBatch};
use std::sync::Arc;

/// Threads of a team: odd, so that shares are uneven.
const TEAM: usize = 3;
const SEED_VARIABLE: &str = "CONFORMANCE_SEED";

/// One device under test.
pub(crate) struct Rig {
    /// Path, threads, precision and seed, for messages.
    pub(crate) name: String,
    pub(crate) cpu: Arc<Cpu>,
    pub(crate) ops: CpuOps,
    threads: Threads,
    pub(crate) precision: Precision,
    pub(crate) random: Random,
}

/// Who does the work.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Threads {
    Solo,
    Team,
}

impl Threads {
    fn ops(self, cpu: &Arc<Cpu>) -> CpuOps {
        match self {
            Self::Solo => cpu.solo(),
            Self::Team => cpu.team(),
        }
    }
}

/// Runs a test on every path of the machine, alone and in a team, in every precision.
#[expect(clippy::print_stdout, reason = "a seed and a missing path are the test's to tell, and captured as such")]
pub(crate) fn each_rig(test: impl Fn(&mut Rig)) {
    let seed = std::env::var(SEED_VARIABLE).map_or(20_260_101, |seed| seed.parse().expect("the seed is a number"));
    println!("seed {seed}; {SEED_VARIABLE} sets another");
    let available = available_paths();
    for path in CpuPath::ALL {
        if !available.contains(&path) {
            println!("SKIPPED: no {path} path");
            continue;
        }
        let cpu = Arc::new(Cpu::new(Some(path), Some(TEAM)).expect("the path is available"));
        for threads in [Threads::Solo, Threads::Team] {
            for precision in [Precision::F32, Precision::Bf16, Precision::Int8] {
                let name = format!("{path} {threads:?} {precision} (seed {seed})");
                let (cpu, ops) = (Arc::clone(&cpu), threads.ops(&cpu));
                test(&mut Rig { name, cpu, ops, threads, precision, random: Random(seed) });
            }
        }
    }
}

impl Rig {
    /// How exact activations are as they are stored, and what is done on them as they are.
    pub(crate) fn stored_tolerance(&self) -> Tolerance {
        match (self.cpu.path(), self.precision) {
            (CpuPath::Amx, Precision::Bf16 | Precision::Int8) => Tolerance { row: 5e-3, element: 2e-2 },
            _ => Tolerance { row: 2.5e-6, element: 8e-6 },
        }
    }

    /// How exact products with weights are, which are rounded to the precision.
    pub(crate) fn product_tolerance(&self) -> Tolerance {
        match self.precision {
            Precision::F32 => Tolerance { row: 1.5e-6, element: 3e-6 },
            Precision::Bf16 => Tolerance { row: 8e-3, element: 1.5e-2 },
            Precision::Int8 => Tolerance { row: 4e-2, element: 8e-2 },
        }
    }

    /// Takes new operations, which nothing was done with yet.
    pub(crate) fn renew(&mut self) {
        self.ops = self.threads.ops(&self.cpu);
    }

    /// Takes a team's operations for a lone thread's, and the other way round.
    pub(crate) fn change_threads(&mut self) {
        self.threads = if self.threads == Threads::Solo { Threads::Team } else { Threads::Solo };
        self.renew();
    }

    /// Activations of so many rows that no operation has written yet.
    pub(crate) fn acts(&mut self, rows: usize, columns: usize) -> Acts {
        let mut acts = self.cpu.acts(self.precision, columns);
        self.ops.resize(&mut acts, rows);
        acts
    }

    /// Fresh activations made of rows. See [`Rig::put_into`].
    pub(crate) fn put(&mut self, rows: &Rows, gain: f32) -> Acts {
        let mut acts = self.cpu.acts(self.precision, rows.columns);
        self.put_into(rows, gain, &mut acts);
        acts
    }

    /// Puts rows into activations by way of [`embed_rows`], on operations of their own: those under test see nothing
    /// of it.
    pub(crate) fn put_into(&mut self, rows: &Rows, gain: f32, acts: &mut Acts) {
        embed_rows(&mut self.cpu.solo(), &self.cpu, rows, gain, acts);
    }

    /// The rows of activations: each is pooled as a text of one token, which widens it.
    pub(crate) fn get(&mut self, acts: &Acts) -> Rows {
        let texts = Texts::new(&vec![1; acts.rows()]);
        self.pool(acts, &texts, PoolShape { ways: &[Pooling::Cls], skip: 0 })
    }

    /// Pools into fresh activations and reads them.
    pub(crate) fn pool(&mut self, acts: &Acts, texts: &Texts, shape: PoolShape<'_>) -> Rows {
        let columns = acts.columns() * shape.ways.len();
        let mut pooled = self.cpu.acts(Precision::F32, columns);
        self.ops.resize(&mut pooled, texts.count());
        self.ops.pool(acts, &texts.batch(), shape, &mut pooled);
        let mut values = vec![f32::NAN; texts.count() * columns];
        self.ops.read(&pooled, false, &mut values);
        Rows::new(columns, values)
    }
}

/// Embeds each row as a text of one token, which normalises it to variance `gain` squared: what is there then is asked
/// for with [`Rig::get`]. Rows of [`Poison`] come out as NaN or infinities.
pub(crate) fn embed_rows(ops: &mut CpuOps, cpu: &Cpu, rows: &Rows, gain: f32, acts: &mut Acts) {
    let columns = rows.columns;
    let embedding = cpu.embedding(Embedding {
        words: Table::new(rows.values.clone(), columns),
        positions: Table::new(vec![0.0; columns], columns),
        types: None,
        norm: Norm::new(vec![gain; columns], vec![0.0; columns], 0.0),
        first_position: 0,
    });
    let texts = Texts::new(&vec![1; rows.len()]);
    ops.resize(acts, rows.len());
    ops.embed(&texts.batch(), &embedding, acts);
}

/// Texts of given lengths, their ids counting up.
pub(crate) struct Texts {
    pub(crate) ids: Vec<u32>,
    pub(crate) offsets: Vec<usize>,
}

impl Texts {
    pub(crate) fn new(lengths: &[usize]) -> Self {
        let mut offsets = vec![0];
        for length in lengths {
            offsets.push(offsets[offsets.len() - 1] + length);
        }
        Self { ids: (0..offsets[lengths.len()] as u32).collect(), offsets }
    }

    pub(crate) fn batch(&self) -> TokenBatch<'_> {
        TokenBatch { ids: &self.ids, types: &[], offsets: &self.offsets }
    }

    pub(crate) fn count(&self) -> usize {
        self.offsets.len() - 1
    }

    pub(crate) fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// The tokens of a text.
    pub(crate) fn range(&self, text: usize) -> std::ops::Range<usize> {
        self.offsets[text]..self.offsets[text + 1]
    }
}

/// What is wrong with a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Poison {
    Nan,
    Infinite,
}

impl Poison {
    pub(crate) const ALL: [Self; 2] = [Self::Nan, Self::Infinite];

    /// Overwrites a row that [`Rig::put`] is given.
    pub(crate) fn spoil(self, row: &mut [f32]) {
        for (i, x) in row.iter_mut().enumerate() {
            *x = match self {
                Self::Nan => f32::NAN,
                // The squares of these vanish: a variance of zero, by which the differences are divided.
                Self::Infinite => (i % 2) as f32 * 1e-30,
            };
        }
    }
}
