//! Matrix products on vectors: f32 activations against weights stored as f32, bf16 or int8, widened as they are read.
//! Knows nothing of biases, scales or threads.

use super::ahead::Ahead;
use crate::cpu::acts::{Grid, PANEL};
use crate::cpu::aligned::LINE_BYTES;
use crate::cpu::simd::{Kernel, Simd};
use half::bf16;
use std::ops::Range;

/// A weight that widens to a float.
pub(in crate::cpu) trait Weight: Copy {
    /// # Safety
    /// As [`Simd::load`].
    unsafe fn widen<S: Simd>(p: *const Self) -> S::F;
}

impl Weight for f32 {
    #[inline(always)]
    unsafe fn widen<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: as the caller's.
        unsafe { S::load(p) }
    }
}

impl Weight for bf16 {
    #[inline(always)]
    unsafe fn widen<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: as the caller's.
        unsafe { S::load_bf16(p) }
    }
}

impl Weight for i8 {
    #[inline(always)]
    unsafe fn widen<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: as the caller's.
        unsafe { S::load_i8(p) }
    }
}

/// `c[rows][PANEL] = a[rows][k] * panel[k][PANEL]`.
pub(in crate::cpu) struct VectorBlock<'a, W> {
    pub(in crate::cpu) a: Grid<f32>,
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) k: usize,
    pub(in crate::cpu) panel: *const W,
    /// Weights that follow, prefetched into the second cache meanwhile: their start and bytes. Any address is allowed.
    pub(in crate::cpu) next: (*const u8, usize),
    pub(in crate::cpu) c: *mut f32,
    /// Called for rows whose sums are complete, while these are still in the cache.
    pub(in crate::cpu) done: &'a dyn Fn(Range<usize>),
}

/// Depth of a slice of the product: 128 x 32 floats of the panel (16 KiB) stay in the first cache, beside two tiles of
/// rows and their sums.
const DEPTH: usize = 128;

impl<W: Weight> Kernel for VectorBlock<'_, W> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let tiles = self.rows.div_ceil(S::TILE_ROWS).max(1);
        let (next, bytes) = self.next;
        // The first tiles of each slice fetch a line a column.
        let fetching = bytes.div_ceil(LINE_BYTES * self.k.max(1)).min(tiles);
        let mut ahead = Ahead::new(next, bytes, fetching * self.k);
        let mut from = 0;
        while from < self.k {
            let depth = DEPTH.min(self.k - from);
            for index in 0..tiles {
                // Equal tiles waste less than full ones and a small rest.
                let (row, end) = (self.rows * index / tiles, self.rows * (index + 1) / tiles);
                let mut column = 0;
                while column < PANEL {
                    // SAFETY: the tile lies inside the block, whose pointers the caller promised.
                    unsafe {
                        let tile = Tile {
                            a: self.a.row(row, from / PANEL),
                            a_stride: self.a.stride,
                            depth,
                            panel: self.panel.add(from * PANEL + column),
                            c: self.c.add(row * PANEL + column),
                            accumulate: from > 0,
                        };
                        if index < fetching {
                            tile.run_rows::<S, true>(end - row, &mut ahead);
                        } else {
                            tile.run_rows::<S, false>(end - row, &mut ahead);
                        }
                    }
                    column += 2 * S::LANES;
                }
                if from + depth == self.k {
                    (self.done)(row..end);
                }
            }
            from += depth;
        }
    }
}

struct Tile<W> {
    a: *const f32,
    a_stride: usize,
    depth: usize,
    panel: *const W,
    c: *mut f32,
    accumulate: bool,
}

impl<W: Weight> Tile<W> {
    /// # Safety
    /// `rows <= S::TILE_ROWS`, and the tile's pointers are valid for it.
    #[inline(always)]
    unsafe fn run_rows<S: Simd, const FETCH: bool>(&self, rows: usize, ahead: &mut Ahead) {
        macro_rules! pick {
            ($($n:literal)*) => {
                match rows {
                    // SAFETY: as the caller's.
                    $($n if $n <= S::TILE_ROWS => unsafe { self.multiply::<S, $n, FETCH>(ahead) },)*
                    _ => unreachable!("a tile has at most TILE_ROWS rows"),
                }
            };
        }
        pick!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
    }

    /// Two vectors a row, all sums in registers.
    #[inline(always)]
    unsafe fn multiply<S: Simd, const ROWS: usize, const FETCH: bool>(&self, ahead: &mut Ahead) {
        // SAFETY: the caller's pointers are valid for ROWS rows, `depth` deep, two vectors wide.
        unsafe {
            let mut sums = [[S::splat(0.0); 2]; ROWS];
            if self.accumulate {
                for (r, sum) in sums.iter_mut().enumerate() {
                    let c = self.c.add(r * PANEL);
                    *sum = [S::load(c), S::load(c.add(S::LANES))];
                }
            }
            let (mut a, mut b) = (self.a, self.panel);
            let mut line = ahead.line();
            let mut left = self.depth;
            while left > 0 {
                let deep = left.min(PANEL);
                for k in 0..deep {
                    let first = W::widen::<S>(b);
                    let second = W::widen::<S>(b.add(S::LANES));
                    for (r, sum) in sums.iter_mut().enumerate() {
                        let x = S::splat(*a.add(r * PANEL + k));
                        sum[0] = S::fma(x, first, sum[0]);
                        sum[1] = S::fma(x, second, sum[1]);
                    }
                    // The next tile's rows follow in memory: two lines a row, so a line a column is a little too much.
                    if S::FETCHES {
                        S::fetch_near(a.wrapping_add(ROWS * PANEL + k * (LINE_BYTES / size_of::<f32>())));
                    }
                    if FETCH {
                        line = ahead.fetch::<S>(line);
                    }
                    b = b.add(PANEL);
                }
                a = a.wrapping_add(self.a_stride);
                left -= deep;
            }
            if FETCH {
                ahead.go_on_from(line);
            }
            for (r, sum) in sums.iter().enumerate() {
                let c = self.c.add(r * PANEL);
                S::store(c, sum[0]);
                S::store(c.add(S::LANES), sum[1]);
            }
        }
    }
}
