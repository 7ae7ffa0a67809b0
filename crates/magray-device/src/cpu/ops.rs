//! The CPU's operations: splits each between threads and hands the parts to the kernels.
//! Holds the scratch memory of its threads, so that a steady load allocates nothing.

mod shared;

use super::Cpu;
use super::activation::Stored;
use super::acts::{Acts, AnyGrid, Format, Grid, PANEL};
use super::aligned::Aligned;
use super::attention::{Attention, HeadScratch, QUERY_ROWS, Queries};
use super::embed::EmbedScratch;
use super::gemm::{BLOCK_ROWS, Layout, Linear, Part, QuantiseRows, QuantisedRows, Target, Tiles};
use super::items::{Items, Shares, share};
use super::layer_norm::NormRows;
use super::pooling::PoolText;
use super::products::Products;
use super::simd::{Element, Kernel, vectorize};
use crate::{AttentionShape, DistanceBias, Embedding, Norm, Ops, PoolShape, Rows, TokenBatch};
use half::bf16;
use magray_core::{Activation, CpuPath};
use std::cell::UnsafeCell;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

/// Operations of one team of threads.
pub struct CpuOps {
    cpu: Arc<Cpu>,
    ranks: Vec<Rank>,
    shares: Shares,
    quantised: QuantisedRows,
    /// Sums of a layer before their norm.
    sums: Acts,
    answer: Vec<f32>,
}

/// One thread's scratch memory.
struct Rank(UnsafeCell<Scratch>);

struct Scratch {
    /// Two blocks of a product, used in turn.
    sums: [Aligned<f32>; 2],
    head_f32: HeadScratch<f32>,
    head_bf16: HeadScratch<bf16>,
    embed: EmbedScratch,
}

// SAFETY: each rank is used by the one thread of that rank during a fork, and forks of a team do not overlap:
// every operation takes the team exclusively.
unsafe impl Sync for Rank {}

/// Runs the same code on activations of either format.
macro_rules! each_format {
    ($grid:expr, $name:ident => $body:expr) => {
        match $grid {
            AnyGrid::F32($name) => $body,
            AnyGrid::Bf16($name) => $body,
        }
    };
}

impl CpuOps {
    pub(super) fn new(cpu: Arc<Cpu>, threads: usize) -> Self {
        let scratch = || Scratch {
            sums: [Aligned::zeroed(BLOCK_ROWS * PANEL), Aligned::zeroed(BLOCK_ROWS * PANEL)],
            head_f32: HeadScratch::new(),
            head_bf16: HeadScratch::new(),
            embed: EmbedScratch::default(),
        };
        let ranks = (0..threads).map(|_| Rank(UnsafeCell::new(scratch()))).collect();
        let shares = Shares::new(threads);
        Self {
            cpu,
            ranks,
            shares,
            quantised: QuantisedRows::new(),
            sums: Acts::new(Format::F32, 0),
            answer: Vec::new(),
        }
    }

    /// Runs `f(rank, scratch)` on every thread of the team.
    fn fork(&self, f: &(dyn Fn(usize, &mut Scratch) + Sync)) {
        // SAFETY: a rank is one thread's during a fork, so no other thread has its scratch.
        let run = |rank: usize| f(rank, unsafe { &mut *self.ranks[rank].0.get() });
        if self.ranks.len() == 1 { run(0) } else { self.cpu.pool.run(&run) }
    }

    /// Runs `f` with the items of `0..total` that each thread takes.
    fn fork_items(&self, total: usize, f: &(dyn Fn(Items<'_>, &mut Scratch) + Sync)) {
        self.shares.fill(total);
        self.fork(&|rank, scratch| f(self.shares.of(rank), scratch));
    }

    /// Runs `f` with each thread's share of `0..total`.
    fn fork_shares(&self, total: usize, f: &(dyn Fn(Range<usize>, &mut Scratch) + Sync)) {
        self.fork(&|rank, scratch| f(share(total, self.ranks.len(), rank), scratch));
    }

    /// # Safety
    /// As [`vectorize`], whose path is the CPU's own.
    unsafe fn run<K: Kernel>(&self, kernel: K) {
        // SAFETY: the path was found available when the CPU was made; the kernel is the caller's promise.
        unsafe { vectorize(self.cpu.path, kernel) };
    }

    fn tiles(&self) -> Option<Tiles> {
        // SAFETY: the AMX path was chosen because the machine has it and the kernel granted it.
        (self.cpu.path == CpuPath::Amx).then(|| unsafe { Tiles::configure() })
    }

    /// Turns rows into bytes where the layer multiplies bytes.
    fn quantise(&mut self, x: &Acts, weights: &Linear) {
        if weights.layout != Layout::I8Tiles {
            return;
        }
        self.quantised.resize(x.rows(), x.columns());
        self.fork_shares(x.rows(), &|rows, _| {
            each_format!(x.grid(), x_grid => {
                let (from, to) = (rows.start, &self.quantised);
                // SAFETY: the room was sized for the batch; each thread has rows of its own.
                unsafe { self.run(QuantiseRows { x: x_grid, from, rows: rows.len(), columns: x.columns(), to }) };
            });
        });
    }

    /// Multiplies all rows with all panels, each thread taking a share, and finishes each block into `out`.
    fn product<R: Element, E: Stored>(
        &self,
        x: &Acts,
        weights: &Linear,
        activation: Activation,
        residual: Option<Grid<R>>,
        out: Grid<E>,
    ) {
        assert_eq!(x.columns(), weights.inputs, "the layer takes rows of another length");
        let division = weights.divide(x.rows(), self.ranks.len());
        self.fork_items(division.items(), &|items, scratch| {
            let tiles = self.tiles();
            let part = Part {
                path: self.cpu.path,
                tiles: tiles.as_ref(),
                x,
                quantised: &self.quantised,
                blocks: division.blocks(items),
                sums: scratch.sums.each_mut().map(|sums| sums.as_mut_ptr()),
            };
            // SAFETY: both `sums` hold BLOCK_ROWS rows, the bytes were made before, and callers check the room of `out`.
            unsafe { weights.multiply(part, Target { activation, residual, out }) };
        });
    }

    fn heads<E: Products>(
        &self,
        qkv: &Acts,
        grids: (Grid<E>, Grid<E>),
        batch: &TokenBatch<'_>,
        shape: AttentionShape<'_, DistanceBias>,
        room: impl Fn(&mut Scratch) -> &mut HeadScratch<E> + Sync,
    ) {
        let columns = qkv.columns() / 3;
        let head_size = columns / shape.heads;
        let longest = batch.longest();
        let (team, heads) = (self.ranks.len(), shape.heads);
        // Where a few long texts leave threads idle, a head's queries are divided as well.
        let wanted = (2 * team).div_ceil((batch.texts() * heads).max(1));
        let parts = if team == 1 { 1 } else { wanted.clamp(1, longest.div_ceil(QUERY_ROWS).max(1)) };
        self.fork_items(batch.texts() * heads * parts, &|items, scratch| {
            // Configured while the kernel runs, which multiplies tiles where the path is AMX.
            let _tiles = self.tiles();
            let blocks = items.flat_map(|item| {
                let (text, head, part) = (item / (heads * parts), item / parts % heads, item % parts);
                let (start, end) = (batch.offsets[text], batch.offsets[text + 1]);
                let tokens = end - start;
                share(tokens.div_ceil(QUERY_ROWS), parts, part).map(move |block| {
                    let from = block * QUERY_ROWS;
                    Queries { head, start, tokens, from, rows: QUERY_ROWS.min(tokens - from) }
                })
            });
            let scratch = room(scratch);
            scratch.resize(longest, head_size);
            let (path, (qkv, out), bias) = (self.cpu.path, grids, shape.bias);
            // SAFETY: activations hold whole tiles beyond their last row; each thread has heads and rows of its own.
            unsafe { self.run(Attention { path, qkv, out, columns, head_size, bias, blocks, scratch }) };
        });
    }
}

impl Ops for CpuOps {
    type Error = Infallible;
    type Acts = Acts;
    type Linear = Linear;
    type Embedding = Embedding;
    type Norm = Norm;
    type Bias = DistanceBias;

    fn resize(&mut self, acts: &mut Acts, rows: usize) {
        acts.resize(rows);
    }

    fn embed(&mut self, batch: &TokenBatch<'_>, tables: &Embedding, out: &mut Acts) {
        batch.check();
        assert_eq!(tables.words.columns(), out.columns(), "vectors as wide as the model");
        assert_rows(out, batch.tokens());
        self.fork_shares(batch.tokens(), &|tokens, scratch| {
            each_format!(out.grid(), grid => {
                // SAFETY: each thread has rows of its own, inside the activations.
                unsafe { tables.rows(self.cpu.path, batch, tokens.clone(), grid, &mut scratch.embed) };
            });
        });
    }

    fn linear(&mut self, x: &Acts, weights: &Linear, activation: Activation, out: &mut Acts) {
        assert_eq!(out.columns(), weights.outputs, "room for the layer's outputs");
        assert_rows(out, x.rows());
        self.quantise(x, weights);
        each_format!(out.grid(), grid => self.product(x, weights, activation, None::<Grid<f32>>, grid));
    }

    fn linear_add_norm(&mut self, x: &Acts, weights: &Linear, norm: &Norm, hidden: &mut Acts) {
        assert_eq!(hidden.columns(), weights.outputs, "the layer gives back what it adds to");
        assert_eq!(hidden.columns(), norm.columns, "the norm is as wide");
        assert_rows(hidden, x.rows());
        self.quantise(x, weights);
        if self.sums.columns() != hidden.columns() {
            self.sums = Acts::new(Format::F32, hidden.columns());
        }
        self.sums.resize(x.rows());
        let sums = self.sums.f32();
        each_format!(hidden.grid(), grid => {
            self.product(x, weights, Activation::Identity, Some(grid), sums);
            self.fork_shares(x.rows(), &|rows, _| {
                let (x, out) = (sums.starting_at(rows.start), grid.starting_at(rows.start));
                // SAFETY: each thread has rows of its own.
                unsafe { self.run(NormRows { x, rows: rows.len(), norm, out }) };
            });
        });
    }

    fn attention(
        &mut self,
        qkv: &Acts,
        batch: &TokenBatch<'_>,
        shape: AttentionShape<'_, DistanceBias>,
        out: &mut Acts,
    ) {
        batch.check();
        assert_rows(qkv, batch.tokens());
        assert_rows(out, batch.tokens());
        assert_eq!(qkv.columns(), 3 * out.columns(), "queries, keys and values");
        assert!(shape.heads > 0 && out.columns().is_multiple_of(shape.heads), "whole heads");
        match (qkv.grid(), out.grid()) {
            (AnyGrid::F32(from), AnyGrid::F32(to)) => self.heads(qkv, (from, to), batch, shape, |s| &mut s.head_f32),
            (AnyGrid::Bf16(from), AnyGrid::Bf16(to)) => self.heads(qkv, (from, to), batch, shape, |s| &mut s.head_bf16),
            _ => panic!("attention reads and writes one number format"),
        }
    }

    fn pool(&mut self, hidden: &Acts, batch: &TokenBatch<'_>, shape: PoolShape<'_>, out: &mut Acts) {
        batch.check();
        let columns = hidden.columns();
        assert_eq!(out.columns(), columns * shape.ways.len(), "room for each way");
        assert_rows(hidden, batch.tokens());
        assert_rows(out, batch.texts());
        let out = out.f32();
        self.fork_shares(batch.texts(), &|texts, _| {
            for text in texts {
                let (start, end) = (batch.offsets[text], batch.offsets[text + 1]);
                let skipped = shape.skip.min(end - start);
                let (from, tokens) = (start + skipped, end - start - skipped);
                for (i, &way) in shape.ways.iter().enumerate() {
                    let column = i * columns;
                    each_format!(hidden.grid(), x => {
                        // SAFETY: the text's rows and its row of `out` exist; each thread has texts of its own.
                        unsafe { self.run(PoolText { x, from, tokens, columns, way, skipped, out, text, column }) };
                    });
                }
            }
        });
    }

    fn finish(&mut self, acts: &Acts, normalize: bool) {
        self.answer.resize(acts.rows() * acts.columns(), 0.0);
        let grid = acts.f32();
        for (row, to) in self.answer.chunks_exact_mut(acts.columns().max(1)).enumerate() {
            for (panel, to) in to.chunks_mut(PANEL).enumerate() {
                // SAFETY: the row is in use, and its panels are whole.
                to.copy_from_slice(unsafe { std::slice::from_raw_parts(grid.row(row, panel), to.len()) });
            }
            if normalize {
                let length = to.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
                to.iter_mut().for_each(|x| *x /= length);
            }
        }
    }

    fn answer(&mut self) -> Result<&[f32], Infallible> {
        Ok(&self.answer)
    }
}

fn assert_rows(acts: &Acts, rows: usize) {
    assert_eq!(acts.rows(), rows, "activations are resized for the batch first");
}
