//! Fills a batch from the queue, in order, up to what the device, the options and the expected time allow.
//! Never mixes groups, never leaves an old request behind a younger one, and looks at few texts more than it takes.

use super::cost::Cost;
use super::jobs::Jobs;
use super::queue::{Aging, LaneKey, Load, Queue, Side, Ticket};
use super::{DeviceId, RequestId};
use std::ops::Range;

/// Runs that do not fit and may be passed over while a batch is filled. More would hardly fill it better.
const MISFITS_MAX: u32 = 16;

/// A time that was reckoned in another way differs in its last digits.
const ROUNDING: f64 = 1.0 + 1e-9;

/// How much a batch may hold. Its first text is taken whatever its size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) tokens_max: u64,
    pub(super) texts_max: u64,
    pub(super) cost: Cost,
    pub(super) time_max_us: f64,
}

impl Room {
    fn fits(&self, load: Load) -> bool {
        let is_within = load.tokens <= self.tokens_max && load.texts <= self.texts_max;
        load.texts == 1 || is_within && self.cost.of(load) <= self.time_max_us * ROUNDING
    }

    /// Whether so much work is enough for a batch that need not wait for more.
    pub(super) fn is_filled_by(&self, load: Load) -> bool {
        load.tokens >= self.tokens_max || load.texts >= self.texts_max || self.cost.of(load) >= self.time_max_us
    }
}

/// Where a batch is taken from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) lead: LaneKey,
    pub(super) device: DeviceId,
    pub(super) side: Side,
}

/// Texts chosen for a batch; they still wait in the queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Chosen {
    pub(super) runs: Vec<(Ticket, Range<u32>)>,
    pub(super) load: Load,
}

/// Chooses the texts of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batcher<'a> {
    pub(super) queue: &'a Queue,
    pub(super) jobs: &'a Jobs,
    pub(super) room: Room,
    pub(super) aging: Aging,
}

impl Batcher<'_> {
    pub(super) fn choose(&self, source: Source) -> Chosen {
        let mut chosen = Chosen::default();
        let mut misfits = 0;
        let mut owner = None;
        let lanes = self.queue.partners(source.lead, source.device);
        for (ticket, run) in self.queue.walk(lanes, source.side, self.aging) {
            if source.lead.is_alone && *owner.get_or_insert(run.request) != run.request {
                break;
            }
            let whole = ticket.place.first..run.end;
            let texts = self.part_of(run.request, whole.clone(), source.side, &mut chosen.load);
            let is_whole = texts == whole;
            if !texts.is_empty() {
                chosen.runs.push((ticket, texts));
            }
            if is_whole {
                continue;
            }
            // Shorter ones behind it may fill the room that is left, unless it is old: then nobody overtakes it.
            misfits += 1;
            let is_full = chosen.load.texts >= self.room.texts_max || chosen.load.tokens >= self.room.tokens_max;
            if is_full || misfits > MISFITS_MAX || self.aging.is_aged(run) {
                break;
            }
        }
        chosen
    }

    /// The texts of a run that fit; their load is added to that of the batch.
    fn part_of(&self, request: RequestId, whole: Range<u32>, side: Side, load: &mut Load) -> Range<u32> {
        let job = self.jobs.get(request);
        let mut taken = 0;
        for step in 0..whole.end - whole.start {
            let text = match side {
                Side::Front => whole.start + step,
                Side::Back => whole.end - 1 - step,
            };
            let tokens = job.map_or(1, |job| job.text_tokens(text));
            let more = load.plus(Load { tokens, texts: 1 });
            if !self.room.fits(more) {
                break;
            }
            *load = more;
            taken += 1;
        }
        match side {
            Side::Front => whole.start..whole.start + taken,
            Side::Back => whole.end - taken..whole.end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::device_set::DeviceSet;
    use super::super::jobs::Job;
    use super::super::queue::{Place, Reach, Run};
    use super::super::{Allowed, Group, Moment, Priority, Request};
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const DEVICE: DeviceId = DeviceId(0);

    /// A queue of requests, given by the tokens of their texts and whether they have waited too long.
    fn waiting(requests: &[(Vec<u32>, bool)]) -> (Queue, Jobs, LaneKey) {
        let (mut queue, mut jobs) = (Queue::default(), Jobs::default());
        let reach = Reach { may: DeviceSet::one(DEVICE), rather_not: DeviceSet::EMPTY };
        let lane = LaneKey { group: Group { model: crate::schedule::ModelId(0), way: 0 }, is_alone: false, reach };
        for (arrival, (tokens, is_aged)) in (1..).zip(requests) {
            let id = RequestId(arrival);
            let request = Request {
                id,
                group: lane.group,
                tokens: tokens.clone(),
                priority: Priority::Normal,
                deadline: None,
                allowed: Allowed::Any,
            };
            let job = Job::new(request, reach.may, Moment::START);
            let ticket = Ticket { lane, priority: Priority::Normal, place: Place { arrival, first: 0 } };
            let arrived = if *is_aged { Moment::START } else { now() };
            queue.insert(ticket, Run { request: id, end: job.unanswered, tokens: job.tokens_total, arrived });
            jobs.insert(id, job);
        }
        (queue, jobs, lane)
    }

    fn now() -> Moment {
        Moment::START + Duration::from_secs(1)
    }

    fn batch(requests: &[(Vec<u32>, bool)], side: Side, most: Load) -> Chosen {
        let (queue, jobs, lead) = waiting(requests);
        let Load { tokens: tokens_max, texts: texts_max } = most;
        let room = Room { tokens_max, texts_max, cost: Cost::GPU, time_max_us: f64::INFINITY };
        let aging = Aging { now: now(), age_max: Duration::from_millis(200) };
        Batcher { queue: &queue, jobs: &jobs, room, aging }.choose(Source { lead, device: DEVICE, side })
    }

    proptest! {
        #[test]
        fn a_batch_keeps_to_its_room_and_overtakes_no_old_request(
            requests in prop::collection::vec((prop::collection::vec(1_u32..300, 1..12), any::<bool>()), 1..40),
            tokens_max in 1_u64..2_000,
            texts_max in 1_u64..60,
            is_front in any::<bool>(),
        ) {
            // Those that have waited too long came first.
            let mut requests = requests;
            requests.sort_by_key(|(_, is_aged)| !is_aged);
            let side = if is_front { Side::Front } else { Side::Back };
            let chosen = batch(&requests, side, Load { tokens: tokens_max, texts: texts_max });
            let texts: u64 = chosen.runs.iter().map(|(_, texts)| u64::try_from(texts.len()).unwrap()).sum();
            prop_assert_eq!(texts, chosen.load.texts);
            prop_assert!(texts >= 1 && texts <= texts_max);
            prop_assert!(chosen.load.tokens <= tokens_max || texts == 1);
            if !is_front {
                return Ok(());
            }
            let mut is_cut_short = false;
            for ((tokens, is_aged), arrival) in requests.iter().zip(1..) {
                let run = chosen.runs.iter().find(|(ticket, _)| ticket.place.arrival == arrival);
                prop_assert!(run.is_none() || !is_cut_short, "overtakes an old one");
                let is_whole = run.is_some_and(|(_, texts)| texts.len() == tokens.len());
                is_cut_short |= *is_aged && !is_whole;
            }
        }
    }

    #[test]
    fn what_is_taken_from_the_back_are_the_last_texts_of_the_last_request() {
        let chosen = batch(&[(vec![10; 4], false), (vec![10; 4], false)], Side::Back, Load { tokens: 60, texts: 100 });
        let texts: Vec<(u64, Range<u32>)> =
            chosen.runs.iter().map(|(ticket, texts)| (ticket.place.arrival, texts.clone())).collect();
        assert_eq!(texts, [(2, 0..4), (1, 2..4)]);
    }
}
