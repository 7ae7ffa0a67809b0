//! What becomes of the sums of a panel: stored, added to what is there, or a gate for the sums of another panel.

use super::form::PANEL;
use crate::cpu::activation::{Function, GeluTanh, Silu};
use crate::cpu::simd::{Kernel, Simd};
use magray_core::Activation;

/// Rows of floats that several threads write, each its own columns.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) start: *mut f32,
    /// Numbers of a row.
    pub(super) stride: usize,
}

// SAFETY: an address; who writes through it promises that no other does at the same place.
unsafe impl Send for Columns {}
// SAFETY: as above.
unsafe impl Sync for Columns {}

impl Columns {
    pub(super) fn of(values: &mut [f32], stride: usize) -> Self {
        Self { start: values.as_mut_ptr(), stride }
    }

    /// The place of a row's column.
    pub(super) fn at(&self, row: usize, column: usize) -> *mut f32 {
        self.start.wrapping_add(row * self.stride + column)
    }
}

/// What is done with sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ending {
    Store,
    Add,
    /// The function of the sums, times the sums of the other panel.
    Gate(Activation),
}

/// Rows of sums of one panel on their way to columns of the output.
pub(super) struct FinishRows<'a> {
    /// 32 a row.
    pub(super) sums: &'a [f32],
    /// Those of the other panel, for a gate.
    pub(super) others: &'a [f32],
    /// One a column of both panels, or none.
    pub(super) bias: &'a [f32],
    pub(super) other_bias: &'a [f32],
    pub(super) ending: Ending,
    /// The first row's first column, and from row to row.
    pub(super) out: *mut f32,
    pub(super) stride: usize,
    /// At most 32.
    pub(super) columns: usize,
}

/// What becomes of a vector. No closure: one would not be compiled for the instructions of `S`.
trait Combine {
    const GATES: bool = false;

    /// # Safety
    /// The machine has the instructions of `S`.
    unsafe fn of<S: Simd>(old: S::F, sum: S::F, other: S::F) -> S::F;
}

struct Stored;
struct Added;
struct Gated<F>(std::marker::PhantomData<F>);

impl Combine for Stored {
    #[inline(always)]
    unsafe fn of<S: Simd>(_: S::F, sum: S::F, _: S::F) -> S::F {
        sum
    }
}

impl Combine for Added {
    #[inline(always)]
    unsafe fn of<S: Simd>(old: S::F, sum: S::F, _: S::F) -> S::F {
        // SAFETY: as the caller's.
        unsafe { S::add(old, sum) }
    }
}

impl<F: Function> Combine for Gated<F> {
    const GATES: bool = true;

    #[inline(always)]
    unsafe fn of<S: Simd>(_: S::F, gate: S::F, up: S::F) -> S::F {
        // SAFETY: as the caller's.
        unsafe { S::mul(F::of::<S, f32>(gate), up) }
    }
}

impl Kernel for FinishRows<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: as the caller's.
        unsafe {
            match self.ending {
                Ending::Store => self.rows::<S, Stored>(),
                Ending::Add => self.rows::<S, Added>(),
                Ending::Gate(Activation::Silu) => self.rows::<S, Gated<Silu>>(),
                Ending::Gate(Activation::GeluTanh) => self.rows::<S, Gated<GeluTanh>>(),
                Ending::Gate(other) => {
                    panic!("{other:?} is no gate's function: descriptions are checked when they are read")
                }
            }
        }
    }
}

impl FinishRows<'_> {
    #[inline(always)]
    unsafe fn rows<S: Simd, C: Combine>(&self) {
        let mut biases = [[0.0f32; PANEL]; 2];
        for (biases, said) in biases.iter_mut().zip([self.bias, self.other_bias]) {
            biases[..said.len()].copy_from_slice(said);
        }
        for (row, sums) in self.sums.as_chunks::<PANEL>().0.iter().enumerate() {
            let others = if C::GATES { &self.others.as_chunks::<PANEL>().0[row] } else { sums };
            let out = self.out.wrapping_add(row * self.stride);
            // SAFETY: the caller vouches for the columns of its rows; a narrow panel goes through a buffer of 32.
            unsafe {
                let mut buffer = [0.0f32; PANEL];
                let narrow = self.columns < PANEL;
                if narrow {
                    std::ptr::copy_nonoverlapping(out, buffer.as_mut_ptr(), self.columns);
                }
                let to = if narrow { buffer.as_mut_ptr() } else { out };
                for i in (0..PANEL).step_by(S::LANES) {
                    let sum = S::add(S::load(sums.as_ptr().add(i)), S::load(biases[0].as_ptr().add(i)));
                    let other = S::add(S::load(others.as_ptr().add(i)), S::load(biases[1].as_ptr().add(i)));
                    S::store(to.add(i), C::of::<S>(S::load(to.add(i)), sum, other));
                }
                if narrow {
                    std::ptr::copy_nonoverlapping(buffer.as_ptr(), out, self.columns);
                }
            }
        }
    }
}

/// Finishes a row whose gates and others lie side by side.
pub(super) struct GateRow<'a> {
    pub(super) gates: &'a [f32],
    pub(super) ups: &'a [f32],
    pub(super) out: &'a mut [f32],
    pub(super) activation: Activation,
}

impl Kernel for GateRow<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { gates, ups, out, activation } = self;
        for ((gates, ups), out) in gates.chunks(PANEL).zip(ups.chunks(PANEL)).zip(out.chunks_mut(PANEL)) {
            let (mut sums, mut others) = ([0.0; PANEL], [0.0; PANEL]);
            sums[..gates.len()].copy_from_slice(gates);
            others[..ups.len()].copy_from_slice(ups);
            let (columns, stride) = (out.len(), 0);
            let ending = Ending::Gate(activation);
            let rows = FinishRows {
                sums: &sums,
                others: &others,
                bias: &[],
                other_bias: &[],
                ending,
                out: out.as_mut_ptr(),
                stride,
                columns,
            };
            // SAFETY: as the caller's; the columns are those of `out`.
            unsafe { rows.run::<S>() };
        }
    }
}
