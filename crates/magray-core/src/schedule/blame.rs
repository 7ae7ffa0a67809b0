//! How often a request was there when a worker was lost.
//! Refuses nothing: what follows is decided where requests are replayed.

/// How often a request was there when something ended that should not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Blame {
    /// Workers that were lost.
    pub(super) workers: Count,
    /// Batches of the CPU that failed.
    pub(super) cpu: Count,
}

/// A number of blames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count(u32);

impl Count {
    /// After the first time, only a batch says more that was started to find out: steps of a large request may have
    /// been under way on several devices when trouble came that had nothing to do with it.
    pub(super) fn blame(&mut self, is_trial: bool) -> u32 {
        if self.0 == 0 || is_trial {
            self.0 = self.0.saturating_add(1);
        }
        self.0
    }
}
