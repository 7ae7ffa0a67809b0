//! The book of callers: what each gets while another waits, and how much goes before a request that is taken.
//! Judges worlds of one device without faults: elsewhere, a caller may get what no other can use.

use super::requests::{Entry, Ledger};
use super::rule::{Rule, Verdict, holds};
use crate::scenario::Scenario;
use magray_core::schedule::{BatchId, CallerId, Event, Group, Limits, Priority, RequestId, Span, Step};
use std::collections::{BTreeMap, BTreeSet};

/// Batches that one caller may be ahead of another: its last one before the other came, the one that both wait for, and as
/// much again because batches are not cut to size.
const BATCHES_AHEAD: u64 = 4;

/// How many times more than the limit may go before a request, by the true speed: the machine only measures it.
const TIMES_AHEAD: u64 = 4;

/// What requests have in common that take turns: their callers share what is computed of it.
type Class = (Group, Priority);

#[derive(Debug)]
pub(crate) struct Shares {
    is_judged: bool,
    /// The largest batch so far, in tokens.
    largest: u64,
    /// What each caller got, in all.
    served: BTreeMap<CallerId, u64>,
    /// By who waits and for what: what it had got when it began to wait, and what others got of it since then.
    waits: BTreeMap<(CallerId, Class), Wait>,
    limits: Limits,
    /// The tokens that the device would compute within the limit without any fixed cost, or a batch of it.
    most: u64,
    /// What goes before the request that came last.
    came: Option<(RequestId, u64)>,
    /// Batches behind which others waited when they were started.
    followed: BTreeSet<BatchId>,
    is_timed: bool,
}

#[derive(Clone, Debug, Default)]
struct Wait {
    before: u64,
    others: BTreeMap<CallerId, u64>,
}

impl Shares {
    pub(crate) fn new(scenario: &Scenario, is_crowded: bool) -> Self {
        let limits = scenario.options.limits;
        let device = &scenario.devices[0];
        let is_calm = scenario.troubles.is_empty() && scenario.load.shape.poison == 0.0 && !is_crowded;
        let wait_us = limits.wait_max.unwrap_or_default().as_secs_f64() * 1e6;
        let batch = u64::from(device.spec.batch_tokens_max);
        Self {
            is_judged: scenario.devices.len() == 1 && is_calm,
            largest: 0,
            served: BTreeMap::new(),
            waits: BTreeMap::new(),
            limits,
            most: ((wait_us / device.cost.token_us.max(1e-9)) as u64).max(batch),
            came: None,
            followed: BTreeSet::new(),
            is_timed: false,
        }
    }

    pub(crate) fn heard(&mut self, event: &Event, ledger: &Ledger) {
        // Before a batch was timed behind which others waited, no wait can be predicted.
        self.is_timed |= matches!(event, Event::Finished { batch, .. } if self.followed.remove(batch));
        let Event::Submitted(request) = event else { return };
        if !self.is_judged || !self.is_timed || self.limits.wait_max.is_none() {
            return;
        }
        let tokens: u64 = request.sequences.iter().map(|one| u64::from(one.tokens)).sum();
        let is_ahead = |entry: &&Entry| entry.request.id != request.id && entry.request.priority >= request.priority;
        let others = ledger.live().filter(is_ahead);
        let (own, others): (Vec<&Entry>, Vec<&Entry>) =
            others.partition(|entry| entry.request.caller == request.caller);
        let left = |entries: &[&Entry]| entries.iter().map(|entry| entry.left()).sum::<u64>();
        let callers: BTreeSet<CallerId> = others.iter().map(|entry| entry.request.caller).collect();
        let own_ahead = left(&own).min(own.len() as u64 * tokens);
        let ahead = own_ahead + left(&others).min(callers.len() as u64 * (own_ahead + tokens));
        self.came = Some((request.id, ahead));
    }

    pub(crate) fn note_followed(&mut self, batch: BatchId) {
        self.followed.insert(batch);
    }

    /// The request that came last was taken only where not too much goes before it.
    pub(crate) fn judge_taken(&mut self, ledger: &Ledger) -> Verdict {
        let Some((request, ahead)) = self.came.take().filter(|(request, _)| ledger.is_live(*request)) else {
            return Ok(());
        };
        let most = self.most.saturating_mul(TIMES_AHEAD);
        holds(ahead <= most, Rule::Waits, || {
            format!("request {} is taken behind {ahead} tokens, and may wait for {most} at most", request.0)
        })
    }

    pub(crate) fn started(&mut self, steps: &[Step], ledger: &Ledger) -> Verdict {
        if !self.is_judged {
            return Ok(());
        }
        let mut batch = 0;
        for step in steps.iter().filter(|step| step.span == Span::Whole) {
            let request = &ledger.entry(step.request)?.request;
            let texts = &request.sequences[step.sequences.start as usize..step.sequences.end as usize];
            let tokens: u64 = texts.iter().map(|one| u64::from(one.tokens)).sum();
            batch += tokens;
            *self.served.entry(request.caller).or_default() += tokens;
            let class = (request.group, request.priority);
            let waiting =
                self.waits.iter_mut().filter(|((caller, other), _)| *other == class && *caller != request.caller);
            waiting.for_each(|(_, wait)| *wait.others.entry(request.caller).or_default() += tokens);
        }
        self.largest = self.largest.max(batch);
        for ((caller, class), wait) in &self.waits {
            let own = self.served.get(caller).copied().unwrap_or_default() - wait.before;
            let most = own + self.largest * BATCHES_AHEAD;
            let greedy = wait.others.iter().find(|(_, got)| **got > most);
            holds(greedy.is_none(), Rule::Shares, || {
                let largest = self.largest;
                format!(
                    "{caller:?} got {own} tokens while it waited for {class:?}, {greedy:?}, and a batch is {largest}"
                )
            })?;
        }
        Ok(())
    }

    /// Who waits now, and who does no more.
    pub(crate) fn settle(&mut self, ledger: &Ledger) {
        if !self.is_judged {
            return;
        }
        let waiting = ledger.live().filter(|entry| entry.waiting > 0 && !entry.is_generated());
        let waiting: BTreeSet<(CallerId, Class)> =
            waiting.map(|entry| (entry.request.caller, (entry.request.group, entry.request.priority))).collect();
        self.waits.retain(|key, _| waiting.contains(key));
        for key in waiting {
            let before = self.served.get(&key.0).copied().unwrap_or_default();
            self.waits.entry(key).or_insert(Wait { before, others: BTreeMap::new() });
        }
    }
}
