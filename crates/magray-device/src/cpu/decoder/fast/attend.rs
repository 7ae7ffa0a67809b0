//! Attention of one token's queries, all that share a head of keys, to a run of pages of 16-bit floats.
//! Rounds neither queries nor weights.

use super::attended::{AT_ONCE, Attended, RUN_PAGES, RUN_TOKENS, Scores};
use super::fetch::{HEADS, HeadFetch};
use super::kv::{HalfView, padded};
use crate::PAGE_TOKENS;
use crate::cpu::simd::{Kernel, Simd};
use std::ops::Range;

/// Buffers of one thread.
#[derive(Default)]
pub(super) struct HalfRoom {
    /// Queries, scaled, `padded` numbers each.
    queries: Vec<f32>,
    /// `RUN_TOKENS` of each query.
    scores: Vec<f32>,
}

/// Queries by tokens of a sequence.
pub(super) struct AttendHalves<'a, 'b> {
    pub(super) room: &'a mut HalfRoom,
    pub(super) attended: &'a mut Attended,
    pub(super) pages: HalfView,
    pub(super) fetch: &'a mut HeadFetch<'b>,
    pub(super) layer: usize,
    pub(super) head: usize,
    /// The pages of the tokens attended to.
    pub(super) table: &'a [u32],
    pub(super) queries: &'a [f32],
    pub(super) scores: Scores,
    /// The tokens attended to, from the first page on.
    pub(super) tokens: Range<usize>,
}

impl Kernel for AttendHalves<'_, '_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let size = self.pages.shape().head_size;
        let (count, width) = (self.queries.len() / size, padded(size));
        self.attended.clear(count, size);
        self.room.queries.clear();
        self.room.queries.resize(count * width, 0.0);
        self.room.scores.resize(count * RUN_TOKENS, 0.0);
        let factor = self.scores.factor();
        for (to, from) in self.room.queries.chunks_exact_mut(width).zip(self.queries.chunks_exact(size)) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from * factor);
        }
        for first in (0..self.table.len()).step_by(RUN_PAGES) {
            let pages = first..self.table.len().min(first + RUN_PAGES);
            // SAFETY: as the caller's.
            unsafe { self.part::<S>(pages, count) };
        }
    }
}

impl AttendHalves<'_, '_> {
    #[inline(always)]
    unsafe fn part<S: Simd>(&mut self, pages: Range<usize>, queries: usize) {
        let start = pages.start * PAGE_TOKENS;
        let all = pages.len() * PAGE_TOKENS;
        let seen = self.tokens.start.saturating_sub(start)..(self.tokens.end - start).min(all);
        // SAFETY: as the caller's.
        unsafe {
            for from in (0..queries).step_by(AT_ONCE) {
                match (queries - from).min(AT_ONCE) {
                    1 => self.scores_of::<S, 1>(from, pages.clone()),
                    2 => self.scores_of::<S, 2>(from, pages.clone()),
                    3 => self.scores_of::<S, 3>(from, pages.clone()),
                    _ => self.scores_of::<S, AT_ONCE>(from, pages.clone()),
                }
            }
            for query in 0..queries {
                let scores = &mut self.room.scores[query * RUN_TOKENS..query * RUN_TOKENS + all];
                self.attended.weigh::<S>(query, scores, seen.clone(), self.scores.cap);
            }
            for from in (0..queries).step_by(AT_ONCE) {
                match (queries - from).min(AT_ONCE) {
                    1 => self.values_of::<S, 1>(from, pages.clone(), seen.end),
                    2 => self.values_of::<S, 2>(from, pages.clone(), seen.end),
                    3 => self.values_of::<S, 3>(from, pages.clone(), seen.end),
                    _ => self.values_of::<S, AT_ONCE>(from, pages.clone(), seen.end),
                }
            }
        }
    }

    /// Scores of all tokens of these pages.
    #[inline(always)]
    unsafe fn scores_of<S: Simd, const N: usize>(&mut self, from: usize, pages: Range<usize>) {
        let width = padded(self.pages.shape().head_size);
        let queries = self.room.queries[from * width..].as_ptr();
        let scores = self.room.scores[from * RUN_TOKENS..].as_mut_ptr();
        for (at, page) in pages.enumerate() {
            let keys = self.pages.keys(self.table[page], self.layer, self.head).cast::<u32>();
            // As many lines as are read; later queries find what they read near.
            let ahead = (from == 0).then(|| self.fetch.take(width / HEADS));
            // SAFETY: a page's head has `width / 2` lines of 16 pairs for each 16 tokens; scores have room for a run.
            unsafe {
                for token in (0..PAGE_TOKENS).step_by(S::LANES) {
                    let first = token / 16 * 16 * (width / 2) + token % 16;
                    let lines = keys.add(first);
                    let mut sums = [[S::splat(0.0); 2]; N];
                    for start in (0..width / 2).step_by(HEADS) {
                        if let Some(ahead) = ahead.as_ref().filter(|_| first.is_multiple_of(16)) {
                            ahead.fetch((first / 16 + start) / HEADS);
                        }
                        for pair in start..start + HEADS {
                            let [even, odd] = S::load_bf16_pairs(lines.add(pair * 16));
                            for (query, sums) in sums.iter_mut().enumerate() {
                                let numbers = queries.add(query * width + pair * 2);
                                sums[0] = S::fma(even, S::splat(*numbers), sums[0]);
                                sums[1] = S::fma(odd, S::splat(*numbers.add(1)), sums[1]);
                            }
                        }
                    }
                    for (query, sums) in sums.into_iter().enumerate() {
                        let to = scores.add(query * RUN_TOKENS + at * PAGE_TOKENS + token);
                        S::store(to, S::add(sums[0], sums[1]));
                    }
                }
            }
        }
    }

    /// Adds the values of these pages, weighed.
    #[inline(always)]
    unsafe fn values_of<S: Simd, const N: usize>(&mut self, from: usize, pages: Range<usize>, end: usize) {
        let width = padded(self.pages.shape().head_size);
        let weights = self.room.scores[from * RUN_TOKENS..].as_ptr();
        let values = self.attended.values[from * width..].as_mut_ptr();
        for (at, page) in pages.enumerate() {
            // Tokens beyond the last may be anything.
            let pairs = (end - at * PAGE_TOKENS).min(PAGE_TOKENS).div_ceil(2);
            let lines = self.pages.values(self.table[page], self.layer, self.head).cast::<u32>();
            let ahead = (from == 0).then(|| self.fetch.take(width / HEADS));
            // SAFETY: a page's head has 16 lines of 16 pairs for each 16 numbers.
            unsafe {
                for number in (0..width).step_by(S::LANES) {
                    let first = number / 16 * 16 * (PAGE_TOKENS / 2) + number % 16;
                    let lines = lines.add(first);
                    let mut sums = [[S::splat(0.0); 2]; N];
                    for start in (0..pairs).step_by(HEADS) {
                        if let Some(ahead) = ahead.as_ref().filter(|_| first.is_multiple_of(16)) {
                            ahead.fetch((first / 16 + start) / HEADS);
                        }
                        for pair in start..pairs.min(start + HEADS) {
                            let [even, odd] = S::load_bf16_pairs(lines.add(pair * 16));
                            for (query, sums) in sums.iter_mut().enumerate() {
                                let weights = weights.add(query * RUN_TOKENS + at * PAGE_TOKENS + pair * 2);
                                sums[0] = S::fma(even, S::splat(*weights), sums[0]);
                                sums[1] = S::fma(odd, S::splat(*weights.add(1)), sums[1]);
                            }
                        }
                    }
                    for (query, sums) in sums.into_iter().enumerate() {
                        let to = values.add(query * width + number);
                        S::store(to, S::add(S::load(to), S::add(sums[0], sums[1])));
                    }
                }
            }
        }
    }
}
