//! Softmax of rows of attention scores. Leaves the division to whoever uses the weights: it is one a row there.

use super::activation::Stored;
use super::acts::{Grid, PANEL};
use super::simd::{Kernel, Simd, exp2};

/// `weights = e^(scale * (scores + bias) - largest)`, and the inverse of each row's sum.
///
/// Rows are done together: the sums across a vector take long, and those of several rows overlap.
pub(super) struct SoftmaxRows<'a, E> {
    pub(super) scores: Grid<f32>,
    pub(super) weights: Grid<E>,
    pub(super) tokens: usize,
    pub(super) scale: f32,
    /// One a row.
    pub(super) inverses: &'a mut [f32],
}

impl<E: Stored> Kernel for SoftmaxRows<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let panels = self.tokens.div_ceil(PANEL);
        let scale = self.scale * std::f32::consts::LOG2_E;
        // SAFETY: the caller vouches for the instructions.
        let scale_v = unsafe { S::splat(scale) };
        let beyond = self.tokens..panels * PANEL;
        for (row, largest) in self.inverses.iter_mut().enumerate() {
            // SAFETY: panels of the row are whole.
            unsafe {
                for token in beyond.clone() {
                    *self.scores.at(row, token) = f32::NEG_INFINITY;
                }
                let mut most = S::splat(f32::NEG_INFINITY);
                for panel in 0..panels {
                    let scores = self.scores.row(row, panel);
                    for c in (0..PANEL).step_by(S::LANES) {
                        most = S::max(most, S::load(scores.add(c)));
                    }
                }
                *largest = S::maximum(most);
            }
        }
        for (row, inverse) in self.inverses.iter_mut().enumerate() {
            // SAFETY: as above.
            unsafe {
                let shift = S::splat(-*inverse * scale);
                let mut sum = S::splat(0.0);
                for panel in 0..panels {
                    let (scores, weights) = (self.scores.row(row, panel), self.weights.row(row, panel));
                    for c in (0..PANEL).step_by(2 * S::LANES) {
                        let x = S::fma(S::load(scores.add(c)), scale_v, shift);
                        let y = S::fma(S::load(scores.add(c + S::LANES)), scale_v, shift);
                        let (x, y) = if E::COARSE {
                            (S::exp2_coarse(x), S::exp2_coarse(y))
                        } else {
                            (exp2::<S>(x), exp2::<S>(y))
                        };
                        sum = S::add(sum, S::add(x, y));
                        E::store_two::<S>(weights.add(c), x, y);
                    }
                }
                *inverse = 1.0 / S::sum(sum);
            }
        }
    }
}

/// Adds a row of biases, as many as tokens and readable to the end of their panel, to a row of scores.
pub(super) struct AddBias<'a> {
    pub(super) scores: Grid<f32>,
    pub(super) row: usize,
    pub(super) panels: usize,
    pub(super) bias: &'a [f32],
    /// What the scores will be scaled by, undone here in advance.
    pub(super) scale: f32,
}

impl Kernel for AddBias<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        assert!(self.bias.len() >= self.panels * PANEL, "whole panels of biases");
        // SAFETY: panels of the row are whole, and the bias was checked to be as long.
        unsafe {
            let unscaled = S::splat(1.0 / self.scale);
            for panel in 0..self.panels {
                let scores = self.scores.row(self.row, panel);
                for c in (0..PANEL).step_by(S::LANES) {
                    let bias = S::load(self.bias.as_ptr().add(panel * PANEL + c));
                    S::store(scores.add(c), S::fma(bias, unscaled, S::load(scores.add(c))));
                }
            }
        }
    }
}
