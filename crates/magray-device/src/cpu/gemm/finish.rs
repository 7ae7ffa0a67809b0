//! Finishes a block of a product: scales, adds bias and residual, applies the activation, stores.
//! Runs while the block is still near the core, alone or woven into the product of the next block.

use super::tile_registers::{Bf16Tiles, TileKind, U8I8Tiles};
use super::tiles::TileBlock;
use crate::cpu::activation::{Function, Gelu, GeluTanh, Identity, Relu, Silu, Stored, Tanh};
use crate::cpu::acts::PANEL;
use crate::cpu::simd::{Element, Kernel, Simd};
use magray_core::Activation;
use std::marker::PhantomData;

/// What the sums of a block are.
#[derive(Clone, Copy)]
pub(in crate::cpu) enum Sums {
    /// Floats, ready.
    Ready,
    /// Floats of products with quantised weights.
    ByColumn { scales: *const f32 },
    /// Integers: quantised weights and activations, the latter raised by 128.
    Integer { scales: *const f32, excess: *const f32, row_scales: *const f32 },
}

/// One block of `rows` by `PANEL` sums on its way to a panel of the output. Pointers are to the block's first element.
pub(in crate::cpu) struct Finish<R, E> {
    pub(in crate::cpu) c: *const f32,
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) sums: Sums,
    pub(in crate::cpu) bias: *const f32,
    pub(in crate::cpu) activation: Activation,
    /// Added instead of an activation; null for none.
    pub(in crate::cpu) residual: *const R,
    pub(in crate::cpu) out: *mut E,
}

impl<R: Element, E: Stored> Kernel for Finish<R, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller vouches for the pointers.
        unsafe {
            match self.sums {
                Sums::Ready => self.scaled::<S, Ready, _>(Alone),
                Sums::ByColumn { .. } => self.scaled::<S, ByColumn, _>(Alone),
                Sums::Integer { .. } => self.scaled::<S, Integer, _>(Alone),
            }
        }
    }
}

/// A block that is finished while the tiles multiply the next, of the same layer.
pub(super) struct FinishBeside<R, E, T> {
    pub(super) finish: Finish<R, E>,
    pub(super) product: TileBlock<T>,
}

impl<R: Element, E: Stored, T: TileSums> Kernel for FinishBeside<R, E, T> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller vouches for the pointers.
        unsafe { self.finish.scaled::<S, T::Sums, _>(self.product) }
    }
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

/// The rows of a block to finish.
pub(super) trait Rows {
    fn count(&self) -> usize;

    /// # Safety
    /// `row` is below `count`; the block's pointers are valid; the machine has the instructions of `S`.
    unsafe fn finish<S: Simd>(&self, row: usize);
}

/// Nothing to finish.
pub(super) struct NoRows;

impl Rows for NoRows {
    #[inline(always)]
    fn count(&self) -> usize {
        0
    }

    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, _: usize) {}
}

/// Work that all rows of a block are finished beside.
pub(super) trait Weave {
    /// Does the work and finishes the rows.
    ///
    /// # Safety
    /// As [`Rows::finish`], and what the work itself asks for.
    unsafe fn weave<S: Simd, W: Rows>(self, rows: &W);
}

/// No other work.
struct Alone;

impl Weave for Alone {
    #[inline(always)]
    unsafe fn weave<S: Simd, W: Rows>(self, rows: &W) {
        for row in 0..rows.count() {
            // SAFETY: as the caller's.
            unsafe { rows.finish::<S>(row) };
        }
    }
}

/// One way to read a sum, so that the choice is made once a block and not once a vector.
pub(super) trait Read {
    /// # Safety
    /// `row` and `column` lie inside the block.
    unsafe fn read<S: Simd, R, E>(block: &Finish<R, E>, row: usize, column: usize) -> S::F;
}

pub(super) struct Ready;
struct ByColumn;
pub(super) struct Integer;

impl Read for Ready {
    #[inline(always)]
    unsafe fn read<S: Simd, R, E>(block: &Finish<R, E>, row: usize, column: usize) -> S::F {
        // SAFETY: as the caller's.
        unsafe { S::load(block.c.add(row * PANEL + column)) }
    }
}

impl Read for ByColumn {
    #[inline(always)]
    unsafe fn read<S: Simd, R, E>(block: &Finish<R, E>, row: usize, column: usize) -> S::F {
        let Sums::ByColumn { scales } = block.sums else { unreachable!("chosen by `run`") };
        // SAFETY: as the caller's.
        unsafe { S::mul(S::load(block.c.add(row * PANEL + column)), S::load(scales.add(column))) }
    }
}

impl Read for Integer {
    #[inline(always)]
    unsafe fn read<S: Simd, R, E>(block: &Finish<R, E>, row: usize, column: usize) -> S::F {
        let Sums::Integer { scales, excess, row_scales } = block.sums else { unreachable!("chosen by `run`") };
        // SAFETY: as the caller's.
        unsafe {
            let x = S::sub(S::load_i32(block.c.add(row * PANEL + column).cast()), S::load(excess.add(column)));
            S::mul(x, S::mul(S::load(scales.add(column)), S::splat(*row_scales.add(row))))
        }
    }
}

impl<R: Element, E: Stored> Finish<R, E> {
    /// Chooses what is done to each row, once for all of them.
    #[inline(always)]
    unsafe fn scaled<S: Simd, I: Read, W: Weave>(&self, beside: W) {
        // SAFETY: the caller vouches for the pointers.
        unsafe {
            if !self.residual.is_null() {
                return beside.weave::<S, _>(&Added::<I, R, E> { block: self, read: PhantomData });
            }
            match self.activation {
                Activation::Identity => self.activated::<S, I, Identity, W>(beside),
                Activation::Gelu => self.activated::<S, I, Gelu, W>(beside),
                Activation::GeluTanh => self.activated::<S, I, GeluTanh, W>(beside),
                Activation::Relu => self.activated::<S, I, Relu, W>(beside),
                Activation::Silu => self.activated::<S, I, Silu, W>(beside),
                Activation::Tanh => self.activated::<S, I, Tanh, W>(beside),
            }
        }
    }

    #[inline(always)]
    unsafe fn activated<S: Simd, I: Read, A: Function, W: Weave>(&self, beside: W) {
        // SAFETY: as above.
        unsafe { beside.weave::<S, _>(&Activated::<I, A, R, E> { block: self, how: PhantomData }) }
    }

    /// A vector of sums with its bias.
    #[inline(always)]
    unsafe fn biased<S: Simd, I: Read>(&self, row: usize, column: usize) -> S::F {
        // SAFETY: row and column lie inside the block; vectors stay within PANEL.
        unsafe { S::add(I::read::<S, R, E>(self, row, column), S::load(self.bias.add(column))) }
    }
}

/// Rows that go through an activation.
struct Activated<'a, I, A, R, E> {
    block: &'a Finish<R, E>,
    how: PhantomData<(I, A)>,
}

impl<I: Read, A: Function, R: Element, E: Stored> Rows for Activated<'_, I, A, R, E> {
    #[inline(always)]
    fn count(&self) -> usize {
        self.block.rows
    }

    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, row: usize) {
        for column in (0..PANEL).step_by(2 * S::LANES) {
            // SAFETY: row and column lie inside the block; pairs of vectors stay within PANEL.
            unsafe {
                let x = A::of::<S, E>(self.block.biased::<S, I>(row, column));
                let y = A::of::<S, E>(self.block.biased::<S, I>(row, column + S::LANES));
                E::store_two::<S>(self.block.out.add(row * PANEL + column), x, y);
            }
        }
    }
}

/// Rows that a residual is added to, where no activation follows.
struct Added<'a, I, R, E> {
    block: &'a Finish<R, E>,
    read: PhantomData<I>,
}

impl<I: Read, R: Element, E: Stored> Rows for Added<'_, I, R, E> {
    #[inline(always)]
    fn count(&self) -> usize {
        self.block.rows
    }

    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, row: usize) {
        for column in (0..PANEL).step_by(S::LANES) {
            // SAFETY: as above.
            unsafe {
                let at = row * PANEL + column;
                let x = S::add(self.block.biased::<S, I>(row, column), R::load::<S>(self.block.residual.add(at)));
                E::store::<S>(self.block.out.add(at), x);
            }
        }
    }
}
