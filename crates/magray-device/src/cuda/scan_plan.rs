//! How a scan of vectors is cut: into parts of rows, between which the bar for candidates rises, and into tiles.
//! Launches nothing.

use std::ops::Range;

/// Candidates that there is room for at a query, as many as the kernel that selects the best can hold.
pub(super) const ROOM: usize = 8192;
/// The most results of a query.
pub(super) const MOST: usize = 512;
/// Queries that the kernel for few of them is made for.
pub(super) const SCANNED_AT_ONCE: [usize; 3] = [1, 2, 4];
/// Candidates to be expected of a part, where vectors lie in no order.
const EXPECTED: f64 = 3000.0;
/// Rows of the first part, for many queries: each of its scores is written.
const FIRST_OF_MANY: usize = 2048;
const FEW: usize = 8;
/// Vectors whose signs lie together.
pub(super) const SIGN_GROUP: usize = 32;
/// How much longer all parts are than those before the last.
const SIGNS_GROWTH: usize = 35;
/// From this many queries on, vectors are read once for all of them in less time.
pub(super) const SIGNS_QUERIES_MAX: usize = 4;

/// Shared memory of a tile: the queries, and stages of 128 rows.
const QUERY_BOX_BYTES: usize = 64 * 64 * 2;
const STAGE_BYTES: usize = 128 * 64 * 2;
const SHARED_BYTES_MAX: usize = 184 * 1024;

/// How many queries a block of Hopper's kernel keeps, and the length of its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScanTile {
    pub(super) queries: usize,
    pub(super) stages: usize,
}

/// In the order of preference for many queries.
pub(super) const SCAN_TILES: [ScanTile; 4] = [
    ScanTile { queries: 128, stages: 5 },
    ScanTile { queries: 128, stages: 3 },
    ScanTile { queries: 64, stages: 8 },
    ScanTile { queries: 64, stages: 3 },
];

impl ScanTile {
    /// The tile for vectors of this many boxes of 64 numbers; `None` where they are too long for any.
    pub(super) fn of(boxes: usize, queries: usize) -> Option<Self> {
        let fits = |tile: &&Self| (queries > 64 || tile.queries == 64) && tile.shared_bytes(boxes) <= SHARED_BYTES_MAX;
        SCAN_TILES.iter().find(fits).copied()
    }

    pub(super) fn shared_bytes(self, boxes: usize) -> usize {
        boxes * self.queries / 64 * QUERY_BOX_BYTES + self.stages * STAGE_BYTES
    }
}

/// The parts of a scan of `rows`: of the first every score is a candidate, of the others those better than the worst of the
/// best so far. Each is so much longer than all before it that about as many candidates are to be expected.
pub(super) fn rising(rows: usize, most: usize, queries: usize) -> Vec<Range<usize>> {
    let first = if queries <= FEW { ROOM - most } else { FIRST_OF_MANY.max(4 * most) }.min(rows);
    let all = rows as f64 / first.max(1) as f64;
    let steps = (all.ln() / (EXPECTED / most as f64).max(2.0).ln()).ceil().max(0.0);
    let growth = all.powf(1.0 / steps.max(1.0));
    let mut ends = vec![first];
    for step in 1..=steps as i32 {
        let end = if f64::from(step) == steps { rows } else { (first as f64 * growth.powi(step)) as usize };
        ends.push(end.min(rows));
    }
    let begins = std::iter::once(0).chain(ends.clone());
    begins.zip(ends).map(|(begin, end)| begin..end).filter(|part| !part.is_empty()).collect()
}

/// The parts of a scan by signs: between them the bar rises, above which vectors are scored by their numbers. Each but the last
/// ends at a group of signs.
pub(super) fn by_signs(rows: usize, most: usize) -> Vec<Range<usize>> {
    let first = (ROOM - most) / SIGN_GROUP * SIGN_GROUP;
    let ends = std::iter::successors(Some(first), |end| Some(end * SIGNS_GROWTH)).take_while(|end| *end < rows);
    let ends: Vec<usize> = ends.chain([rows]).collect();
    let begins = std::iter::once(0).chain(ends.clone());
    begins.zip(ends).map(|(begin, end)| begin..end).collect()
}

/// The parts of a scan that loses no candidate, whatever the order of the vectors.
pub(super) fn careful(rows: usize, most: usize) -> Vec<Range<usize>> {
    let step = ROOM - most;
    (0..rows).step_by(step).map(|begin| begin..(begin + step).min(rows)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_rows_once() {
        for rows in [0, 1, 2_047, 2_048, 8_192, 8_193, 100_000, 10_000_000, 2_000_000_000] {
            for most in [1, 10, 32, MOST] {
                for queries in [1, 8, 9, 256] {
                    let parts = rising(rows, most, queries);
                    for parts in [&parts, &careful(rows.min(100_000), most), &by_signs(rows.max(1), most)] {
                        assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{parts:?}");
                        assert!(parts.iter().all(|part| !part.is_empty()));
                        assert_eq!(parts.first().map_or(0, |part| part.start), 0);
                    }
                    assert_eq!(parts.last().map_or(0, |part| part.end), rows, "{rows} {most} {queries}");
                    assert!(parts.first().is_none_or(|part| part.len() <= ROOM - most));
                    assert!(parts.len() <= 12, "{parts:?}");
                    for pair in parts.windows(2) {
                        let growth = pair[1].end as f64 / pair[0].end as f64;
                        assert!(growth * most as f64 <= EXPECTED * 1.1, "{rows} {most}: {parts:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn long_vectors_have_smaller_tiles_or_none() {
        let of =
            |dims: usize, queries| ScanTile::of(dims.div_ceil(64), queries).map(|tile| (tile.queries, tile.stages));
        assert_eq!(of(384, 256), Some((128, 5)));
        assert_eq!(of(384, 1), Some((64, 8)));
        assert_eq!(of(512, 256), Some((128, 3)));
        assert_eq!(of(1024, 256), Some((64, 3)));
        assert_eq!(of(4096, 256), None);
    }
}
