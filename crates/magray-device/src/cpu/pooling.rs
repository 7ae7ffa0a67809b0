//! One vector a text out of its tokens' vectors, in 32-bit floats.
//! Reads a panel of all tokens at a time, sums in registers.

use super::acts::{Grid, PANEL};
use super::simd::{Element, Kernel, Simd};
use magray_core::Pooling;

/// Pools rows `from..from + tokens` of `x`, one way, into columns `column..` of row `text` of `out`.
pub(super) struct PoolText<E> {
    pub(super) x: Grid<E>,
    pub(super) from: usize,
    pub(super) tokens: usize,
    pub(super) columns: usize,
    pub(super) way: Pooling,
    /// The place of the first of the tokens in its text, for the weighted mean.
    pub(super) skipped: usize,
    pub(super) out: Grid<f32>,
    pub(super) text: usize,
    pub(super) column: usize,
}

impl<E: Element> Kernel for PoolText<E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let n = self.tokens;
        // Nothing to pool sums to zero, whatever it is divided by.
        let ranks = |from: usize| (from + 1..=from + n).map(|rank| rank as f32).sum::<f32>();
        let scale = match self.way {
            Pooling::Cls | Pooling::Last | Pooling::Max => 1.0,
            Pooling::Mean => 1.0 / n.max(1) as f32,
            Pooling::MeanSqrtLen => 1.0 / (n.max(1) as f32).sqrt(),
            Pooling::WeightedMean => 1.0 / ranks(self.skipped).max(1.0),
        };
        let tokens = match self.way {
            Pooling::Cls => 0..n.min(1),
            Pooling::Last => n.saturating_sub(1)..n,
            _ => 0..n,
        };
        for panel in 0..self.columns.div_ceil(PANEL) {
            let mut pooled = [0.0f32; PANEL];
            for c in (0..PANEL).step_by(S::LANES) {
                // SAFETY: the text's rows are valid; `pooled` is a whole panel.
                unsafe {
                    let mut sum = S::splat(0.0);
                    for token in tokens.clone() {
                        let x = E::load::<S>(self.x.row(self.from + token, panel).add(c));
                        sum = match self.way {
                            Pooling::Max if token == 0 => x,
                            Pooling::Max => S::max(sum, x),
                            Pooling::WeightedMean => S::fma(x, S::splat((self.skipped + token + 1) as f32), sum),
                            _ => S::add(sum, x),
                        };
                    }
                    S::store(pooled.as_mut_ptr().add(c), S::mul(sum, S::splat(scale)));
                }
            }
            let width = PANEL.min(self.columns - panel * PANEL);
            for (c, &x) in pooled[..width].iter().enumerate() {
                // SAFETY: `out` has the columns of every way; the text's row is this thread's alone.
                unsafe { *self.out.at(self.text, self.column + panel * PANEL + c) = x };
            }
        }
    }
}
