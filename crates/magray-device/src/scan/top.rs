//! Searches rows: the best k for each query, of those allowed. Changes nothing.

use super::best::{Best, Scored};
use super::chunk::CHUNK_ROWS;
use super::kernels::exact_score;
use super::query::Query;
use super::{Found, Rows, ScanError, Wanted};
use crate::cpu::{Cpu, Shares};
use std::sync::{Mutex, PoisonError};

/// Rows that a thread takes at once.
const ITEM_ROWS: usize = 1024;
const ITEM_WORDS: usize = ITEM_ROWS / 64;
const _: () = assert!(CHUNK_ROWS.is_multiple_of(ITEM_ROWS), "an item lies in one chunk");

impl Rows {
    /// The best rows for each of the queries, which lie end to end. Best first, ties by the lower slot; fewer than `k` only
    /// where no more rows are allowed and reach the threshold.
    pub fn top(&self, cpu: &Cpu, queries: &[f32], wanted: &Wanted<'_>) -> Result<Vec<Vec<Found>>, ScanError> {
        let dims = self.layout.dims;
        if !queries.len().is_multiple_of(dims) {
            return Err(ScanError::Dims { got: queries.len(), dims });
        }
        let queries: Vec<Query> =
            queries.chunks_exact(dims).map(|query| Query::new(query, self.metric)).collect::<Result<_, _>>()?;
        let search = Search { rows: self, cpu, queries: &queries, wanted };
        let best = if wanted.k == 0 { Vec::new() } else { search.score_all() };
        let mut found: Vec<Vec<Found>> = best.into_iter().map(|best| found(best, wanted.threshold)).collect();
        found.resize(queries.len(), Vec::new());
        Ok(found)
    }
}

fn found(best: Best, threshold: Option<f32>) -> Vec<Found> {
    let rows = best.into_sorted().into_iter().map(|row| Found { slot: row.slot, score: row.score as f32 });
    rows.take_while(|row| threshold.is_none_or(|threshold| row.score >= threshold)).collect()
}

struct Search<'a> {
    rows: &'a Rows,
    cpu: &'a Cpu,
    queries: &'a [Query],
    wanted: &'a Wanted<'a>,
}

impl Search<'_> {
    /// Runs `work` on every item, and returns what each thread has.
    fn each_item<S: Send>(&self, start: impl Fn() -> S, work: impl Fn(&mut S, usize, usize) + Sync) -> Vec<S> {
        let pool = self.cpu.pool();
        let shares = Shares::new(pool.threads());
        shares.fill(self.rows.chunks.len() * (CHUNK_ROWS / ITEM_ROWS));
        let states: Vec<Mutex<S>> = (0..pool.threads()).map(|_| Mutex::new(start())).collect();
        pool.run(&|rank| {
            let mut state = states[rank].lock().unwrap_or_else(PoisonError::into_inner);
            for item in shares.of(rank) {
                work(&mut state, item / (CHUNK_ROWS / ITEM_ROWS), item % (CHUNK_ROWS / ITEM_ROWS) * ITEM_WORDS);
            }
        });
        states.into_iter().map(|state| state.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    /// The rows of a chunk's word that are set and allowed.
    fn word(&self, chunk: usize, word: usize) -> u64 {
        let set = self.rows.chunks[chunk].set_words().get(word).copied().unwrap_or(0);
        match self.wanted.allowed {
            Some(allowed) => set & allowed.get(chunk * (CHUNK_ROWS / 64) + word).copied().unwrap_or(0),
            None => set,
        }
    }

    /// Scores every allowed row exactly.
    fn score_all(&self) -> Vec<Best> {
        let start = || (vec![Best::new(self.wanted.k); self.queries.len()], vec![0.0; self.rows.layout.padded()]);
        let threads = self.each_item(start, |(best, space), chunk, first| {
            for word in first..first + ITEM_WORDS {
                let mut left = self.word(chunk, word);
                while left != 0 {
                    let row = word * 64 + left.trailing_zeros() as usize;
                    left &= left - 1;
                    let numbers = self.rows.chunks[chunk].row(&self.rows.layout, row, space);
                    for (query, best) in self.queries.iter().zip(best.iter_mut()) {
                        let score = exact_score(self.cpu.path(), self.rows.metric, &query.numbers, numbers);
                        best.offer(Scored { score, slot: (chunk * CHUNK_ROWS + row) as u32 });
                    }
                }
            }
        });
        let mut all = threads.into_iter().map(|(best, _)| best);
        let mut merged = all.next().unwrap_or_default();
        for best in all {
            merged.iter_mut().zip(best).for_each(|(to, from)| to.merge(from));
        }
        merged
    }
}
