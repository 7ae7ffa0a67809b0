//! Matrix products on AMX tiles: bf16 pairs or int8 quadruples against packed panels, sums in 32 bits.
//! Finishes the block before it meanwhile, and knows nothing of how.

use super::ahead::Ahead;
use super::beside::Beside;
use super::finish::{Integer, Read, Ready};
use super::tile_registers::{
    Bf16Tiles, Keep, TILE_BYTES, TILE_ROW_BYTES, TILE_ROWS, TileKind, U8I8Tiles, load, store, zero,
};
use crate::cpu::acts::{PANEL, ROWS_READ_BEYOND};
use crate::cpu::simd::{Kernel, Simd};
use std::marker::PhantomData;

const ELEMENT_BYTES_C: usize = 4;

/// Bytes of `a` that one step along `k` takes from each row: 32 bf16 or 64 bytes.
pub(in crate::cpu) const STEP_BYTES: usize = TILE_ROW_BYTES;
/// Bytes of a panel for one step: two tiles.
pub(in crate::cpu) const PANEL_STEP_BYTES: usize = 2 * TILE_BYTES;
/// Rows of a block: the sums of two tiles of rows are 4 KiB, which stay in the first cache until they are finished.
pub(in crate::cpu) const BLOCK_ROWS: usize = 2 * TILE_ROWS;
const _: () = assert!(ROWS_READ_BEYOND == 2 * TILE_ROWS, "buffers end with whole tiles");
/// Steps of a panel that stay in the first cache (24 KiB of its 48) from block to block. More would drive each other
/// out before they are read again, and the sums with them.
const STEPS_KEPT: usize = 12;

/// `c[rows][PANEL] = a[rows][steps] * panel`.
pub(in crate::cpu) struct TileBlock<T> {
    pub(in crate::cpu) kind: PhantomData<T>,
    /// Rows of 64 bytes, end to end; the next step's rows lie `a_stride` bytes on.
    pub(in crate::cpu) a: *const u8,
    pub(in crate::cpu) a_stride: usize,
    /// `Near` where the same rows meet panel after panel, and each panel once.
    pub(in crate::cpu) keep_rows: Keep,
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) steps: usize,
    pub(in crate::cpu) panel: *const u8,
    /// Weights that follow, fetched into the second cache meanwhile.
    pub(in crate::cpu) ahead: Ahead,
    /// Lines of them that each product fetches.
    pub(in crate::cpu) fetches: usize,
    /// 32-bit sums, floats or integers by `kind`.
    pub(in crate::cpu) c: *mut u8,
}

/// Products of a step with this many rows, at most a block.
pub(super) fn step_products(rows: usize) -> usize {
    if rows > TILE_ROWS { 4 } else { 2 }
}

/// What the sums of a kind of tiles are.
pub(super) trait TileSums: TileKind {
    type Sums: Read;
}

impl TileSums for Bf16Tiles {
    type Sums = Ready;
}

impl TileSums for U8I8Tiles {
    type Sums = Integer;
}

struct Nothing;

impl Beside for Nothing {
    #[inline(always)]
    fn count(&self) -> usize {
        0
    }

    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, _: usize) {}
}

impl<T: TileKind> Kernel for TileBlock<T> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: as the caller's.
        unsafe { self.weave::<S, Nothing>(&Nothing) }
    }
}

impl<T: TileKind> TileBlock<T> {
    /// Multiplies and finishes the rows of another block.
    ///
    /// # Safety
    /// `a` and `c` are valid for `rows` rounded up to whole tiles, `panel` for `steps`; the tiles are configured; what
    /// the rows ask for.
    #[inline(always)]
    pub(in crate::cpu) unsafe fn weave<S: Simd, W: Beside>(self, rows: &W) {
        const { assert!(PANEL == 2 * TILE_ROW_BYTES / ELEMENT_BYTES_C) }
        assert!(self.rows <= BLOCK_ROWS && self.steps > 0, "a block is two tiles of rows");
        // SAFETY: the caller's promise.
        unsafe {
            if self.rows > TILE_ROWS { self.multiply::<S, W, true>(rows) } else { self.multiply::<S, W, false>(rows) }
        }
    }
}

/// Where a product has got to.
struct Cursor {
    step: usize,
    a: *const u8,
    panel: *const u8,
    fetched: *const u8,
}

impl<T: TileKind> TileBlock<T> {
    /// Multiplies and finishes the other block's rows, one between two products: the tiles have a unit of their own. A
    /// core looks only so far ahead, so the two must alternate closely, and without branches that it could guess wrong.
    /// While products are under way, one port of two is left to the vectors: rows beyond that are finished behind them.
    #[inline(always)]
    unsafe fn multiply<S: Simd, W: Beside, const TALL: bool>(&self, others: &W) {
        let mut cursor = Cursor { step: 0, a: self.a, panel: self.panel, fetched: self.ahead.line() };
        // SAFETY: the block's pointers are valid for all steps, whole tiles of rows and two tiles of columns.
        unsafe {
            zero::<0>();
            zero::<1>();
            if TALL {
                zero::<2>();
                zero::<3>();
            }
            let rows_a_step = if TALL { 3 } else { 2 };
            let steps = self.steps.min(others.count() / rows_a_step);
            while cursor.step < steps {
                let row = cursor.step * rows_a_step;
                self.step::<S, W, TALL>(&mut cursor, others, row);
            }
            for row in steps * rows_a_step..others.count() {
                others.finish::<S>(row);
            }
            while cursor.step < self.steps {
                self.step::<S, Nothing, TALL>(&mut cursor, &Nothing, 0);
            }
            const C_ROW_BYTES: usize = PANEL * ELEMENT_BYTES_C;
            store::<0>(self.c, C_ROW_BYTES);
            store::<1>(self.c.add(TILE_ROW_BYTES), C_ROW_BYTES);
            if TALL {
                let lower = self.c.add(TILE_ROWS * C_ROW_BYTES);
                store::<2>(lower, C_ROW_BYTES);
                store::<3>(lower.add(TILE_ROW_BYTES), C_ROW_BYTES);
            }
        }
    }

    /// Four products from two tiles of `a` and two of the panel, so that each load feeds two; or two, where there are
    /// 16 rows or fewer. Behind each but the fourth it finishes a row of the other block, from `row` on.
    #[inline(always)]
    unsafe fn step<S: Simd, W: Beside, const TALL: bool>(&self, cursor: &mut Cursor, others: &W, row: usize) {
        let Cursor { step, a, panel, .. } = *cursor;
        let keep = if step < STEPS_KEPT { Keep::Near } else { self.keep_rows };
        // SAFETY: as the caller's.
        unsafe {
            load::<6>(panel, keep);
            load::<4>(a, self.keep_rows);
            T::multiply_add::<0, 4, 6>();
            self.fetch::<S>(cursor);
            others.finish::<S>(row);
            load::<7>(panel.add(TILE_BYTES), keep);
            T::multiply_add::<1, 4, 7>();
            self.fetch::<S>(cursor);
            others.finish::<S>(row + 1);
            if TALL {
                load::<5>(a.add(TILE_BYTES), self.keep_rows);
                T::multiply_add::<2, 5, 6>();
                self.fetch::<S>(cursor);
                others.finish::<S>(row + 2);
                T::multiply_add::<3, 5, 7>();
                self.fetch::<S>(cursor);
            }
        }
        cursor.step = step + 1;
        cursor.a = a.wrapping_add(self.a_stride);
        cursor.panel = panel.wrapping_add(PANEL_STEP_BYTES);
    }

    /// Fetches what belongs to a product. Many fetches in a row would keep the products' own reads waiting.
    #[inline(always)]
    unsafe fn fetch<S: Simd>(&self, cursor: &mut Cursor) {
        for _ in 0..self.fetches {
            // SAFETY: a hint.
            cursor.fetched = unsafe { self.ahead.fetch::<S>(cursor.fetched) };
        }
    }
}
