//! A batch as the kernels read it: one run of words, laid out for the bucket that the batch falls into.
//! Pure arithmetic; copies nothing to the GPU.

use crate::TokenBatch;

/// Queries of a text that one block of threads attends for.
pub(super) const BLOCK_QUERIES: usize = 64;
/// Words before the ids: the true counts, and room to begin the ids on a line of the cache.
const COUNT_WORDS: usize = 32;
/// Where a part may begin.
const ALIGN_WORDS: usize = 32;

/// The sizes that a pass is recorded for; every batch that rounds up to them can use the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bucket {
    pub(super) tokens: usize,
    pub(super) texts: usize,
    pub(super) blocks: usize,
}

/// Rows of activations that this many tokens take: whole boxes, and few different sizes.
pub(super) fn padded_rows(rows: usize) -> usize {
    coarse(rows, 64, 16)
}

/// Rows to allocate when this many are needed: at least as many as [`padded_rows`], in few steps.
pub(super) fn allocated_rows(rows: usize) -> usize {
    coarse(rows, 64, 4)
}

/// Rounds up so that no more than `1/parts` is added, in steps of at least `unit`.
fn coarse(n: usize, unit: usize, parts: usize) -> usize {
    let power = if n == 0 { 1 } else { 1 << n.ilog2() };
    n.max(1).next_multiple_of(unit.max(power / parts))
}

impl Bucket {
    pub(super) fn of(batch: &TokenBatch<'_>) -> Self {
        Self {
            tokens: padded_rows(batch.tokens()),
            texts: coarse(batch.texts(), 1, 8),
            blocks: coarse(count_blocks(batch), 1, 8),
        }
    }

    /// Where the parts lie, in words from the start, and how many words there are in all.
    pub(super) fn layout(self) -> Layout {
        let aligned = |words: usize| words.next_multiple_of(ALIGN_WORDS);
        let ids = COUNT_WORDS;
        let positions = ids + aligned(self.tokens);
        let offsets = positions + aligned(self.tokens);
        let blocks = offsets + aligned(self.texts + 1);
        Layout { ids, positions, offsets, blocks, words: blocks + aligned(2 * self.blocks) }
    }
}

/// Where the parts of a staged batch lie, in words. The counts lie at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) ids: usize,
    pub(super) positions: usize,
    pub(super) offsets: usize,
    pub(super) blocks: usize,
    pub(super) words: usize,
}

fn count_blocks(batch: &TokenBatch<'_>) -> usize {
    batch.offsets.windows(2).map(|text| (text[1] - text[0]).div_ceil(BLOCK_QUERIES)).sum()
}

/// Writes a batch into the layout of its bucket.
pub(super) fn stage(batch: &TokenBatch<'_>, skip: usize, words: &mut [u32]) {
    let layout = Bucket::of(batch).layout();
    let words = &mut words[..layout.words];
    words[..4].copy_from_slice(&[
        batch.tokens() as u32,
        batch.texts() as u32,
        count_blocks(batch) as u32,
        u32::try_from(skip).unwrap_or(u32::MAX >> 1),
    ]);
    words[layout.ids..][..batch.tokens()].copy_from_slice(batch.ids);
    let positions = &mut words[layout.positions..][..batch.tokens()];
    for text in batch.offsets.windows(2) {
        for (i, position) in positions[text[0]..text[1]].iter_mut().enumerate() {
            *position = i as u32;
        }
    }
    for (position, &kind) in positions.iter_mut().zip(batch.types) {
        *position |= kind << 16;
    }
    for (word, &offset) in words[layout.offsets..].iter_mut().zip(batch.offsets) {
        *word = offset as u32;
    }
    let mut blocks = words[layout.blocks..].as_chunks_mut::<2>().0.iter_mut();
    for (text, range) in batch.offsets.windows(2).enumerate() {
        for first in (0..range[1] - range[0]).step_by(BLOCK_QUERIES) {
            if let Some(block) = blocks.next() {
                *block = [text as u32, first as u32];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buckets_are_large_enough_and_not_much_larger(lengths in prop::collection::vec(0usize..300, 0..200)) {
            let mut offsets = vec![0];
            for length in &lengths {
                offsets.push(offsets[offsets.len() - 1] + length);
            }
            let ids: Vec<u32> = (0..offsets[lengths.len()] as u32).collect();
            let batch = TokenBatch { ids: &ids, types: &[], offsets: &offsets };
            let bucket = Bucket::of(&batch);
            prop_assert!(bucket.tokens >= ids.len() && bucket.tokens.is_multiple_of(64));
            prop_assert!(bucket.tokens <= (ids.len() + ids.len() / 16 + 64).next_multiple_of(64));
            prop_assert!(bucket.texts >= lengths.len() && bucket.texts <= lengths.len() + lengths.len() / 8 + 1);
            let mut words = vec![u32::MAX; bucket.layout().words];
            stage(&batch, 3, &mut words);
            let layout = bucket.layout();
            prop_assert_eq!(&words[layout.ids..][..ids.len()], &ids[..]);
            // Every query of every text belongs to exactly one block.
            let blocks = &words[layout.blocks..][..2 * words[2] as usize];
            let covered: usize = blocks
                .as_chunks::<2>().0.iter()
                .map(|&[text, first]| BLOCK_QUERIES.min(lengths[text as usize] - first as usize))
                .sum();
            prop_assert_eq!(covered, ids.len());
            prop_assert!(words[2] as usize <= bucket.blocks);
        }
    }

    #[test]
    fn places_hold_type_and_position() {
        let batch = TokenBatch { ids: &[5, 6, 7], types: &[0, 1, 1], offsets: &[0, 1, 3] };
        let mut words = vec![0; Bucket::of(&batch).layout().words];
        stage(&batch, 1, &mut words);
        let layout = Bucket::of(&batch).layout();
        assert_eq!(words[..4], [3, 2, 2, 1]);
        assert_eq!(words[layout.positions..][..3], [0, 1 << 16, 1 << 16 | 1]);
        assert_eq!(words[layout.offsets..][..3], [0, 1, 3]);
    }

    #[test]
    fn batches_of_similar_size_share_a_bucket() {
        assert_eq!(padded_rows(1), 64);
        assert_eq!(padded_rows(128), 128);
        assert_eq!(padded_rows(869), 896);
        assert_eq!(padded_rows(15_193), 15_360);
        assert_eq!(padded_rows(16_384), 16_384);
        assert_eq!([1, 200, 1000, 24_576].map(allocated_rows), [64, 256, 1024, 24_576]);
    }
}
