//! Room for a large request that was refused, so that small ones do not starve it.
//! Takes and refuses nothing itself.

use super::Moment;
use std::time::Duration;

/// Room is kept this long for a request that was refused.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// The largest request that was refused lately: smaller ones leave room for it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LargestRefused {
    tokens: u64,
    until: Moment,
}

impl LargestRefused {
    /// Tokens to keep free from a request of this size, where there is room for this many. Half of the room at most: more
    /// would hold up all others for one, and let devices run dry.
    pub(super) fn kept_from(self, tokens: u64, room: u64, now: Moment) -> u64 {
        let kept = self.tokens.min(room / 2);
        if is_smaller(tokens, kept) && now < self.until { kept } else { 0 }
    }

    pub(super) fn is_known(self, now: Moment) -> bool {
        self.tokens > 0 && now < self.until
    }

    pub(super) fn note_refused(&mut self, tokens: u64, now: Moment) {
        if tokens >= self.tokens || self.until <= now {
            *self = Self { tokens, until: now + KEPT_FOR };
        }
    }

    pub(super) fn note_taken(&mut self, tokens: u64) {
        if !is_smaller(tokens, self.tokens) {
            *self = Self::default();
        }
    }
}

/// Whether a request has to wait for another. Those of about one size do not: they come in turn anyway, and how many
/// tokens one has is only guessed before it is read.
fn is_smaller(tokens: u64, other: u64) -> bool {
    tokens < other / 2
}
