//! Attention of one token's queries, all that share a head of keys, to a run of pages.
//! Keeps the largest score and the sum beside the values, so that runs can be joined.

use super::kv::{PageView, padded};
use crate::PAGE_TOKENS;
use crate::cpu::activation::{Function, Tanh};
use crate::cpu::simd::{Kernel, Simd, exp2};
use std::f32::consts::LOG2_E;
use std::ops::Range;

/// Queries that are multiplied with a page at once.
const AT_ONCE: usize = 4;
/// Tokens whose scores are kept at once.
pub(super) const RUN_TOKENS: usize = 512;

/// What a layer does with scores.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    pub(super) scale: f32,
    pub(super) cap: Option<f32>,
}

/// Attention so far, of several queries.
#[derive(Default)]
pub(super) struct Attended {
    /// The largest score of each, in powers of two.
    largest: Vec<f32>,
    /// The sum of what each token weighs.
    total: Vec<f32>,
    /// Values, weighed, not divided by the sum: `padded` numbers each.
    values: Vec<f32>,
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
}

/// Buffers of one thread.
#[derive(Default)]
pub(super) struct AttendRoom {
    pub(super) attended: Attended,
    /// Queries, scaled, `padded` numbers each.
    queries: Vec<f32>,
    /// `RUN_TOKENS` of each query.
    scores: Vec<f32>,
}

impl AttendRoom {
    /// Starts with these queries, which share a head of keys.
    pub(super) fn start(&mut self, queries: &[f32], size: usize, scores: Scores) {
        let (count, width) = (queries.len() / size, padded(size));
        self.attended.clear(count, size);
        self.queries.clear();
        self.queries.resize(count * width, 0.0);
        self.scores.resize(count * RUN_TOKENS, 0.0);
        // With a cap scores are turned into powers of two behind it.
        let factor = scores.scale * if scores.cap.is_some() { 1.0 } else { LOG2_E };
        for (to, from) in self.queries.chunks_exact_mut(width).zip(queries.chunks_exact(size)) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from * factor);
        }
    }
}

/// Queries by tokens of a sequence.
pub(super) struct AttendRun<'a> {
    pub(super) room: &'a mut AttendRoom,
    pub(super) pages: PageView,
    /// The sequence's pages.
    pub(super) table: &'a [u32],
    pub(super) layer: usize,
    pub(super) head: usize,
    pub(super) size: usize,
    pub(super) cap: Option<f32>,
    /// The tokens attended to.
    pub(super) tokens: Range<usize>,
}

impl Kernel for AttendRun<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let mut first = self.tokens.start;
        while first < self.tokens.end {
            // Runs begin at pages, but for the first.
            let end = self.tokens.end.min(first / PAGE_TOKENS * PAGE_TOKENS + RUN_TOKENS);
            // SAFETY: as the caller's.
            unsafe { self.part::<S>(first..end) };
            first = end;
        }
    }
}

impl AttendRun<'_> {
    #[inline(always)]
    unsafe fn part<S: Simd>(&mut self, tokens: Range<usize>) {
        let queries = self.room.attended.largest.len();
        let first_page = tokens.start / PAGE_TOKENS;
        let pages = first_page..tokens.end.div_ceil(PAGE_TOKENS);
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
            let start = first_page * PAGE_TOKENS;
            for query in 0..queries {
                self.weigh::<S>(query, tokens.start - start..tokens.end - start, pages.len() * PAGE_TOKENS);
            }
            for from in (0..queries).step_by(AT_ONCE) {
                match (queries - from).min(AT_ONCE) {
                    1 => self.values_of::<S, 1>(from, pages.clone(), tokens.end),
                    2 => self.values_of::<S, 2>(from, pages.clone(), tokens.end),
                    3 => self.values_of::<S, 3>(from, pages.clone(), tokens.end),
                    _ => self.values_of::<S, AT_ONCE>(from, pages.clone(), tokens.end),
                }
            }
        }
    }

    /// Scores of all tokens of these pages.
    #[inline(always)]
    unsafe fn scores_of<S: Simd, const N: usize>(&mut self, from: usize, pages: Range<usize>) {
        let width = padded(self.size);
        let queries = self.room.queries[from * width..].as_ptr();
        let scores = self.room.scores[from * RUN_TOKENS..].as_mut_ptr();
        for (at, page) in pages.enumerate() {
            let keys = self.pages.keys(self.table[page], self.layer, self.head).cast::<u32>();
            // Pages lie far from each other, and the hardware follows none into the next.
            let next = self.table.get(page + 1).unwrap_or(&self.table[page]);
            let next = self.pages.keys(*next, self.layer, self.head).cast::<u32>();
            // SAFETY: a page's head has `width / 2` lines of 16 pairs for each 16 tokens; scores have room for a run.
            unsafe {
                for token in (0..PAGE_TOKENS).step_by(S::LANES) {
                    let first = token / 16 * 16 * (width / 2) + token % 16;
                    let lines = keys.add(first);
                    let mut sums = [[S::splat(0.0); 2]; N];
                    for pair in 0..width / 2 {
                        let [even, odd] = S::load_bf16_pairs(lines.add(pair * 16));
                        if from == 0 {
                            S::fetch(next.wrapping_add(first + pair * 16));
                        }
                        for (query, sums) in sums.iter_mut().enumerate() {
                            let numbers = queries.add(query * width + pair * 2);
                            sums[0] = S::fma(even, S::splat(*numbers), sums[0]);
                            sums[1] = S::fma(odd, S::splat(*numbers.add(1)), sums[1]);
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

    /// Turns the scores of `seen` into weights, those of others into zeros.
    #[inline(always)]
    unsafe fn weigh<S: Simd>(&mut self, query: usize, seen: Range<usize>, all: usize) {
        let scores = &mut self.room.scores[query * RUN_TOKENS..query * RUN_TOKENS + all];
        scores[..seen.start].fill(f32::NEG_INFINITY);
        scores[seen.end..].fill(f32::NEG_INFINITY);
        let from = scores.as_mut_ptr();
        // SAFETY: scores are whole pages, and so whole vectors.
        unsafe {
            if let Some(cap) = self.cap {
                for i in (0..all).step_by(S::LANES) {
                    let score = Tanh::of::<S, f32>(S::mul(S::load(from.add(i)), S::splat(1.0 / cap)));
                    S::store(from.add(i), S::mul(score, S::splat(cap * LOG2_E)));
                }
                scores[..seen.start].fill(f32::NEG_INFINITY);
                scores[seen.end..].fill(f32::NEG_INFINITY);
            }
            let mut largest = S::splat(f32::NEG_INFINITY);
            for i in (0..all).step_by(S::LANES) {
                largest = S::max(largest, S::load(from.add(i)));
            }
            let attended = &mut self.room.attended;
            let before = attended.largest[query];
            let largest = S::maximum(largest).max(before);
            let mut total = S::splat(0.0);
            for i in (0..all).step_by(S::LANES) {
                let weight = exp2::<S>(S::sub(S::load(from.add(i)), S::splat(largest)));
                S::store(from.add(i), weight);
                total = S::add(total, weight);
            }
            scores[..seen.start].fill(0.0);
            scores[seen.end..].fill(0.0);
            let kept = (before - largest).exp2();
            attended.total[query] = attended.total[query] * kept + S::sum(total);
            attended.largest[query] = largest;
            if kept != 1.0 {
                let width = padded(self.size);
                for value in &mut attended.values[query * width..(query + 1) * width] {
                    *value *= kept;
                }
            }
        }
    }

    /// Adds the values of these pages, weighed.
    #[inline(always)]
    unsafe fn values_of<S: Simd, const N: usize>(&mut self, from: usize, pages: Range<usize>, end: usize) {
        let width = padded(self.size);
        let weights = self.room.scores[from * RUN_TOKENS..].as_ptr();
        let values = self.room.attended.values[from * width..].as_mut_ptr();
        for (at, page) in pages.enumerate() {
            // Tokens beyond the last may be anything.
            let pairs = (end - page * PAGE_TOKENS).min(PAGE_TOKENS).div_ceil(2);
            let lines = self.pages.values(self.table[page], self.layer, self.head).cast::<u32>();
            let next = self.table.get(page + 1).unwrap_or(&self.table[page]);
            let next = self.pages.values(*next, self.layer, self.head).cast::<u32>();
            // SAFETY: a page's head has 16 lines of 16 pairs for each 16 numbers.
            unsafe {
                for number in (0..width).step_by(S::LANES) {
                    let first = number / 16 * 16 * (PAGE_TOKENS / 2) + number % 16;
                    let lines = lines.add(first);
                    let mut sums = [[S::splat(0.0); 2]; N];
                    for pair in 0..pairs {
                        let [even, odd] = S::load_bf16_pairs(lines.add(pair * 16));
                        if from == 0 {
                            S::fetch(next.wrapping_add(first + pair * 16));
                        }
                        for (query, sums) in sums.iter_mut().enumerate() {
                            let weights = weights.add(query * RUN_TOKENS + at * PAGE_TOKENS + pair * 2);
                            sums[0] = S::fma(even, S::splat(*weights), sums[0]);
                            sums[1] = S::fma(odd, S::splat(*weights.add(1)), sums[1]);
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
