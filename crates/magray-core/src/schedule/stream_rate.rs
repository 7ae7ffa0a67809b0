//! How fast requests that generate give their room back: the tokens that they bring, and how much of their room each of them frees.
//! Decides nothing, and knows nothing while no such request is there.

use super::Moment;
use super::cost::as_f64;
use super::jobs::Job;
use crate::moment::micros;
use std::time::Duration;

/// Speeds are those of about this much of the latest time.
const WINDOW: Duration = Duration::from_secs(10);
/// What is known of requests that ended is kept with this part for each further one.
const ENDED_KEPT: f64 = 31.0 / 32.0;

/// Speeds of the time in which something was generated.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamRate {
    /// Requests that generate, their tokens at most, and their new tokens at most.
    requests: u64,
    room: u64,
    new_max: u64,
    /// Of these, those that have not come.
    new_left: u64,
    /// Until when the time was counted.
    counted: Moment,
    /// Microseconds; new tokens in them, and tokens of other requests that ended in them.
    us: f64,
    new: f64,
    others: f64,
    ended: Ended,
}

/// Of requests that ended: tokens that they might have had and had, new ones that they might have had and had.
#[derive(Clone, Copy, Debug, Default)]
struct Ended {
    room: f64,
    used: f64,
    new_max: f64,
    new: f64,
}

impl StreamRate {
    pub(super) fn began(&mut self, job: &Job, now: Moment) {
        if job.progress.is_empty() {
            return;
        }
        self.count_time(now);
        self.requests += 1;
        self.room += job.tokens_total;
        self.new_max += new_max(job);
        self.new_left += new_max(job);
    }

    pub(super) fn generated(&mut self, tokens: u32, now: Moment) {
        self.count_time(now);
        self.new += f64::from(tokens);
        self.new_left = self.new_left.saturating_sub(u64::from(tokens));
    }

    /// A request needs no more tokens, or its answer was given.
    pub(super) fn ended(&mut self, job: &Job, now: Moment) {
        self.count_time(now);
        if job.progress.is_empty() {
            self.others += if self.requests > 0 { as_f64(job.tokens_total) } else { 0.0 };
            return;
        }
        let (most, known) = (new_max(job), job.progress.iter().map(|one| u64::from(one.known)).sum());
        let new = job.progress.iter().map(|one| u64::from(one.new)).sum();
        self.requests -= 1;
        self.room -= job.tokens_total;
        self.new_max -= most;
        self.new_left = if self.requests == 0 { 0 } else { self.new_left.saturating_sub(most.saturating_sub(new)) };
        let kept = |before: f64, last: u64| before * ENDED_KEPT + as_f64(last);
        let before = self.ended;
        self.ended = Ended {
            room: kept(before.room, job.tokens_total),
            used: kept(before.used, known),
            new_max: kept(before.new_max, most),
            new: kept(before.new, new),
        };
    }

    /// Tokens of room that requests give back in a microsecond, lately; `None` where nothing was generated.
    pub(super) fn room_per_us(&self) -> Option<f64> {
        if self.requests == 0 || self.us <= 0.0 || self.new <= 0.0 {
            return None;
        }
        // Before any has ended each is expected to have all its tokens.
        let per_token = match self.ended.new {
            new if new > 0.0 => self.ended.room / new,
            _ => as_f64(self.room) / as_f64(self.new_max.max(1)),
        };
        Some((self.new * per_token + self.others) / self.us)
    }

    /// The part of their room that requests which generate use in the end.
    pub(super) fn used_part(&self) -> f64 {
        part(self.ended.used, self.ended.room)
    }

    /// Microseconds until a request has space that comes after all that are there, where devices have space for requests of
    /// this much room, and `before` tokens of room more go before it.
    pub(super) fn wait_for_space_us(&self, has: f64, before: f64) -> f64 {
        if self.new <= 0.0 || self.us <= 0.0 {
            return 0.0;
        }
        let (used, new_of_room) =
            (part(self.ended.new, self.ended.new_max), part(as_f64(self.new_max), as_f64(self.room)));
        let left = (as_f64(self.new_left) + before * new_of_room) * used;
        // Those beside which it begins have half of their tokens ahead of them, as a mean.
        let beside = has * new_of_room * used / 2.0;
        (left - beside).max(0.0) * self.us / self.new
    }

    /// Counts the time in which something was generated, and forgets what is long ago.
    fn count_time(&mut self, now: Moment) {
        let passed = micros(now.since(self.counted));
        self.counted = self.counted.max(now);
        if self.requests == 0 || passed <= 0.0 {
            return;
        }
        let window = micros(WINDOW);
        let kept = window / (window + passed);
        self.us = self.us * kept + passed;
        self.new *= kept;
        self.others *= kept;
    }
}

/// What is not known yet is all of it.
fn part(some: f64, all: f64) -> f64 {
    if all > 0.0 { (some / all).clamp(0.01, 1.0) } else { 1.0 }
}

fn new_max(job: &Job) -> u64 {
    job.progress.iter().map(|one| u64::from(one.new_max)).sum()
}

#[cfg(test)]
mod tests {
    use super::super::device_set::DeviceSet;
    use super::super::phase::Reach;
    use super::super::{Allowed, CallerId, Group, ModelId, Priority, Request, RequestId, Sequence};
    use super::*;

    fn job(sequence: Sequence) -> Job {
        let request = Request {
            id: RequestId(1),
            group: Group { model: ModelId(0), key: 0 },
            sequences: vec![sequence],
            caller: CallerId(0),
            priority: Priority::Normal,
            deadline: None,
            allowed: Allowed::Any,
        };
        Job::new(request, Reach { may: DeviceSet::EMPTY, rather_not: DeviceSet::EMPTY }, Moment::START)
    }

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn room_is_given_back_as_fast_as_requests_end() {
        let (mut rate, stream) = (StreamRate::default(), job(Sequence::prompt(100, 300)));
        assert!(rate.room_per_us().is_none());
        rate.began(&stream, at(0));
        (1..=100).for_each(|token| rate.generated(1, at(token)));
        // A token a millisecond; 300 of them free the room of 400.
        let expected = rate.room_per_us().unwrap();
        assert!((expected * 1e3 - 400.0 / 300.0).abs() < 0.01, "{expected}");
        assert_eq!(rate.used_part(), 1.0);
        // It ends early: a hundred tokens have freed it all.
        let mut ended = stream.clone();
        (ended.progress[0].known, ended.progress[0].new) = (200, 100);
        rate.ended(&ended, at(100));
        rate.began(&stream, at(100));
        let expected = rate.room_per_us().unwrap();
        assert!((expected * 1e3 - 4.0).abs() < 0.05, "{expected}");
        assert_eq!(rate.used_part(), 0.5);
        // Texts are computed beside it.
        (0..100).for_each(|text| rate.ended(&job(Sequence::one_step(10)), at(100 + text)));
        assert!(rate.room_per_us().unwrap() > expected);
    }

    #[test]
    fn time_in_which_nothing_was_generated_does_not_count() {
        let (mut rate, stream) = (StreamRate::default(), job(Sequence::prompt(1, 10)));
        rate.began(&stream, at(0));
        rate.generated(10, at(10));
        rate.ended(&stream, at(10));
        assert!(rate.room_per_us().is_none());
        rate.ended(&job(Sequence::one_step(10)), at(50_000));
        rate.began(&stream, at(100_000));
        rate.generated(10, at(100_010));
        let us = rate.us;
        assert!((us - 20_000.0).abs() < 100.0, "{us}");
    }
}
