//! The exact scan: bounds from bytes choose candidates, and these are scored by their numbers.
//! A query whose bounds decide too little is left to the plain way.

use super::best::Best;
use super::chunk::{CHUNK_ROWS, PANEL_ROWS};
use super::kernels::{BoundRows, DotKernel, Levels, QUERIES, Sums};
use super::search::{Floor, ITEM_WORDS, ROWS_AHEAD, Search, merge, ones};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Candidates of a query that are scored: at least this many, or this part of all rows.
const CANDIDATES_MIN: usize = 1 << 14;
const CANDIDATES_PART: usize = 16;
/// Candidates that a thread scores at once.
const SCORED_TOGETHER: usize = 64;

/// What one thread has found for one query.
struct Candidates {
    k: usize,
    /// The k best lower bounds, as ordered bits; the least on top.
    lowers: BinaryHeap<Reverse<Bound>>,
    /// Slot and upper bound.
    found: Vec<(u32, f32)>,
    floor: f32,
    limit: usize,
    is_over: bool,
}

#[derive(Clone, Copy, PartialEq)]
struct Bound(f32);

impl Eq for Bound {}

impl PartialOrd for Bound {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Bound {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Candidates {
    fn new(k: usize, limit: usize) -> Self {
        Self { k, lowers: BinaryHeap::new(), found: Vec::new(), floor: f32::NEG_INFINITY, limit, is_over: false }
    }

    #[inline]
    fn offer(&mut self, slot: u32, (lower, upper): (f32, f32)) {
        if upper < self.floor || self.is_over {
            return;
        }
        if self.lowers.len() < self.k {
            self.lowers.push(Reverse(Bound(lower)));
        } else if let Some(mut least) = self.lowers.peek_mut()
            && lower > least.0.0
        {
            *least = Reverse(Bound(lower));
        }
        if self.lowers.len() == self.k
            && let Some(Reverse(least)) = self.lowers.peek()
        {
            self.floor = self.floor.max(least.0);
        }
        self.found.push((slot, upper));
        if self.found.len() > self.limit {
            self.found.retain(|&(_, upper)| upper >= self.floor);
            self.is_over = self.found.len() > self.limit / 2;
        }
    }
}

impl Search<'_> {
    /// The best rows of every query.
    pub(super) fn scan_bytes(&self) -> Vec<Best> {
        let floors: Vec<Floor> = self.queries.iter().map(|_| Floor::new(self.wanted.threshold)).collect();
        let threads = self.candidates(&floors);
        let is_over = |query: usize| threads.iter().any(|candidates| candidates[query].is_over);
        let (over, sure): (Vec<usize>, Vec<usize>) = (0..self.queries.len()).partition(|&query| is_over(query));
        let mut all = Vec::new();
        for &query in &sure {
            let floor = floors[query].get();
            let found = threads.iter().flat_map(|candidates| &candidates[query].found);
            all.extend(found.filter(|&&(_, upper)| upper >= floor).map(|&(slot, _)| (query, slot)));
        }
        let mut best = self.score_some(&all);
        if !over.is_empty() {
            for (query, scored) in over.iter().zip(self.score_all(&over)) {
                best[*query] = scored;
            }
        }
        best
    }

    fn candidates(&self, floors: &[Floor]) -> Vec<Vec<Candidates>> {
        let (rows, path) = (self.rows, self.cpu.path());
        let blocks: Vec<Levels> = self
            .queries
            .chunks(QUERIES)
            .map(|queries| Levels::new(queries.iter().map(|query| &*query.levels), rows.layout.dims))
            .collect();
        let limit = (rows.len() / CANDIDATES_PART).max(CANDIDATES_MIN).max(8 * self.wanted.k);
        let start = || {
            let none = self.queries.iter().map(|_| Candidates::new(self.wanted.k, limit));
            (none.collect::<Vec<_>>(), Sums::new())
        };
        let panel_bytes = rows.layout.panel_bytes();
        let threads = self.each_item(start, |(candidates, sums), chunk, first| {
            let words: [u64; ITEM_WORDS] = std::array::from_fn(|word| self.word(chunk, first + word));
            if words == [0; ITEM_WORDS] {
                return;
            }
            let (bytes, bounds) = rows.chunks[chunk].scanned();
            let kernel = DotKernel::new(path, self.queries.len());
            let blocks = blocks.iter().zip(self.queries.chunks(QUERIES)).zip(candidates.chunks_mut(QUERIES));
            for (block, ((levels, queries), candidates)) in blocks.enumerate() {
                let floors = &floors[block * QUERIES..];
                for (candidates, floor) in candidates.iter_mut().zip(floors) {
                    candidates.floor = candidates.floor.max(floor.get());
                }
                for half in 0..2 * ITEM_WORDS {
                    let allowed = (words[half / 2] >> (half % 2 * PANEL_ROWS)) as u32;
                    if allowed == 0 {
                        continue;
                    }
                    let panel = first * 2 + half;
                    kernel.run(&bytes[panel * panel_bytes..][..panel_bytes], levels, sums);
                    let known = BoundRows::new(bounds, panel);
                    for (at, (query, candidates)) in queries.iter().zip(candidates.iter_mut()).enumerate() {
                        let sums = sums.of(at);
                        let may_be = query.gauge.sift(path, sums, &known, candidates.floor) & allowed;
                        for row in ones(u64::from(may_be)) {
                            let slot = (chunk * CHUNK_ROWS + panel * PANEL_ROWS + row) as u32;
                            candidates.offer(slot, query.gauge.bounds(sums, &known, row));
                        }
                    }
                }
                for (candidates, floor) in candidates.iter().zip(floors) {
                    floor.raise(candidates.floor);
                }
            }
        });
        threads.into_iter().map(|(candidates, _)| candidates).collect()
    }

    /// Scores these rows for these queries.
    fn score_some(&self, all: &[(usize, u32)]) -> Vec<Best> {
        let start = || (vec![Best::new(self.wanted.k); self.queries.len()], self.space());
        let threads = self.each(all.len().div_ceil(SCORED_TOGETHER), start, |(best, space), item| {
            let some = &all[item * SCORED_TOGETHER..all.len().min((item + 1) * SCORED_TOGETHER)];
            let place = |slot: u32| (slot as usize / CHUNK_ROWS, slot as usize % CHUNK_ROWS);
            for (at, &(query, slot)) in some.iter().enumerate() {
                if let Some(&(_, next)) = some.get(at + ROWS_AHEAD) {
                    let (chunk, row) = place(next);
                    self.fetch(chunk, row);
                }
                let (chunk, row) = place(slot);
                best[query].offer(self.score(query, chunk, row, space));
            }
        });
        merge(threads.into_iter().map(|(best, _)| best))
    }
}
