//! What each rank of a group has of a model: heads, inner numbers of feed-forward layers, rows of the vocabulary.
//! Knows no device and no weights.

use crate::HeadShape;
use magray_core::several_gpus::inner_unit;
use std::ops::Range;

/// The heads of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeadShare {
    /// Heads of queries; empty where there are more ranks than heads.
    pub(super) heads: Range<usize>,
    /// Heads of keys and values that these read.
    pub(super) kv_heads: Range<usize>,
}

impl HeadShare {
    /// Heads of keys and values go to ranks; where there are more ranks than such heads, several share one and divide its queries.
    pub(super) fn of(shape: HeadShape, ranks: usize, rank: usize) -> Self {
        let HeadShape { heads, kv_heads, .. } = shape;
        let group = heads / kv_heads;
        let kv = kv_share(kv_heads, ranks, rank);
        if ranks <= kv_heads {
            return Self { heads: kv.start * group..kv.end * group, kv_heads: kv };
        }
        let sharers = (0..ranks).filter(|other| kv_share(kv_heads, ranks, *other) == kv);
        let (place, count) =
            sharers.fold((0, 0), |(place, count), other| (place + usize::from(other < rank), count + 1));
        let own = even(group, count, place);
        let first = kv.start * group;
        Self {
            heads: first + own.start..first + own.end,
            kv_heads: if own.is_empty() { kv.start..kv.start } else { kv },
        }
    }

    /// Whether it has none.
    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Its heads as those of a model.
    pub(super) fn shape(&self, of: HeadShape) -> HeadShape {
        HeadShape { heads: self.heads.len(), kv_heads: self.kv_heads.len(), ..of }
    }
}

/// The heads of keys and values whose pages a rank keeps: at least one.
pub(super) fn kv_share(kv_heads: usize, ranks: usize, rank: usize) -> Range<usize> {
    if ranks <= kv_heads {
        return even(kv_heads, ranks, rank);
    }
    let kv = rank * kv_heads / ranks;
    kv..kv + 1
}

/// Neighbours, as many for each rank as can be: the first ones have one more.
pub(super) fn even(total: usize, ranks: usize, rank: usize) -> Range<usize> {
    let (each, more) = (total / ranks, total % ranks);
    let start = rank * each + rank.min(more);
    start..start + each + usize::from(rank < more)
}

/// The inner numbers of a feed-forward layer that a rank has: whole blocks, as [`inner_unit`] says.
pub(super) fn inner(total: usize, ranks: usize, rank: usize) -> Range<usize> {
    let unit = inner_unit(total, ranks);
    let share = even(total / unit, ranks, rank);
    share.start * unit..share.end * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number once, in order.
    fn covers(total: usize, mut shares: impl Iterator<Item = Range<usize>>) -> bool {
        shares.try_fold(0, |end, share| (end == share.start).then_some(share.end)) == Some(total)
    }

    #[test]
    fn every_head_and_number_has_one_rank() {
        for ranks in 1..=9 {
            for total in [1, 7, 56, 70, 96, 4864, 11_008, 14_336, 28_672] {
                assert!(covers(total, (0..ranks).map(|rank| even(total, ranks, rank))), "{total} {ranks}");
                assert!(covers(total, (0..ranks).map(|rank| inner(total, ranks, rank))), "{total} {ranks}");
            }
            for (heads, kv_heads) in [(4, 2), (4, 4), (3, 3), (32, 8), (9, 3), (8, 1), (14, 2)] {
                let shape = HeadShape { heads, kv_heads, head_size: 8 };
                let shares: Vec<_> = (0..ranks).map(|rank| HeadShare::of(shape, ranks, rank)).collect();
                assert!(covers(heads, shares.iter().map(|share| share.heads.clone())), "{shape:?} {ranks}: {shares:?}");
                for (rank, share) in shares.iter().enumerate().filter(|(_, share)| !share.is_empty()) {
                    let own = share.shape(shape);
                    assert!(own.heads.is_multiple_of(own.kv_heads), "as many queries for each key");
                    let read = |head: usize| head * kv_heads / heads;
                    let is_read = share.kv_heads == (read(share.heads.start)..read(share.heads.end - 1) + 1);
                    assert!(is_read && share.kv_heads == kv_share(kv_heads, ranks, rank), "{shape:?} {share:?}");
                }
                assert!(!shares[0].is_empty(), "the first rank has what is there once");
            }
        }
    }

    #[test]
    fn inner_numbers_are_cut_between_the_largest_blocks_of_which_each_rank_has_one() {
        for total in (1..=2_100).chain([4_864, 8_960, 11_008, 13_824, 18_944, 22_016, 27_392, 28_672]) {
            for ranks in 1..=9 {
                let shares: Vec<_> = (0..ranks).map(|rank| inner(total, ranks, rank)).collect();
                assert!(covers(total, shares.iter().cloned()), "{total}: {shares:?}");
                assert!(total < ranks || shares.iter().all(|share| !share.is_empty()), "{total}: {shares:?}");
                let cuts = |block: usize| shares.iter().any(|share| !share.start.is_multiple_of(block));
                for block in [32, 256] {
                    let are_enough = total.is_multiple_of(block) && total / block >= ranks;
                    assert!(!(are_enough && cuts(block)), "{total}, {block}: {shares:?}");
                }
                let unit = inner_unit(total, ranks);
                let most = shares.iter().map(Range::len).max();
                assert_eq!(most, Some((total / unit).div_ceil(ranks) * unit), "as plans count: {total}: {shares:?}");
            }
        }
        assert_eq!(inner(14_336, 4, 1), 3_584..7_168);
        assert_eq!([0, 1].map(|rank| inner(11_008, 2, rank).len()), [22 * 256, 21 * 256]);
        assert_eq!(inner(4_864, 2, 0), 0..2_560);
        assert_eq!(inner(96, 2, 0), 0..64);
        assert_eq!(inner(96, 4, 3), 72..96);
    }
}
