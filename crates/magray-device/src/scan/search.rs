//! One search under way: its rows, queries and threads, and the plain way of scoring every allowed row.

use super::best::{Best, Scored};
use super::chunk::{CHUNK_ROWS, Row};
use super::kernels::{exact_score, prefetch};
use super::query::Query;
use super::{Rows, Wanted};
use crate::cpu::{Cpu, Shares};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Rows that a thread takes at once.
const ITEM_ROWS: usize = 1024;
pub(super) const ITEM_WORDS: usize = ITEM_ROWS / 64;
const CHUNK_ITEMS: usize = CHUNK_ROWS / ITEM_ROWS;
/// Rows from the one that is scored to the one that is fetched.
pub(super) const ROWS_AHEAD: usize = 2;
const _: () = assert!(CHUNK_ROWS.is_multiple_of(ITEM_ROWS), "an item lies in one chunk");

pub(super) struct Search<'a> {
    pub(super) rows: &'a Rows,
    pub(super) cpu: &'a Cpu,
    pub(super) queries: &'a [Query],
    pub(super) wanted: &'a Wanted<'a>,
}

impl Search<'_> {
    /// Runs `work` on every item of rows: its chunk and its first word. Returns what each thread has.
    pub(super) fn each_item<S: Send>(
        &self,
        start: impl Fn() -> S,
        work: impl Fn(&mut S, usize, usize) + Sync,
    ) -> Vec<S> {
        self.each(self.rows.chunks.len() * CHUNK_ITEMS, start, |state, item| {
            work(state, item / CHUNK_ITEMS, item % CHUNK_ITEMS * ITEM_WORDS);
        })
    }

    /// Runs `work` on items that threads share. Returns what each thread has.
    pub(super) fn each<S: Send>(
        &self,
        items: usize,
        start: impl Fn() -> S,
        work: impl Fn(&mut S, usize) + Sync,
    ) -> Vec<S> {
        let pool = self.cpu.pool();
        let shares = Shares::new(pool.threads());
        shares.fill(items);
        let states: Vec<Mutex<S>> = (0..pool.threads()).map(|_| Mutex::new(start())).collect();
        pool.run(&|rank| {
            let mut state = states[rank].lock().unwrap_or_else(PoisonError::into_inner);
            shares.of(rank).for_each(|item| work(&mut state, item));
        });
        states.into_iter().map(|state| state.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    /// The rows of a chunk's word that are set and allowed.
    pub(super) fn word(&self, chunk: usize, word: usize) -> u64 {
        let set = self.rows.chunks[chunk].set_words().get(word).copied().unwrap_or(0);
        match self.wanted.allowed {
            Some(allowed) => set & allowed.get(chunk * (CHUNK_ROWS / 64) + word).copied().unwrap_or(0),
            None => set,
        }
    }

    /// How many rows may be returned.
    pub(super) fn count(&self) -> usize {
        if self.wanted.allowed.is_none() {
            return self.rows.len();
        }
        let chunks = self.rows.chunks.iter().enumerate();
        let ones = |(chunk, rows): (usize, &super::chunk::Chunk)| {
            (0..rows.set_words().len()).map(|word| self.word(chunk, word).count_ones() as usize).sum::<usize>()
        };
        chunks.map(ones).sum()
    }

    /// The exact score of a row.
    #[inline]
    pub(super) fn score(&self, query: usize, chunk: usize, row: usize, space: &mut [f32]) -> Scored {
        let numbers = self.rows.chunks[chunk].row(&self.rows.layout, row, space);
        let score = exact_score(self.cpu.path(), self.rows.metric, &self.queries[query].wide, numbers);
        Scored { score, slot: (chunk * CHUNK_ROWS + row) as u32 }
    }

    /// Room for a row that is kept as bytes.
    pub(super) fn space(&self) -> Vec<f32> {
        vec![0.0; self.rows.layout.padded()]
    }

    /// Asks for a row's numbers.
    pub(super) fn fetch(&self, chunk: usize, row: usize) {
        match self.rows.chunks[chunk].kept(&self.rows.layout, row) {
            Some(Row::F32(numbers)) => prefetch(numbers),
            Some(Row::F16(numbers)) => prefetch(numbers),
            None => {}
        }
    }

    /// Scores every allowed row exactly, for these queries.
    pub(super) fn score_all(&self, queries: &[usize]) -> Vec<Best> {
        let start = || (vec![Best::new(self.wanted.k); queries.len()], self.space(), Vec::new());
        let threads = self.each_item(start, |(best, space, rows), chunk, first| {
            rows.clear();
            for word in first..first + ITEM_WORDS {
                rows.extend(ones(self.word(chunk, word)).map(|row| word * 64 + row));
            }
            for (at, &row) in rows.iter().enumerate() {
                if let Some(&next) = rows.get(at + ROWS_AHEAD) {
                    self.fetch(chunk, next);
                }
                for (&query, best) in queries.iter().zip(best.iter_mut()) {
                    best.offer(self.score(query, chunk, row, space));
                }
            }
        });
        merge(threads.into_iter().map(|(best, ..)| best))
    }
}

/// The best of all threads, query by query.
pub(super) fn merge(mut threads: impl Iterator<Item = Vec<Best>>) -> Vec<Best> {
    let mut merged = threads.next().unwrap_or_default();
    for best in threads {
        merged.iter_mut().zip(best).for_each(|(to, from)| to.merge(from));
    }
    merged
}

/// The places of the bits that are one.
pub(super) fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        at
    })
}

/// A score that the k-th best is known to reach, which threads raise together.
pub(super) struct Floor(AtomicI32);

impl Floor {
    pub(super) fn new(threshold: Option<f32>) -> Self {
        Self(AtomicI32::new(order(threshold.unwrap_or(f32::NEG_INFINITY))))
    }

    pub(super) fn get(&self) -> f32 {
        f32::from_bits(order(f32::from_bits(self.0.load(Ordering::Relaxed) as u32)) as u32)
    }

    pub(super) fn raise(&self, to: f32) {
        self.0.fetch_max(order(to), Ordering::Relaxed);
    }
}

/// Bits that are ordered like the floats; its own inverse.
fn order(x: f32) -> i32 {
    let bits = x.to_bits() as i32;
    bits ^ (bits >> 31 & i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_only_rises() {
        let floor = Floor::new(None);
        for (raise, want) in [(-3.0, -3.0), (-4.0, -3.0), (-0.5, -0.5), (0.0, 0.0), (-1.0, 0.0), (2.5, 2.5), (1.0, 2.5)]
        {
            floor.raise(raise);
            assert_eq!(floor.get(), want);
        }
        assert_eq!(Floor::new(Some(-7.25)).get(), -7.25);
    }
}
