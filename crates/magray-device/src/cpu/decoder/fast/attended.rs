//! Attention to some of a sequence's tokens: the largest score and the sum beside the values, so that parts can be joined.
//! Knows no format of keys and values.

use super::kv::padded;
use crate::PAGE_TOKENS;
use crate::cpu::activation::{Function, Tanh};
use crate::cpu::simd::{Simd, exp2};
use std::f32::consts::LOG2_E;
use std::ops::Range;

/// Tokens whose scores are kept at once, and their pages.
pub(super) const RUN_TOKENS: usize = RUN_PAGES * PAGE_TOKENS;
pub(super) const RUN_PAGES: usize = 8;
/// Queries that are multiplied with a page at once.
pub(super) const AT_ONCE: usize = 4;

/// What a layer does with scores.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    pub(super) scale: f32,
    pub(super) cap: Option<f32>,
}

impl Scores {
    /// What queries are multiplied with, so that scores are in powers of two; with a cap they become so behind it.
    pub(super) fn factor(&self) -> f32 {
        self.scale * if self.cap.is_some() { 1.0 } else { LOG2_E }
    }
}

/// Attention so far, of several queries.
#[derive(Default)]
pub(super) struct Attended {
    /// The largest score of each, in powers of two.
    pub(super) largest: Vec<f32>,
    /// The sum of what each token weighs.
    pub(super) total: Vec<f32>,
    /// Values, weighed, not divided by the sum: `padded` numbers each.
    pub(super) values: Vec<f32>,
}

impl Attended {
    pub(super) fn clear(&mut self, queries: usize, size: usize) {
        self.largest.clear();
        self.largest.resize(queries, f32::NEG_INFINITY);
        self.total.clear();
        self.total.resize(queries, 0.0);
        self.values.clear();
        self.values.resize(queries * padded(size), 0.0);
    }

    /// Adds what other tokens weigh.
    pub(super) fn join(&mut self, other: &Self) {
        let width = self.values.len() / self.largest.len().max(1);
        for query in 0..self.largest.len() {
            let largest = self.largest[query].max(other.largest[query]);
            if largest == f32::NEG_INFINITY {
                continue;
            }
            let (mine, theirs) = ((self.largest[query] - largest).exp2(), (other.largest[query] - largest).exp2());
            self.largest[query] = largest;
            self.total[query] = self.total[query] * mine + other.total[query] * theirs;
            let values = query * width..(query + 1) * width;
            for (value, other) in self.values[values.clone()].iter_mut().zip(&other.values[values]) {
                *value = *value * mine + other * theirs;
            }
        }
    }

    /// The attended values, `size` for each query.
    pub(super) fn write(&self, size: usize, out: &mut [f32]) {
        let width = padded(size);
        for ((values, total), out) in self.values.chunks(width).zip(&self.total).zip(out.chunks_exact_mut(size)) {
            let share = 1.0 / total;
            for (out, value) in out.iter_mut().zip(values) {
                *out = value * share;
            }
        }
    }

    /// Turns the scores of `seen` into weights, those of others into zeros.
    ///
    /// # Safety
    /// As [`Kernel::run`](crate::cpu::simd::Kernel::run); scores are whole pages.
    #[inline(always)]
    pub(super) unsafe fn weigh<S: Simd>(
        &mut self,
        query: usize,
        scores: &mut [f32],
        seen: Range<usize>,
        cap: Option<f32>,
    ) {
        // SAFETY: scores are whole pages, and so whole vectors.
        unsafe {
            let largest = self.find_largest::<S>(query, scores, seen.clone(), cap);
            let mut total = S::splat(0.0);
            for i in (0..scores.len()).step_by(S::LANES) {
                let at = scores.as_mut_ptr().add(i);
                let weight = exp2::<S>(S::sub(S::load(at), S::splat(largest)));
                S::store(at, weight);
                total = S::add(total, weight);
            }
            scores[..seen.start].fill(0.0);
            scores[seen.end..].fill(0.0);
            self.total[query] += S::sum(total);
        }
    }

    /// As [`Attended::weigh`], times a scale for each token: zeros for those that are not seen. Returns the largest product.
    ///
    /// # Safety
    /// As [`Attended::weigh`]; there are as many scales.
    #[inline(always)]
    pub(super) unsafe fn weigh_scaled<S: Simd>(
        &mut self,
        query: usize,
        scores: &mut [f32],
        (seen, cap): (Range<usize>, Option<f32>),
        scales: &[f32],
    ) -> f32 {
        assert_eq!(scores.len(), scales.len(), "a scale for each token");
        // SAFETY: as above.
        unsafe {
            let largest = self.find_largest::<S>(query, scores, seen, cap);
            let (mut total, mut products, mut most) = (S::splat(0.0), S::splat(0.0), S::splat(0.0));
            for i in (0..scores.len()).step_by(S::LANES) {
                let at = scores.as_mut_ptr().add(i);
                let weight = S::exp2_coarse(S::sub(S::load(at), S::splat(largest)));
                let product = S::mul(weight, S::load(scales.as_ptr().add(i)));
                S::store(at, product);
                total = S::add(total, weight);
                products = S::add(products, product);
                most = S::max(most, product);
            }
            // A scale that is no number makes the answer none.
            self.total[query] += S::sum(total) + 0.0 * S::sum(products);
            S::maximum(most)
        }
    }

    /// Caps scores, hides those that are not seen, and scales what there is by the largest of them.
    #[inline(always)]
    unsafe fn find_largest<S: Simd>(
        &mut self,
        query: usize,
        scores: &mut [f32],
        seen: Range<usize>,
        cap: Option<f32>,
    ) -> f32 {
        let from = scores.as_mut_ptr();
        let all = scores.len();
        // SAFETY: as the caller's.
        unsafe {
            if let Some(cap) = cap {
                for i in (0..all).step_by(S::LANES) {
                    let score = Tanh::of::<S, f32>(S::mul(S::load(from.add(i)), S::splat(1.0 / cap)));
                    S::store(from.add(i), S::mul(score, S::splat(cap * LOG2_E)));
                }
            }
            scores[..seen.start].fill(f32::NEG_INFINITY);
            scores[seen.end..].fill(f32::NEG_INFINITY);
            // Two at once: a maximum waits for the one before.
            let mut largest = [S::splat(f32::NEG_INFINITY); 2];
            for i in (0..all).step_by(2 * S::LANES) {
                largest[0] = S::max(largest[0], S::load(from.add(i)));
                largest[1] = S::max(largest[1], S::load(from.add(i + S::LANES)));
            }
            let before = self.largest[query];
            let largest = S::maximum(S::max(largest[0], largest[1])).max(before);
            if largest != before {
                let kept = (before - largest).exp2();
                self.largest[query] = largest;
                self.total[query] *= kept;
                let width = self.values.len() / self.largest.len();
                for value in &mut self.values[query * width..(query + 1) * width] {
                    *value *= kept;
                }
            }
            largest
        }
    }
}
