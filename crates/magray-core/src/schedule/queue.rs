//! What waits: runs of texts in lanes of equal group and equal choice of devices, in the order in which they go.
//! Knows neither devices nor costs, and never walks through everything to answer.

use super::device_set::DeviceSet;
use super::{DeviceId, Group, Moment, Priority, RequestId};
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

/// Where texts may be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reach {
    /// On these and no others.
    pub(super) may: DeviceSet,
    /// On these only if there is no other.
    pub(super) rather_not: DeviceSet,
}

/// What texts must have in common to be looked at together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LaneKey {
    pub(super) group: Group,
    /// Whether each request of the lane is a batch of its own: it may have ended a worker.
    pub(super) is_alone: bool,
    pub(super) reach: Reach,
}

/// A place in the order of arrival: the request's number, then its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) arrival: u64,
    pub(super) first: u32,
}

/// Neighbouring texts that wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) request: RequestId,
    pub(super) end: u32,
    pub(super) tokens: u64,
    pub(super) arrived: Moment,
}

/// Where a run stands: enough to find it again at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) lane: LaneKey,
    pub(super) priority: Priority,
    pub(super) place: Place,
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
    lanes: BTreeMap<LaneKey, Lane>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    pub(super) fn insert(&mut self, ticket: Ticket, run: Run) {
        let lane = self.lanes.entry(ticket.lane).or_default();
        lane.load = lane.load.plus(load_of(ticket.place, &run));
        let before = lane.runs[rank_of(ticket.priority)].insert(ticket.place, run);
        assert!(before.is_none(), "a text waits once: {ticket:?}");
    }

    pub(super) fn remove(&mut self, ticket: &Ticket) -> Option<Run> {
        let lane = self.lanes.get_mut(&ticket.lane)?;
        let run = lane.runs[rank_of(ticket.priority)].remove(&ticket.place)?;
        let load = load_of(ticket.place, &run);
        lane.load.tokens -= load.tokens;
        lane.load.texts -= load.texts;
        if lane.load.texts == 0 {
            self.lanes.remove(&ticket.lane);
        }
        Some(run)
    }

    pub(super) fn load(&self, lane: LaneKey) -> Option<Load> {
        self.lanes.get(&lane).map(|lane| lane.load)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = LaneKey> {
        self.lanes.keys().copied()
    }

    /// Lanes that may give texts to a batch which is led by `lead` and computed on `device`.
    pub(super) fn partners(&self, lead: LaneKey, device: DeviceId) -> impl Iterator<Item = LaneKey> {
        self.lanes.keys().copied().filter(move |&key| {
            let is_open = !key.is_alone && !lead.is_alone && key.group == lead.group;
            let suits = key.reach.may.contains(device) && !key.reach.rather_not.contains(device);
            key == lead || is_open && suits
        })
    }

    /// The lanes, the one whose first run goes first before the others.
    pub(super) fn by_rank(&self, aging: Aging) -> Vec<LaneKey> {
        let mut ranked: Vec<(Rank, LaneKey)> =
            self.lanes.iter().filter_map(|(&key, lane)| lane.first(aging).map(|rank| (rank, key))).collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, key)| key).collect()
    }

    /// When the run of a lane that has waited longest arrived.
    pub(super) fn oldest(&self, lane: LaneKey) -> Option<Moment> {
        let firsts = self.lanes.get(&lane)?.runs.iter().filter_map(|runs| runs.first_key_value());
        firsts.map(|(_, run)| run.arrived).min()
    }

    /// Whose run stands there.
    pub(super) fn request_at(&self, ticket: &Ticket) -> Option<RequestId> {
        let run = self.lanes.get(&ticket.lane)?.runs[rank_of(ticket.priority)].get(&ticket.place)?;
        Some(run.request)
    }

    /// Any request of a lane.
    pub(super) fn first_request(&self, lane: LaneKey) -> Option<RequestId> {
        let mut firsts = self.lanes.get(&lane)?.runs.iter().filter_map(|runs| runs.first_key_value());
        firsts.next().map(|(_, run)| run.request)
    }

    /// The runs of some lanes in their common order, from one side.
    pub(super) fn walk(&self, lanes: impl Iterator<Item = LaneKey>, side: Side, aging: Aging) -> Walk<'_> {
        let mut cursors = Vec::new();
        for key in lanes {
            let Some(lane) = self.lanes.get(&key) else { continue };
            for priority in PRIORITIES {
                let mut rest = lane.runs[rank_of(priority)].iter();
                if let Some(head) = step_from(&mut rest, side) {
                    cursors.push(Cursor { lane: key, priority, head, rest });
                }
            }
        }
        Walk { cursors, side, aging }
    }
}

const PRIORITIES: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

fn rank_of(priority: Priority) -> usize {
    match priority {
        Priority::High => 0,
        Priority::Normal => 1,
        Priority::Low => 2,
    }
}

fn load_of(place: Place, run: &Run) -> Load {
    assert!(place.first < run.end, "a run has at least one text");
    Load { tokens: run.tokens, texts: u64::from(run.end - place.first) }
}

#[derive(Clone, Debug, Default)]
struct Lane {
    /// By priority, then by arrival.
    runs: [BTreeMap<Place, Run>; 3],
    load: Load,
}

impl Lane {
    fn first(&self, aging: Aging) -> Option<Rank> {
        let heads = PRIORITIES.iter().filter_map(|&priority| {
            let (&place, run) = self.runs[rank_of(priority)].first_key_value()?;
            Some(Rank::new(priority, place, aging.is_aged(run)))
        });
        heads.min()
    }
}

/// The order in which runs go: the aged by arrival, then the others by priority and arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_young: bool,
    priority: usize,
    place: Place,
}

impl Rank {
    fn new(priority: Priority, place: Place, is_aged: bool) -> Self {
        Self { is_young: !is_aged, priority: if is_aged { 0 } else { rank_of(priority) }, place }
    }
}

/// Goes through the runs of several lanes in order.
pub(super) struct Walk<'a> {
    cursors: Vec<Cursor<'a>>,
    side: Side,
    aging: Aging,
}

struct Cursor<'a> {
    lane: LaneKey,
    priority: Priority,
    head: (Place, &'a Run),
    rest: btree_map::Iter<'a, Place, Run>,
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
        let (place, run) = cursor.head;
        let ticket = Ticket { lane: cursor.lane, priority: cursor.priority, place };
        match step_from(&mut cursor.rest, self.side) {
            Some(head) => cursor.head = head,
            None => drop(self.cursors.swap_remove(at)),
        }
        Some((ticket, run))
    }
}

fn step_from<'a>(runs: &mut btree_map::Iter<'a, Place, Run>, side: Side) -> Option<(Place, &'a Run)> {
    let next = match side {
        Side::Front => runs.next(),
        Side::Back => runs.next_back(),
    };
    next.map(|(&place, run)| (place, run))
}
