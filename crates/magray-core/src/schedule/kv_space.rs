//! The space for the state of sequences on one device, counted in tokens.
//! Never promises more than there is; what it keeps, it knows by sequence.

use super::sequence::SequenceId;
use std::collections::BTreeMap;

/// What is kept of which sequence.
#[derive(Clone, Debug)]
pub(super) struct KvSpace {
    tokens_max: u64,
    used: u64,
    kept: BTreeMap<SequenceId, u64>,
}

impl KvSpace {
    pub(super) fn new(tokens_max: u64) -> Self {
        Self { tokens_max, used: 0, kept: BTreeMap::new() }
    }

    pub(super) fn tokens_max(&self) -> u64 {
        self.tokens_max
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn free(&self) -> u64 {
        self.tokens_max.saturating_sub(self.used)
    }

    /// How many sequences it keeps.
    pub(super) fn len(&self) -> u64 {
        self.kept.len() as u64
    }

    pub(super) fn sequences(&self) -> impl Iterator<Item = SequenceId> {
        self.kept.keys().copied()
    }

    pub(super) fn of(&self, sequence: SequenceId) -> u64 {
        self.kept.get(&sequence).copied().unwrap_or(0)
    }

    /// How much more a sequence needs to keep so many tokens.
    pub(super) fn growth(&self, sequence: SequenceId, tokens: u64) -> u64 {
        tokens.saturating_sub(self.of(sequence))
    }

    /// Keeps so many tokens of a sequence, or as many as before where that is more.
    pub(super) fn keep(&mut self, sequence: SequenceId, tokens: u64) {
        self.used += self.growth(sequence, tokens);
        let kept = self.kept.entry(sequence).or_default();
        *kept = tokens.max(*kept);
    }

    /// Keeps nothing of a sequence any more. False if it did not.
    pub(super) fn free_of(&mut self, sequence: SequenceId) -> bool {
        let freed = self.kept.remove(&sequence);
        self.used -= freed.unwrap_or(0);
        freed.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::RequestId;
    use super::*;

    #[test]
    fn what_is_kept_is_free_again_when_its_sequence_is() {
        let mut space = KvSpace::new(100);
        let [first, second] = [1, 2].map(|id| SequenceId { request: RequestId(id), number: 0 });
        space.keep(first, 60);
        space.keep(first, 50);
        space.keep(second, 30);
        assert_eq!((space.used(), space.free(), space.len()), (90, 10, 2));
        assert_eq!((space.growth(first, 65), space.growth(second, 10)), (5, 0));
        assert!(space.free_of(first) && !space.free_of(first));
        assert_eq!((space.used(), space.of(first)), (30, 0));
        assert_eq!(space.sequences().collect::<Vec<_>>(), [second]);
    }
}
