//! Attention of one token's queries, all that share a head of keys, to a run of pages of bytes.
//! Queries and weights become two bytes each, so that what is rounded beside keys and values themselves is next to nothing.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(any(test, not(target_arch = "x86_64")))]
mod plain;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vnni;

use super::attended::{AT_ONCE, Attended, RUN_PAGES, RUN_TOKENS, Scores};
use super::fetch::{Group, HEADS, HeadFetch};
use super::few::Bytes;
use super::kv::{ByteView, KEY_OFFSET, padded};
use crate::PAGE_TOKENS;
use crate::cpu::simd::{Kernel, Simd};
use half::bf16;
use std::ops::Range;

/// Steps of the first byte of a query or of a weight: bytes of 8 bits with a sign, or of 7 without.
const STEPS: f32 = 127.0;
/// Steps of the second byte to one of the first.
const QUERY_FINE: f32 = 254.0;
const WEIGHT_FINE: f32 = 127.0;

/// Buffers of one thread.
#[derive(Default)]
pub(super) struct ByteRoom {
    /// Two rows of `padded` bytes a query: the first bytes, then the second.
    queries: Vec<i8>,
    facts: Vec<QueryFacts>,
    /// `RUN_TOKENS` of each query.
    scores: Vec<f32>,
    /// Two rows of `RUN_TOKENS` a query.
    weights: Vec<u8>,
    /// What the weights of each query's run are multiplied with.
    steps: Vec<f32>,
    /// Of the values of a run's tokens; zeros for those that are not seen.
    scales: Vec<f32>,
}

/// What the bytes of a query stand for.
#[derive(Clone, Copy, Default)]
struct QueryFacts {
    scale: f32,
    /// What the keys' offset adds to the sums of both rows.
    offsets: [i32; 2],
}

/// Some queries by the keys of a page.
struct KeyPage {
    width: usize,
    /// `[16 tokens][4 numbers][token][4]`.
    keys: *const u8,
    scales: *const bf16,
    /// The first query's rows, of `width` bytes each.
    queries: *const i8,
    facts: *const QueryFacts,
    /// The first query's; the next one's are `RUN_TOKENS` on.
    scores: *mut f32,
    /// Lines that are fetched meanwhile, as many as are read.
    ahead: Option<Group>,
}

/// Some queries' weights by 32 numbers of the values of a run.
struct ValueRun<'a> {
    /// `[16 numbers][4 tokens][number][4]` of each page, from the first of the 32 numbers on.
    pages: &'a [*const u8],
    /// The first query's rows, of `RUN_TOKENS` bytes each.
    weights: *const u8,
    steps: *const f32,
    /// The first query's 32 sums; the next one's are `width` on.
    sums: *mut f32,
    width: usize,
    /// Lines that are fetched meanwhile, as many as are read, or none.
    ahead: &'a [Group],
}

/// Queries by tokens of a sequence.
pub(super) struct AttendBytes<'a, 'b> {
    pub(super) bytes: Bytes,
    pub(super) room: &'a mut ByteRoom,
    pub(super) attended: &'a mut Attended,
    pub(super) pages: ByteView,
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

impl Kernel for AttendBytes<'_, '_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let size = self.pages.shape().head_size;
        let (count, width) = (self.queries.len() / size, padded(size));
        self.attended.clear(count, size);
        // SAFETY: as the caller's.
        unsafe { self.room.take_queries::<S>(self.queries, size, self.scores.factor()) };
        for first in (0..self.table.len()).step_by(RUN_PAGES) {
            let pages = first..self.table.len().min(first + RUN_PAGES);
            let start = first * PAGE_TOKENS;
            let all = pages.len() * PAGE_TOKENS;
            let seen = self.tokens.start.saturating_sub(start)..(self.tokens.end - start).min(all);
            // SAFETY: as the caller's.
            unsafe {
                self.score(pages.clone(), count, width);
                self.take_scales::<S>(pages.clone(), seen.clone());
                for query in 0..count {
                    let ByteRoom { scores, scales, .. } = &mut *self.room;
                    let scores = &mut scores[query * RUN_TOKENS..query * RUN_TOKENS + all];
                    let seen = (seen.clone(), self.scores.cap);
                    let largest = self.attended.weigh_scaled::<S>(query, scores, seen, &scales[..all]);
                    self.room.round_weights::<S>(query, all, largest);
                }
                self.add_values(pages, count, width);
            }
        }
    }
}

impl ByteRoom {
    /// Rounds the queries, scaled, to two bytes.
    #[inline(always)]
    unsafe fn take_queries<S: Simd>(&mut self, queries: &[f32], size: usize, factor: f32) {
        let (count, width) = (queries.len() / size, padded(size));
        self.queries.clear();
        self.queries.resize(count * 2 * width, 0);
        self.facts.clear();
        self.scores.resize(count * RUN_TOKENS, 0.0);
        self.weights.resize(count * 2 * RUN_TOKENS, 0);
        self.steps.resize(count, 0.0);
        for (rows, numbers) in self.queries.chunks_exact_mut(2 * width).zip(queries.chunks_exact(size)) {
            let (largest, poison) = bounds(numbers);
            let inverse = if largest > 0.0 { STEPS / largest } else { 0.0 };
            let (coarse, fine) = rows.split_at_mut(width);
            let mut totals = [0i32; 2];
            for (at, numbers) in numbers.chunks(32).enumerate() {
                let mut padded = [0.0; 32];
                padded[..numbers.len()].copy_from_slice(numbers);
                // SAFETY: as the caller's.
                let bytes = unsafe { two_bytes::<S>(&padded, inverse) };
                for ((row, bytes), total) in [&mut *coarse, &mut *fine].into_iter().zip(bytes).zip(&mut totals) {
                    row[at * 32..(at + 1) * 32].copy_from_slice(&bytes);
                    *total += bytes.iter().map(|byte| i32::from(*byte)).sum::<i32>();
                }
            }
            let scale = largest / STEPS * factor + poison;
            self.facts.push(QueryFacts { scale, offsets: totals.map(|total| -KEY_OFFSET * total) });
        }
    }

    /// Rounds a query's weights to two bytes.
    #[inline(always)]
    unsafe fn round_weights<S: Simd>(&mut self, query: usize, all: usize, largest: f32) {
        let weights = self.scores[query * RUN_TOKENS..(query + 1) * RUN_TOKENS].as_ptr();
        let rows = &mut self.weights[query * 2 * RUN_TOKENS..(query + 1) * 2 * RUN_TOKENS];
        let (coarse, fine) = rows.split_at_mut(RUN_TOKENS);
        let inverse = if largest > 0.0 { STEPS / largest } else { 0.0 };
        self.steps[query] = largest / STEPS;
        // Weights behind the last are those of another run: they are rounded and not read.
        for first in (0..all).step_by(4 * S::LANES) {
            // SAFETY: a run is whole vectors, four at a time.
            unsafe {
                let (mut whole, mut rest) = ([S::splat(0.0); 4], [S::splat(0.0); 4]);
                for (i, (whole, rest)) in whole.iter_mut().zip(&mut rest).enumerate() {
                    let steps = S::mul(S::load(weights.add(first + i * S::LANES)), S::splat(inverse));
                    // Rounded down, but for what is nearly the next integer.
                    *whole = S::round(S::max(S::sub(steps, S::splat(0.499)), S::splat(0.0)));
                    *rest = S::mul(S::sub(steps, *whole), S::splat(WEIGHT_FINE));
                    *rest = S::min(*rest, S::splat(WEIGHT_FINE));
                }
                S::store_four_u8(coarse.as_mut_ptr().add(first), whole);
                S::store_four_u8(fine.as_mut_ptr().add(first), rest);
            }
        }
    }
}

impl AttendBytes<'_, '_> {
    /// Scores of all tokens of these pages.
    #[inline(always)]
    unsafe fn score(&mut self, pages: Range<usize>, count: usize, width: usize) {
        for (at, page) in pages.enumerate() {
            let keys = self.pages.keys(self.table[page], self.layer, self.head);
            for from in (0..count).step_by(AT_ONCE) {
                let block = KeyPage {
                    width,
                    keys,
                    scales: self.pages.scales(keys),
                    queries: self.room.queries[from * 2 * width..].as_ptr(),
                    facts: self.room.facts[from..].as_ptr(),
                    scores: self.room.scores[from * RUN_TOKENS + at * PAGE_TOKENS..].as_mut_ptr(),
                    // Later queries find what they read near.
                    ahead: (from == 0).then(|| self.fetch.take(width / 2 / HEADS)),
                };
                // SAFETY: the pages have these tokens; rooms were made for all queries and a run.
                unsafe { block.multiply(self.bytes, (count - from).min(AT_ONCE)) };
            }
        }
    }

    /// The scales of the values of these pages.
    #[inline(always)]
    unsafe fn take_scales<S: Simd>(&mut self, pages: Range<usize>, seen: Range<usize>) {
        let all = pages.len() * PAGE_TOKENS;
        let scales = &mut self.room.scales;
        scales.resize(RUN_TOKENS, 0.0);
        for (at, page) in pages.enumerate() {
            let from = self.pages.scales(self.pages.values(self.table[page], self.layer, self.head));
            for i in (0..PAGE_TOKENS).step_by(S::LANES) {
                // SAFETY: a page has 32 of them, and so whole vectors; there is room for a run's.
                unsafe {
                    let to = scales.as_mut_ptr().add(at * PAGE_TOKENS + i);
                    S::store(to, S::load_bf16(from.add(i).cast_const()));
                }
            }
        }
        // Those of tokens that are not there may be anything.
        scales[..seen.start].fill(0.0);
        scales[seen.end..all].fill(0.0);
    }

    /// Adds the values of these pages, weighed.
    #[inline(always)]
    unsafe fn add_values(&mut self, pages: Range<usize>, count: usize, width: usize) {
        let mut values = [std::ptr::null(); RUN_PAGES];
        for number in (0..width).step_by(32) {
            let mut ahead = [self.fetch.take(PAGE_TOKENS / 2 / HEADS); RUN_PAGES];
            for (at, page) in pages.clone().enumerate() {
                let page = self.pages.values(self.table[page], self.layer, self.head);
                values[at] = page.wrapping_add(number * PAGE_TOKENS).cast_const();
                if at > 0 {
                    ahead[at] = self.fetch.take(PAGE_TOKENS / 2 / HEADS);
                }
            }
            for from in (0..count).step_by(AT_ONCE) {
                let run = ValueRun {
                    pages: &values[..pages.len()],
                    weights: self.room.weights[from * 2 * RUN_TOKENS..].as_ptr(),
                    steps: self.room.steps[from..].as_ptr(),
                    sums: self.attended.values[from * width + number..].as_mut_ptr(),
                    width,
                    // Later queries find what they read near.
                    ahead: if from == 0 { &ahead[..pages.len()] } else { &[] },
                };
                // SAFETY: as in `score`.
                unsafe { run.multiply(self.bytes, (count - from).min(AT_ONCE)) };
            }
        }
    }
}

/// Calls a kernel for a number of queries that it knows when it is compiled.
macro_rules! for_count {
    ($kernel:ident, $count:expr, $($argument:expr),*) => {
        match $count {
            1 => $kernel::<1>($($argument),*),
            2 => $kernel::<2>($($argument),*),
            3 => $kernel::<3>($($argument),*),
            4 => $kernel::<4>($($argument),*),
            count => unreachable!("{count} queries at once"),
        }
    };
}
use for_count;

/// Numbers as steps: the nearest whole ones, and what remains in finer ones.
#[inline(always)]
unsafe fn two_bytes<S: Simd>(numbers: &[f32; 32], inverse: f32) -> [[i8; 32]; 2] {
    let mut bytes = [[0i8; 32]; 2];
    // SAFETY: vectors lie inside the 32 numbers; the buffers have room for four vectors of bytes more.
    unsafe {
        let mut shifted = [[0u8; 96]; 2];
        for first in (0..32).step_by(4 * S::LANES) {
            let (mut whole, mut rest) = ([S::splat(0.0); 4], [S::splat(0.0); 4]);
            for (i, (whole, rest)) in whole.iter_mut().zip(&mut rest).enumerate() {
                let at = first + i * S::LANES;
                if at < 32 {
                    let steps = S::mul(S::load(numbers.as_ptr().add(at)), S::splat(inverse));
                    let rounded = S::round(steps);
                    *whole = S::add(rounded, S::splat(128.0));
                    *rest = S::fma(S::sub(steps, rounded), S::splat(QUERY_FINE), S::splat(128.0));
                }
            }
            S::store_four_u8(shifted[0].as_mut_ptr().add(first), whole);
            S::store_four_u8(shifted[1].as_mut_ptr().add(first), rest);
        }
        for (bytes, shifted) in bytes.iter_mut().zip(&shifted) {
            for (byte, shifted) in bytes.iter_mut().zip(shifted) {
                *byte = (shifted ^ 0x80) as i8;
            }
        }
    }
    bytes
}

/// The largest size of some numbers; and zero, or no number where one of them is none or infinite.
#[inline(always)]
fn bounds(numbers: &[f32]) -> (f32, f32) {
    // Many lanes: one after the other they would wait for each other.
    let (mut largest, mut poison) = ([0.0f32; 16], [0.0f32; 16]);
    for numbers in numbers.chunks(16) {
        for ((largest, poison), number) in largest.iter_mut().zip(&mut poison).zip(numbers) {
            let size = number.abs();
            *largest = if size > *largest { size } else { *largest };
            *poison += number * 0.0;
        }
    }
    (largest.into_iter().fold(0.0, f32::max), poison.iter().sum())
}

impl KeyPage {
    /// Writes the scores of 32 tokens for each query, and fetches as many lines as it reads.
    ///
    /// # Safety
    /// The machine has the instructions; the pointers are valid for a page and this many queries.
    unsafe fn multiply(&self, bytes: Bytes, count: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match bytes {
                #[cfg(target_arch = "x86_64")]
                Bytes::Vnni => vnni::score(self, count),
                #[cfg(target_arch = "x86_64")]
                Bytes::Avx2 => avx2::score(self, count),
                #[cfg(not(target_arch = "x86_64"))]
                _ => plain::score(self, count),
            }
        }
    }
}

impl ValueRun<'_> {
    /// Adds 32 sums for each query, and fetches as many lines as it reads.
    ///
    /// # Safety
    /// As [`KeyPage::multiply`], for the run's pages.
    unsafe fn multiply(&self, bytes: Bytes, count: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match bytes {
                #[cfg(target_arch = "x86_64")]
                Bytes::Vnni => vnni::add(self, count),
                #[cfg(target_arch = "x86_64")]
                Bytes::Avx2 => avx2::add(self, count),
                #[cfg(not(target_arch = "x86_64"))]
                _ => plain::add(self, count),
            }
        }
    }
}
