//! Fills a batch from the queue, in order, up to what the device, the options and the expected time allow.
//! Never mixes groups, never leaves an old request behind a younger one, and looks at few sequences more than it takes.

use super::cost::Cost;
use super::device_memory::{DeviceMemory, HEADROOM_TOKENS};
use super::jobs::Jobs;
use super::phase::Phase;
use super::queue::{Aging, BucketKey, Load, Queue, Ticket};
use super::run::{Position, Run, Side};
use super::sequence::{SequenceId, StepBounds};
use super::{DeviceId, RequestId};
use std::collections::BTreeSet;
use std::ops::Range;

/// Steps that do not fit and may be passed over while a turn is filled. More would hardly fill it better.
const MISFITS_MAX: u32 = 16;

/// Tolerance for floating-point rounding.
const ROUNDING: f64 = 1.0 + 1e-9;

/// The part of a turn's time that single tokens take at most while prompts wait.
const NEXT_PART: f64 = 0.75;

/// A chunk that is not the last of its prompt has at least this many tokens, where the turn has others.
const CHUNK_LEAST: u64 = 16;
const PAGE_TOKENS: u64 = super::PAGE_TOKENS as u64;

/// How much a batch may hold. Its first sequence is taken whatever its size, or at least one token of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) tokens_max: u64,
    pub(super) texts_max: u64,
    pub(super) cost: Cost,
    pub(super) time_max_us: f64,
    /// The time up to which a part of a long request joins others.
    pub(super) mixed_us: f64,
}

impl Room {
    fn fits(&self, load: Load) -> bool {
        let is_within = load.tokens <= self.tokens_max && load.texts <= self.texts_max;
        load.texts == 1 || is_within && self.cost.of(load) <= self.time_max_us * ROUNDING
    }

    /// Tokens of one more sequence that fit beside so much.
    fn tokens_beside(&self, load: Load) -> u64 {
        if load.texts >= self.texts_max {
            return 0;
        }
        let by_time = self.cost.tokens_within(load, self.time_max_us * ROUNDING);
        let tokens = self.tokens_max.saturating_sub(load.tokens).min(by_time);
        if load.texts == 0 { tokens.max(1) } else { tokens }
    }

    /// The part of it for a step of this many tokens beside so much.
    fn part(&self, share: Share, tokens: u64, load: Load) -> Self {
        let time_max_us = match share {
            Share::Next => self.time_max_us * NEXT_PART,
            Share::Aged if tokens > 1 => {
                let taken_us = if load.texts == 0 { 0.0 } else { self.cost.of(load) };
                let part_us = taken_us + self.time_max_us * (1.0 - NEXT_PART);
                // A token of it, where that takes more: else single tokens would take its place turn by turn.
                let least_us = self.cost.of(load.plus(Load { tokens: 1, texts: 1 }));
                self.time_max_us.min(part_us.max(least_us))
            }
            Share::Aged | Share::All => self.time_max_us,
        };
        Self { time_max_us, ..*self }
    }

    /// Whether so much work is enough for a batch that need not wait for more.
    pub(super) fn is_filled_by(&self, load: Load) -> bool {
        load.tokens >= self.tokens_max || load.texts >= self.texts_max || self.cost.of(load) >= self.time_max_us
    }
}

/// Where a batch is taken from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) lead: BucketKey,
    pub(super) device: DeviceId,
    pub(super) side: Side,
}

/// Sequences chosen for a batch; they still wait in the queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Chosen {
    pub(super) runs: Vec<Choice>,
    pub(super) load: Load,
}

/// Sequences of one run.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) ticket: Ticket,
    pub(super) numbers: Range<u32>,
    /// Tokens of its next step, where it has many.
    pub(super) tokens: u64,
}

/// Chooses the sequences of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batcher<'a> {
    pub(super) queue: &'a Queue,
    pub(super) jobs: &'a Jobs,
    pub(super) room: Room,
    pub(super) aging: Aging,
}

/// What a turn is bounded by, beside what bounds every batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnBounds<'a> {
    pub(super) memory: &'a DeviceMemory,
    /// Space for state that may be taken.
    pub(super) kv_free: u64,
    pub(super) step: StepBounds,
    /// Whether prompts join turns of others.
    pub(super) takes_prompts: bool,
}

impl Batcher<'_> {
    /// Chooses the steps of a turn: what has waited long for its next step, then sequences that go on, then prompts that
    /// have begun, then others.
    pub(super) fn choose_turn(&self, source: Source, bounds: TurnBounds<'_>) -> Chosen {
        let Source { lead, device, .. } = source;
        let buckets: Vec<BucketKey> = self.queue.partners(lead, device).collect();
        let of = |phase: Phase| -> Vec<BucketKey> {
            buckets.iter().copied().filter(|bucket| bucket.phase == phase).collect()
        };
        let (next, begun, fresh) = (of(Phase::Next(device)), of(Phase::Prompt(device)), of(Phase::Fresh));
        let are_alone = begun.is_empty() && fresh.is_empty();
        let mut turn = Turn { bounds, chosen: Chosen::default(), begun: 0, aged: BTreeSet::new(), owner: None };
        if !bounds.takes_prompts && !next.is_empty() {
            self.add_steps(&mut turn, &next, Share::All, lead);
            return turn.chosen;
        }
        if !begun.is_empty() {
            let held: Vec<BucketKey> = next.iter().chain(&begun).copied().collect();
            self.add_steps(&mut turn, &held, Share::Aged, lead);
        }
        self.add_steps(&mut turn, &next, if are_alone { Share::All } else { Share::Next }, lead);
        self.add_steps(&mut turn, &begun, Share::All, lead);
        self.add_steps(&mut turn, &fresh, Share::All, lead);
        turn.chosen
    }

    /// Adds the steps of some buckets that fit.
    fn add_steps(&self, turn: &mut Turn<'_>, buckets: &[BucketKey], share: Share, lead: BucketKey) {
        let mut misfits = 0;
        for (ticket, run) in self.queue.walk(buckets.iter().copied(), Side::Front, self.aging) {
            let is_aged = self.aging.is_aged(run);
            let is_others = lead.is_isolated && *turn.owner.get_or_insert(run.request) != run.request;
            if is_others || share == Share::Aged && !is_aged {
                break;
            }
            if turn.aged.contains(&ticket.position) {
                continue;
            }
            let room = self.room.part(share, run.tokens, turn.chosen.load);
            let tokens = self.part_of_prompt(&ticket, run, room.tokens_beside(turn.chosen.load));
            let is_worthwhile = turn.chosen.runs.is_empty() || is_aged || tokens >= run.tokens.min(CHUNK_LEAST);
            let growth = self.growth(turn, &ticket, run.request).filter(|_| tokens > 0 && is_worthwhile);
            if let Some(growth) = growth {
                turn.bounds.kv_free -= growth;
                turn.begun += u64::from(ticket.bucket.phase == Phase::Fresh);
                turn.chosen.load = turn.chosen.load.plus(Load { tokens, texts: 1 });
                turn.chosen.runs.push(Choice { ticket, numbers: ticket.position.first..run.end, tokens });
                if share == Share::Aged {
                    turn.aged.insert(ticket.position);
                }
                continue;
            }
            // Nothing overtakes a prompt that has waited long; others may fill what is left.
            misfits += 1;
            let is_blocking = is_aged && ticket.bucket.phase == Phase::Fresh;
            if tokens == 0 || misfits > MISFITS_MAX || is_blocking {
                break;
            }
        }
    }

    /// How many tokens of a sequence go into a step with room for so many. A part of a prompt ends where a page does: only
    /// whole pages are found by prompts that begin alike.
    fn part_of_prompt(&self, ticket: &Ticket, run: &Run, room: u64) -> u64 {
        let tokens = room.min(run.tokens);
        let progress = self.jobs.get(run.request).and_then(|job| job.progress_of(ticket.position.first));
        let computed = progress.and_then(|progress| progress.held).map_or(0, |held| u64::from(held.computed));
        match tokens == run.tokens {
            true => tokens,
            false => Some(tokens.saturating_sub((computed + tokens) % PAGE_TOKENS))
                .filter(|part| *part > 0)
                .unwrap_or(tokens),
        }
    }

    /// The space that a sequence needs beyond what it has, if there is so much.
    fn growth(&self, turn: &Turn<'_>, ticket: &Ticket, request: RequestId) -> Option<u64> {
        let TurnBounds { memory, kv_free, step, .. } = turn.bounds;
        let number = ticket.position.first;
        let progress = self.jobs.get(request)?.progress_of(number)?;
        let growth = memory.growth(SequenceId { request, number }, step.kept(progress));
        let headroom = match ticket.bucket.phase {
            Phase::Fresh => memory.headroom() + turn.begun * HEADROOM_TOKENS * step.token_bytes,
            _ => 0,
        };
        Some(growth).filter(|growth| growth.saturating_add(headroom) <= kv_free)
    }

    pub(super) fn choose(&self, source: Source) -> Chosen {
        let mut chosen = Chosen::default();
        let mut owner = None;
        let buckets = self.queue.partners(source.lead, source.device);
        for (ticket, run) in self.queue.walk(buckets, source.side, self.aging) {
            if source.lead.is_isolated && *owner.get_or_insert(run.request) != run.request {
                break;
            }
            let whole = ticket.position.first..run.end;
            let is_long = !self.room.fits(chosen.load.plus(Load { tokens: run.tokens, texts: whole.len() as u64 }));
            let time_max_us =
                if is_long && !chosen.runs.is_empty() { self.room.mixed_us } else { self.room.time_max_us };
            let room = Room { time_max_us, ..self.room };
            let texts = self.part_of((run.request, whole.clone()), room, source.side, &mut chosen.load);
            let is_whole = texts == whole;
            if !texts.is_empty() {
                chosen.runs.push(Choice { ticket, numbers: texts, tokens: 0 });
            }
            // Nothing overtakes what does not fit: those behind it have had more.
            if !is_whole {
                break;
            }
        }
        chosen
    }

    /// The texts of a run that fit; their load is added to that of the batch.
    fn part_of(
        &self,
        (request, whole): (RequestId, Range<u32>),
        room: Room,
        side: Side,
        load: &mut Load,
    ) -> Range<u32> {
        let job = self.jobs.get(request);
        let mut taken = 0;
        for step in 0..whole.end - whole.start {
            let text = match side {
                Side::Front => whole.start + step,
                Side::Back => whole.end - 1 - step,
            };
            let tokens = job.map_or(1, |job| job.tokens(text));
            let more = load.plus(Load { tokens, texts: 1 });
            if !room.fits(more) {
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

/// What some steps get of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    /// All that is left.
    All,
    /// All of single tokens, and chunks that leave room for others, where they have waited long.
    Aged,
    /// What leaves room for prompts.
    Next,
}

/// A turn that is being filled.
#[derive(Clone, Debug)]
struct Turn<'a> {
    bounds: TurnBounds<'a>,
    chosen: Chosen,
    /// Prompts that begin with it.
    begun: u64,
    /// Those of it that were taken first because they have waited long.
    aged: BTreeSet<Position>,
    /// Whose it is alone.
    owner: Option<RequestId>,
}

#[cfg(test)]
mod tests {
    use super::super::device_set::DeviceSet;
    use super::super::jobs::Job;
    use super::super::phase::Reach;
    use super::super::run::Run;
    use super::super::{Allowed, CallerId, Group, Moment, Priority, Request, Sequence};
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const DEVICE: DeviceId = DeviceId(0);

    /// A queue of requests, given by the tokens of their texts and whether they have waited too long.
    fn waiting(requests: &[(Vec<u32>, bool)]) -> (Queue, Jobs, BucketKey) {
        let (mut queue, mut jobs) = (Queue::default(), Jobs::default());
        let reach = Reach { may: DeviceSet::one(DEVICE), rather_not: DeviceSet::EMPTY };
        let group = Group { model: crate::schedule::ModelId(0), key: 0 };
        let bucket = BucketKey { group, is_isolated: false, phase: Phase::OneStep, reach };
        for (arrival, (tokens, is_aged)) in (1..).zip(requests) {
            let id = RequestId(arrival);
            let request = Request {
                id,
                group: bucket.group,
                sequences: tokens.iter().map(|&tokens| Sequence::one_step(tokens)).collect(),
                caller: CallerId(0),
                priority: Priority::Normal,
                deadline: None,
                allowed: Allowed::Any,
            };
            let job = Job::new(request, reach, Moment::START);
            let ticket = Ticket {
                bucket,
                priority: Priority::Normal,
                caller: CallerId(0),
                position: Position { since: Moment::START, turn: 0, arrival, first: 0 },
            };
            let arrived = if *is_aged { Moment::START } else { now() };
            queue.insert(ticket, Run { request: id, end: job.unanswered, tokens: job.tokens_total, arrived });
            jobs.insert(id, job);
        }
        (queue, jobs, bucket)
    }

    fn now() -> Moment {
        Moment::START + Duration::from_secs(1)
    }

    fn batch(requests: &[(Vec<u32>, bool)], side: Side, most: Load) -> Chosen {
        let (queue, jobs, lead) = waiting(requests);
        let Load { tokens: tokens_max, texts: texts_max } = most;
        let endless = f64::INFINITY;
        let room = Room { tokens_max, texts_max, cost: Cost::GPU, time_max_us: endless, mixed_us: endless };
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
            let texts: u64 = chosen.runs.iter().map(|run| u64::try_from(run.numbers.len()).unwrap()).sum();
            prop_assert_eq!(texts, chosen.load.texts);
            prop_assert!(texts >= 1 && texts <= texts_max);
            prop_assert!(chosen.load.tokens <= tokens_max || texts == 1);
            if !is_front {
                return Ok(());
            }
            let mut is_cut_short = false;
            for ((tokens, is_aged), arrival) in requests.iter().zip(1..) {
                let run = chosen.runs.iter().find(|run| run.ticket.position.arrival == arrival);
                prop_assert!(run.is_none() || !is_cut_short, "overtakes an old one");
                let is_whole = run.is_some_and(|run| run.numbers.len() == tokens.len());
                is_cut_short |= *is_aged && !is_whole;
            }
        }
    }

    #[test]
    fn what_is_taken_from_the_back_are_the_last_texts_of_the_last_request() {
        let chosen = batch(&[(vec![10; 4], false), (vec![10; 4], false)], Side::Back, Load { tokens: 60, texts: 100 });
        let texts: Vec<(u64, Range<u32>)> =
            chosen.runs.iter().map(|run| (run.ticket.position.arrival, run.numbers.clone())).collect();
        assert_eq!(texts, [(2, 0..4), (1, 2..4)]);
    }
}
