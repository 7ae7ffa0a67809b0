//! Checks each thing the machine does against what it was told, with books of its own.
//! Never looks into the machine: only at its actions, its view and when it wants to be woken.

mod batches;
mod idle;
mod ladder;
mod memory;
mod moves;
mod patience;
mod poison;
mod requests;
mod rule;
mod shares;
mod speeds;
mod streams;
#[cfg(test)]
mod tests;
mod weights;
mod workers;

pub use rule::{Broken, Rule};

use crate::load::Demand;
use crate::scenario::Scenario;
use batches::Batches;
use idle::Idle;
use ladder::Ladder;
use magray_core::ledger::Owner;
use magray_core::schedule::{
    Action, BatchId, Condition, DeviceId, Event, Failure, KillCause, Moment, Notice, RequestId, View,
};
use moves::Moves;
use patience::Patience;
use poison::Suspects;
use requests::Ledger;
use rule::Verdict;
use shares::Shares;
use speeds::Speeds;
use std::collections::BTreeMap;
use std::time::Duration;
use streams::{Streams, TurnMost};
use weights::Weights;
use workers::Workers;

#[derive(Debug)]
pub(crate) struct Checks {
    pub(crate) ledger: Ledger,
    pub(crate) batches: Batches,
    pub(crate) workers: Workers,
    pub(crate) weights: Weights,
    pub(crate) streams: Streams,
    suspects: Suspects,
    ladder: Ladder,
    idle: Idle,
    patience: Patience,
    shares: Shares,
    moves: Moves,
    pub(crate) speeds: Speeds,
}

impl Checks {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let specs: Vec<_> = scenario.devices.iter().map(|device| device.spec).collect();
        let weights = Weights::new(scenario);
        // Twice as long as the weights took, which noise and the way of the news make longer.
        let loads = scenario
            .devices
            .iter()
            .flat_map(|device| scenario.models.iter().map(|model| device.loads.of(model.bytes, false) * 4));
        let arrival_grace = loads.max().unwrap_or_default() + Duration::from_secs(2);
        Self {
            ledger: Ledger::new(scenario),
            moves: Moves::new(&specs),
            batches: Batches::new(specs.clone(), scenario.options.batching),
            workers: Workers::new(&specs, scenario.options.recovery, arrival_grace),
            suspects: Suspects::new(scenario.options.recovery.poison_kills),
            ladder: Ladder::new(specs.len(), scenario.options.recovery),
            idle: Idle::new(&scenario.options, specs),
            patience: Patience::new(scenario, weights.is_crowded()),
            streams: Streams::new(scenario),
            shares: Shares::new(scenario, weights.is_crowded()),
            speeds: Speeds::new(scenario),
            weights,
        }
    }

    /// A request that the machine is about to get.
    pub(crate) fn expect(&mut self, demand: &Demand) {
        self.ledger.expect(demand);
    }

    /// Records an event that the machine is about to get.
    pub(crate) fn heard(&mut self, event: &Event, now: Moment) {
        // The ladder and the suspects look at what was so before this event.
        self.ladder.heard(event, &self.workers, &self.batches, now);
        self.suspects.heard(event, &self.workers, &self.batches, now);
        let given_up = self.given_up_at_once(event);
        self.workers.heard(event, &self.batches, &self.weights, now);
        self.weights.heard(event, &self.batches, now);
        self.patience.heard(event);
        self.speeds.heard(event);
        self.streams.heard(event, &self.batches, now);
        self.shares.heard(event, &self.ledger);
        if let Some(device) = given_up {
            self.batches.doubt(device, KillCause::RuledOut, &mut self.ledger);
        }
        match event {
            Event::Finished { batch, .. } => {
                if let Some(batch) = self.batches.get(*batch) {
                    self.moves.computed(batch.device, batch.group.model);
                }
                self.batches.finish(*batch, &mut self.ledger, now);
            }
            Event::Failed { batch, failure } => self.batches.fail(*batch, *failure, &mut self.ledger),
            Event::Down { device, .. } => {
                self.moves.ended(*device);
                self.batches.lose(*device, &mut self.ledger);
            }
            event => self.ledger.heard(event, now),
        }
    }

    /// The device whose batches the machine may give up at this event, although their worker is not gone yet.
    fn given_up_at_once(&self, event: &Event) -> Option<DeviceId> {
        match event {
            Event::Judged { device, condition: Condition::Bad(_) } => Some(*device),
            Event::Failed { batch, failure: Failure::Sticky | Failure::WrongAnswer | Failure::Lost } => {
                self.batches.get(*batch).map(|batch| batch.device)
            }
            Event::NotLoaded { device, model, failure: Failure::Sticky | Failure::WrongAnswer | Failure::Lost } => {
                let is_lost = self.weights.is_loading(*device, *model) && !self.batches.is_cpu(*device);
                Some(*device).filter(|_| is_lost)
            }
            _ => None,
        }
    }

    /// Judges one action of the machine.
    pub(crate) fn told(&mut self, action: &Action, turn_most: TurnMost<'_>, now: Moment) -> Verdict {
        if let Action::Free { request, sequence, .. } = action {
            self.patience.repeats(self.streams.known((*request, *sequence)));
        }
        self.streams.told(action, turn_most, &mut self.ledger, now)?;
        match action {
            Action::Start { device, batch, steps, passes, expected, is_followed } => {
                self.workers.may_start(*device)?;
                self.suspects.may_share(steps, &self.ledger)?;
                let start = idle::Start { device: *device, steps };
                self.idle.keeps_order(&start, &self.ledger, &self.batches, &self.weights, now)?;
                let new = batches::New { device: *device, batch: *batch, steps, passes: *passes, expected: *expected };
                self.batches.start(new, &mut self.ledger, now)?;
                if *is_followed {
                    self.shares.note_followed(*batch);
                }
                self.shares.started(steps, &self.ledger)?;
                self.weights.may_start(*device, steps, &self.ledger)
            }
            Action::Complete { request, report } => {
                self.suspects.forget(*request);
                self.ledger.complete(*request, report, now)
            }
            Action::Refuse { request, refused } => {
                self.suspects.may_refuse(*request, *refused)?;
                self.ledger.refuse(*request, *refused, now)
            }
            Action::Kill { device, cause } => {
                let is_honest = *cause != KillCause::LoadOverdue || self.weights.is_overdue(*device, now);
                rule::holds(is_honest, Rule::HonestKill, || {
                    format!("the worker of device {} is ended as {cause:?}, and no weights are late", device.0)
                })?;
                self.workers.kill(*device, *cause, self.batches.oldest(*device), now)?;
                self.suspects.killed(*device, *cause, &self.batches, now);
                self.batches.doubt(*device, *cause, &mut self.ledger);
                Ok(())
            }
            Action::Spawn { device } => {
                self.ladder.spawned(*device, now)?;
                self.workers.spawn(*device, now)
            }
            Action::Load { device, model } => {
                self.moves.ordered(*device, *model);
                self.weights.load(*device, *model, &self.workers, now)
            }
            Action::Offload { device, model } => {
                let Self { ledger, batches, workers, .. } = self;
                let order = weights::Order { device: *device, model: *model, batches, workers, ledger };
                match self.weights.offload(order, now)? {
                    Some(eviction) => self.moves.evicted(eviction, &self.ledger),
                    None => Ok(()),
                }
            }
            Action::GrantVectors { device, collection, bytes } => self.weights.grant(*device, *collection, *bytes),
            Action::RefuseVectors { missing, .. } => rule::holds(*missing > 0, Rule::HonestRefusal, || {
                "vectors are refused, and nothing is missing".to_owned()
            }),
            Action::DropVectors { device, collection } => self.weights.begin_drop(*device, *collection, now),
            Action::Forget { model } => self.weights.forget(*model),
            Action::Rest { device } => {
                self.weights.rest(*device, &self.batches)?;
                self.workers.rest(*device, now)
            }
            // The book of sequences judges them.
            Action::Deliver { .. } | Action::Free { .. } => Ok(()),
            Action::Trim { device } => self.workers.trim(*device),
            Action::Probe { device } => self.workers.probe(*device, &self.batches, now),
            Action::Alert { device, change } => {
                self.ladder.alerted(*device, *change);
                self.workers.alert(*device, *change)
            }
            Action::Notice { device, notice: Notice::Memory { is_rising, .. } } => {
                if *is_rising {
                    self.workers.fills(*device);
                }
                Ok(())
            }
            Action::Notice { device, notice } => self.speeds.noticed(*device, *notice),
        }
    }

    /// Judges the state after all actions for this event.
    pub(crate) fn settle(&mut self, view: &View, now: Moment) -> Verdict {
        self.ledger.settle(view, &self.weights, now)?;
        self.shares.judge_taken(&self.ledger)?;
        self.batches.settle(view, &self.workers)?;
        self.workers.settle(view, &self.batches, now)?;
        self.speeds.settle(view, self.workers.slowest(), now)?;
        let Self { workers, batches, ledger, .. } = self;
        self.weights.settle(weights::Scene { view, workers, batches, ledger }, now)?;
        self.ladder.settle(&self.workers)?;
        self.suspects.settle(&self.ledger)?;
        self.streams.settle(&self.ledger, &self.workers)?;
        let Self { ledger, batches, streams, .. } = self;
        self.idle.settle(view, idle::Scene { ledger, batches, streams, weights: &self.weights })?;
        self.patience.settle(&self.ledger, &self.batches, &self.streams, now)?;
        self.shares.settle(&self.ledger);
        self.batches.note_rotation(view, self.weights.is_crowded());
        self.settle_accounts(view)
    }

    /// Every account holds what was granted and not returned.
    fn settle_accounts(&self, view: &View) -> Verdict {
        for (at, seen) in view.devices.iter().enumerate() {
            let device = DeviceId(at as u16);
            let (mut accounts, capacity) = self.weights.accounts(device);
            let mut said: BTreeMap<Owner, u64> = seen.accounts.iter().copied().collect();
            if self.workers.is_being_ended(device) {
                // Its sequences go on elsewhere before it is gone.
                said.retain(|owner, _| !matches!(owner, Owner::Kv(_)));
            } else {
                accounts.extend(self.streams.accounts(device));
            }
            rule::holds(said == accounts && seen.memory_capacity == capacity, Rule::Accounts, || {
                let all = seen.memory_capacity;
                format!("device {at} is said to have {said:?} of {all}, and has {accounts:?} of {capacity}")
            })?;
        }
        Ok(())
    }

    /// Whether something of this request may still be answered by a batch that runs.
    pub(crate) fn is_live(&self, request: RequestId) -> bool {
        self.ledger.is_live(request)
    }

    /// The steps of a batch, for the world to compute.
    pub(crate) fn batch(&self, batch: BatchId) -> Option<&batches::Batch> {
        self.batches.get(batch)
    }
}
