//! Layer norm of rows: mean 0, variance 1, then gain and shift.
//! The variance is of the differences from the mean: the shortcut over squares loses digits.

use super::acts::{Grid, PANEL};
use super::simd::{Element, Kernel, Simd};
use crate::Norm;

/// Normalises rows of `x` into `out`, from the first row of each.
pub(super) struct NormRows<'a, E> {
    pub(super) x: Grid<f32>,
    pub(super) rows: usize,
    pub(super) norm: &'a Norm,
    pub(super) out: Grid<E>,
}

/// Rows that are normalised together: the sum across a vector takes long, and those of several rows overlap.
const ROWS_TOGETHER: usize = 4;

impl<E: Element> Kernel for NormRows<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut row = 0;
        while row < self.rows {
            // SAFETY: as the caller's; the rows lie inside the batch.
            unsafe {
                if self.rows - row >= ROWS_TOGETHER {
                    self.rows_together::<S, ROWS_TOGETHER>(row);
                    row += ROWS_TOGETHER;
                } else {
                    self.rows_together::<S, 1>(row);
                    row += 1;
                }
            }
        }
    }
}

impl<E: Element> NormRows<'_, E> {
    /// # Safety
    /// The machine has the instructions of `S`; rows `row..row + ROWS` are valid in `x` and `out`.
    #[inline(always)]
    unsafe fn rows_together<S: Simd, const ROWS: usize>(&self, row: usize) {
        let columns = self.norm.columns;
        let panels = columns.div_ceil(PANEL);
        // Columns beyond the last are zero in `x`: they add nothing to the sum, and to the squares each the mean's.
        let beyond = (panels * PANEL - columns) as f32;
        let (gain, shift) = (self.norm.gain.as_ptr(), self.norm.shift.as_ptr());
        // SAFETY: whole panels of the rows are valid, one row after another; gain and shift are whole panels long, zero
        // beyond the last column, so that zeros are written there.
        unsafe {
            let mut sums = [S::splat(0.0); ROWS];
            for panel in 0..panels {
                let x = self.x.row(row, panel);
                for c in (0..PANEL).step_by(S::LANES) {
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = S::add(*sum, S::load(x.add(r * PANEL + c)));
                    }
                }
            }
            let means: [f32; ROWS] = std::array::from_fn(|r| S::sum(sums[r]) / columns as f32);

            let mut squares = [S::splat(0.0); ROWS];
            for panel in 0..panels {
                let x = self.x.row(row, panel);
                for c in (0..PANEL).step_by(S::LANES) {
                    for (r, squares) in squares.iter_mut().enumerate() {
                        let d = S::sub(S::load(x.add(r * PANEL + c)), S::splat(means[r]));
                        *squares = S::fma(d, d, *squares);
                    }
                }
            }
            let scales: [f32; ROWS] = std::array::from_fn(|r| {
                let variance = (S::sum(squares[r]) - beyond * means[r] * means[r]) / columns as f32;
                1.0 / (variance + self.norm.epsilon).sqrt()
            });

            for panel in 0..panels {
                let (x, out) = (self.x.row(row, panel), self.out.row(row, panel));
                for c in (0..PANEL).step_by(S::LANES) {
                    let (gain, shift) = (S::load(gain.add(panel * PANEL + c)), S::load(shift.add(panel * PANEL + c)));
                    for r in 0..ROWS {
                        let d = S::sub(S::load(x.add(r * PANEL + c)), S::splat(means[r]));
                        let d = S::mul(d, S::splat(scales[r]));
                        E::store::<S>(out.add(r * PANEL + c), S::fma(d, gain, shift));
                    }
                }
            }
        }
    }
}
