//! Packs texts of many lengths into chunks, and says whether threads share a chunk or take one each.
//! Never pads, never splits a text.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// What the packing may assume of a CPU.
#[derive(Clone, Copy, Debug)]
pub struct ChunkLimits {
    /// Tokens of a chunk for one thread, exceeded by less than its longest text: its activations stay in that core's
    /// cache.
    pub tokens_each: usize,
    /// Fewer tokens than this are not worth a thread of their own: reading all weights would cost more than the work.
    pub tokens_least: usize,
    /// Tokens of a chunk for all threads, exceeded by less than its longest text: bounds the memory of activations.
    pub tokens_together: usize,
    /// How many threads there are.
    pub threads: usize,
}

/// Chunks of text indices; every text is in exactly one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Each chunk is one thread's; threads take them in turn and never wait for each other.
    Each(Vec<Vec<usize>>),
    /// All threads work on one chunk after another.
    Together(Vec<Vec<usize>>),
}

/// Threads that end this much after the mean (in percent) would waste more than sharing every step costs.
const IMBALANCE_PERCENT: usize = 25;

/// Packs texts, given by their lengths in tokens.
pub fn plan_chunks(lengths: &[usize], limits: ChunkLimits) -> Schedule {
    let total: usize = lengths.iter().sum();
    let threads = limits.threads.max(1);
    let count = total.div_ceil(limits.tokens_each.max(1)).next_multiple_of(threads).clamp(1, lengths.len().max(1));
    let chunks = spread(lengths, count);
    let loads: Vec<usize> = chunks.iter().map(|chunk| chunk.iter().map(|&i| lengths[i]).sum()).collect();

    let busiest = spread(&loads, threads).iter().map(|own| own.iter().map(|&c| loads[c]).sum::<usize>()).max();
    let is_balanced = busiest.unwrap_or(0) * threads * 100 <= total * (100 + IMBALANCE_PERCENT);
    let is_worth_it = total >= limits.tokens_least * threads;
    if threads == 1 || (is_balanced && is_worth_it) {
        return Schedule::Each(chunks);
    }
    Schedule::Together(spread(lengths, total.div_ceil(limits.tokens_together.max(1)).clamp(1, lengths.len().max(1))))
}

/// Packs texts, given by their lengths in tokens, into chunks for one thread each that others follow: as large as is
/// efficient, and never a small one beside them.
pub fn plan_stream(lengths: &[usize], tokens_each: usize) -> Vec<Vec<usize>> {
    let total: usize = lengths.iter().sum();
    spread(lengths, (total / tokens_each.max(1)).clamp(1, lengths.len().max(1)))
}

/// Divides texts, given by their lengths in tokens, into runs of neighbours of nearly equal size, each of no more than
/// `most_tokens` unless one text alone is longer.
pub fn plan_passes(lengths: &[usize], most_tokens: usize) -> Vec<Range<usize>> {
    let total: usize = lengths.iter().sum();
    let count = total.div_ceil(most_tokens.max(1)).max(1);
    let share = total.div_ceil(count);
    let (mut passes, mut start, mut tokens) = (Vec::new(), 0, 0);
    for (i, &length) in lengths.iter().enumerate() {
        // Half a text too many is as good as half a text too few, as long as it fits.
        let is_full = tokens + length / 2 > share || tokens + length > most_tokens;
        if is_full && i > start {
            passes.push(start..i);
            (start, tokens) = (i, 0);
        }
        tokens += length;
    }
    if start < lengths.len() {
        passes.push(start..lengths.len());
    }
    passes
}

/// Divides items into at most `count` groups of nearly equal weight: the heaviest first, each to the lightest group.
fn spread(weights: &[usize], count: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&i| Reverse(weights[i]));
    let mut groups = vec![Vec::new(); count];
    let mut lightest: BinaryHeap<_> = (0..count).map(|group| Reverse((0usize, group))).collect();
    for i in order {
        if let Some(mut top) = lightest.peek_mut() {
            let Reverse((load, group)) = &mut *top;
            groups[*group].push(i);
            *load += weights[i];
        }
    }
    groups.retain(|group| !group.is_empty());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn passes_hold_every_text_in_order_and_keep_their_limit(
            lengths in prop::collection::vec(0usize..600, 0..400),
            most in 1usize..20_000,
        ) {
            let passes = plan_passes(&lengths, most);
            let texts: Vec<usize> = passes.iter().cloned().flatten().collect();
            prop_assert_eq!(texts, (0..lengths.len()).collect::<Vec<_>>());
            for pass in passes {
                let tokens: usize = lengths[pass.clone()].iter().sum();
                prop_assert!(tokens <= most || pass.len() == 1);
            }
        }
    }

    #[test]
    fn passes_are_of_equal_size_where_texts_are() {
        let passes = plan_passes(&[128; 512], 16_384);
        assert_eq!(passes, [0..128, 128..256, 256..384, 384..512]);
        assert_eq!(plan_passes(&[128; 200], 16_384), [0..100, 100..200]);
    }

    const TWO: ChunkLimits = ChunkLimits { tokens_each: 512, tokens_least: 64, tokens_together: 2048, threads: 2 };

    #[test]
    fn many_equal_texts_are_divided_between_the_threads() {
        let Schedule::Each(chunks) = plan_chunks(&[128; 32], TWO) else { panic!("each thread has its own") };
        assert_eq!(chunks.len(), 8);
        assert!(chunks.iter().all(|chunk| chunk.len() == 4));
    }

    #[test]
    fn one_text_is_shared_by_all_threads() {
        assert_eq!(plan_chunks(&[128], TWO), Schedule::Together(vec![vec![0]]));
        assert_eq!(plan_chunks(&[128], ChunkLimits { threads: 1, ..TWO }), Schedule::Each(vec![vec![0]]));
    }

    #[test]
    fn a_long_and_a_short_text_are_shared() {
        assert!(matches!(plan_chunks(&[512, 5], TWO), Schedule::Together(_)));
    }

    #[test]
    fn a_short_text_in_a_stream_shares_the_chunk_of_a_long_one() {
        assert_eq!(plan_stream(&[4, 256], 256), [[1, 0]]);
        assert_eq!(plan_stream(&[4, 256, 256], 256), [vec![1, 0], vec![2]]);
        assert_eq!(plan_stream(&[4], 256), [[0]]);
        assert_eq!(plan_stream(&[], 256), [[0_usize; 0]; 0]);
    }

    #[test]
    fn nothing_makes_no_chunk() {
        assert_eq!(plan_chunks(&[], TWO), Schedule::Together(vec![]));
    }

    proptest! {
        #[test]
        fn each_text_is_packed_once_and_no_chunk_overflows(
            lengths in prop::collection::vec(1usize..600, 0..200), tokens in 1usize..2000, threads in 1usize..20,
        ) {
            let limits = ChunkLimits { tokens_each: tokens, tokens_least: 64, tokens_together: 4 * tokens, threads };
            let (chunks, most) = match plan_chunks(&lengths, limits) {
                Schedule::Each(chunks) => (chunks, limits.tokens_each),
                Schedule::Together(chunks) => (chunks, limits.tokens_together),
            };
            let mut seen: Vec<usize> = chunks.iter().flatten().copied().collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
            let longest = lengths.iter().copied().max().unwrap_or(0);
            for chunk in &chunks {
                let load: usize = chunk.iter().map(|&i| lengths[i]).sum();
                // The lightest chunk never exceeds the mean before it takes one more text.
                prop_assert!(!chunk.is_empty() && load <= most + longest, "{load} > {most} + {longest}");
            }
        }
    }
}
