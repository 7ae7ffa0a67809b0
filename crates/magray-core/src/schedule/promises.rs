//! Requests that were refused and told when to come again, and the room that is kept for them.
//! Takes and refuses nothing itself. Those that do not come back are forgotten, and count for less the more of them there are.

use super::cost::as_f64;
use super::{CallerId, Moment};
use std::time::Duration;

/// Promises that are remembered: of more, no room is kept.
const PROMISES_MAX: usize = 256;
/// Room is kept for this long after the time told, and for one part in `LATE_PART` of that time more.
const LATE_LEAST: Duration = Duration::from_millis(250);
const LATE_PART: u32 = 4;
/// Of the share of requests that come back, the weight of the last one.
const LAST_WEIGHT: f64 = 1.0 / 32.0;

/// Which request asks: the same caller and mark are the same request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asking {
    pub(super) caller: CallerId,
    pub(super) tokens: u64,
    /// What tells requests of a caller apart before they are read. `None`: it is read, and its size has to do.
    pub(super) mark: Option<u64>,
}

/// A time that a refused request was told.
#[derive(Clone, Copy, Debug)]
struct Promise {
    asking: Asking,
    due: Moment,
    until: Moment,
    /// It is back and about to be submitted: its room is taken elsewhere.
    is_back: bool,
}

/// What was promised to others before a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Promised {
    pub(super) requests: u64,
    pub(super) tokens: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Promises {
    /// By the time they were made.
    all: Vec<Promise>,
    /// Of the requests that were refused lately, the share that came back in time.
    returned: f64,
}

impl Default for Promises {
    fn default() -> Self {
        Self { all: Vec::new(), returned: 1.0 }
    }
}

impl Promises {
    pub(super) fn forget_late(&mut self, now: Moment) {
        let returned = &mut self.returned;
        self.all.retain(|promise| {
            let is_late = promise.until <= now;
            if is_late {
                *returned -= *returned * LAST_WEIGHT;
            }
            !is_late
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether a request comes when it was told to.
    pub(super) fn is_due(&self, asking: Asking, now: Moment) -> bool {
        self.find(asking).is_some_and(|at| self.all[at].due <= now)
    }

    /// What was promised for an earlier time than to this request, or to all where nothing was promised to it.
    pub(super) fn before(&self, asking: Asking) -> Promised {
        let own = self.find(asking).map(|at| self.all[at].due);
        let mut earlier = Promised::default();
        for promise in self.all.iter().filter(|one| !one.is_back && own.is_none_or(|own| one.due < own)) {
            earlier.requests += 1;
            earlier.tokens = earlier.tokens.saturating_add(promise.asking.tokens);
        }
        let part = |all: u64| (as_f64(all) * self.returned) as u64;
        Promised { requests: part(earlier.requests), tokens: part(earlier.tokens) }
    }

    /// Tells a refused request when to come: the time that it was told before, where that is still ahead.
    pub(super) fn make(&mut self, asking: Asking, wait: Duration, now: Moment) -> Duration {
        let known = self.find(asking);
        if let Some(left) = known.map(|at| self.all[at].due.since(now)).filter(|left| *left > Duration::ZERO) {
            return left;
        }
        let due = now + wait;
        let promise = Promise { asking, due, until: due + LATE_LEAST + wait / LATE_PART, is_back: false };
        match known {
            Some(at) => self.all[at] = promise,
            None if self.all.len() < PROMISES_MAX => self.all.push(promise),
            None => {}
        }
        wait
    }

    /// There is room for a request that is not submitted yet.
    pub(super) fn note_back(&mut self, asking: Asking) {
        if let Some(at) = self.find(asking) {
            self.all[at].is_back = true;
        }
    }

    pub(super) fn note_taken(&mut self, asking: Asking) {
        if let Some(at) = self.find(asking) {
            self.all.remove(at);
            self.returned += (1.0 - self.returned) * LAST_WEIGHT;
        }
    }

    fn find(&self, asking: Asking) -> Option<usize> {
        let is_same = |one: &Promise| match asking.mark {
            Some(_) => one.asking.mark == asking.mark,
            None => (one.is_back || one.asking.mark.is_none()) && is_alike(one.asking.tokens, asking.tokens),
        };
        self.all.iter().position(|one| one.asking.caller == asking.caller && is_same(one))
    }
}

/// Whether two counts of tokens may be of one request: before it is read they are guessed.
fn is_alike(tokens: u64, other: u64) -> bool {
    tokens.max(other) / 2 <= tokens.min(other)
}
