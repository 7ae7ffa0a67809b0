//! A thread's part of a product on tiles: block after block, each finished while the next is multiplied.
//!
//! All blocks are one loop in one function. When each was a call, what was handed over went through memory right behind
//! the sums, and the next block waited until those had reached the cache: a pass took 5 % longer.

use super::ahead::Ahead;
use super::blocks::{BlockIndex, Blocks};
use super::finish::{Ending, Finish, FinishRow, Finishing, RowsOf, choose};
use super::tile_registers::Keep;
use super::tiles::{BLOCK_ROWS, PANEL_STEP_BYTES, STEP_BYTES, TileBlock, TileSums, step_products};
use crate::cpu::activation::Stored;
use crate::cpu::aligned::LINE_BYTES;
use crate::cpu::simd::{Element, Kernel, Simd};
use std::marker::PhantomData;

/// Blocks of rows by panels of weights.
pub(super) struct TileProduct<T, R, E, I> {
    pub(super) kind: PhantomData<T>,
    /// The first of all rows, and how many bytes the rows of the next step lie on.
    pub(super) a: *const u8,
    pub(super) a_stride: usize,
    pub(super) steps: usize,
    /// The first of all panels.
    pub(super) panels: *const u8,
    pub(super) blocks: Blocks<I>,
    pub(super) ending: Ending<R, E>,
    /// Sums of two blocks, used in turn.
    pub(super) sums: [*mut f32; 2],
}

impl<T: TileSums, R: Element, E: Stored, I: Iterator<Item = usize>> Kernel for TileProduct<T, R, E, I> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (activation, adds) = (self.ending.target.activation, self.ending.target.residual.is_some());
        // SAFETY: as the caller's.
        unsafe { choose::<S, R, E, _>(activation, adds, self) }
    }
}

impl<T: TileSums, R: Element, E: Stored, I: Iterator<Item = usize>> Finishing<R, E> for TileProduct<T, R, E, I> {
    #[inline(always)]
    unsafe fn run<S: Simd, F: FinishRow<R, E>>(self) {
        let Self { a, a_stride, steps, panels, ending, mut sums, .. } = self;
        // A single block meets every panel, and each panel it alone.
        let blocks = self.blocks.blocks_a_panel();
        let keep_rows = if blocks == 1 { Keep::Near } else { Keep::Far };
        // The blocks that meet a panel fetch the panel that follows, an equal part each.
        let products = steps * step_products(self.blocks.rows());
        let bytes = steps * PANEL_STEP_BYTES;
        let fetches = bytes.div_ceil(LINE_BYTES * products * blocks.max(1));
        let lines = products * fetches;
        let ahead = Ahead::new(std::ptr::null(), bytes, blocks * lines);
        let mut before = Finish::nothing();
        for at in self.blocks {
            let BlockIndex { panel, from, rows } = at;
            let panel = panels.wrapping_add(panel * bytes);
            let ahead = ahead.of(panel.wrapping_add(bytes)).after(from / BLOCK_ROWS * lines);
            let (a, c) = (a.wrapping_add(from * STEP_BYTES), sums[0].cast());
            let block =
                TileBlock::<T> { kind: PhantomData, a, a_stride, keep_rows, rows, steps, panel, ahead, fetches, c };
            // SAFETY: the caller vouches for rows, panels and sums.
            unsafe { block.weave::<S, _>(&RowsOf::<T::Sums, F, R, E>::new(&before)) };
            before = ending.block(at, sums[0]);
            sums.swap(0, 1);
        }
        // SAFETY: as above.
        unsafe { before.finish::<S, T::Sums, F>() }
    }
}
