//! Runs a model on the CPU: packs texts into chunks, gives each thread its own or all threads one after another.
//! Jobs follow each other without a pause: a thread that has no more of one begins with the next.
//! Never pads; activations and scratch grow with the largest batch seen and are then used again.

use super::allocated::{Allocated, Held};
use super::available_memory::{available_bytes, total_bytes};
use super::cpu_stream::{Planned, Stream, scatter};
use super::decoder_model::{DecoderModel, SequenceRoom};
use super::feed::{Bell, Feed, Job};
use super::native::{Hosted, Loading, NativeDevice, NativeModel};
use super::{Failure, Label};
use crate::gpu::{GpuError, MemoryStats};
use crate::model::{Model, Workspace};
use crate::packed::{Packed, Tokens};
use magray_core::{ChunkLimits, Precision, Schedule};
use magray_device::cpu::{Cpu, CpuOps};
use magray_device::{Device, Ops};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// Small enough for activations to stay near a core, large enough to use each weight often. On AMX a thread took 54 ms for
/// 12 texts of 128 tokens with 128 here, 42 with 256 and 384, 43 with 512, 49 with 768 (the least of many runs).
pub(crate) const TOKENS_EACH: usize = 256;
/// A thread of its own reads all the weights: below this that should take longer than the arithmetic (an estimate).
const TOKENS_LEAST: usize = 48;
/// Bounds the memory of activations when all threads share a chunk.
const TOKENS_TOGETHER: usize = 2048;

/// A packed model and the rooms its threads work in.
pub(crate) struct CpuExecutor {
    cpu: Arc<Cpu>,
    model: Model<Cpu>,
    /// One a thread.
    each: Vec<Mutex<Pass>>,
    together: Pass,
    /// Rows of single tokens; made when they are first wanted.
    tokens: Option<TokenRows>,
}

/// Room for the rows of single tokens.
struct TokenRows {
    acts: <CpuOps as Ops>::Acts,
    /// Where tokens begin that are texts of their own: 0, 1, 2 and so on.
    offsets: Vec<usize>,
}

/// What one pass needs beside the model.
struct Pass {
    ops: CpuOps,
    work: Workspace<Cpu>,
    packed: Packed,
}

impl CpuExecutor {
    pub(crate) fn new(cpu: Arc<Cpu>, model: Model<Cpu>) -> Self {
        let each = (0..cpu.pool().threads()).map(|_| Mutex::new(Pass::new(cpu.solo(), &cpu, &model))).collect();
        let together = Pass::new(cpu.team(), &cpu, &model);
        Self { cpu, model, each, together, tokens: None }
    }

    /// Numbers in a text's answer.
    pub(crate) fn outputs(&self) -> usize {
        self.model.outputs()
    }

    /// As [`CpuExecutor::run`], with rows that are not scaled to length 1.
    pub(crate) fn run_unscaled(&mut self, texts: &[Tokens<'_>], skip: usize, out: &mut Vec<f32>) {
        out.clear();
        for chunk in neighbours(texts) {
            let Pass { ops, work, packed } = &mut self.together;
            packed.fill(chunk.iter().copied());
            self.model.forward_unscaled(ops, work, &packed.batch(), skip);
            let Ok(rows) = ops.answer();
            out.extend_from_slice(rows);
        }
    }

    /// Computes one row a token, as the last layer leaves it: the tokens of all texts end to end, in their order.
    pub(crate) fn run_tokens(&mut self, texts: &[Tokens<'_>], out: &mut Vec<f32>) {
        let hidden = self.model.hidden();
        let make = || TokenRows { acts: self.cpu.acts(Precision::F32, hidden), offsets: vec![0] };
        let rows = self.tokens.get_or_insert_with(make);
        out.clear();
        // Texts of a chunk are neighbours here, so that their rows are too.
        for chunk in neighbours(texts) {
            let Pass { ops, work, packed } = &mut self.together;
            packed.fill(chunk.iter().copied());
            let batch = packed.batch();
            rows.offsets.extend(rows.offsets.len()..=batch.tokens());
            let offsets = &rows.offsets[..=batch.tokens()];
            self.model.forward_tokens(ops, (work, &mut rows.acts), &batch, offsets);
            let Ok(rows) = ops.answer();
            out.extend_from_slice(rows);
        }
    }

    /// Computes the answers of all texts, in their order; `skip` leading tokens of each are not pooled.
    pub(crate) fn run(&mut self, texts: &[Tokens<'_>], skip: usize, out: &mut [f32]) {
        let (job, outcome) = (Mutex::new(Some(texts)), Mutex::new(None));
        self.run_all(&Once { job, skip, outcome: &outcome });
        match outcome.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(Ok(rows)) => out.copy_from_slice(&rows),
            Some(Err(failure)) => resume_unwind(Box::new(failure.message)),
            None => unreachable!("every job is done"),
        }
    }

    /// Computes jobs until no more are at hand. A panic loses the job that it happens in.
    pub(crate) fn run_all(&mut self, feed: &dyn Feed) {
        let limits = ChunkLimits {
            tokens_each: TOKENS_EACH,
            tokens_least: TOKENS_LEAST,
            tokens_together: TOKENS_TOGETHER,
            threads: self.each.len(),
        };
        let mut next = feed.next(false).map(|job| Planned::new(job, limits, false));
        while let Some(Planned { job, schedule }) = next {
            next = match schedule {
                Schedule::Together(chunks) => {
                    let rows = catch_unwind(AssertUnwindSafe(|| self.run_together(&*job, &chunks)));
                    job.done(rows.map_err(|panic| Failure::panicked(&*panic)));
                    feed.next(false).map(|job| Planned::new(job, limits, false))
                }
                Schedule::Each(chunks) => {
                    let stream = Stream::new(feed, limits, self.outputs());
                    stream.start(job, chunks);
                    self.cpu.pool().run(&|rank| self.take_part(rank, &stream));
                    stream.into_last().or_else(|| feed.next(false).map(|job| Planned::new(job, limits, false)))
                }
            };
        }
    }

    fn run_together(&mut self, job: &dyn Job, chunks: &[Vec<usize>]) -> Vec<f32> {
        let outputs = self.outputs();
        let mut rows = vec![0.0; job.count() * outputs];
        for chunk in chunks {
            scatter(self.together.run(&self.model, job, chunk), chunk, outputs, &mut rows);
        }
        rows
    }

    /// What one thread does for a stream of jobs.
    fn take_part(&self, rank: usize, stream: &Stream<'_>) {
        let mut own = self.each[rank].lock().unwrap_or_else(PoisonError::into_inner);
        stream.work(|job, chunk, keep| keep(own.run(&self.model, job, chunk)));
    }
}

/// A single job, whose caller waits for it.
struct Once<'a> {
    job: Mutex<Option<&'a [Tokens<'a>]>>,
    skip: usize,
    outcome: &'a Mutex<Option<Result<Vec<f32>, Failure>>>,
}

struct Given<'a> {
    texts: &'a [Tokens<'a>],
    skip: usize,
    outcome: &'a Mutex<Option<Result<Vec<f32>, Failure>>>,
}

impl Job for Given<'_> {
    fn count(&self) -> usize {
        self.texts.len()
    }

    fn text(&self, at: usize) -> Tokens<'_> {
        self.texts[at]
    }

    fn skip(&self) -> usize {
        self.skip
    }

    fn done(&self, outcome: Result<Vec<f32>, Failure>) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }
}

impl Feed for Once<'_> {
    fn next(&self, _: bool) -> Option<Box<dyn Job + '_>> {
        let texts = self.job.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Box::new(Given { texts, skip: self.skip, outcome: self.outcome }))
    }

    fn bell(&self) -> Option<&Bell> {
        None
    }
}

impl Pass {
    fn new(ops: CpuOps, cpu: &Cpu, model: &Model<Cpu>) -> Self {
        let work = model.workspace(cpu);
        Self { ops, work, packed: Packed::default() }
    }

    /// One forward pass over some of the texts, end to end: one row a text.
    fn run(&mut self, model: &Model<Cpu>, job: &dyn Job, chunk: &[usize]) -> &[f32] {
        self.packed.fill(chunk.iter().map(|&text| job.text(text)));
        let batch = self.packed.batch();
        model.forward(&mut self.ops, &mut self.work, &batch, job.skip());
        let Ok(rows) = self.ops.answer();
        rows
    }
}

/// Runs of texts that all threads share; a long text is a run of its own.
fn neighbours<'a, 'b>(texts: &'a [Tokens<'b>]) -> impl Iterator<Item = &'a [Tokens<'b>]> {
    let mut left = texts;
    std::iter::from_fn(move || {
        let mut tokens = 0;
        let fits = |text: &&Tokens<'_>| {
            tokens += text.ids.len();
            tokens <= TOKENS_TOGETHER
        };
        let run = left.iter().take_while(fits).count().max(1).min(left.len());
        let (run, rest) = left.split_at(run);
        left = rest;
        (!run.is_empty()).then_some(run)
    })
}

/// The CPU as a device of an executor.
pub(crate) struct CpuDevice {
    cpu: Arc<Cpu>,
    allocated: Arc<Allocated>,
}

/// Memory for the keys and values of sequences: an eighth of the machine's. Pages cost nothing before they are used.
pub(crate) fn kv_bytes() -> u64 {
    (total_bytes() / 8).clamp(KV_BYTES_LEAST, KV_BYTES_MOST)
}

const KV_BYTES_LEAST: u64 = 128 << 20;
const KV_BYTES_MOST: u64 = 16 << 30;

/// A model on it. Its weights go with it: they are packed again from its files.
struct CpuModel {
    executor: CpuExecutor,
    weight_bytes: u64,
    /// Dropped with it.
    _held: Held,
}

impl CpuDevice {
    pub(crate) fn new(cpu: Arc<Cpu>) -> Self {
        Self { cpu, allocated: Arc::default() }
    }
}

impl NativeDevice for CpuDevice {
    fn label(&self) -> Label {
        Label { name: "CPU".to_owned(), uuid: "CPU".to_owned() }
    }

    fn memory(&self) -> MemoryStats {
        let allocated = self.allocated.now();
        let (free, total) = (available_bytes(), total_bytes());
        let peak_allocated = self.allocated.peak().max(allocated);
        MemoryStats { allocated, reserved: allocated, peak_allocated, free, total, ..MemoryStats::default() }
    }

    fn load(&self, loading: Loading<'_>) -> Result<Hosted, Failure> {
        let Loading { spec, precision, kv, source, .. } = loading;
        if let Some(generate) = spec.generates() {
            let held = Box::new(Allocated::hold(&self.allocated, generate.weight_bytes));
            let ops = self.cpu.decoder();
            let room = SequenceRoom::of(generate, kv_bytes(), kv);
            let model = DecoderModel::load(&self.cpu, ops, generate, room, |never| match never {}, held)?;
            return Ok(Hosted { model: Box::new(model), precision: Precision::F32, sums: None, counts: 1 });
        }
        let precision = precision.settle_cpu(self.cpu.has_fast_bf16());
        let model = Model::pack(&*self.cpu, spec, &*source()?, precision).map_err(Failure::of_model)?;
        let weight_bytes = spec.shape.weight_bytes(precision);
        let held = Allocated::hold(&self.allocated, weight_bytes);
        let executor = CpuExecutor::new(Arc::clone(&self.cpu), model);
        Ok(Hosted {
            model: Box::new(CpuModel { executor, weight_bytes, _held: held }),
            precision,
            sums: None,
            counts: 1,
        })
    }

    fn takes_images(&self) -> bool {
        false
    }

    fn rouse(&self) {
        self.cpu.pool().rouse();
    }
}

impl NativeModel for CpuModel {
    fn outputs(&self) -> usize {
        self.executor.outputs()
    }

    fn run(&mut self, texts: &[Tokens<'_>], skip: usize, out: &mut [f32]) -> Result<(), GpuError> {
        self.executor.run(texts, skip, out);
        Ok(())
    }

    fn run_unscaled(&mut self, texts: &[Tokens<'_>], skip: usize, out: &mut Vec<f32>) -> Result<(), GpuError> {
        self.executor.run_unscaled(texts, skip, out);
        Ok(())
    }

    fn run_tokens(&mut self, texts: &[Tokens<'_>], out: &mut Vec<f32>) -> Result<(), GpuError> {
        self.executor.run_tokens(texts, out);
        Ok(())
    }

    fn run_all(&mut self, feed: &dyn Feed) {
        self.executor.run_all(feed);
    }

    fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }
}
