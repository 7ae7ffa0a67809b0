//! The scan of signs, for very many rows: rows whose estimate likely reaches the floor are scored at once by their numbers.
//! Misses a few of the best: the estimate's margin is a likely one.

use super::best::Best;
use super::kernels::{SignGauge, sift_signs};
use super::search::{Floor, ITEM_WORDS, ROWS_AHEAD, Search, merge, ones};
use super::sketch::Sketcher;

/// Bytes are read once for more queries in less time.
pub(super) const QUERIES_MAX: usize = 2;

impl Search<'_> {
    /// The likely best rows of every query.
    pub(super) fn scan_signs(&self, sketcher: &Sketcher) -> Vec<Best> {
        let gauges: Vec<SignGauge> =
            self.queries.iter().map(|query| sketcher.gauge(&query.numbers, self.rows.metric)).collect();
        let floors: Vec<Floor> = self.queries.iter().map(|_| Floor::new(self.wanted.threshold)).collect();
        let start = || (vec![Best::new(self.wanted.k); self.queries.len()], self.space(), Vec::new());
        let threads = self.each_item(start, |(best, space, found), chunk, first| {
            let words: [u64; ITEM_WORDS] = std::array::from_fn(|word| self.word(chunk, first + word));
            if words == [0; ITEM_WORDS] {
                return;
            }
            let lengths = &self.rows.chunks[chunk].scanned().1.lengths;
            for (query, gauge) in gauges.iter().enumerate() {
                let floor = floors[query].get();
                found.clear();
                for (at, allowed) in words.into_iter().enumerate().filter(|&(_, allowed)| allowed != 0) {
                    let rows = self.rows.signs[chunk].rows(first + at, lengths);
                    let may_be = sift_signs(self.cpu.path(), gauge, &rows, floor) & allowed;
                    found.extend(ones(may_be).map(|row| (first + at) * 64 + row));
                }
                for (at, &row) in found.iter().enumerate() {
                    if let Some(&next) = found.get(at + ROWS_AHEAD) {
                        self.fetch(chunk, next);
                    }
                    best[query].offer(self.score(query, chunk, row, space));
                }
                if let Some(floor) = best[query].floor() {
                    floors[query].raise(below(floor));
                }
            }
        });
        merge(threads.into_iter().map(|(best, ..)| best))
    }
}

/// As a 32-bit float that is not greater.
fn below(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) > x { near.next_down() } else { near }
}
