//! What waits: runs of sequences in buckets of equal group, phase and choice of devices, in the order in which they go.
//! Knows neither devices nor costs, and never walks through everything to answer.

use super::device_set::DeviceSet;
use super::phase::{Phase, Reach};
use super::{DeviceId, Group, ModelId, Moment, Priority, RequestId};
use std::collections::{BTreeMap, btree_map};
use std::time::Duration;

/// An amount of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) tokens: u64,
    pub(super) texts: u64,
}

impl Load {
    pub(super) fn plus(self, other: Self) -> Self {
        Self { tokens: self.tokens + other.tokens, texts: self.texts + other.texts }
    }
}

/// What sequences must have in common to be looked at together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BucketKey {
    pub(super) group: Group,
    /// Whether each request of the bucket is a batch of its own: it may have ended a worker.
    pub(super) is_isolated: bool,
    pub(super) phase: Phase,
    pub(super) reach: Reach,
}

/// A position in the order of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    /// When its last step ended, where its state is kept: the one that has waited longest is next. Otherwise the start.
    pub(super) since: Moment,
    /// The request's number, then its sequence.
    pub(super) arrival: u64,
    pub(super) first: u32,
}

impl Position {
    /// Its position among other buckets: who came first.
    fn among_buckets(self) -> Self {
        Self { since: Moment::START, ..self }
    }
}

/// Neighbouring sequences that wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) request: RequestId,
    pub(super) end: u32,
    /// Tokens that are to be computed.
    pub(super) tokens: u64,
    /// When it came, or when its last step ended.
    pub(super) arrived: Moment,
}

/// Where a run stands: enough to find it again at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) bucket: BucketKey,
    pub(super) priority: Priority,
    pub(super) position: Position,
}

/// When a request has waited so long that it goes before all others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aging {
    pub(super) now: Moment,
    pub(super) age_max: Duration,
}

impl Aging {
    pub(super) fn is_aged(self, run: &Run) -> bool {
        self.is_aged_since(run.arrived)
    }

    pub(super) fn is_aged_since(self, arrived: Moment) -> bool {
        self.now.since(arrived) >= self.age_max
    }
}

/// Which side of the order is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// What goes next.
    Front,
    /// What would wait longest.
    Back,
}

/// Everything that waits.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    buckets: BTreeMap<BucketKey, Bucket>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Lets a run wait. Returns whether nothing like it waited before.
    pub(super) fn insert(&mut self, ticket: Ticket, run: Run) -> bool {
        let bucket = self.buckets.entry(ticket.bucket).or_default();
        let is_new = bucket.load.texts == 0;
        bucket.load = bucket.load.plus(load_of(ticket.position, &run));
        let before = bucket.runs[rank_of(ticket.priority)].insert(ticket.position, run);
        assert!(before.is_none(), "a sequence waits once: {ticket:?}");
        is_new
    }

    pub(super) fn remove(&mut self, ticket: &Ticket) -> Option<Run> {
        let bucket = self.buckets.get_mut(&ticket.bucket)?;
        let run = bucket.runs[rank_of(ticket.priority)].remove(&ticket.position)?;
        let load = load_of(ticket.position, &run);
        bucket.load.tokens -= load.tokens;
        bucket.load.texts -= load.texts;
        if bucket.load.texts == 0 {
            self.buckets.remove(&ticket.bucket);
        }
        Some(run)
    }

    pub(super) fn load(&self, bucket: BucketKey) -> Option<Load> {
        self.buckets.get(&bucket).map(|bucket| bucket.load)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = BucketKey> {
        self.buckets.keys().copied()
    }

    pub(super) fn keys_of(&self, model: ModelId) -> impl Iterator<Item = BucketKey> {
        self.buckets
            .range(first_of(Group { model, key: 0 })..)
            .map(|(&key, _)| key)
            .take_while(move |key| key.group.model == model)
    }

    /// Buckets that may give sequences to a batch which is led by `lead` and computed on `device`.
    pub(super) fn partners(&self, lead: BucketKey, device: DeviceId) -> impl Iterator<Item = BucketKey> {
        let buckets = self.buckets.range(first_of(lead.group)..).map(|(&key, _)| key);
        buckets.take_while(move |key| key.group == lead.group).filter(move |&key| {
            let suits = match key.phase.device() {
                Some(holder) => holder == device,
                None => key.reach.may.contains(device) && !key.reach.rather_not.contains(device),
            };
            let is_alike = key.phase.is_turn() == lead.phase.is_turn();
            key == lead || !key.is_isolated && !lead.is_isolated && is_alike && suits
        })
    }

    /// The buckets, the one whose first run goes first before the others.
    pub(super) fn by_rank(&self, aging: Aging) -> Vec<BucketKey> {
        let mut ranked: Vec<(Rank, BucketKey)> =
            self.buckets.iter().filter_map(|(&key, bucket)| bucket.first(aging).map(|rank| (rank, key))).collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, key)| key).collect()
    }

    pub(super) fn oldest(&self, bucket: BucketKey) -> Option<Moment> {
        let firsts = self.buckets.get(&bucket)?.runs.iter().filter_map(|runs| runs.first_key_value());
        firsts.map(|(_, run)| run.arrived).min()
    }

    pub(super) fn first_request(&self, bucket: BucketKey) -> Option<RequestId> {
        let mut firsts = self.buckets.get(&bucket)?.runs.iter().filter_map(|runs| runs.first_key_value());
        firsts.next().map(|(_, run)| run.request)
    }

    /// The runs of some buckets in their common order, from one side.
    pub(super) fn walk(&self, buckets: impl Iterator<Item = BucketKey>, side: Side, aging: Aging) -> Walk<'_> {
        let mut cursors = Vec::new();
        for key in buckets {
            let Some(bucket) = self.buckets.get(&key) else { continue };
            for priority in PRIORITIES {
                let mut rest = bucket.runs[rank_of(priority)].iter();
                if let Some(head) = step_from(&mut rest, side) {
                    cursors.push(Cursor { bucket: key, priority, head, rest });
                }
            }
        }
        Walk { cursors, side, aging }
    }
}

/// The key before all buckets of a group.
fn first_of(group: Group) -> BucketKey {
    let nowhere = Reach { may: DeviceSet::EMPTY, rather_not: DeviceSet::EMPTY };
    BucketKey { group, is_isolated: false, phase: Phase::OneStep, reach: nowhere }
}

const PRIORITIES: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

fn rank_of(priority: Priority) -> usize {
    match priority {
        Priority::High => 0,
        Priority::Normal => 1,
        Priority::Low => 2,
    }
}

fn load_of(position: Position, run: &Run) -> Load {
    assert!(position.first < run.end, "a run has at least one sequence");
    Load { tokens: run.tokens, texts: u64::from(run.end - position.first) }
}

#[derive(Clone, Debug, Default)]
struct Bucket {
    /// By priority, then by arrival.
    runs: [BTreeMap<Position, Run>; 3],
    load: Load,
}

impl Bucket {
    fn first(&self, aging: Aging) -> Option<Rank> {
        let heads = PRIORITIES.iter().filter_map(|&priority| {
            let (&position, run) = self.runs[rank_of(priority)].first_key_value()?;
            Some(Rank::new(priority, position.among_buckets(), aging.is_aged(run)))
        });
        heads.min()
    }
}

/// The order in which runs go: the aged by arrival, then the others by priority and arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_young: bool,
    priority: usize,
    position: Position,
}

impl Rank {
    fn new(priority: Priority, position: Position, is_aged: bool) -> Self {
        Self { is_young: !is_aged, priority: if is_aged { 0 } else { rank_of(priority) }, position }
    }
}

/// Goes through the runs of several buckets in order.
pub(super) struct Walk<'a> {
    cursors: Vec<Cursor<'a>>,
    side: Side,
    aging: Aging,
}

struct Cursor<'a> {
    bucket: BucketKey,
    priority: Priority,
    head: (Position, &'a Run),
    rest: btree_map::Iter<'a, Position, Run>,
}

impl<'a> Iterator for Walk<'a> {
    type Item = (Ticket, &'a Run);

    fn next(&mut self) -> Option<Self::Item> {
        let aging = self.aging;
        let rank = |cursor: &Cursor<'_>| Rank::new(cursor.priority, cursor.head.0, aging.is_aged(cursor.head.1));
        let cursors = self.cursors.iter().enumerate().map(|(at, cursor)| (rank(cursor), at));
        let (_, at) = match self.side {
            Side::Front => cursors.min(),
            Side::Back => cursors.max(),
        }?;
        let cursor = &mut self.cursors[at];
        let (position, run) = cursor.head;
        let ticket = Ticket { bucket: cursor.bucket, priority: cursor.priority, position };
        match step_from(&mut cursor.rest, self.side) {
            Some(head) => cursor.head = head,
            None => drop(self.cursors.swap_remove(at)),
        }
        Some((ticket, run))
    }
}

fn step_from<'a>(runs: &mut btree_map::Iter<'a, Position, Run>, side: Side) -> Option<(Position, &'a Run)> {
    let next = match side {
        Side::Front => runs.next(),
        Side::Back => runs.next_back(),
    };
    next.map(|(&position, run)| (position, run))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUCKET: BucketKey = BucketKey {
        group: Group { model: crate::schedule::ModelId(0), key: 0 },
        is_isolated: false,
        phase: Phase::OneStep,
        reach: Reach { may: DeviceSet::EMPTY, rather_not: DeviceSet::EMPTY },
    };

    fn put(queue: &mut Queue, bucket: BucketKey, priority: Priority, arrival: u64) -> Ticket {
        let ticket = Ticket { bucket, priority, position: Position { since: Moment::START, arrival, first: 0 } };
        let arrived = Moment::START + Duration::from_millis(arrival);
        queue.insert(ticket, Run { request: RequestId(arrival), end: 2, tokens: 10, arrived });
        ticket
    }

    fn order(queue: &Queue, side: Side, now_ms: u64) -> Vec<u64> {
        let aging = Aging { now: Moment::START + Duration::from_millis(now_ms), age_max: Duration::from_millis(100) };
        queue.walk(queue.keys(), side, aging).map(|(ticket, _)| ticket.position.arrival).collect()
    }

    #[test]
    fn the_old_go_first_then_the_urgent_then_the_others() {
        let mut queue = Queue::default();
        let other = BucketKey { is_isolated: true, ..BUCKET };
        put(&mut queue, BUCKET, Priority::Low, 1);
        put(&mut queue, other, Priority::High, 20);
        put(&mut queue, BUCKET, Priority::Normal, 5);
        put(&mut queue, BUCKET, Priority::High, 30);
        assert_eq!(order(&queue, Side::Front, 50), [20, 30, 5, 1]);
        assert_eq!(order(&queue, Side::Front, 102), [1, 20, 30, 5]);
        assert_eq!(order(&queue, Side::Front, 110), [1, 5, 20, 30]);
        assert_eq!(order(&queue, Side::Back, 102), [5, 30, 20, 1]);
    }

    #[test]
    fn a_bucket_without_runs_is_gone() {
        let mut queue = Queue::default();
        let ticket = put(&mut queue, BUCKET, Priority::Low, 1);
        assert_eq!(queue.load(BUCKET), Some(Load { tokens: 10, texts: 2 }));
        assert!(queue.remove(&ticket).is_some());
        assert!(queue.is_empty() && queue.remove(&ticket).is_none());
    }

    #[test]
    fn a_batch_is_shared_by_buckets_of_its_group_that_may_go_there() {
        let (here, there) = (DeviceId(1), DeviceId(2));
        let mut queue = Queue::default();
        let may = |devices: &[DeviceId]| devices.iter().copied().collect();
        let reach = |devices: &[DeviceId]| Reach { may: may(devices), rather_not: DeviceSet::EMPTY };
        let lead = BucketKey { reach: reach(&[here, there]), ..BUCKET };
        let joins = BucketKey { reach: reach(&[here]), ..BUCKET };
        let avoids = Reach { may: may(&[here, there]), rather_not: may(&[here]) };
        let strangers = [
            BucketKey { reach: reach(&[there]), ..BUCKET },
            BucketKey { reach: avoids, ..BUCKET },
            BucketKey { group: Group { model: crate::schedule::ModelId(0), key: 1 }, ..lead },
            BucketKey { is_isolated: true, ..lead },
            BucketKey { phase: Phase::Fresh, ..lead },
        ];
        for (arrival, bucket) in (1..).zip([lead, joins].into_iter().chain(strangers)) {
            put(&mut queue, bucket, Priority::Normal, arrival);
        }
        let mut partners: Vec<BucketKey> = queue.partners(lead, here).collect();
        partners.sort_unstable_by_key(|bucket| bucket.reach != lead.reach);
        assert_eq!(partners, [lead, joins]);
        assert_eq!(queue.partners(strangers[3], here).collect::<Vec<_>>(), [strangers[3]]);
    }

    #[test]
    fn a_turn_is_shared_by_prompts_and_by_what_its_device_has_state_of() {
        let (here, there) = (DeviceId(1), DeviceId(2));
        let reach = Reach { may: [here, there].into_iter().collect(), rather_not: DeviceSet::EMPTY };
        let bucket = |phase| BucketKey { phase, reach, ..BUCKET };
        let mut queue = Queue::default();
        let phases = [Phase::OneStep, Phase::Fresh, Phase::Prompt(here), Phase::Next(here), Phase::Next(there)];
        for (arrival, phase) in (1..).zip(phases) {
            put(&mut queue, bucket(phase), Priority::Normal, arrival);
        }
        let shared: Vec<BucketKey> = queue.partners(bucket(Phase::Fresh), here).collect();
        assert_eq!(shared, [Phase::Fresh, Phase::Prompt(here), Phase::Next(here)].map(bucket));
    }

    #[test]
    fn of_those_that_are_kept_the_one_goes_first_that_has_waited_longest() {
        let mut queue = Queue::default();
        let bucket = BucketKey { phase: Phase::Next(DeviceId(1)), ..BUCKET };
        for (arrival, waits_since) in [(1, 30), (2, 10), (3, 20)] {
            let since = Moment::START + Duration::from_millis(waits_since);
            let ticket = Ticket { bucket, priority: Priority::Normal, position: Position { since, arrival, first: 0 } };
            queue.insert(ticket, Run { request: RequestId(arrival), end: 1, tokens: 1, arrived: since });
        }
        assert_eq!(order(&queue, Side::Front, 50), [2, 3, 1]);
    }

    proptest! {
        #[test]
        fn both_sides_see_the_same_runs_the_other_way_round(
            runs in prop::collection::btree_map(0_u64..300, (0_usize..3, any::<bool>()), 0..40),
            now_ms in 0_u64..500,
        ) {
            let mut queue = Queue::default();
            for (&arrival, &(priority, is_isolated)) in &runs {
                put(&mut queue, BucketKey { is_isolated, ..BUCKET }, PRIORITIES[priority], arrival);
            }
            let mut backwards = order(&queue, Side::Back, now_ms);
            backwards.reverse();
            prop_assert_eq!(order(&queue, Side::Front, now_ms), backwards);
            let texts: u64 = queue.keys().filter_map(|bucket| queue.load(bucket)).map(|load| load.texts).sum();
            prop_assert_eq!(texts, 2 * u64::try_from(runs.len()).unwrap());
        }
    }
}
