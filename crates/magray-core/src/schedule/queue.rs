//! What waits: runs of sequences in buckets of equal group, phase and choice of devices, in the order in which they go.
//! Knows neither devices nor costs, and never walks through everything to answer.

use super::device_set::DeviceSet;
use super::fair::{Class, Part, Placed, Runs, Shares};
use super::phase::{Phase, Reach};
use super::run::{Position, Run, Side};
use super::{CallerId, DeviceId, Group, ModelId, Moment, Priority, RequestId};
use std::collections::BTreeMap;
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

    fn minus(self, other: Self) -> Self {
        Self { tokens: self.tokens - other.tokens, texts: self.texts - other.texts }
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

/// Where a run stands: enough to find it again at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) bucket: BucketKey,
    pub(super) priority: Priority,
    /// Who waits for it; the default caller for sequences that go on.
    pub(super) caller: CallerId,
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

/// Everything that waits.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    buckets: BTreeMap<BucketKey, Bucket>,
    shares: Shares,
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
        bucket.classes[rank_of(ticket.priority)].insert(ticket.caller, ticket.position, run, &mut self.shares);
        is_new
    }

    pub(super) fn get(&self, ticket: &Ticket) -> Option<&Run> {
        self.buckets.get(&ticket.bucket)?.classes[rank_of(ticket.priority)].get(ticket.caller, ticket.position)
    }

    pub(super) fn remove(&mut self, ticket: &Ticket) -> Option<Run> {
        let bucket = self.buckets.get_mut(&ticket.bucket)?;
        let class = &mut bucket.classes[rank_of(ticket.priority)];
        let run = class.remove(ticket.caller, ticket.position, &mut self.shares)?;
        bucket.load = bucket.load.minus(load_of(ticket.position, &run));
        self.end_bucket(ticket.bucket);
        Some(run)
    }

    /// A batch is about to be taken from this side.
    pub(super) fn begin_batch(&mut self, side: Side) {
        self.shares.begin_batch(side == Side::Front);
    }

    /// Takes a run for a batch, or a part of it whose rest waits on. Its caller is behind others for it.
    pub(super) fn take(&mut self, ticket: &Ticket, part: Part) {
        let (caller, position) = (ticket.caller, ticket.position);
        let Some(bucket) = self.buckets.get_mut(&ticket.bucket) else { return };
        let class = &mut bucket.classes[rank_of(ticket.priority)];
        let Some(before) = class.get(caller, position).map(|run| load_of(position, run)) else { return };
        let rest = part.rest.map_or(Load::default(), |(position, run)| load_of(position, &run));
        bucket.load = bucket.load.minus(before).plus(rest);
        let is_elsewhere = class.take(caller, position, part, &mut self.shares);
        if is_elsewhere {
            for (key, other) in &mut self.buckets {
                let own = (*key == ticket.bucket).then(|| rank_of(ticket.priority));
                let classes = other.classes.iter_mut().enumerate().filter(|(rank, _)| Some(*rank) != own);
                classes.for_each(|(_, class)| class.pass(caller, part.charged, &mut self.shares));
            }
        }
        self.end_bucket(ticket.bucket);
    }

    fn end_bucket(&mut self, key: BucketKey) {
        if self.buckets.get(&key).is_some_and(|bucket| bucket.load.texts == 0) {
            self.buckets.remove(&key);
        }
    }

    /// The place of a request of this many tokens among those of its caller.
    pub(super) fn turn(&self, ticket: &Ticket, tokens: u64) -> u64 {
        let known = self.buckets.get(&ticket.bucket).map(|bucket| &bucket.classes[rank_of(ticket.priority)]);
        known.unwrap_or(&Class::default()).turn(ticket.caller, tokens)
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
        let classes = self.buckets.get(&bucket)?.classes.iter();
        classes.filter_map(Class::oldest).map(|(since, _)| since).min()
    }

    pub(super) fn first_request(&self, bucket: BucketKey) -> Option<RequestId> {
        let mut firsts = self.buckets.get(&bucket)?.classes.iter().filter_map(Class::first);
        firsts.next().map(|(_, _, run)| run.request)
    }

    /// The runs of some buckets in their common order, from one side.
    pub(super) fn walk(&self, buckets: impl Iterator<Item = BucketKey>, side: Side, aging: Aging) -> Walk<'_> {
        let mut cursors = Vec::new();
        for key in buckets {
            let Some(bucket) = self.buckets.get(&key) else { continue };
            for (priority, class) in PRIORITIES.into_iter().zip(&bucket.classes) {
                let mut rest = class.runs(side);
                if let Some(head) = rest.next() {
                    let oldest = class.oldest().filter(|(since, _)| aging.is_aged_since(*since));
                    cursors.push(Cursor { bucket: key, priority, oldest, head, rest });
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
    /// By priority.
    classes: [Class; 3],
    load: Load,
}

impl Bucket {
    fn first(&self, aging: Aging) -> Option<Rank> {
        let classes = PRIORITIES.into_iter().zip(&self.classes);
        let heads = classes.filter_map(|(priority, class)| {
            let (since, position) = class.oldest()?;
            if aging.is_aged_since(since) {
                return Some(Rank::aged(Position { since, ..position }));
            }
            let (tag, position, _) = class.first()?;
            Some(Rank::young(priority, tag, Position { since: Moment::START, turn: 0, ..position }))
        });
        heads.min()
    }
}

/// The order in which runs go. What waits with one that is aged goes first, by how long that has waited; then the others by
/// priority and by what their callers have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_young: bool,
    priority: usize,
    tag: u64,
    position: Position,
}

impl Rank {
    fn aged(position: Position) -> Self {
        Self { is_young: false, priority: 0, tag: 0, position }
    }

    fn young(priority: Priority, tag: u64, position: Position) -> Self {
        Self { is_young: true, priority: rank_of(priority), tag, position }
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
    /// The run of its class that has waited too long.
    oldest: Option<(Moment, Position)>,
    head: Placed<'a>,
    rest: Runs<'a>,
}

impl Cursor<'_> {
    fn rank(&self, aging: Aging) -> Rank {
        let Placed { tag, position, run, .. } = self.head;
        // Those that go on have no tags: they are in the order of their waiting.
        let is_turn = self.bucket.phase.is_turn();
        match self.oldest {
            _ if is_turn && aging.is_aged(run) => Rank::aged(position),
            _ if is_turn => Rank::young(self.priority, 0, position),
            Some((since, oldest)) => Rank::aged(Position { since, ..oldest }),
            None => Rank::young(self.priority, tag, position),
        }
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = (Ticket, &'a Run);

    fn next(&mut self) -> Option<Self::Item> {
        let cursors = self.cursors.iter().enumerate().map(|(at, cursor)| (cursor.rank(self.aging), at));
        let (_, at) = match self.side {
            Side::Front => cursors.min(),
            Side::Back => cursors.max(),
        }?;
        let cursor = &mut self.cursors[at];
        let Placed { caller, position, run, .. } = cursor.head;
        let ticket = Ticket { bucket: cursor.bucket, priority: cursor.priority, caller, position };
        match cursor.rest.next() {
            Some(head) => cursor.head = head,
            None => drop(self.cursors.swap_remove(at)),
        }
        Some((ticket, run))
    }
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
        let position = Position { since: Moment::START, turn: 0, arrival, first: 0 };
        let ticket = Ticket { bucket, priority, caller: CallerId(0), position };
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
            let position = Position { since, turn: 0, arrival, first: 0 };
            let ticket = Ticket { bucket, priority: Priority::Normal, caller: CallerId(0), position };
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
