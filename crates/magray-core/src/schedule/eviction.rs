//! Finds memory for a model on a device: who leaves for it, now or when their last batch has ended.
//! Evicts nothing that is pinned, counts more, or came a moment ago, and nothing at all where that would not do. In which
//! order the others leave is the ledger's rule.

use super::cost::as_f64;
use super::device_set::DeviceSet;
use super::load_time::Source;
use super::outlook::Outlook;
use super::resident::{Resident, Stage};
use super::sabotage::sabotaged;
use super::{DeviceId, ModelId, Moment, Priority};
use crate::ledger::{Candidate, CollectionId, Rank, choose};
use crate::moment::micros;
use std::time::Duration;

/// A model stays for this many times as long as it took to come, if those who want its memory are not more important.
const STAYS: u32 = 2;
/// A model that was evicted before it computed anything evicts others again after this time at the latest.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A model that wants memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newcomer {
    pub(super) model: ModelId,
    /// Since when it is wanted.
    pub(super) since: Moment,
    /// Whether requests wait for it.
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

/// What can be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tenant {
    Weights(ModelId),
    Vectors(CollectionId),
}

/// How a newcomer gets room on a device where `promised` bytes are meant for others.
pub(super) fn room_plan(of: Outlook<'_>, id: DeviceId, newcomer: Newcomer, promised: u64) -> RoomPlan {
    let now = of.cx.now;
    let memory = of.residency.memory(id);
    let missing = |leaving: u64| memory.missing(newcomer.model, promised, leaving, now);
    if missing(0) == 0 {
        return RoomPlan::Now;
    }
    let leaving = memory.leaving();
    if missing(leaving) == 0 {
        return RoomPlan::Soon;
    }
    let mut again_at = memory.ledger().believed_until().filter(|&until| until > now);
    let mut candidates = idle_vectors(of, id);
    for (model, resident) in memory.residents().filter(|(model, _)| *model != newcomer.model) {
        match evictable(of, id, (model, resident), newcomer) {
            Ok(rank) => candidates.push(weights_candidate(of, id, model, rank)),
            Err(from) => again_at = [again_at, from].into_iter().flatten().min(),
        }
    }
    match choose(candidates, |freed| missing(leaving.saturating_add(freed))) {
        (chosen, 0) => RoomPlan::Evict(chosen),
        _ => RoomPlan::Wait(again_at),
    }
}

/// What must leave because there is less memory than is used.
pub(super) fn overdrawn(of: Outlook<'_>, id: DeviceId) -> Vec<Tenant> {
    let memory = of.residency.memory(id);
    let overdrawn = memory.ledger().overdrawn().saturating_sub(memory.leaving());
    if overdrawn == 0 {
        return Vec::new();
    }
    let is_movable = |(model, resident): &(ModelId, &Resident)| {
        resident.is_present() && resident.leave.is_none() && !is_pinned(of, *model)
    };
    let mut candidates = idle_vectors(of, id);
    candidates.extend(memory.residents().filter(is_movable).map(|(model, _)| {
        let rank = if of.devices.is_in_use(id, model) { Rank::BusyWeights } else { Rank::IdleWeights };
        weights_candidate(of, id, model, rank)
    }));
    choose(candidates, |freed| overdrawn.saturating_sub(freed)).0
}

fn is_pinned(of: Outlook<'_>, model: ModelId) -> bool {
    of.model(model).plan.is_pinned && !sabotaged!(of.cx, PushPinned)
}

/// How a model may be evicted for another, or from when on it may be.
fn evictable(
    of: Outlook<'_>,
    id: DeviceId,
    at: (ModelId, &Resident),
    newcomer: Newcomer,
) -> Result<Rank, Option<Moment>> {
    let (model, resident) = at;
    let Stage::Present { since, took, has_computed, .. } = resident.stage else { return Err(None) };
    let (own, other) = (of.importance(model), of.importance(newcomer.model));
    if resident.leave.is_some() || is_pinned(of, model) || own > other {
        return Err(None);
    }
    let is_equal = own == other;
    let stays_until = since + took.saturating_mul(STAYS);
    let is_at_once = sabotaged!(of.cx, PushAtOnce);
    if is_equal && stays_until > of.cx.now && !is_at_once {
        return Err(Some(stays_until));
    }
    // Otherwise models in turn could evict each other before any of them has computed.
    let is_busy = of.devices.is_in_use(id, model);
    if is_equal && !has_computed && (is_busy || is_only_here(of, id, model)) && !is_at_once {
        return Err(None);
    }
    let again_at = comes_again_at(of, id, newcomer.model).filter(|&again_at| is_equal && again_at > of.cx.now);
    if again_at.is_some() {
        return Err(again_at);
    }
    let old_at = newcomer.since + of.cx.aging().age_max;
    let is_needed = is_busy || is_awaited_on(of, id, model);
    if is_needed && is_equal && (!newcomer.is_awaited || old_at > of.cx.now) {
        return Err(newcomer.is_awaited.then_some(old_at));
    }
    Ok(if is_busy { Rank::BusyWeights } else { Rank::IdleWeights })
}

fn weights_candidate(of: Outlook<'_>, id: DeviceId, model: ModelId, rank: Rank) -> Candidate<Tenant, Priority> {
    let bytes = of.residency.memory(id).bytes(model);
    let (priority, score) = (of.importance(model), eviction_score(of, id, model));
    Candidate { who: Tenant::Weights(model), bytes, rank, priority, score }
}

fn idle_vectors(of: Outlook<'_>, id: DeviceId) -> Vec<Candidate<Tenant, Priority>> {
    let idle = of.residency.memory(id).idle_vectors();
    let candidate = |(collection, bytes, used): (CollectionId, u64, Moment)| {
        let score = micros(of.cx.now.since(used));
        let (who, rank) = (Tenant::Vectors(collection), Rank::IdleVectors);
        Candidate { who, bytes, rank, priority: Priority::Normal, score }
    };
    idle.map(candidate).collect()
}

/// How little is lost if a model leaves: long idle, large, and quickly back.
fn eviction_score(of: Outlook<'_>, id: DeviceId, model: ModelId) -> f64 {
    let memory = of.residency.memory(id);
    let is_awaited = of.requests.jobs().of(model).gpu > 0;
    let idle_us = if is_awaited { 0.0 } else { micros(of.cx.now.since(memory.resident(model).used)) };
    (idle_us + 1.0) * as_f64(memory.bytes(model)) / micros(of.load_time_from(Source::Host, id, model)).max(1.0)
}

/// When a model that was evicted before it computed anything may evict others again: later each time. What waits for such a
/// model goes elsewhere, and bringing it again and again would only keep others away.
fn comes_again_at(of: Outlook<'_>, id: DeviceId, model: ModelId) -> Option<Moment> {
    let resident = of.resident(id, model);
    if resident.evicted_unused == 0 || sabotaged!(of.cx, EvictForNothing) {
        return None;
    }
    let pause = of.cx.options.batching.age_max.saturating_mul(1 << resident.evicted_unused.min(16));
    resident.lost_since.map(|lost| lost + pause.min(PAUSE_MAX))
}

/// Whether something waits for a model that this device may compute.
fn is_awaited_on(of: Outlook<'_>, id: DeviceId, model: ModelId) -> bool {
    of.requests.queue().keys_of(model).any(|bucket| bucket.reach.may.contains(id))
}

/// Whether something waits for a model that no other device has for it.
pub(super) fn is_only_here(of: Outlook<'_>, id: DeviceId, model: ModelId) -> bool {
    let mut buckets = of.requests.queue().keys_of(model);
    buckets.any(|bucket| {
        let holders = bucket.reach.may.and(of.model(model).present);
        holders == DeviceSet::one(id)
    })
}

/// Whether a model leaves a device now; if not, when it may have to.
pub(super) fn leaves_now(of: Outlook<'_>, id: DeviceId, model: ModelId) -> Result<(), Option<Moment>> {
    let resident = of.resident(id, model);
    let Stage::Present { has_computed, is_preheated, .. } = resident.stage else { return Err(None) };
    let is_used = of.devices.is_in_use(id, model);
    if resident.leave.is_some() {
        return if !is_used || sabotaged!(of.cx, OffloadUnderBatch) { Ok(()) } else { Err(None) };
    }
    let (plan, health) = (of.model(model).plan, of.devices.health(id));
    // A device that waits for a probe needs weights for it.
    let is_kept = is_used || plan.is_pinned || health.needs_probe() || !health.has_worker();
    if is_kept || of.requests.jobs().of(model).gpu > 0 || sabotaged!(of.cx, IgnoreIdle) {
        return Err(None);
    }
    let idle_at = of.model(model).idle_at();
    let is_done = plan.offload_after_use && (has_computed || !is_preheated);
    if is_done || idle_at.is_some_and(|idle_at| idle_at <= of.cx.now) { Ok(()) } else { Err(idle_at) }
}
