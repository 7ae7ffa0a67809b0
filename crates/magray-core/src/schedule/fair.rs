//! Who is next within one priority: callers share what is computed by tokens, in turns of a batch, and the short requests
//! of a caller do not wait for its long ones.
//! Knows neither devices nor time. Callers of which nothing waits are forgotten before long.

use super::run::{Position, Run, Side};
use super::{CallerId, Moment};
use std::collections::{BTreeMap, BTreeSet, btree_map, btree_set};

/// Callers of which nothing waits that are remembered, at least; twice as many at most.
const IDLE_CALLERS: usize = 1024;

/// Parts of a token in which the turns of a caller's requests are counted: many requests share one token.
const TURN_PARTS: u64 = 1024;

/// What each caller has had, over all classes.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    callers: BTreeMap<CallerId, Share>,
    /// The highest that any class has reached: where new classes begin.
    reached: u64,
    /// The number of the last batch, and whether its first run is the next of its class.
    batch: u64,
    is_from_front: bool,
    /// Changes of an order, counted: of those with equal tags the first goes first.
    changes: u64,
    forget_at: usize,
}

/// What one caller has had.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// Where its last flow stood when it was served last.
    tag: u64,
    /// Tokens of it in the last batch that it was in.
    last: u64,
    /// That batch.
    batch: u64,
    /// Classes in which something of it waits.
    classes: u32,
}

impl Default for Shares {
    fn default() -> Self {
        let (callers, forget_at) = (BTreeMap::new(), 2 * IDLE_CALLERS);
        Self { callers, reached: 0, batch: 0, is_from_front: true, changes: 0, forget_at }
    }
}

impl Shares {
    /// A batch is about to be taken.
    pub(super) fn begin_batch(&mut self, is_from_front: bool) {
        self.batch += 1;
        self.is_from_front = is_from_front;
    }

    fn next_change(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }

    /// A caller begins to wait in a class that has reached this tag; where it stands there. One that was served a moment
    /// ago stands behind those that were not, but no further than by its last batch.
    fn enter(&mut self, caller: CallerId, reached: u64) -> u64 {
        let share = self.callers.entry(caller).or_default();
        share.classes += 1;
        share.tag.clamp(reached, reached + share.last)
    }

    /// Nothing of a caller waits in a class any more, in which it stood here.
    fn leave(&mut self, caller: CallerId, tag: u64) {
        if let Some(share) = self.callers.get_mut(&caller) {
            share.classes -= 1;
            share.tag = share.tag.max(tag);
        }
        self.forget();
    }

    /// A caller got tokens. Returns whether it waits in other classes, too.
    fn charge(&mut self, caller: CallerId, tokens: u64, tag: u64) -> bool {
        let batch = self.batch;
        let Some(share) = self.callers.get_mut(&caller) else { return false };
        share.tag = tag;
        share.last = if share.batch == batch { share.last + tokens } else { tokens };
        share.batch = batch;
        share.classes > 1
    }

    /// Forgets callers of which nothing waits, once there are many: first those whose last batch is behind them.
    fn forget(&mut self) {
        if self.callers.len() < self.forget_at {
            return;
        }
        let reached = self.reached;
        self.callers.retain(|_, share| share.classes > 0 || share.tag > reached);
        let waiting = self.callers.values().filter(|share| share.classes > 0).count();
        if self.callers.len() > waiting + IDLE_CALLERS {
            self.callers.retain(|_, share| share.classes > 0);
        }
        self.forget_at = 2 * (waiting + IDLE_CALLERS);
    }
}

/// What waits of one priority in a bucket.
#[derive(Clone, Debug, Default)]
pub(super) struct Class {
    flows: BTreeMap<CallerId, Flow>,
    /// The flows by their tags: the least has had the least.
    order: BTreeSet<(u64, u64, CallerId)>,
    /// The runs by how long they wait.
    ages: BTreeSet<(Moment, Position)>,
    /// Where one stands that has had nothing for long.
    reached: u64,
    /// The last batch that took from it.
    batch: u64,
}

/// What waits of one caller.
#[derive(Clone, Debug)]
struct Flow {
    tag: u64,
    change: u64,
    runs: BTreeMap<Position, Run>,
    /// How far its requests would be if each had an equal part of it.
    turn: u64,
}

impl Class {
    /// The place of a request of this many tokens among those of its caller: where it would end if each had an equal part.
    pub(super) fn turn(&self, caller: CallerId, tokens: u64) -> u64 {
        let reached = self.flows.get(&caller).map_or(0, |flow| flow.turn);
        reached.saturating_add(tokens.saturating_mul(TURN_PARTS))
    }

    /// The first run.
    pub(super) fn first(&self) -> Option<(u64, Position, &Run)> {
        let &(tag, _, caller) = self.order.first()?;
        let (&position, run) = self.flows.get(&caller)?.runs.first_key_value()?;
        Some((tag, position, run))
    }

    /// The run that has waited longest, and since when.
    pub(super) fn oldest(&self) -> Option<(Moment, Position)> {
        self.ages.first().copied()
    }

    pub(super) fn insert(&mut self, caller: CallerId, position: Position, run: Run, shares: &mut Shares) {
        if self.flows.is_empty() {
            self.reached = self.reached.max(shares.reached);
        }
        let flow = self.flows.entry(caller).or_insert_with(|| {
            let (tag, change) = (shares.enter(caller, self.reached), shares.next_change());
            self.order.insert((tag, change, caller));
            Flow { tag, change, runs: BTreeMap::new(), turn: 0 }
        });
        self.ages.insert((run.arrived, position));
        let before = flow.runs.insert(position, run);
        assert!(before.is_none(), "a sequence waits once: {position:?}");
    }

    pub(super) fn get(&self, caller: CallerId, position: Position) -> Option<&Run> {
        self.flows.get(&caller)?.runs.get(&position)
    }

    pub(super) fn remove(&mut self, caller: CallerId, position: Position, shares: &mut Shares) -> Option<Run> {
        let run = self.flows.get_mut(&caller)?.runs.remove(&position)?;
        self.ages.remove(&(run.arrived, position));
        self.end_flow(caller, shares);
        Some(run)
    }

    /// Takes a run, or a part of it whose rest waits on. Returns whether its caller waits in other classes, too.
    pub(super) fn take(&mut self, caller: CallerId, position: Position, part: Part, shares: &mut Shares) -> bool {
        let active = self.flows.len() as u64;
        let Some(flow) = self.flows.get_mut(&caller) else { return false };
        let Some(run) = flow.runs.remove(&position) else { return false };
        self.ages.remove(&(run.arrived, position));
        // As if all that wait were computed at once: those that come now do not go before all that came before them.
        let is_lead = shares.is_from_front && self.batch != shares.batch;
        self.reached = self.reached.max(if is_lead { flow.tag } else { 0 }) + part.tokens / (active + 1);
        self.batch = shares.batch;
        shares.reached = shares.reached.max(self.reached);
        flow.turn += part.tokens.saturating_mul(TURN_PARTS) / (flow.runs.len() as u64 + 1);
        if let Some((position, run)) = part.rest {
            self.ages.insert((run.arrived, position));
            flow.runs.insert(position, run);
        }
        let is_elsewhere = shares.charge(caller, part.charged, flow.tag + part.charged);
        self.pass(caller, part.charged, shares);
        self.end_flow(caller, shares);
        is_elsewhere
    }

    /// A caller got tokens, here or in another class: others are before it.
    pub(super) fn pass(&mut self, caller: CallerId, tokens: u64, shares: &mut Shares) {
        let Some(flow) = self.flows.get_mut(&caller) else { return };
        self.order.remove(&(flow.tag, flow.change, caller));
        flow.tag += tokens;
        flow.change = shares.next_change();
        self.order.insert((flow.tag, flow.change, caller));
    }

    fn end_flow(&mut self, caller: CallerId, shares: &mut Shares) {
        let Some(flow) = self.flows.get(&caller).filter(|flow| flow.runs.is_empty()) else { return };
        self.order.remove(&(flow.tag, flow.change, caller));
        shares.leave(caller, flow.tag);
        self.flows.remove(&caller);
    }

    /// The runs in their order, from one side.
    pub(super) fn runs(&self, side: Side) -> Runs<'_> {
        Runs { class: self, side, order: self.order.iter(), flow: None }
    }
}

/// Goes through the runs of a class.
#[derive(Clone, Debug)]
pub(super) struct Runs<'a> {
    class: &'a Class,
    side: Side,
    order: btree_set::Iter<'a, (u64, u64, CallerId)>,
    flow: Option<(u64, CallerId, btree_map::Iter<'a, Position, Run>)>,
}

impl<'a> Iterator for Runs<'a> {
    type Item = Placed<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((tag, caller, runs)) = &mut self.flow
                && let Some((&position, run)) = from(runs, self.side)
            {
                return Some(Placed { tag: *tag, caller: *caller, position, run });
            }
            let &(tag, _, caller) = from(&mut self.order, self.side)?;
            self.flow = self.class.flows.get(&caller).map(|flow| (tag, caller, flow.runs.iter()));
        }
    }
}

fn from<I: DoubleEndedIterator>(items: &mut I, side: Side) -> Option<I::Item> {
    match side {
        Side::Front => items.next(),
        Side::Back => items.next_back(),
    }
}

/// What is taken of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) tokens: u64,
    /// The tokens that count for its caller.
    pub(super) charged: u64,
    pub(super) rest: Option<(Position, Run)>,
}

/// A run and where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed<'a> {
    pub(super) tag: u64,
    pub(super) caller: CallerId,
    pub(super) position: Position,
    pub(super) run: &'a Run,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::RequestId;

    fn run(arrival: u64, tokens: u64) -> (Position, Run) {
        let position = Position { since: Moment::START, turn: 0, arrival, first: 0 };
        (position, Run { request: RequestId(arrival), end: 1, tokens, arrived: Moment::START })
    }

    fn come(class: &mut Class, shares: &mut Shares, caller: u64, (position, run): (Position, Run)) {
        class.insert(CallerId(caller), position, run, shares);
    }

    /// Takes the first run whole; whose it was.
    fn take(class: &mut Class, shares: &mut Shares) -> u64 {
        let Placed { caller, position, run, .. } = class.runs(Side::Front).next().unwrap();
        let part = Part { tokens: run.tokens, charged: run.tokens, rest: None };
        shares.begin_batch(true);
        class.take(caller, position, part, shares);
        caller.0
    }

    #[test]
    fn callers_get_equal_tokens_whatever_the_size_of_their_requests() {
        let (mut class, mut shares) = (Class::default(), Shares::default());
        for arrival in 0..100 {
            come(&mut class, &mut shares, 1, run(2 * arrival, 30));
            come(&mut class, &mut shares, 2, run(2 * arrival + 1, 10));
        }
        let taken: Vec<u64> = (0..60).map(|_| take(&mut class, &mut shares)).collect();
        let large = taken.iter().filter(|caller| **caller == 1).count();
        assert!((14..=16).contains(&large), "{taken:?}");
    }

    #[test]
    fn new_callers_without_end_starved_one_that_was_served_before() {
        let (mut class, mut shares) = (Class::default(), Shares::default());
        come(&mut class, &mut shares, 0, run(0, 1_000));
        come(&mut class, &mut shares, 0, run(1, 1_000));
        assert_eq!(take(&mut class, &mut shares), 0);
        let mut callers = 1..5_000;
        let is_served = callers.any(|caller| {
            come(&mut class, &mut shares, caller, run(caller + 1, 10));
            take(&mut class, &mut shares) == 0
        });
        assert!(is_served && callers.start < 400, "after {} others", callers.start);
    }

    #[test]
    fn callers_that_are_gone_are_forgotten() {
        let (mut class, mut shares) = (Class::default(), Shares::default());
        for caller in 0..50_000 {
            come(&mut class, &mut shares, caller, run(caller, 7));
            take(&mut class, &mut shares);
            assert!(shares.callers.len() <= 2 * IDLE_CALLERS, "{}", shares.callers.len());
        }
        assert!(class.flows.is_empty() && class.order.is_empty() && class.ages.is_empty());
    }
}
