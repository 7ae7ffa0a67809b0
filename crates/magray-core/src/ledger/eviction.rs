//! Who gives way when memory is short: the one order of eviction.
//! Finds no candidates and moves nothing: it is given those that may be evicted, and picks some.
//!
//! What a worker caches goes first, without being asked: the ledger counts it as free. Then go those of [`Rank`], in its
//! order; within a rank the lowest priority, then those with which least is lost. Where all of them would not do,
//! the growth is refused and nothing is evicted.

use std::cmp::Ordering;

/// Kinds of memory that may be evicted, in the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// Weights that no batch uses.
    IdleWeights,
    /// Vectors that no search uses.
    IdleVectors,
    /// State of a sequence that does not go on by itself: its reader is slow.
    PausedSequence,
    /// State of a sequence that waits for its next step.
    WaitingSequence,
    /// Weights that leave when the batches that use them have ended.
    BusyWeights,
}

/// A candidate for eviction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate<T, P> {
    /// Who.
    pub who: T,
    /// What would be free.
    pub bytes: u64,
    /// What kind of memory it is.
    pub rank: Rank,
    /// How much the owner counts; the lowest goes first.
    pub priority: P,
    /// How little is lost: the highest goes first.
    pub score: f64,
}

impl<T, P: Ord> Candidate<T, P> {
    fn order(&self, other: &Self) -> Ordering {
        let by_kind = self.rank.cmp(&other.rank).then(self.priority.cmp(&other.priority));
        by_kind.then(other.score.total_cmp(&self.score))
    }
}

/// The one that gives way first; of those that are alike, the first in the list.
pub fn first<T, P: Ord>(candidates: impl IntoIterator<Item = Candidate<T, P>>) -> Option<T> {
    candidates.into_iter().min_by(Candidate::order).map(|candidate| candidate.who)
}

/// The first in order that are enough, where `missing` says what is missing once this many bytes are freed; and what is
/// missing although all of them leave.
pub fn choose<T, P: Ord>(mut candidates: Vec<Candidate<T, P>>, missing: impl Fn(u64) -> u64) -> (Vec<T>, u64) {
    candidates.sort_by(Candidate::order);
    let (mut chosen, mut freed) = (Vec::new(), 0_u64);
    for candidate in candidates {
        if missing(freed) == 0 {
            break;
        }
        freed = freed.saturating_add(candidate.bytes);
        chosen.push(candidate.who);
    }
    (chosen, missing(freed))
}
