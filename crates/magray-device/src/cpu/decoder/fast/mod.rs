//! A decoder's operations on packed weights and vectors: weights stay in few bits, keys and values in 16 or 8.
//! Its counterpart is `exact`; sums are rounded otherwise, and few rows have their activations rounded to 8 bits.

mod attend;
mod attend_bytes;
#[cfg(target_arch = "x86_64")]
mod attend_tiles;
mod attended;
mod attention;
mod fetch;
mod few;
mod finish;
mod form;
mod kv;
mod linear;
#[cfg(target_arch = "x86_64")]
mod many;
mod panels;
mod product;
mod rows;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod turn;
mod work;

pub(super) use few::Bytes;
pub(super) use kv::PackedPages;
pub(super) use linear::PanelLinear;

use super::RmsNorm;
use super::rows::RowActs;
use crate::cpu::simd::{Kernel, Simd, vectorize};
use crate::cpu::{Cpu, ThreadPool, detect};
use crate::{AttentionLayer, PAGE_TOKENS, RopeSource, StepBatch};
use attention::Attention;
use finish::Columns;
use kv::{HalfView, PageView};
use magray_core::{Activation, CpuPath};
use product::Products;
use std::ops::Range;
use turn::{Angles, TurnRow};
use work::{Inputs, Team};

type Layer<'a> = AttentionLayer<'a, RmsNorm, RopeSource>;

/// The instructions for products of bytes on a path; none where the portable operations are used.
pub(super) fn bytes_of(path: CpuPath) -> Option<Bytes> {
    match path {
        CpuPath::Portable => None,
        CpuPath::Avx512 | CpuPath::Amx if detect::has_vnni() => Some(Bytes::Vnni),
        _ => detect::has_f16c().then_some(Bytes::Avx2),
    }
}

/// Rows that the calling thread turns by itself.
const ROWS_TURNED_ALONE: usize = 4;

/// The operations' buffers.
pub(super) struct Fast {
    products: Products,
    angles: Angles,
    attention: Attention,
    /// Rows that a norm follows.
    sums: Vec<f32>,
    pub(super) answer: Vec<f32>,
}

/// Rows that threads share, each row one thread's.
#[derive(Clone, Copy)]
struct SharedRows {
    start: *mut f32,
    columns: usize,
}

// SAFETY: each row is taken by one thread.
unsafe impl Send for SharedRows {}
// SAFETY: as above.
unsafe impl Sync for SharedRows {}

impl SharedRows {
    /// # Safety
    /// The row exists and no other borrow of these columns lives.
    unsafe fn part<'a>(&self, row: usize, columns: Range<usize>) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.columns + columns.start), columns.len()) }
    }
}

impl Fast {
    pub(super) fn new(cpu: &Cpu, bytes: Bytes) -> Self {
        let threads = cpu.pool().threads();
        Self {
            products: Products::new(cpu.path(), bytes, threads),
            angles: Angles::default(),
            attention: Attention::new(threads),
            sums: Vec::new(),
            answer: Vec::new(),
        }
    }

    pub(super) fn embed(&self, pool: &ThreadPool, ids: &[u32], table: &PanelLinear, scale: f32, out: &mut RowActs) {
        let columns = out.columns;
        let rows = SharedRows { start: out.values_mut().as_mut_ptr(), columns };
        let read = |row: usize| {
            let (id, known) = (ids[row] as usize, table.outputs());
            assert!(id < known, "id {id} in a table of {known}: ids are checked at the door");
            // SAFETY: a row is one thread's.
            let to = unsafe { rows.part(row, 0..columns) };
            table.read(id, to);
            to.iter_mut().for_each(|x| *x *= scale);
        };
        if ids.len() <= ROWS_TURNED_ALONE {
            return (0..ids.len()).for_each(read);
        }
        self.products.team(pool).each_row(ids.len(), &read);
    }

    pub(super) fn norm_linear(
        &mut self,
        pool: &ThreadPool,
        x: &RowActs,
        norm: &RmsNorm,
        weights: &PanelLinear,
        out: &mut RowActs,
    ) {
        let inputs = Inputs { values: x.values(), rows: x.rows, norm: Some(norm) };
        let columns = out.columns;
        self.products.linear(pool, inputs, weights, Columns::of(out.values_mut(), columns), false);
    }

    pub(super) fn gated_linear(
        &mut self,
        pool: &ThreadPool,
        (x, norm): (&RowActs, &RmsNorm),
        weights: &PanelLinear,
        activation: Activation,
        out: &mut RowActs,
    ) {
        let inputs = Inputs { values: x.values(), rows: x.rows, norm: Some(norm) };
        self.products.gated(pool, inputs, weights, (activation, out.values_mut()));
    }

    pub(super) fn linear_add(
        &mut self,
        pool: &ThreadPool,
        x: &RowActs,
        weights: &PanelLinear,
        norm: Option<&RmsNorm>,
        hidden: &mut RowActs,
    ) {
        let inputs = Inputs { values: x.values(), rows: x.rows, norm: None };
        let columns = hidden.columns;
        let Some(norm) = norm else {
            return self.products.linear(pool, inputs, weights, Columns::of(hidden.values_mut(), columns), true);
        };
        self.sums.resize(self.sums.len().max(x.rows * columns), 0.0);
        self.products.linear(pool, inputs, weights, Columns::of(&mut self.sums, columns), false);
        let path = self.products.path;
        let rows = SharedRows { start: hidden.values_mut().as_mut_ptr(), columns };
        let add = |row: usize| {
            let x = &self.sums[row * columns..(row + 1) * columns];
            // SAFETY: a row is one thread's; the path is the machine's.
            unsafe { vectorize(path, AddNormed { x, norm, to: rows.part(row, 0..columns) }) };
        };
        if x.rows <= ROWS_TURNED_ALONE {
            return (0..x.rows).for_each(add);
        }
        self.products.team(pool).each_row(x.rows, &add);
    }

    pub(super) fn rope_append(
        &mut self,
        pool: &ThreadPool,
        steps: &StepBatch<'_>,
        layer: &Layer<'_>,
        (qkv, pages): (&mut RowActs, &mut PackedPages),
    ) {
        let view = pages.view_mut();
        let shape = view.shape();
        let columns = (layer.heads + 2 * shape.kv_heads) * shape.head_size;
        assert_eq!(qkv.columns, columns, "queries, keys and values");
        let tokens: Vec<(usize, &[u32])> =
            steps.steps().flat_map(|step| (0..step.rows.len()).map(move |i| (step.start + i, step.pages))).collect();
        let positions: Vec<usize> = tokens.iter().map(|token| token.0).collect();
        let angles = self.angles.of(layer.rope, &positions);
        let width = 2 * layer.rope.radians.len();
        let path = self.products.path;
        if let PageView::Halves(view) = view {
            clear_new_pages(steps, layer.layer, view);
        }
        let rows = SharedRows { start: qkv.values_mut().as_mut_ptr(), columns };
        let turn = |row: usize| {
            let (position, table) = tokens[row];
            // SAFETY: a row and its token's keys and values are one thread's. The path is the machine's.
            unsafe {
                let turned = TurnRow {
                    row: rows.part(row, 0..columns),
                    heads: layer.heads,
                    kv_heads: shape.kv_heads,
                    norms: [layer.query_norm, layer.key_norm],
                    angles: &angles[row * width..(row + 1) * width],
                    neighbours: layer.rope.neighbours,
                    pages: view,
                    page: table[position / PAGE_TOKENS],
                    layer: layer.layer,
                    position,
                };
                vectorize(path, turned);
            }
        };
        if tokens.len() <= ROWS_TURNED_ALONE {
            return (0..tokens.len()).for_each(turn);
        }
        self.products.team(pool).each_row(tokens.len(), &turn);
    }

    pub(super) fn attend(
        &mut self,
        pool: &ThreadPool,
        steps: &StepBatch<'_>,
        layer: &Layer<'_>,
        (qkv, pages): (&RowActs, &PackedPages),
        out: &mut RowActs,
    ) {
        let team = Team { path: self.products.path, pool, shares: &self.products.shares };
        self.attention.attend((team, self.products.bytes), (steps, layer), (qkv, pages), out);
    }

    pub(super) fn logits(
        &mut self,
        pool: &ThreadPool,
        steps: &StepBatch<'_>,
        hidden: &RowActs,
        norm: &RmsNorm,
        (head, cap): (&PanelLinear, Option<f32>),
    ) {
        let columns = hidden.columns;
        self.sums.clear();
        for row in steps.logit_rows {
            self.sums.extend_from_slice(&hidden.values()[row * columns..(row + 1) * columns]);
        }
        let inputs = Inputs { values: &self.sums, rows: steps.logit_rows.len(), norm: Some(norm) };
        self.answer.resize(inputs.rows * head.outputs(), 0.0);
        self.products.linear(pool, inputs, head, Columns::of(&mut self.answer, head.outputs()), false);
        if let Some(cap) = cap {
            self.answer.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
        }
    }
}

/// Clears the values of pages that get their first tokens now, and more later.
fn clear_new_pages(steps: &StepBatch<'_>, layer: usize, view: HalfView) {
    for step in steps.steps() {
        let end = step.start + step.rows.len();
        let last_page = end / PAGE_TOKENS;
        if !step.rows.is_empty() && !end.is_multiple_of(PAGE_TOKENS) && last_page * PAGE_TOKENS >= step.start {
            // SAFETY: no thread is at work yet.
            unsafe { view.clear_values(step.pages[last_page], layer) };
        }
    }
}

/// `to += norm(x)`.
struct AddNormed<'a> {
    x: &'a [f32],
    norm: &'a RmsNorm,
    to: &'a mut [f32],
}

impl Kernel for AddNormed<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut normed = vec![0.0; self.x.len()];
        // SAFETY: as the caller's.
        unsafe { rows::normalise::<S>(self.x, Some(self.norm), &mut normed) };
        for (to, normed) in self.to.iter_mut().zip(normed) {
            *to += normed;
        }
    }
}
