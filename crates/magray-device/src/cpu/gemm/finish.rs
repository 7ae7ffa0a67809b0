//! Finishes a block of a product: scales, adds bias and residual, applies the activation, stores.
//! Runs while the block is still near the core, alone or woven into the product of the next block.

use super::beside::Beside;
use super::blocks::BlockIndex;
use crate::cpu::activation::{Function, Gelu, GeluTanh, Identity, Relu, Silu, Stored, Tanh};
use crate::cpu::acts::{Grid, PANEL};
use crate::cpu::simd::{Element, Kernel, Simd};
use magray_core::Activation;
use std::marker::PhantomData;

/// What the sums of a block are.
#[derive(Clone, Copy)]
pub(super) enum Sums {
    /// Floats, ready.
    Ready,
    /// Floats of products with quantised weights.
    ByColumn { scales: *const f32 },
    /// Integers: products of quantised weights with quantised activations. `totals` are the sums of the columns' weights,
    /// `row_shifts` what byte 0 of each row is worth.
    Integer { scales: *const f32, totals: *const f32, row_scales: *const f32, row_shifts: *const f32 },
}

impl Sums {
    /// Those of a block, where `self` are those of the first.
    #[inline(always)]
    fn at(self, BlockIndex { panel, from, .. }: BlockIndex) -> Self {
        let column = panel * PANEL;
        match self {
            Self::Ready => Self::Ready,
            Self::ByColumn { scales } => Self::ByColumn { scales: scales.wrapping_add(column) },
            Self::Integer { scales, totals, row_scales, row_shifts } => Self::Integer {
                scales: scales.wrapping_add(column),
                totals: totals.wrapping_add(column),
                row_scales: row_scales.wrapping_add(from),
                row_shifts: row_shifts.wrapping_add(from),
            },
        }
    }
}

/// Where the results go.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Target<R, E> {
    pub(in crate::cpu) activation: Activation,
    /// Added instead of an activation.
    pub(in crate::cpu) residual: Option<Grid<R>>,
    pub(in crate::cpu) out: Grid<E>,
}

/// How a layer's sums become what is wanted of them. Pointers are to the first panel and row.
#[derive(Clone, Copy)]
pub(super) struct Ending<R, E> {
    pub(super) sums: Sums,
    pub(super) bias: *const f32,
    pub(super) target: Target<R, E>,
}

impl<R, E> Ending<R, E> {
    /// The ending of one block with these sums.
    #[inline(always)]
    pub(super) fn block(&self, at: BlockIndex, c: *const f32) -> Finish<R, E> {
        let BlockIndex { panel, from, rows } = at;
        Finish {
            c,
            rows,
            sums: self.sums.at(at),
            bias: self.bias.wrapping_add(panel * PANEL),
            residual: self.target.residual.map_or(std::ptr::null(), |grid| grid.row(from, panel).cast_const()),
            out: self.target.out.row(from, panel),
        }
    }
}

/// One block of `rows` by `PANEL` sums on its way to a panel of the output. Pointers are to the block's first element.
pub(super) struct Finish<R, E> {
    c: *const f32,
    rows: usize,
    sums: Sums,
    bias: *const f32,
    /// Null where nothing is added.
    residual: *const R,
    out: *mut E,
}

impl<R: Element, E: Stored> Finish<R, E> {
    #[inline(always)]
    pub(super) fn nothing() -> Self {
        let (c, residual, out) = (std::ptr::null(), std::ptr::null(), std::ptr::null_mut());
        Self { c, rows: 0, sums: Sums::Ready, bias: c, residual, out }
    }

    /// Finishes all rows.
    ///
    /// # Safety
    /// As [`FinishRow::finish`].
    #[inline(always)]
    pub(super) unsafe fn finish<S: Simd, I: Read, F: FinishRow<R, E>>(&self) {
        for row in 0..self.rows {
            // SAFETY: as the caller's.
            unsafe { F::finish::<S, I>(self, row) };
        }
    }
}

/// Finishes one block by itself.
pub(super) struct FinishBlock<R, E> {
    pub(super) block: Finish<R, E>,
    pub(super) activation: Activation,
}

impl<R: Element, E: Stored> Kernel for FinishBlock<R, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (activation, adds) = (self.activation, !self.block.residual.is_null());
        // SAFETY: as the caller's.
        unsafe { choose::<S, R, E, _>(activation, adds, self) }
    }
}

impl<R: Element, E: Stored> Finishing<R, E> for FinishBlock<R, E> {
    #[inline(always)]
    unsafe fn run<S: Simd, F: FinishRow<R, E>>(self) {
        // SAFETY: as the caller's.
        unsafe {
            match self.block.sums {
                Sums::Ready => self.block.finish::<S, Ready, F>(),
                Sums::ByColumn { .. } => self.block.finish::<S, ByColumn, F>(),
                Sums::Integer { .. } => self.block.finish::<S, Integer, F>(),
            }
        }
    }
}

/// What is done to a row of a block.
pub(super) trait FinishRow<R, E> {
    /// # Safety
    /// `row` is one of the block's, whose pointers are valid; the machine has the instructions of `S`.
    unsafe fn finish<S: Simd, I: Read>(block: &Finish<R, E>, row: usize);
}

/// Work that finishes rows, compiled for each way to do it.
pub(super) trait Finishing<R, E> {
    /// # Safety
    /// What the work itself asks for; the machine has the instructions of `S`.
    unsafe fn run<S: Simd, F: FinishRow<R, E>>(self);
}

/// Chooses what is done to each row, once for all of them.
///
/// # Safety
/// As [`Finishing::run`].
#[inline(always)]
pub(super) unsafe fn choose<S: Simd, R: Element, E: Stored, K: Finishing<R, E>>(
    activation: Activation,
    adds: bool,
    work: K,
) {
    // SAFETY: as the caller's.
    unsafe {
        match activation {
            _ if adds => work.run::<S, Added>(),
            Activation::Identity => work.run::<S, Activated<Identity>>(),
            Activation::Gelu => work.run::<S, Activated<Gelu>>(),
            Activation::GeluTanh => work.run::<S, Activated<GeluTanh>>(),
            Activation::Relu => work.run::<S, Activated<Relu>>(),
            Activation::Silu => work.run::<S, Activated<Silu>>(),
            Activation::Tanh => work.run::<S, Activated<Tanh>>(),
        }
    }
}

/// A row that goes through an activation.
struct Activated<A>(PhantomData<A>);

impl<A: Function, R: Element, E: Stored> FinishRow<R, E> for Activated<A> {
    #[inline(always)]
    unsafe fn finish<S: Simd, I: Read>(block: &Finish<R, E>, row: usize) {
        for column in (0..PANEL).step_by(2 * S::LANES) {
            // SAFETY: row and column lie inside the block; pairs of vectors stay within PANEL.
            unsafe {
                let activate = |x| if I::IS_ROUGH { A::rough::<S, E>(x) } else { A::of::<S, E>(x) };
                let x = activate(I::read::<S, R, E>(block, row, column));
                let y = activate(I::read::<S, R, E>(block, row, column + S::LANES));
                E::store_two::<S>(block.out.add(row * PANEL + column), x, y);
            }
        }
    }
}

/// A row that a residual is added to, where no activation follows.
struct Added;

impl<R: Element, E: Stored> FinishRow<R, E> for Added {
    #[inline(always)]
    unsafe fn finish<S: Simd, I: Read>(block: &Finish<R, E>, row: usize) {
        for column in (0..PANEL).step_by(S::LANES) {
            // SAFETY: as above.
            unsafe {
                let at = row * PANEL + column;
                let x = S::add(I::read::<S, R, E>(block, row, column), R::load::<S>(block.residual.add(at)));
                E::store::<S>(block.out.add(at), x);
            }
        }
    }
}

/// The rows of a block, for a product of tiles to finish meanwhile.
pub(super) struct RowsOf<'a, I, F, R, E> {
    block: &'a Finish<R, E>,
    how: PhantomData<(I, F)>,
}

impl<'a, I, F, R, E> RowsOf<'a, I, F, R, E> {
    #[inline(always)]
    pub(super) fn new(block: &'a Finish<R, E>) -> Self {
        Self { block, how: PhantomData }
    }
}

impl<I: Read, F: FinishRow<R, E>, R: Element, E: Stored> Beside for RowsOf<'_, I, F, R, E> {
    #[inline(always)]
    fn count(&self) -> usize {
        self.block.rows
    }

    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, row: usize) {
        // SAFETY: as the caller's.
        unsafe { F::finish::<S, I>(self.block, row) }
    }
}

/// One way to read a sum, so that the choice is made once a block and not once a vector.
pub(super) trait Read {
    /// Whether the sums are of quantised numbers, so that errors of 1e-3 vanish beside theirs.
    const IS_ROUGH: bool = false;

    /// A vector of sums with its bias.
    ///
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
        unsafe { S::add(S::load(block.c.add(row * PANEL + column)), S::load(block.bias.add(column))) }
    }
}

impl Read for ByColumn {
    #[inline(always)]
    unsafe fn read<S: Simd, R, E>(block: &Finish<R, E>, row: usize, column: usize) -> S::F {
        let Sums::ByColumn { scales } = block.sums else { unreachable!("chosen by `run`") };
        // SAFETY: as the caller's.
        unsafe {
            let (sum, bias) = (S::load(block.c.add(row * PANEL + column)), S::load(block.bias.add(column)));
            S::fma(sum, S::load(scales.add(column)), bias)
        }
    }
}

impl Read for Integer {
    const IS_ROUGH: bool = true;

    #[inline(always)]
    unsafe fn read<S: Simd, R, E>(block: &Finish<R, E>, row: usize, column: usize) -> S::F {
        let Sums::Integer { scales, totals, row_scales, row_shifts } = block.sums else {
            unreachable!("chosen by `run`")
        };
        // SAFETY: as the caller's.
        unsafe {
            let (scale, shift) = (S::splat(*row_scales.add(row)), S::splat(*row_shifts.add(row)));
            let added = S::fma(shift, S::load(totals.add(column)), S::load(block.bias.add(column)));
            let sum = S::load_i32(block.c.add(row * PANEL + column).cast());
            S::fma(sum, S::mul(S::load(scales.add(column)), scale), added)
        }
    }
}
