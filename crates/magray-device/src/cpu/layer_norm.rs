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

impl<E: Element> Kernel for NormRows<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let columns = self.norm.columns;
        let panels = columns.div_ceil(PANEL);
        // Columns beyond the last are zero in `x`: they add nothing to the sum, and to the squares each the mean's.
        let beyond = (panels * PANEL - columns) as f32;
        let (gain, shift) = (self.norm.gain.as_ptr(), self.norm.shift.as_ptr());
        for row in 0..self.rows {
            // SAFETY: whole panels of the rows are valid; gain and shift are whole panels long, zero beyond the last
            // column, so that zeros are written there.
            unsafe {
                let mut sum = S::splat(0.0);
                for panel in 0..panels {
                    let x = self.x.row(row, panel);
                    for c in (0..PANEL).step_by(S::LANES) {
                        sum = S::add(sum, S::load(x.add(c)));
                    }
                }
                let mean = S::sum(sum) / columns as f32;

                let mean_v = S::splat(mean);
                let mut squares = S::splat(0.0);
                for panel in 0..panels {
                    let x = self.x.row(row, panel);
                    for c in (0..PANEL).step_by(S::LANES) {
                        let d = S::sub(S::load(x.add(c)), mean_v);
                        squares = S::fma(d, d, squares);
                    }
                }
                let variance = (S::sum(squares) - beyond * mean * mean) / columns as f32;
                let scale = S::splat(1.0 / (variance + self.norm.epsilon).sqrt());

                for panel in 0..panels {
                    let (x, out) = (self.x.row(row, panel), self.out.row(row, panel));
                    for c in (0..PANEL).step_by(S::LANES) {
                        let d = S::mul(S::sub(S::load(x.add(c)), mean_v), scale);
                        let (gain, shift) =
                            (S::load(gain.add(panel * PANEL + c)), S::load(shift.add(panel * PANEL + c)));
                        E::store::<S>(out.add(c), S::fma(d, gain, shift));
                    }
                }
            }
        }
    }
}
