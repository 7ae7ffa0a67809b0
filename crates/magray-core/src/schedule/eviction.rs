//! Finds memory for a model on a device: who leaves for it, now or when their last batch has ended.
//! Evicts nothing that is pinned, more important, or came a moment ago, and nothing at all where that would not do. In which
//! order the others leave is the ledger's rule.

use super::cost::as_f64;
use super::resident::{Leave, Resident, Stage};
use super::sabotage::sabotaged;
use super::{Action, DeviceId, Machine, ModelId, Moment, Priority};
use crate::ledger::{Candidate, CollectionId, Rank, choose};
use crate::moment::micros;

/// A model stays for so many times as long as it took to come, if those who want its memory are not more important.
const STAYS: u32 = 2;

/// A model that wants memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newcomer {
    pub(super) model: ModelId,
    /// Since when it is wanted.
    pub(super) since: Moment,
    /// Whether somebody waits for it.
    pub(super) is_awaited: bool,
}

/// How a model gets its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RoomPlan {
    /// There is room.
    Now,
    /// There will be when those have left that are leaving.
    Soon,
    /// These leave, once no batch of theirs is there any more.
    Evict(Vec<Tenant>),
    /// Nothing is to be done; from this moment on there may be.
    Wait(Option<Moment>),
}

/// Somebody who can be made to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tenant {
    Weights(ModelId),
    Vectors(CollectionId),
}

impl Machine {
    /// How a newcomer gets room on a device where `promised` bytes are meant for others.
    pub(super) fn room_plan(&self, id: DeviceId, newcomer: Newcomer, promised: u64) -> RoomPlan {
        let now = self.cx.now;
        let memory = self.residency.memory(id);
        let missing = |leaving: u64| memory.missing(newcomer.model, promised, leaving, now);
        if missing(0) == 0 {
            return RoomPlan::Now;
        }
        let leaving = memory.leaving();
        if missing(leaving) == 0 {
            return RoomPlan::Soon;
        }
        let mut again_at = memory.ledger().believed_until().filter(|&until| until > now);
        let mut candidates = self.idle_vectors(id);
        for (model, resident) in memory.residents().filter(|(model, _)| *model != newcomer.model) {
            match self.evictable(id, (model, resident), newcomer) {
                Ok(rank) => candidates.push(self.weights_candidate(id, model, rank)),
                Err(from) => again_at = [again_at, from].into_iter().flatten().min(),
            }
        }
        match choose(candidates, |freed| missing(leaving.saturating_add(freed))) {
            (chosen, 0) => RoomPlan::Evict(chosen),
            _ => RoomPlan::Wait(again_at),
        }
    }

    /// Marks what must leave because there is less memory than is used.
    pub(super) fn evict_overdrawn(&mut self, id: DeviceId, actions: &mut Vec<Action>) {
        let memory = self.residency.memory(id);
        let overdrawn = memory.ledger().overdrawn().saturating_sub(memory.leaving());
        if overdrawn == 0 {
            return;
        }
        let is_movable = |(model, resident): &(ModelId, &Resident)| {
            let is_pinned = self.model(*model).plan.is_pinned && !sabotaged!(self.cx, PushPinned);
            resident.is_present() && resident.leave.is_none() && !is_pinned
        };
        let mut candidates = self.idle_vectors(id);
        candidates.extend(memory.residents().filter(is_movable).map(|(model, _)| {
            let rank = if self.devices.is_in_use(id, model) { Rank::BusyWeights } else { Rank::IdleWeights };
            self.weights_candidate(id, model, rank)
        }));
        let (chosen, _) = choose(candidates, |freed| overdrawn.saturating_sub(freed));
        for tenant in chosen {
            self.evict(id, tenant, actions);
        }
    }

    /// Lets somebody leave. Weights do so when no batch of theirs is there any more.
    pub(super) fn evict(&mut self, id: DeviceId, tenant: Tenant, actions: &mut Vec<Action>) {
        match tenant {
            Tenant::Weights(model) => self.residency.memory_mut(id).resident_mut(model).leave = Some(Leave::Evicted),
            Tenant::Vectors(collection) => {
                self.residency.memory_mut(id).begin_drop(collection, self.cx.now);
                actions.push(Action::DropVectors { device: id, collection });
            }
        }
    }

    /// How a model may be evicted for another, or from when on it may be.
    fn evictable(&self, id: DeviceId, at: (ModelId, &Resident), newcomer: Newcomer) -> Result<Rank, Option<Moment>> {
        let (model, resident) = at;
        let Stage::Present { since, took, has_computed, .. } = resident.stage else { return Err(None) };
        let plan = self.model(model).plan;
        let priority = self.model(newcomer.model).plan.priority;
        let is_pinned = plan.is_pinned && !sabotaged!(self.cx, PushPinned);
        if resident.leave.is_some() || is_pinned || plan.priority > priority {
            return Err(None);
        }
        let is_equal = plan.priority == priority;
        let stays_until = since + took.saturating_mul(STAYS);
        let is_at_once = sabotaged!(self.cx, PushAtOnce);
        if is_equal && stays_until > self.cx.now && !is_at_once {
            return Err(Some(stays_until));
        }
        // Otherwise models in turn could evict each other before any of them has computed.
        if is_equal && !has_computed && self.is_only_here(id, model) && !is_at_once {
            return Err(None);
        }
        let is_busy = self.devices.is_in_use(id, model);
        let old_at = newcomer.since + self.cx.aging().age_max;
        if is_busy && is_equal && (!newcomer.is_awaited || old_at > self.cx.now) {
            return Err(newcomer.is_awaited.then_some(old_at));
        }
        Ok(if is_busy { Rank::BusyWeights } else { Rank::IdleWeights })
    }

    fn weights_candidate(&self, id: DeviceId, model: ModelId, rank: Rank) -> Candidate<Tenant, Priority> {
        let bytes = self.residency.memory(id).bytes(model);
        let (priority, score) = (self.model(model).plan.priority, self.eviction_score(id, model));
        Candidate { who: Tenant::Weights(model), bytes, rank, priority, score }
    }

    fn idle_vectors(&self, id: DeviceId) -> Vec<Candidate<Tenant, Priority>> {
        let idle = self.residency.memory(id).idle_vectors();
        let candidate = |(collection, bytes, used): (CollectionId, u64, Moment)| {
            let score = micros(self.cx.now.since(used));
            let (who, rank) = (Tenant::Vectors(collection), Rank::IdleVectors);
            Candidate { who, bytes, rank, priority: Priority::Normal, score }
        };
        idle.map(candidate).collect()
    }

    /// How little is lost if a model leaves: long idle, large, and quickly back.
    fn eviction_score(&self, id: DeviceId, model: ModelId) -> f64 {
        let memory = self.residency.memory(id);
        let is_awaited = self.jobs.of(model).gpu > 0;
        let idle_us = if is_awaited { 0.0 } else { micros(self.cx.now.since(memory.resident(model).used)) };
        (idle_us + 1.0) * as_f64(memory.bytes(model)) / micros(self.reload_time(id, model)).max(1.0)
    }

    /// Whether something waits for a model that no other device has for it.
    fn is_only_here(&self, id: DeviceId, model: ModelId) -> bool {
        let mut buckets = self.queue.keys_of(model);
        buckets.any(|bucket| {
            let holders = bucket.reach.may.and(self.model(model).present);
            holders == super::device_set::DeviceSet::one(id)
        })
    }
}
