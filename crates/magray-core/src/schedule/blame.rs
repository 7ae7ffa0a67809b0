//! How often a request was there when a worker was lost, text by text.
//! Refuses nothing: what follows is decided where requests are replayed.

use std::collections::BTreeMap;

/// After this many failed trials in a row a request is to blame, whichever of its texts were there.
const TRIALS_MAX: u32 = 16;

/// How often a request was there when something ended that should not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Blame {
    /// Workers that were lost.
    pub(super) workers: Count,
    /// Batches of the CPU that failed.
    pub(super) cpu: Count,
}

impl Blame {
    /// A text of the request was computed: what failed before it says nothing of all its texts.
    pub(super) fn text_computed(&mut self) {
        self.workers.trials_in_vain = 0;
        self.cpu.trials_in_vain = 0;
    }
}

/// Blames by text: the parts of a large request are computed one after the other, and trouble that comes twice in that time has nothing to
/// do with it unless the same text was there both times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    texts: BTreeMap<u32, u32>,
    trials_in_vain: u32,
}

impl Count {
    /// Counts a batch that had these texts of the request, and tells how often one of them was there. After a text's first time, only a
    /// batch says more that was started to find out: steps of a large request may have been under way on several devices.
    pub(super) fn blame(&mut self, texts: &[u32], is_trial: bool) -> u32 {
        self.trials_in_vain += u32::from(is_trial);
        let mut most = 0;
        for text in texts {
            let times = self.texts.entry(*text).or_default();
            if *times == 0 || is_trial {
                *times = times.saturating_add(1);
            }
            most = most.max(*times);
        }
        if self.trials_in_vain >= TRIALS_MAX { u32::MAX } else { most }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_text_that_was_there_again_counts_twice() {
        let mut count = Count::default();
        assert_eq!(count.blame(&[0, 1], false), 1);
        assert_eq!(count.blame(&[0, 1], false), 1, "it was under way before");
        assert_eq!(count.blame(&[2, 3], true), 1, "others");
        assert_eq!(count.blame(&[3, 4], true), 2);
    }

    #[test]
    fn a_request_that_ends_something_each_time_is_to_blame_in_the_end() {
        let mut count = Count::default();
        let found = (0..=TRIALS_MAX).find(|text| count.blame(&[*text], true) > 1);
        assert_eq!(found, Some(TRIALS_MAX - 1));
    }

    #[test]
    fn losses_with_computed_texts_between_them_never_add_up() {
        let mut blame = Blame::default();
        for text in 0..100 * TRIALS_MAX {
            assert_eq!(blame.workers.blame(&[text], true), 1);
            blame.text_computed();
        }
        assert_ne!(blame, Blame::default(), "it is still a suspect");
    }
}
