//! Attention within each text, a head at a time: scores, softmax, weighted sum of values.
//! Keys and values of a head are laid out like weights, so that the matrix kernels of the path do the products.

use super::activation::Stored;
use super::acts::{Grid, PANEL};
use super::aligned::{Aligned, Plain};
use super::head_columns::HeadColumns;
use super::products::{Product, Products};
use super::simd::{Element, Kernel, Simd};
use super::softmax::{AddBias, Softmax};
use crate::DistanceBias;
use magray_core::CpuPath;
use std::ops::Range;

/// Queries of a block: two tiles.
pub(super) const QUERY_ROWS: usize = 32;

/// One thread's buffers for the blocks in progress.
pub(super) struct HeadScratch<E: Plain> {
    keys: Aligned<E>,
    values: Aligned<E>,
    /// The queries of a block, for heads that do not start at a panel.
    queries: Aligned<E>,
    /// Panels of 32 keys, each `QUERY_ROWS` rows; of two blocks, used in turn.
    scores: [Aligned<f32>; 2],
    /// As many, of two blocks as well.
    weights: [Aligned<E>; 2],
    /// Panels of 32 dimensions.
    sums: Aligned<f32>,
    /// Tokens and dimensions there is room for.
    room: (usize, usize),
}

impl<E: Plain> HeadScratch<E> {
    pub(super) fn new() -> Self {
        Self {
            keys: Aligned::zeroed(0),
            values: Aligned::zeroed(0),
            queries: Aligned::zeroed(0),
            scores: [Aligned::zeroed(0), Aligned::zeroed(0)],
            weights: [Aligned::zeroed(0), Aligned::zeroed(0)],
            sums: Aligned::zeroed(0),
            room: (0, 0),
        }
    }

    pub(super) fn resize(&mut self, longest: usize, head_size: usize) {
        if self.room.0 >= longest && self.room.1 >= head_size {
            return;
        }
        let tokens = longest.max(self.room.0).next_power_of_two().max(PANEL);
        let width = head_size.max(self.room.1).next_multiple_of(PANEL);
        self.keys = Aligned::zeroed(tokens * width);
        self.values = Aligned::zeroed(tokens * width);
        self.queries = Aligned::zeroed(QUERY_ROWS * width);
        self.scores = [Aligned::zeroed(QUERY_ROWS * tokens), Aligned::zeroed(QUERY_ROWS * tokens)];
        self.weights = [Aligned::zeroed(QUERY_ROWS * tokens), Aligned::zeroed(QUERY_ROWS * tokens)];
        self.sums = Aligned::zeroed(QUERY_ROWS * width);
        self.room = (tokens, width);
    }

    fn scores(&mut self, turn: usize) -> Grid<f32> {
        Grid::new(self.scores[turn].as_mut_ptr(), QUERY_ROWS * PANEL)
    }

    fn weights(&mut self, turn: usize) -> Grid<E> {
        Grid::new(self.weights[turn].as_mut_ptr(), QUERY_ROWS * PANEL)
    }
}

/// A block of queries of one head of one text.
#[derive(Clone, Copy)]
pub(super) struct Queries {
    pub(super) head: usize,
    /// The text's first token in the batch, and how many it has.
    pub(super) start: usize,
    pub(super) tokens: usize,
    /// The queries within the text.
    pub(super) from: usize,
    pub(super) rows: usize,
}

impl Queries {
    const NONE: Self = Self { head: usize::MAX, start: usize::MAX, tokens: 1, from: 0, rows: 0 };

    fn is_none(&self) -> bool {
        self.rows == 0
    }

    /// Whether both need the same keys and values.
    fn is_beside(&self, other: &Self) -> bool {
        (self.head, self.start) == (other.head, other.start)
    }
}

/// Blocks of queries, those of a head one after the other.
///
/// A block needs products, then a softmax, then products of its weights. Each waits for the one before, and what was just
/// written cannot be read as tiles for a while. So three blocks are in hand at a time, and one's softmax runs between
/// the products of the next and those of the one before. All is one function: what is handed from call to call
/// would wait for the sums as well.
pub(super) struct Attention<'a, E: Plain, I> {
    pub(super) path: CpuPath,
    /// Queries, keys and values side by side, each as many columns as `out` has.
    pub(super) qkv: Grid<E>,
    pub(super) out: Grid<E>,
    pub(super) columns: usize,
    pub(super) head_size: usize,
    pub(super) bias: Option<&'a DistanceBias>,
    pub(super) blocks: I,
    pub(super) scratch: &'a mut HeadScratch<E>,
}

impl<E: Products, I: Iterator<Item = Queries>> Kernel for Attention<'_, E, I> {
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let mut inverses = [[0.0; QUERY_ROWS]; 2];
        let (mut before, mut here) = (Queries::NONE, Queries::NONE);
        let mut turn = 0;
        loop {
            let next = self.blocks.next().unwrap_or(Queries::NONE);
            // SAFETY: the caller vouches for texts and scratch; no other thread has these blocks.
            unsafe {
                if !next.is_none() && !next.is_beside(&here) {
                    self.lay_keys(next);
                }
                self.add_bias::<S>(here, 1 - turn);
                let softmax = self.softmax(here, 1 - turn, inverses[1 - turn].as_mut_ptr());
                let products = self.head_size.div_ceil(PANEL) + next.tokens.div_ceil(PANEL);
                let mut rows = SoftmaxRows { softmax: &softmax, rows: 0..here.rows, products };
                if !before.is_none() {
                    self.sum::<S>(before, turn, &mut rows);
                }
                if !here.is_none() && !here.is_beside(&before) {
                    self.lay_values(here);
                }
                if !next.is_none() {
                    self.score::<S>(next, turn, &mut rows);
                }
                rows.products = 1;
                rows.go_on::<S>();
                if !before.is_none() {
                    self.write::<S>(before, &inverses[turn]);
                }
            }
            if next.is_none() && here.is_none() {
                return;
            }
            (before, here) = (here, next);
            turn = 1 - turn;
        }
    }
}

/// Rows of a block's softmax that are left to do, between products of other blocks.
struct SoftmaxRows<'a, E> {
    softmax: &'a Softmax<E>,
    rows: Range<usize>,
    /// Products that are still to come.
    products: usize,
}

impl<E: Stored> SoftmaxRows<'_, E> {
    /// Does an equal part of what is left, after each product.
    #[inline(always)]
    unsafe fn go_on<S: Simd>(&mut self) {
        let end = self.rows.start + self.rows.len().div_ceil(self.products.max(1));
        self.products = self.products.saturating_sub(1);
        // SAFETY: as the caller's.
        unsafe { self.softmax.rows::<S>(self.rows.start..end) };
        self.rows.start = end;
    }
}

impl<E: Products, I> Attention<'_, E, I> {
    /// A head's columns of the queries (0), keys (1) or values (2).
    #[inline(always)]
    fn head(&self, of: Queries, which: usize) -> HeadColumns<E> {
        let column = which * self.columns + of.head * self.head_size;
        HeadColumns { grid: self.qkv.starting_at(of.start), column, size: self.head_size }
    }

    fn key_panel(&self) -> usize {
        E::LAYOUT.depth(self.head_size) * PANEL
    }

    fn value_panel(&self, tokens: usize) -> usize {
        tokens.next_multiple_of(PANEL) * PANEL
    }

    unsafe fn lay_keys(&mut self, of: Queries) {
        let (tokens, width) = self.scratch.room;
        assert!(tokens >= of.tokens && width >= self.head_size, "the scratch was sized for the batch");
        let columns = self.head(of, 1);
        for (panel, first) in (0..of.tokens).step_by(PANEL).enumerate() {
            let tokens = first..of.tokens.min(first + PANEL);
            // SAFETY: all pointers stay inside the text's rows and the scratch, whose room was checked.
            unsafe {
                let to = self.scratch.keys.as_mut_ptr().add(panel * self.key_panel());
                E::pack_keys(self.path, &columns, tokens, to);
            }
        }
    }

    unsafe fn lay_values(&mut self, of: Queries) {
        let columns = self.head(of, 2);
        for (panel, first) in (0..self.head_size).step_by(PANEL).enumerate() {
            // SAFETY: as above.
            unsafe {
                let to = self.scratch.values.as_mut_ptr().add(panel * self.value_panel(of.tokens));
                E::pack_values(self.path, &columns, of.tokens, first, to);
            }
        }
    }

    #[inline(always)]
    unsafe fn score<S: Simd>(&mut self, of: Queries, turn: usize, others: &mut SoftmaxRows<'_, E>) {
        let scores = self.scratch.scores(turn);
        // SAFETY: as above.
        unsafe {
            let a = self.query_rows(of);
            for at in 0..of.tokens.div_ceil(PANEL) {
                let panel = self.scratch.keys.as_ptr().add(at * self.key_panel());
                let product = Product { a, rows: of.rows, k: self.head_size, panel, c: scores.row(0, at) };
                E::multiply::<S>(product);
                others.go_on::<S>();
            }
        }
    }

    #[inline(always)]
    unsafe fn add_bias<S: Simd>(&mut self, of: Queries, turn: usize) {
        let Some(bias) = self.bias else { return };
        for row in 0..of.rows {
            let bias = bias.row(of.head, of.from + row, of.tokens);
            let (scores, panels) = (self.scratch.scores(turn), of.tokens.div_ceil(PANEL));
            // SAFETY: as above.
            unsafe { AddBias { scores, row, panels, bias, scale: self.scale() }.run::<S>() };
        }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_size as f32).sqrt()
    }

    /// Turns scores into weights, up to a factor for each query.
    #[inline(always)]
    fn softmax(&mut self, of: Queries, turn: usize, inverses: *mut f32) -> Softmax<E> {
        Softmax::new(self.scratch.scores(turn), self.scratch.weights(turn), of.tokens, self.scale(), inverses)
    }

    #[inline(always)]
    unsafe fn sum<S: Simd>(&mut self, of: Queries, turn: usize, others: &mut SoftmaxRows<'_, E>) {
        for at in 0..self.head_size.div_ceil(PANEL) {
            // SAFETY: as above.
            unsafe {
                let panel = self.scratch.values.as_ptr().add(at * self.value_panel(of.tokens));
                let c = self.scratch.sums.as_mut_ptr().add(at * QUERY_ROWS * PANEL);
                let product = Product { a: self.scratch.weights(turn), rows: of.rows, k: of.tokens, panel, c };
                E::multiply::<S>(product);
                others.go_on::<S>();
            }
        }
    }

    /// The queries as panels: in place where the head is aligned, else copied.
    #[inline(always)]
    unsafe fn query_rows(&mut self, of: Queries) -> Grid<E> {
        let queries = self.head(of, 0);
        if queries.is_aligned() {
            return queries.panels(of.from);
        }
        let copy = Grid::new(self.scratch.queries.as_mut_ptr(), QUERY_ROWS * PANEL);
        for row in 0..of.rows {
            for d in 0..queries.size.next_multiple_of(PANEL) {
                let inside = d < queries.size;
                // SAFETY: inside the head's columns of the text and the scratch.
                unsafe { *copy.at(row, d) = if inside { *queries.at(of.from + row, d) } else { E::from_f32(0.0) } };
            }
        }
        copy
    }

    /// Puts the sums, each row times its factor, into the head's columns.
    #[inline(always)]
    unsafe fn write<S: Simd>(&mut self, of: Queries, scales: &[f32]) {
        let (scales, sums) = (&scales[..of.rows], &self.scratch.sums);
        let column = of.head * self.head_size;
        let out = HeadColumns { grid: self.out.starting_at(of.start), column, size: self.head_size };
        if out.is_aligned() {
            for panel in 0..out.size / PANEL {
                let sums = sums[panel * QUERY_ROWS * PANEL..].as_ptr();
                let out = out.panels(of.from).row(0, panel);
                // SAFETY: a panel of the head's rows, which are this thread's alone.
                unsafe { ScaleRows { sums, scales, out }.run::<S>() };
            }
            return;
        }
        for (row, &scale) in scales.iter().enumerate() {
            for d in 0..out.size {
                let x = sums[(d / PANEL * QUERY_ROWS + row) * PANEL + d % PANEL];
                // SAFETY: inside the head's columns of the row.
                unsafe { *out.at(of.from + row, d).cast_mut() = E::from_f32(x * scale) };
            }
        }
    }
}

/// One panel of rows, each times its scale.
struct ScaleRows<'a, E> {
    sums: *const f32,
    scales: &'a [f32],
    out: *mut E,
}

impl<E: Element> Kernel for ScaleRows<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (row, &scale) in self.scales.iter().enumerate() {
            for c in (row * PANEL..(row + 1) * PANEL).step_by(S::LANES) {
                // SAFETY: a row of the panel on both sides.
                unsafe { E::store::<S>(self.out.add(c), S::mul(S::load(self.sums.add(c)), S::splat(scale))) };
            }
        }
    }
}
