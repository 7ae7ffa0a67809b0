//! Attention within each text, a head at a time: scores, softmax, weighted sum of values.
//! Keys and values of a head are laid out like weights, so that the matrix kernels of the path do the products.

use super::activation::Stored;
use super::acts::{Grid, PANEL};
use super::aligned::{Aligned, Plain};
use super::gemm::{Ahead, Bf16Tiles, Keep, Layout, TileBlock, Tiles, VectorBlock, place};
use super::simd::{Element, Kernel, Simd, vectorize};
use super::softmax::{AddBias, SoftmaxRows};
use half::bf16;
use magray_core::CpuPath;
use std::marker::PhantomData;
use std::ops::Range;

/// Queries of a block: two tiles.
pub(super) const QUERY_ROWS: usize = 32;

/// One thread's room for a head of one text.
pub(super) struct HeadScratch<E: Plain> {
    keys: Aligned<E>,
    values: Aligned<E>,
    /// The queries of a block, for heads that do not start at a panel.
    queries: Aligned<E>,
    /// Panels of 32 keys, each `QUERY_ROWS` rows.
    scores: Aligned<f32>,
    weights: Aligned<E>,
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
            scores: Aligned::zeroed(0),
            weights: Aligned::zeroed(0),
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
        self.scores = Aligned::zeroed(QUERY_ROWS * tokens);
        self.weights = Aligned::zeroed(QUERY_ROWS * tokens);
        self.sums = Aligned::zeroed(QUERY_ROWS * width);
        self.room = (tokens, width);
    }
}

/// What runs the products.
pub(super) struct Engine<'a> {
    pub(super) path: CpuPath,
    pub(super) tiles: Option<&'a Tiles>,
}

/// A number format of activations, with the kernels that multiply it.
pub(super) trait Products: Plain + Stored {
    const LAYOUT: Layout;

    /// `c[rows][PANEL] = a[rows][k] * panel`.
    ///
    /// # Safety
    /// As the block kernels: valid pointers, whole tiles of rows, what lies beyond `k` up to a whole step is zero in
    /// the panel and finite in `a`.
    unsafe fn multiply(engine: &Engine<'_>, a: Grid<Self>, rows: usize, k: usize, panel: *const Self, c: *mut f32);

    /// Lays 32 keys out as a panel: `panel[dimension][key]`. Keys beyond the text become zero.
    ///
    /// # Safety
    /// `keys` is valid for the tokens and the panel for `head_size` rounded up to whole steps.
    unsafe fn pack_keys(engine: &Engine<'_>, head: &HeadColumns<Self>, keys: Range<usize>, panel: *mut Self) {
        let _ = engine;
        // SAFETY: as the caller's.
        unsafe { pack_keys_plainly(head, keys, panel) };
    }

    /// Lays 32 dimensions of the values out as a panel: `panel[token][dimension]`, zero beyond.
    ///
    /// # Safety
    /// As above, with `tokens` rounded up to whole panels.
    unsafe fn pack_values(
        engine: &Engine<'_>,
        head: &HeadColumns<Self>,
        tokens: usize,
        first: usize,
        panel: *mut Self,
    ) {
        let _ = engine;
        // SAFETY: as the caller's.
        unsafe { pack_values_plainly(head, tokens, first, panel) };
    }
}

/// # Safety
/// As [`Products::pack_keys`].
unsafe fn pack_keys_plainly<E: Products>(head: &HeadColumns<E>, keys: Range<usize>, panel: *mut E) {
    for k in 0..E::LAYOUT.depth(head.size) {
        for column in 0..PANEL {
            let token = keys.start + column;
            let inside = token < keys.end && k < head.size;
            // SAFETY: inside the head's columns of the text, and inside the panel.
            unsafe {
                *panel.add(place(E::LAYOUT, k, column)) = if inside { *head.at(token, k) } else { E::from_f32(0.0) };
            }
        }
    }
}

/// # Safety
/// As [`Products::pack_values`].
unsafe fn pack_values_plainly<E: Products>(head: &HeadColumns<E>, tokens: usize, first: usize, panel: *mut E) {
    for token in 0..tokens.next_multiple_of(PANEL) {
        for column in 0..PANEL {
            let inside = token < tokens && first + column < head.size;
            // SAFETY: as above.
            unsafe {
                *panel.add(place(E::LAYOUT, token, column)) =
                    if inside { *head.at(token, first + column) } else { E::from_f32(0.0) };
            }
        }
    }
}

impl Products for f32 {
    const LAYOUT: Layout = Layout::F32;

    unsafe fn multiply(engine: &Engine<'_>, a: Grid<Self>, rows: usize, k: usize, panel: *const Self, c: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { vectorize(engine.path, VectorBlock { a, rows, k, panel, next: (std::ptr::null(), 0), c }) };
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn pack_keys(engine: &Engine<'_>, head: &HeadColumns<Self>, keys: Range<usize>, panel: *mut Self) {
        let has_avx512 = matches!(engine.path, CpuPath::Amx | CpuPath::Avx512);
        // SAFETY: the path is available; the caller's promise for the rest.
        unsafe {
            if has_avx512 && head.is_aligned() {
                super::pack_tiles::keys_f32(head, keys, panel);
            } else {
                pack_keys_plainly(head, keys, panel);
            }
        }
    }

    unsafe fn pack_values(_: &Engine<'_>, head: &HeadColumns<Self>, tokens: usize, first: usize, panel: *mut Self) {
        if !head.is_aligned() {
            // SAFETY: the caller's promise.
            return unsafe { pack_values_plainly(head, tokens, first, panel) };
        }
        // Rows of a panel of values are those of a panel of weights; products read no more of them than there are tokens.
        // SAFETY: the text's rows of one panel, end to end; the caller's promise for the other side.
        unsafe { panel.copy_from_nonoverlapping(head.at(0, first), tokens * PANEL) };
    }
}

impl Products for bf16 {
    const LAYOUT: Layout = Layout::Bf16Tiles;

    unsafe fn multiply(engine: &Engine<'_>, a: Grid<Self>, rows: usize, k: usize, panel: *const Self, c: *mut f32) {
        let tiles = engine.tiles.expect("bf16 activations live on the AMX path, which configures its tiles first");
        let block = TileBlock::<Bf16Tiles> {
            kind: PhantomData,
            a: a.row(0, 0).cast_const().cast(),
            a_stride: a.stride * 2,
            keep_rows: Keep::Near,
            rows,
            steps: Self::LAYOUT.depth(k) / PANEL,
            panel: panel.cast(),
            ahead: Ahead::nothing(),
            fetches: 0,
            c: c.cast(),
        };
        // SAFETY: the caller's promise.
        unsafe { block.run(tiles) };
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn pack_keys(_: &Engine<'_>, head: &HeadColumns<Self>, keys: Range<usize>, panel: *mut Self) {
        // SAFETY: bf16 activations live on the AMX path, which has AVX-512; the caller's promise for the rest.
        unsafe { super::pack_tiles::keys(head, keys, panel) };
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn pack_values(_: &Engine<'_>, head: &HeadColumns<Self>, tokens: usize, first: usize, panel: *mut Self) {
        // SAFETY: as above.
        unsafe { super::pack_tiles::values(head, tokens, first, panel) };
    }
}

/// The columns of one head in the queries, keys or values of one text.
pub(super) struct HeadColumns<E> {
    /// From the text's first token on.
    pub(super) grid: Grid<E>,
    pub(super) column: usize,
    pub(super) size: usize,
}

impl<E> HeadColumns<E> {
    pub(super) fn at(&self, token: usize, dimension: usize) -> *const E {
        self.grid.at(token, self.column + dimension)
    }

    /// Whether the head's columns are whole panels.
    pub(super) fn is_aligned(&self) -> bool {
        self.column.is_multiple_of(PANEL) && self.size.is_multiple_of(PANEL)
    }

    /// The panels of an aligned head, from this token on.
    fn panels(&self, token: usize) -> Grid<E> {
        Grid::new(self.grid.row(token, self.column / PANEL), self.grid.stride)
    }
}

/// One head of one text.
pub(super) struct Head<E> {
    pub(super) queries: HeadColumns<E>,
    pub(super) keys: HeadColumns<E>,
    pub(super) values: HeadColumns<E>,
    pub(super) out: HeadColumns<E>,
    pub(super) tokens: usize,
}

impl<E: Products> Head<E> {
    /// Computes some of the queries; `bias` gives the row of biases of a query.
    ///
    /// # Safety
    /// The columns are valid for the text, the queries' for whole tiles beyond it; the path is available; nobody else
    /// writes these rows of the head.
    pub(super) unsafe fn run<'b>(
        &self,
        engine: &Engine<'_>,
        queries: Range<usize>,
        bias: &dyn Fn(usize) -> Option<&'b [f32]>,
        scratch: &mut HeadScratch<E>,
    ) {
        let size = self.queries.size;
        let padded = self.tokens.next_multiple_of(PANEL);
        let width = size.next_multiple_of(PANEL);
        assert!(scratch.room.0 >= padded && scratch.room.1 >= width, "the scratch was sized for the batch");
        let (key_panel, value_panel) = (E::LAYOUT.depth(size) * PANEL, padded * PANEL);
        let block = QUERY_ROWS * PANEL;
        let weights = Grid::new(scratch.weights.as_mut_ptr(), block);
        // SAFETY: all pointers stay inside the text's rows and the scratch, whose room was checked.
        unsafe {
            for panel in 0..padded / PANEL {
                let keys = panel * PANEL..self.tokens.min((panel + 1) * PANEL);
                E::pack_keys(engine, &self.keys, keys, scratch.keys.as_mut_ptr().add(panel * key_panel));
            }
            for panel in 0..width / PANEL {
                let to = scratch.values.as_mut_ptr().add(panel * value_panel);
                E::pack_values(engine, &self.values, self.tokens, panel * PANEL, to);
            }
            for from in queries.clone().step_by(QUERY_ROWS) {
                let rows = QUERY_ROWS.min(queries.end - from);
                let a = self.query_rows(from, rows, scratch);
                for panel in 0..padded / PANEL {
                    let keys = scratch.keys.as_ptr().add(panel * key_panel);
                    E::multiply(engine, a, rows, size, keys, scratch.scores.as_mut_ptr().add(panel * block));
                }
                let (scores, scale) = (Grid::new(scratch.scores.as_mut_ptr(), block), 1.0 / (size as f32).sqrt());
                for row in 0..rows {
                    if let Some(bias) = bias(from + row) {
                        vectorize(engine.path, AddBias { scores, row, panels: padded / PANEL, bias, scale });
                    }
                }
                let mut inverse = [0.0; QUERY_ROWS];
                let inverses = &mut inverse[..rows];
                vectorize(engine.path, SoftmaxRows { scores, weights, tokens: self.tokens, scale, inverses });
                for panel in 0..width / PANEL {
                    let values = scratch.values.as_ptr().add(panel * value_panel);
                    let sums = scratch.sums.as_mut_ptr().add(panel * block);
                    E::multiply(engine, weights, rows, self.tokens, values, sums);
                }
                self.write(engine.path, from, &inverse[..rows], &scratch.sums);
            }
        }
    }

    /// The queries as panels: in place where the head is aligned, else copied.
    unsafe fn query_rows(&self, from: usize, rows: usize, scratch: &mut HeadScratch<E>) -> Grid<E> {
        if self.queries.is_aligned() {
            return self.queries.panels(from);
        }
        let copy = Grid::new(scratch.queries.as_mut_ptr(), QUERY_ROWS * PANEL);
        for row in 0..rows {
            for d in 0..self.queries.size.next_multiple_of(PANEL) {
                let inside = d < self.queries.size;
                // SAFETY: inside the head's columns of the text and the scratch.
                unsafe { *copy.at(row, d) = if inside { *self.queries.at(from + row, d) } else { E::from_f32(0.0) } };
            }
        }
        copy
    }

    /// Puts rows of sums, each scaled, into the head's columns.
    unsafe fn write(&self, path: CpuPath, from: usize, scales: &[f32], sums: &[f32]) {
        if self.out.is_aligned() {
            for panel in 0..self.out.size / PANEL {
                let sums = sums[panel * QUERY_ROWS * PANEL..].as_ptr();
                let out = self.out.panels(from).row(0, panel);
                // SAFETY: a panel of the head's rows, which are this thread's alone.
                unsafe { vectorize(path, ScaleRows { sums, scales, out }) };
            }
            return;
        }
        for (row, &scale) in scales.iter().enumerate() {
            for d in 0..self.out.size {
                let x = sums[(d / PANEL * QUERY_ROWS + row) * PANEL + d % PANEL];
                // SAFETY: inside the head's columns of the row.
                unsafe { *self.out.at(from + row, d).cast_mut() = E::from_f32(x * scale) };
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
