//! Requests that were refused and told when to come again, and the room that is kept for them.
//! Takes and refuses nothing itself. Those that do not come back are forgotten, and count for less the more of them there are.

use super::cost::as_f64;
use super::{CallerId, Moment};
use std::time::Duration;

/// Promises that are remembered: of more, no room is kept.
const PROMISES_MAX: usize = 1024;
/// Those of one caller: others find a place beside them.
const PROMISES_OF_ONE: usize = PROMISES_MAX / 2;
/// Room is kept for this long after the time told, and for one part in `LATE_PART` of that time more.
const LATE_LEAST: Duration = Duration::from_millis(250);
const LATE_PART: u32 = 4;
/// Of the share of requests that come back, the weight of the last one.
const LAST_WEIGHT: f64 = 1.0 / 32.0;

/// What asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asking {
    pub(super) caller: CallerId,
    /// Tokens to compute before it is answered, or gets its first new token.
    pub(super) tokens: u64,
    /// New tokens at most; none of what is not generated.
    pub(super) new_tokens: u64,
    /// As how many requests it is submitted.
    pub(super) jobs: u32,
    /// What tells requests of a caller apart before they are read.
    pub(super) mark: Option<u64>,
    /// Whether it is read: before that its size is a guess.
    pub(super) is_read: bool,
}

impl Asking {
    pub(super) fn is_generated(self) -> bool {
        self.new_tokens > 0
    }

    /// Tokens that it may come to.
    pub(super) fn room(self) -> u64 {
        self.tokens.saturating_add(self.new_tokens)
    }

    /// Those of one of the requests that it is submitted as.
    pub(super) fn room_of_one(self) -> u64 {
        self.room() / u64::from(self.jobs.max(1))
    }
}

/// A time that a refused request was told.
#[derive(Clone, Copy, Debug)]
struct Promise {
    asking: Asking,
    due: Moment,
    /// Until when its room is kept.
    kept_until: Moment,
    /// Until when it has its place before those that were refused later. Many clients know whole seconds only, and come at the next one.
    until: Moment,
    /// It is here and about to be submitted: its room is taken elsewhere.
    is_back: bool,
    /// Whether it was told a time at all, and whether it was for what is computed before it.
    is_told: bool,
    is_for_time: bool,
}

/// What was promised to others before a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Promised {
    pub(super) requests: u64,
    /// Tokens to compute, of those that would wait too long for that.
    pub(super) tokens: u64,
    /// The room of those that generate as it does, or do not as it does not.
    pub(super) room_alike: u64,
    /// The room of the others.
    pub(super) room_others: u64,
}

/// How long a refused request has to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) wait: Duration,
    /// Whether too much is computed before it.
    pub(super) is_for_time: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Promises {
    /// In the order in which they were refused first: those that have to be told a second time do not lose their place.
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
            // One that came and was answered without a place in the queue kept its word.
            if is_late && promise.is_told && !promise.is_back {
                *returned -= *returned * LAST_WEIGHT;
            }
            !is_late
        });
    }

    /// Whether some were told a time and have not come.
    pub(super) fn are_awaited(&self) -> bool {
        self.all.iter().any(|one| one.is_told)
    }

    /// Whether a request comes when it was told to.
    pub(super) fn is_due(&self, asking: Asking, now: Moment) -> bool {
        self.find(asking, now).is_some_and(|at| self.all[at].is_told && self.all[at].due <= now)
    }

    /// What was promised before a time was told to this request, or to all where none was told to it.
    pub(super) fn before(&self, asking: Asking, now: Moment) -> Promised {
        let own = self.find(asking, now).unwrap_or(self.all.len());
        let mut earlier = Promised::default();
        for promise in self.all[..own].iter().filter(|one| !one.is_back && now < one.kept_until) {
            earlier.requests += 1;
            let tokens = if promise.is_for_time { promise.asking.tokens } else { 0 };
            earlier.tokens = earlier.tokens.saturating_add(tokens);
            let is_alike = promise.asking.is_generated() == asking.is_generated();
            let room = if is_alike { &mut earlier.room_alike } else { &mut earlier.room_others };
            *room = room.saturating_add(promise.asking.room());
        }
        let part = |all: u64| (as_f64(all) * self.returned) as u64;
        Promised {
            requests: part(earlier.requests),
            tokens: part(earlier.tokens),
            room_alike: part(earlier.room_alike),
            room_others: part(earlier.room_others),
        }
    }

    /// Tells a refused request when to come, in whole milliseconds. One that was told before keeps its place.
    pub(super) fn make(&mut self, asking: Asking, Wait { wait, is_for_time }: Wait, now: Moment) -> Duration {
        let known = self.find(asking, now);
        let wait = whole(wait, Duration::from_millis(1));
        let (due, late) = (now + wait, LATE_LEAST + wait / LATE_PART);
        let (kept_until, until) = (due + late, now + whole(wait, Duration::from_secs(1)) + late);
        let mark = asking.mark.or(known.and_then(|at| self.all[at].asking.mark));
        let asking = Asking { mark, ..asking };
        self.put(known, Promise { asking, due, kept_until, until, is_back: false, is_told: true, is_for_time });
        wait
    }

    /// There is room for a request that is here and not submitted yet.
    pub(super) fn note_back(&mut self, asking: Asking, now: Moment) {
        let known = self.find(asking, now);
        let before = known.map(|at| self.all[at]);
        // It is known again if there is no room for it once it is read.
        let until = now + LATE_LEAST;
        let new =
            Promise { asking, due: now, kept_until: until, until, is_back: true, is_told: false, is_for_time: false };
        self.put(known, Promise { asking, is_back: true, ..before.unwrap_or(new) });
    }

    fn put(&mut self, at: Option<usize>, promise: Promise) {
        match at {
            Some(at) => self.all[at] = promise,
            None if self.has_place(promise.asking.caller) => self.all.push(promise),
            None => {}
        }
    }

    fn has_place(&self, caller: CallerId) -> bool {
        let of_one = || self.all.iter().filter(|one| one.asking.caller == caller).count();
        self.all.len() < PROMISES_OF_ONE || self.all.len() < PROMISES_MAX && of_one() < PROMISES_OF_ONE
    }

    pub(super) fn note_taken(&mut self, asking: Asking, now: Moment) {
        let Some(at) = self.find(asking, now) else { return };
        let promised = &mut self.all[at].asking;
        if promised.jobs > 1 {
            promised.jobs -= 1;
            promised.tokens = promised.tokens.saturating_sub(asking.tokens);
            promised.new_tokens = promised.new_tokens.saturating_sub(asking.new_tokens).max(1);
            return;
        }
        if self.all.remove(at).is_told {
            self.returned += (1.0 - self.returned) * LAST_WEIGHT;
        }
    }

    /// The promise that a request comes for. One that is read is back under the size that was guessed; where it has no mark, its
    /// size has to do.
    fn find(&self, asking: Asking, now: Moment) -> Option<usize> {
        let all = self.all.iter().enumerate();
        let known = all.filter(|(_, one)| {
            one.asking.caller == asking.caller && one.asking.is_generated() == asking.is_generated()
        });
        if asking.is_read {
            let back = known.clone().filter(|(_, one)| one.is_back);
            if let Some((at, _)) = back.min_by_key(|(_, one)| one.asking.tokens.abs_diff(asking.tokens)) {
                return Some(at);
            }
        }
        if let Some((at, _)) = known.clone().find(|(_, one)| asking.mark.is_some() && one.asking.mark == asking.mark) {
            return Some(at);
        }
        let alike = known.filter(|(_, one)| !one.is_back && one.asking.mark.is_none() && is_alike(one.asking, asking));
        // One with a mark that comes early is another.
        let own = alike.filter(|(_, one)| asking.mark.is_none() || one.due <= now);
        own.map(|(at, _)| at).next()
    }
}

/// Whether two may be one request: before it is read its tokens are guessed.
fn is_alike(one: Asking, other: Asking) -> bool {
    one.tokens.max(other.tokens) / 2 <= one.tokens.min(other.tokens)
}

/// A time in whole units, rounded up.
fn whole(time: Duration, unit: Duration) -> Duration {
    let units = time.as_nanos().div_ceil(unit.as_nanos());
    unit.saturating_mul(u32::try_from(units).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(caller: u32, new_tokens: u64, jobs: u32, is_read: bool) -> Asking {
        let mark = (!is_read).then_some(7);
        Asking { caller: CallerId(caller.into()), tokens: 10 * u64::from(jobs), new_tokens, jobs, mark, is_read }
    }

    fn wait(ms: u64) -> Wait {
        Wait { wait: Duration::from_millis(ms), is_for_time: false }
    }

    #[test]
    fn a_promise_holds_until_each_answer_of_its_prompt_was_taken() {
        let (mut promises, now) = (Promises::default(), Moment::START);
        let (all, one) = (chat(0, 400, 4, false), chat(0, 100, 1, true));
        promises.make(all, wait(1_000), now);
        let now = now + Duration::from_secs(1);
        promises.note_back(all, now);
        for _ in 0..4 {
            assert!(promises.is_due(one, now));
            promises.note_taken(one, now);
        }
        assert!(!promises.are_awaited());
    }

    #[test]
    fn one_caller_leaves_places_to_others() {
        let (mut promises, now) = (Promises::default(), Moment::START);
        for mark in 0..2 * PROMISES_MAX as u64 {
            promises.make(Asking { mark: Some(mark), ..chat(0, 100, 1, false) }, wait(1_000), now);
        }
        assert_eq!(promises.all.len(), PROMISES_OF_ONE);
        promises.make(chat(1, 100, 1, false), wait(1_000), now);
        assert!(promises.is_due(chat(1, 100, 1, false), now + Duration::from_secs(1)));
    }
}
