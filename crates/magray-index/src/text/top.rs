//! The best documents of weighted lists: adds up scores in windows of slots, keeps the best in a heap.
//! Exact, and its memory does not grow with the index. Knows neither terms nor how a score comes about.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::postings::{Posting, Postings};

/// Slots whose sums are held at once: 32 KiB, so that they stay in the core's own cache.
const WINDOW: u32 = 4096;
const WORDS: usize = WINDOW as usize / 64;

/// Which documents are searched, and how many are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scope<'a> {
    /// The most hits.
    pub limit: usize,
    /// A bit for each slot that may be found; `None` for all. Slots beyond the end may not.
    pub allowed: Option<&'a [u64]>,
    /// Hits with a lower score are left out.
    pub threshold: Option<f32>,
    /// A bit for each slot that counts when terms are weighed by rarity; `None` for all.
    pub corpus: Option<&'a [u64]>,
}

/// A document that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// The document.
    pub slot: u32,
    /// The more the better.
    pub score: f32,
}

/// A list of the query, and how far it was read.
pub(super) struct Weighted<'i> {
    blocks: &'i [Vec<Posting>],
    at: usize,
    weight: f64,
}

impl<'i> Weighted<'i> {
    pub(super) fn new(list: &'i Postings, weight: f64) -> Self {
        Self { blocks: if list.len() == 0 { &[] } else { list.blocks() }, at: 0, weight }
    }

    fn next_slot(&self) -> Option<u32> {
        self.blocks.first().map(|block| block[self.at].slot)
    }

    /// Leaves out postings before `slot`.
    fn skip_to(&mut self, slot: u32) {
        let before = self.blocks.partition_point(|block| block[block.len() - 1].slot < slot);
        if before > 0 {
            (self.blocks, self.at) = (&self.blocks[before..], 0);
        }
        if let Some(block) = self.blocks.first() {
            self.at += block[self.at..].partition_point(|posting| posting.slot < slot);
        }
    }

    /// Hands out the postings before `end`.
    fn take_until(&mut self, end: u64, mut each: impl FnMut(&Posting)) {
        while let Some(block) = self.blocks.first() {
            let rest = &block[self.at..];
            let whole = u64::from(block[block.len() - 1].slot) < end;
            let taken = if whole { rest.len() } else { rest.partition_point(|posting| u64::from(posting.slot) < end) };
            rest[..taken].iter().for_each(&mut each);
            if !whole {
                self.at += taken;
                return;
            }
            (self.blocks, self.at) = (&self.blocks[1..], 0);
        }
    }
}

/// The best documents by the sum of their scores over the lists.
pub(super) fn top(mut lists: Vec<Weighted<'_>>, scope: &Scope<'_>, score: impl Fn(f64, &Posting) -> f64) -> Vec<Hit> {
    let mut best = Best::new(scope);
    let mut sums = vec![0f64; WINDOW as usize];
    let mut touched = [0u64; WORDS];
    while let Some(slot) = lists.iter().filter_map(Weighted::next_slot).min() {
        let Some(slot) = first_allowed(scope.allowed, slot) else { break };
        let start = slot / WINDOW * WINDOW;
        for list in &mut lists {
            list.skip_to(start);
            let weight = list.weight;
            list.take_until(u64::from(start) + u64::from(WINDOW), |posting| {
                let at = (posting.slot - start) as usize;
                sums[at] += score(weight, posting);
                touched[at / 64] |= 1 << (at % 64);
            });
        }
        for (word, bits) in touched.iter_mut().enumerate().filter(|(_, bits)| **bits != 0) {
            let allowed = match scope.allowed {
                Some(allowed) => allowed.get(start as usize / 64 + word).copied().unwrap_or(0),
                None => u64::MAX,
            };
            let mut found = std::mem::take(bits) & allowed;
            let sums = &mut sums[word * 64..][..64];
            while found != 0 {
                let bit = found.trailing_zeros();
                found &= found - 1;
                best.offer(Hit { slot: start + word as u32 * 64 + bit, score: sums[bit as usize] as f32 });
            }
            sums.fill(0.0);
        }
    }
    best.into_hits()
}

/// The first slot from `slot` on that may be found.
fn first_allowed(allowed: Option<&[u64]>, slot: u32) -> Option<u32> {
    let Some(allowed) = allowed else { return Some(slot) };
    let from = slot as usize / 64;
    let first = (allowed.get(from)? & (u64::MAX << (slot % 64))) != 0;
    if first {
        return Some(slot);
    }
    let at = from + 1 + allowed[from + 1..].iter().position(|word| *word != 0)?;
    Some(at as u32 * 64 + allowed[at].trailing_zeros())
}

/// The best hits so far.
struct Best {
    /// The worst on top.
    heap: BinaryHeap<Reverse<Ranked>>,
    limit: usize,
    /// What a score must reach to be looked at.
    floor: f32,
}

impl Best {
    fn new(scope: &Scope<'_>) -> Self {
        Self { heap: BinaryHeap::new(), limit: scope.limit, floor: scope.threshold.unwrap_or(f32::NEG_INFINITY) }
    }

    #[inline]
    fn offer(&mut self, hit: Hit) {
        if hit.score >= self.floor {
            self.keep(hit);
        }
    }

    fn keep(&mut self, hit: Hit) {
        if self.heap.len() < self.limit {
            self.heap.push(Reverse(Ranked(hit)));
        } else if let Some(mut worst) = self.heap.peek_mut()
            && worst.0 < Ranked(hit)
        {
            *worst = Reverse(Ranked(hit));
        }
        if self.heap.len() == self.limit
            && let Some(Reverse(Ranked(worst))) = self.heap.peek()
        {
            self.floor = self.floor.max(worst.score);
        }
    }

    fn into_hits(self) -> Vec<Hit> {
        // Ascending in reversed order: the best first.
        self.heap.into_sorted_vec().into_iter().map(|Reverse(Ranked(hit))| hit).collect()
    }
}

/// The better the greater; of equal scores the lower slot is better.
struct Ranked(Hit);

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.score.total_cmp(&other.0.score).then(other.0.slot.cmp(&self.0.slot))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked {}
