//! Finishes a block of a product: scales, adds bias and residual, applies the activation, stores.
//! Runs while the block is still in the first cache.

use crate::cpu::activation::{Function, Gelu, GeluTanh, Identity, Relu, Silu, Stored, Tanh};
use crate::cpu::acts::PANEL;
use crate::cpu::simd::{Element, Kernel, Simd};
use magray_core::Activation;

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
                Sums::Ready => self.scaled::<S, Ready>(),
                Sums::ByColumn { .. } => self.scaled::<S, ByColumn>(),
                Sums::Integer { .. } => self.scaled::<S, Integer>(),
            }
        }
    }
}

/// One way to read a sum, so that the choice is made once a block and not once a vector.
trait Read {
    /// # Safety
    /// `row` and `column` lie inside the block.
    unsafe fn read<S: Simd, R, E>(block: &Finish<R, E>, row: usize, column: usize) -> S::F;
}

struct Ready;
struct ByColumn;
struct Integer;

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
    #[inline(always)]
    unsafe fn scaled<S: Simd, I: Read>(&self) {
        // SAFETY: the caller vouches for the pointers.
        unsafe {
            if !self.residual.is_null() {
                return self.added::<S, I>();
            }
            match self.activation {
                Activation::Identity => self.activated::<S, I, Identity>(),
                Activation::Gelu => self.activated::<S, I, Gelu>(),
                Activation::GeluTanh => self.activated::<S, I, GeluTanh>(),
                Activation::Relu => self.activated::<S, I, Relu>(),
                Activation::Silu => self.activated::<S, I, Silu>(),
                Activation::Tanh => self.activated::<S, I, Tanh>(),
            }
        }
    }

    #[inline(always)]
    unsafe fn activated<S: Simd, I: Read, A: Function>(&self) {
        for row in 0..self.rows {
            for column in (0..PANEL).step_by(S::LANES) {
                // SAFETY: row and column lie inside the block; vectors stay within PANEL.
                unsafe {
                    let x = S::add(I::read::<S, R, E>(self, row, column), S::load(self.bias.add(column)));
                    E::store::<S>(self.out.add(row * PANEL + column), A::of::<S, E>(x));
                }
            }
        }
    }

    /// A residual is added where no activation follows.
    #[inline(always)]
    unsafe fn added<S: Simd, I: Read>(&self) {
        for row in 0..self.rows {
            for column in (0..PANEL).step_by(S::LANES) {
                // SAFETY: as above.
                unsafe {
                    let x = S::add(I::read::<S, R, E>(self, row, column), S::load(self.bias.add(column)));
                    let x = S::add(x, R::load::<S>(self.residual.add(row * PANEL + column)));
                    E::store::<S>(self.out.add(row * PANEL + column), x);
                }
            }
        }
    }
}
