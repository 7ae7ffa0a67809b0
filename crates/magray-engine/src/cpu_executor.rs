//! Runs a model on the CPU: packs texts into chunks, gives each thread its own or all threads one after another.
//! Never pads; activations and scratch grow with the largest batch seen and are then used again.

use crate::model::{Model, Workspace};
use crate::packed::{Packed, Tokens};
use magray_core::{ChunkLimits, Precision, Schedule, plan_chunks};
use magray_device::cpu::{Cpu, CpuOps};
use magray_device::{Device, Ops};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Small enough for activations to stay near a core, large enough to use each weight often. On AMX a thread took 54 ms for
/// 12 texts of 128 tokens with 128 here, 42 with 256 and 384, 43 with 512, 49 with 768 (the least of many runs).
const TOKENS_EACH: usize = 256;
/// A thread of its own reads all the weights: below this that should take longer than the arithmetic (an estimate).
const TOKENS_LEAST: usize = 48;
/// Bounds the memory of activations when all threads share a chunk.
const TOKENS_TOGETHER: usize = 2048;

/// A packed model and the rooms its threads work in.
pub(crate) struct CpuExecutor {
    cpu: Arc<Cpu>,
    model: Model<Cpu>,
    /// One a thread.
    each: Vec<Mutex<Lane>>,
    together: Lane,
    /// Rows of single tokens; made when somebody first wants them.
    tokens: Option<TokenRows>,
}

/// Room for the rows of single tokens.
struct TokenRows {
    acts: <CpuOps as Ops>::Acts,
    /// Where tokens begin that are texts of their own: 0, 1, 2 and so on.
    offsets: Vec<usize>,
}

/// What one pass needs beside the model.
struct Lane {
    ops: CpuOps,
    work: Workspace<Cpu>,
    packed: Packed,
}

impl CpuExecutor {
    pub(crate) fn new(cpu: Arc<Cpu>, model: Model<Cpu>) -> Self {
        let each = (0..cpu.pool().threads()).map(|_| Mutex::new(Lane::new(cpu.solo(), &cpu, &model))).collect();
        let together = Lane::new(cpu.team(), &cpu, &model);
        Self { cpu, model, each, together, tokens: None }
    }

    /// Numbers in a text's answer.
    pub(crate) fn outputs(&self) -> usize {
        self.model.outputs()
    }

    /// Computes one row a token, as the last layer leaves it: the tokens of all texts end to end, in their order.
    pub(crate) fn run_tokens(&mut self, texts: &[Tokens<'_>], out: &mut Vec<f32>) {
        let hidden = self.model.hidden();
        let make = || TokenRows { acts: self.cpu.acts(Precision::F32, hidden), offsets: vec![0] };
        let rows = self.tokens.get_or_insert_with(make);
        out.clear();
        // Texts of a chunk are neighbours here, so that their rows are too.
        for chunk in neighbours(texts) {
            let Lane { ops, work, packed } = &mut self.together;
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
        let lengths: Vec<usize> = texts.iter().map(|text| text.ids.len()).collect();
        let limits = ChunkLimits {
            tokens_each: TOKENS_EACH,
            tokens_least: TOKENS_LEAST,
            tokens_together: TOKENS_TOGETHER,
            threads: self.each.len(),
        };
        let outputs = self.outputs();
        match plan_chunks(&lengths, limits) {
            Schedule::Together(chunks) => {
                for chunk in chunks {
                    let rows = self.together.pass(&self.model, texts, &chunk, skip);
                    scatter(rows, &chunk, outputs, out);
                }
            }
            Schedule::Each(chunks) => {
                let next = AtomicUsize::new(0);
                let out = Mutex::new(out);
                self.cpu.pool().run(&|rank| {
                    let mut lane = self.each[rank].lock().unwrap_or_else(PoisonError::into_inner);
                    while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let rows = lane.pass(&self.model, texts, chunk, skip);
                        scatter(rows, chunk, outputs, &mut out.lock().unwrap_or_else(PoisonError::into_inner));
                    }
                });
            }
        }
    }
}

impl Lane {
    fn new(ops: CpuOps, cpu: &Cpu, model: &Model<Cpu>) -> Self {
        let work = model.workspace(cpu);
        Self { ops, work, packed: Packed::default() }
    }

    /// One forward pass over some of the texts, end to end: one row a text.
    fn pass(&mut self, model: &Model<Cpu>, texts: &[Tokens<'_>], chunk: &[usize], skip: usize) -> &[f32] {
        self.packed.fill(chunk.iter().map(|&text| texts[text]));
        let batch = self.packed.batch();
        model.forward(&mut self.ops, &mut self.work, &batch, skip);
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

/// Puts each row of a chunk where its text belongs.
fn scatter(rows: &[f32], chunk: &[usize], outputs: usize, out: &mut [f32]) {
    for (row, &text) in rows.chunks_exact(outputs).zip(chunk) {
        out[text * outputs..(text + 1) * outputs].copy_from_slice(row);
    }
}
