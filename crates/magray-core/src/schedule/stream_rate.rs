//! When requests that generate give their room back: how fast their tokens come, and how many of those that they may have they use.
//! Decides nothing, and knows nothing before the first token.

use super::Moment;
use super::cost::as_f64;
use super::jobs::Job;
use super::sequence::Status;
use crate::moment::micros;
use std::time::Duration;

/// Speeds are those of about this much of the latest time.
const WINDOW: Duration = Duration::from_secs(10);
/// What is known of requests that ended is kept with this part for each further one.
const ENDED_KEPT: f64 = 31.0 / 32.0;
/// Before so much of the time was seen, nothing is told that is further away than what was seen, or than this.
const FORESIGHT_LEAST_US: f64 = 1e6;
/// Requests that are looked at to say when room is given back, those that came first: so a refusal stays cheap.
const STREAMS_MAX: usize = 512;
/// One that has had as many tokens as others had in the end is expected to have this part of the rest.
const REST_PART: f64 = 0.25;

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
    /// Microseconds; the same by the requests that were there; and new tokens in them.
    us: f64,
    requests_us: f64,
    new: f64,
    /// Tokens of requests of one step that ended in this time, the same by how long they were there, how often some ended, and when last.
    in_one_step: f64,
    in_one_step_us: f64,
    one_step_ends: f64,
    one_step_end: Moment,
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
            if self.requests > 0 {
                self.in_one_step += as_f64(job.tokens_total);
                self.in_one_step_us += as_f64(job.tokens_total) * micros(now.since(job.arrived));
                self.one_step_ends += f64::from(u8::from(self.one_step_end < now));
                self.one_step_end = now;
            }
            return;
        }
        let (most, known) = (new_max(job), job.progress.iter().map(|one| u64::from(one.known)).sum());
        let new = job.progress.iter().map(|one| u64::from(one.new)).sum();
        self.requests -= 1;
        self.room -= job.tokens_total;
        self.new_max -= most;
        self.new_left = if self.requests == 0 { 0 } else { self.new_left.saturating_sub(most.saturating_sub(new)) };
        // One that left before its first token says nothing of how many it would have used.
        if new == 0 {
            return;
        }
        let kept = |before: f64, last: u64| before * ENDED_KEPT + as_f64(last);
        let before = self.ended;
        self.ended = Ended {
            room: kept(before.room, job.tokens_total),
            used: kept(before.used, known),
            new_max: kept(before.new_max, most),
            new: kept(before.new, new),
        };
    }

    /// The room of those that are there.
    pub(super) fn room(&self) -> u64 {
        self.room
    }

    /// Microseconds until this much room was given back, where each that ends is followed by one like it; `None` before the first
    /// token. `streams` are the requests that generate.
    pub(super) fn time_to_free_us<'a>(&self, room: u64, streams: impl Iterator<Item = &'a Job>) -> Option<f64> {
        if self.room == 0 || self.us <= 0.0 || self.new <= 0.0 {
            return None;
        }
        // How long a request waits for its next token; the time for prompts is in it.
        let gap_us = self.requests_us / self.new;
        let used = part(self.ended.new, self.ended.new_max);
        let mut ends: Vec<(f64, u64)> =
            streams.take(STREAMS_MAX).map(|job| (tokens_left(job, used) * gap_us, job.tokens_total)).collect();
        ends.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        // Once all of them have ended, their followers end as they did.
        let rounds = room.saturating_sub(1) / self.room;
        let mut rest = room - rounds * self.room;
        let mut after_us = 0.0;
        for (end_us, freed) in ends {
            if rest == 0 {
                break;
            }
            after_us = end_us;
            rest = rest.saturating_sub(freed);
        }
        let expected_us = after_us + (as_f64(rounds) * as_f64(self.room) + as_f64(rest)) / self.room_per_us();
        // The first tokens of many come late, behind all of their prompts, and say little of the others.
        let is_early = self.us < micros(WINDOW) / 2.0;
        Some(if is_early { expected_us.min(self.us.max(FORESIGHT_LEAST_US)) } else { expected_us })
    }

    /// Microseconds until requests of one step have given this much of the room that they have back, beside those that generate; `None`
    /// where there are none such. As fast as those leave that are there: how many left says too little where few came.
    pub(super) fn time_in_one_step_us(&self, room: u64, has: u64) -> Option<f64> {
        if self.requests == 0 || self.in_one_step <= 0.0 || self.one_step_ends <= 0.0 {
            return None;
        }
        let each_us = self.in_one_step_us / self.in_one_step;
        // Those of a batch end together.
        Some((each_us * as_f64(room) / as_f64(has.max(1))).max(self.us / self.one_step_ends))
    }

    /// Tokens of room that are given back in a microsecond.
    fn room_per_us(&self) -> f64 {
        // Before any has ended each is expected to have all its tokens.
        let per_token = match self.ended.new {
            new if new > 0.0 => self.ended.room / new,
            _ => as_f64(self.room) / as_f64(self.new_max.max(1)),
        };
        self.new * per_token / self.us
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
        self.requests_us = self.requests_us * kept + passed * as_f64(self.requests);
        self.new *= kept;
        self.in_one_step *= kept;
        self.in_one_step_us *= kept;
        self.one_step_ends *= kept;
    }
}

/// What is not known yet is all of it.
fn part(some: f64, all: f64) -> f64 {
    if all > 0.0 { (some / all).clamp(0.01, 1.0) } else { 1.0 }
}

fn new_max(job: &Job) -> u64 {
    job.progress.iter().map(|one| u64::from(one.new_max)).sum()
}

/// New tokens that the longest of its sequences is expected to get, where this part of those asked for is used.
fn tokens_left(job: &Job, used: f64) -> f64 {
    let going = job.progress.iter().filter(|one| one.status != Status::Ended && !job.is_over);
    let left = going.map(|one| {
        let (new, most) = (f64::from(one.new), f64::from(one.new_max));
        (most * used - new).max((most - new) * REST_PART).max(1.0)
    });
    left.fold(0.0, f64::max)
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

    /// Milliseconds until this much room is free.
    fn free_in(rate: &StreamRate, room: u64, streams: &[Job]) -> f64 {
        rate.time_to_free_us(room, streams.iter()).unwrap() / 1e3
    }

    fn is_near(ms: f64, expected: f64) -> bool {
        (ms / expected - 1.0).abs() < 0.02
    }

    #[test]
    fn room_is_given_back_when_requests_end() {
        let (mut rate, mut stream) = (StreamRate::default(), job(Sequence::prompt(100, 300)));
        assert!(rate.time_to_free_us(1, std::iter::empty()).is_none());
        rate.began(&stream, at(0));
        (1..=100).for_each(|token| rate.generated(1, at(token)));
        (stream.progress[0].known, stream.progress[0].new) = (200, 100);
        // A token a millisecond, and 200 are left; the next one takes its 300.
        let ms = free_in(&rate, 400, std::slice::from_ref(&stream));
        assert!(is_near(ms, 200.0), "{ms}");
        let ms = free_in(&rate, 401, std::slice::from_ref(&stream));
        assert!(is_near(ms, 500.0), "{ms}");
        assert_eq!(rate.used_part(), 1.0);
        // It ends early: so will the next.
        rate.ended(&stream, at(100));
        let next = job(Sequence::prompt(100, 300));
        rate.began(&next, at(100));
        let ms = free_in(&rate, 1, std::slice::from_ref(&next));
        assert!(is_near(ms, 100.0), "{ms}");
        assert_eq!(rate.used_part(), 0.5);
    }

    #[test]
    fn equal_requests_that_began_together_end_together() {
        let mut rate = StreamRate::default();
        let streams = vec![job(Sequence::prompt(10, 50)); 8];
        streams.iter().for_each(|stream| rate.began(stream, at(0)));
        (1..=10).for_each(|turn| (0..8).for_each(|_| rate.generated(1, at(10 * turn))));
        // What one of them frees was once told as an eighth of the time.
        let (first, last) = (free_in(&rate, 60, &streams), free_in(&rate, 480, &streams));
        assert!(is_near(first, 500.0) && is_near(last, 500.0), "{first} {last}");
        let followers = free_in(&rate, 481, &streams);
        assert!(is_near(followers, 1_000.0), "{followers}");
        // Texts are computed beside them.
        (0..10).for_each(|text| rate.ended(&job(Sequence::one_step(10)), at(100 + text / 5 * 100)));
        let texts = |room| rate.time_in_one_step_us(room, 100).unwrap() / 1e3;
        assert!(is_near(texts(200), 300.0) && is_near(texts(1), 100.0), "{} {}", texts(200), texts(1));
    }

    #[test]
    fn time_in_which_nothing_was_generated_does_not_count() {
        let (mut rate, stream) = (StreamRate::default(), job(Sequence::prompt(1, 10)));
        rate.began(&stream, at(0));
        rate.generated(10, at(10));
        rate.ended(&stream, at(10));
        assert!(rate.time_to_free_us(1, std::iter::empty()).is_none());
        rate.ended(&job(Sequence::one_step(10)), at(50_000));
        rate.began(&stream, at(100_000));
        rate.generated(10, at(100_010));
        let us = rate.us;
        assert!((us - 20_000.0).abs() < 100.0, "{us}");
    }
}
