//! Softmax of rows of attention scores. Leaves the division to the user of the weights: it is one a row there.

use super::activation::Stored;
use super::acts::{Grid, PANEL};
use super::simd::{Kernel, Simd, exp2};
use std::ops::Range;

/// `weights = e^(scale * scores - largest)` for rows of a block, and the inverse of each row's sum.
#[derive(Clone, Copy)]
pub(super) struct Softmax<E> {
    scores: Grid<f32>,
    weights: Grid<E>,
    panels: usize,
    scale: f32,
    /// Whether the last panel has more columns than tokens; the mask is added to it.
    is_ragged: bool,
    mask: [f32; PANEL],
    /// One a row.
    inverses: *mut f32,
}

impl<E: Stored> Softmax<E> {
    /// Rows of scores for this many tokens, at least one.
    #[inline(always)]
    pub(super) fn new(scores: Grid<f32>, weights: Grid<E>, tokens: usize, scale: f32, inverses: *mut f32) -> Self {
        let panels = tokens.div_ceil(PANEL);
        let last = tokens - (panels - 1) * PANEL;
        let mask = std::array::from_fn(|column| if column < last { 0.0 } else { f32::NEG_INFINITY });
        let (scale, is_ragged) = (scale * std::f32::consts::LOG2_E, last < PANEL);
        Self { scores, weights, panels, scale, is_ragged, mask, inverses }
    }

    /// Does some rows: first all their largest, then all their powers. To find the largest of a vector takes long, and
    /// those of several rows overlap.
    ///
    /// # Safety
    /// The rows' panels are valid on both sides, and so are their inverses; the machine has the instructions of `S`.
    #[inline(always)]
    pub(super) unsafe fn rows<S: Simd>(&self, rows: Range<usize>) {
        // SAFETY: panels of the rows are whole.
        unsafe {
            for row in rows.clone() {
                *self.inverses.add(row) = self.largest::<S>(row);
            }
            let scale = S::splat(self.scale);
            for row in rows {
                let shift = S::splat(-*self.inverses.add(row) * self.scale);
                let mut sum = S::splat(0.0);
                for panel in 0..self.panels {
                    let (scores, weights) = (self.scores.row(row, panel), self.weights.row(row, panel));
                    for c in (0..PANEL).step_by(2 * S::LANES) {
                        let x = power::<S, E>(S::fma(S::load(scores.add(c)), scale, shift));
                        let y = power::<S, E>(S::fma(S::load(scores.add(c + S::LANES)), scale, shift));
                        sum = S::add(sum, S::add(x, y));
                        E::store_two::<S>(weights.add(c), x, y);
                    }
                }
                *self.inverses.add(row) = 1.0 / S::sum(sum);
            }
        }
    }

    /// The largest score of a row. Those beyond the last token become the smallest number.
    #[inline(always)]
    unsafe fn largest<S: Simd>(&self, row: usize) -> f32 {
        // SAFETY: as the caller's.
        unsafe {
            if self.is_ragged {
                let scores = self.scores.row(row, self.panels - 1);
                for c in (0..PANEL).step_by(S::LANES) {
                    S::store(scores.add(c), S::add(S::load(scores.add(c)), S::load(self.mask.as_ptr().add(c))));
                }
            }
            let mut most = S::splat(f32::NEG_INFINITY);
            for panel in 0..self.panels {
                let scores = self.scores.row(row, panel);
                for c in (0..PANEL).step_by(S::LANES) {
                    most = S::max(most, S::load(scores.add(c)));
                }
            }
            S::maximum(most)
        }
    }
}

/// `2^x`, as exact as it is stored.
#[inline(always)]
unsafe fn power<S: Simd, E: Stored>(x: S::F) -> S::F {
    // SAFETY: as the caller's.
    unsafe { if E::COARSE { S::exp2_coarse(x) } else { exp2::<S>(x) } }
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
