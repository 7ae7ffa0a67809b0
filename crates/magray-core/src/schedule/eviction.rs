//! Finds room for a model on a device: which others leave for it, now or when their last batch has ended.
//! Never pushes out what is pinned, more important, or came a moment ago, and nothing at all where that would not do.

use super::cost::as_f64;
use super::device::micros;
use super::residency::{Place, Stage};
use super::sabotage::sabotaged;
use super::{DeviceId, Machine, ModelId, Moment};

/// A model stays for so many times as long as it took to come, if those who want its room are not more important.
const STAYS: u32 = 2;

/// A model that wants room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newcomer {
    pub(super) model: ModelId,
    /// Since when it is wanted.
    pub(super) since: Moment,
    /// Whether somebody waits for it.
    pub(super) is_awaited: bool,
}

/// How a model gets its room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RoomPlan {
    /// There is room.
    Now,
    /// There will be when those have left that are leaving.
    Soon,
    /// These leave, once no batch of theirs is there any more.
    Push(Vec<ModelId>),
    /// Nothing is to be done; from this moment on there may be.
    Wait(Option<Moment>),
}

/// A model that may be pushed out.
#[derive(Clone, Copy, Debug)]
struct Victim {
    model: ModelId,
    bytes: u64,
    is_busy: bool,
    is_equal: bool,
    score: f64,
}

impl Machine {
    /// How a newcomer gets room on a device where `promised` bytes are meant for others.
    pub(super) fn room_plan(&self, id: DeviceId, newcomer: Newcomer, promised: u64) -> RoomPlan {
        let now = self.now;
        let shelf = &self.device(id).shelf;
        let bytes = shelf.place(newcomer.model).bytes;
        let taken = shelf.used().saturating_add(promised);
        if shelf.has_room(taken, bytes, now) || sabotaged!(self, IgnoreRoom) {
            return RoomPlan::Now;
        }
        let mut left = taken.saturating_sub(shelf.outgoing());
        if shelf.has_room(left, bytes, now) {
            return RoomPlan::Soon;
        }
        let mut again_at: Option<Moment> = shelf.doubt.map(|(_, until)| until).filter(|&until| until > now);
        let mut victims: Vec<Victim> = Vec::new();
        for (model, place) in shelf.iter().filter(|(model, _)| *model != newcomer.model) {
            match self.victim(id, (model, place), newcomer) {
                Ok(victim) => victims.push(victim),
                Err(from) => again_at = [again_at, from].into_iter().flatten().min(),
            }
        }
        victims.sort_by(|a, b| (a.is_busy, a.is_equal).cmp(&(b.is_busy, b.is_equal)).then(b.score.total_cmp(&a.score)));
        let mut pushed = Vec::new();
        for victim in victims {
            left = left.saturating_sub(victim.bytes);
            pushed.push(victim.model);
            if shelf.has_room(left, bytes, now) {
                return RoomPlan::Push(pushed);
            }
        }
        RoomPlan::Wait(again_at)
    }

    /// What there is to say for pushing a model out, or from when on it may be.
    fn victim(&self, id: DeviceId, at: (ModelId, &Place), newcomer: Newcomer) -> Result<Victim, Option<Moment>> {
        let (model, place) = at;
        let Stage::Present { since, took, has_computed, .. } = place.stage else { return Err(None) };
        let plan = self.model(model).plan;
        let priority = self.model(newcomer.model).plan.priority;
        let is_pinned = plan.is_pinned && !sabotaged!(self, PushPinned);
        if place.leave.is_some() || is_pinned || plan.priority > priority {
            return Err(None);
        }
        let is_equal = plan.priority == priority;
        let stays_until = since + took.saturating_mul(STAYS);
        let is_at_once = sabotaged!(self, PushAtOnce);
        if is_equal && stays_until > self.now && !is_at_once {
            return Err(Some(stays_until));
        }
        // Otherwise models in turn could push each other out before any of them has computed.
        if is_equal && !has_computed && self.is_only_here(id, model) && !is_at_once {
            return Err(None);
        }
        let is_busy = self.device(id).is_running(model) || self.device(id).probing_since.is_some();
        let old_at = newcomer.since + self.aging().age_max;
        if is_busy && is_equal && (!newcomer.is_awaited || old_at > self.now) {
            return Err(newcomer.is_awaited.then_some(old_at));
        }
        Ok(Victim { model, bytes: place.bytes, is_busy, is_equal, score: self.eviction_score(id, model) })
    }

    /// How little is lost if a model leaves: long idle, large, and quickly back.
    pub(super) fn eviction_score(&self, id: DeviceId, model: ModelId) -> f64 {
        let place = self.device(id).shelf.place(model);
        let is_awaited = self.jobs.of(model).gpu > 0;
        let idle_us = if is_awaited { 0.0 } else { micros(self.now.since(place.used)) };
        (idle_us + 1.0) * as_f64(place.bytes) / micros(self.reload_time(id, model)).max(1.0)
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
