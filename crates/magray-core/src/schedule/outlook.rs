//! All parts of the machine, to read: what is known of devices, models and requests together.
//! Changes nothing.

use super::context::Context;
use super::device_set::DeviceSet;
use super::devices::Devices;
use super::load_time::Source;
use super::queue::BucketKey;
use super::requests::Requests;
use super::residency::{Model, Residency};
use super::resident::{Resident, Stage};
use super::sabotage::sabotaged;
use super::sequence::StepBounds;
use super::{DeviceId, Fallback, ModelId, Moment, Priority};
use crate::moment::micros;
use std::time::Duration;

/// The parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outlook<'a> {
    pub(super) cx: &'a Context,
    pub(super) devices: &'a Devices,
    pub(super) residency: &'a Residency,
    pub(super) requests: &'a Requests,
}

impl<'a> Outlook<'a> {
    pub(super) fn model(&self, id: ModelId) -> &'a Model {
        self.residency.model(id)
    }

    pub(super) fn resident(&self, id: DeviceId, model: ModelId) -> &'a Resident {
        self.residency.memory(id).resident(model)
    }

    /// What bounds the steps of a model on a device.
    pub(super) fn step_bounds(&self, id: DeviceId, model: ModelId) -> StepBounds {
        self.cx.step_bounds(&self.model(model).plan, self.devices.get(id).spec().location)
    }

    /// Whether the first of a bucket has waited so long that it goes before all others.
    pub(super) fn is_aged(&self, bucket: BucketKey) -> bool {
        let oldest = self.requests.queue().oldest(bucket);
        oldest.is_some_and(|arrived| self.cx.aging().is_aged_since(arrived))
    }

    /// Whether one of these devices computes a model, or may do so without help.
    pub(super) fn is_reachable(&self, may: DeviceSet, model: ModelId) -> bool {
        let is_near = !may.and(self.model(model).present).is_empty();
        let is_left = |id: DeviceId| !self.devices.health(id).is_given_up() && self.obstacle(id, model).is_none();
        is_near || may.iter().any(is_left)
    }

    /// Whether a device can compute a model at all.
    pub(super) fn suits(&self, id: DeviceId, model: ModelId) -> bool {
        self.model(model).plan.suits(id, self.devices.get(id).spec())
    }

    /// Why a model cannot be had on a device, neither now nor before long.
    pub(super) fn obstacle(&self, id: DeviceId, model: ModelId) -> Option<Fallback> {
        let memory = self.residency.memory(id);
        let resident = memory.resident(model);
        if resident.is_staying() {
            return None;
        }
        if self.model(model).is_removed || !self.suits(id, model) {
            return Some(Fallback::NotLoaded);
        }
        // Other models can be evicted from a GPU, unless they are pinned; nothing is evicted from the CPU.
        let is_gpu = self.devices.health(id).has_worker();
        let is_fixed = |other: ModelId, there: &Resident| {
            let is_pinned = self.model(other).plan.is_pinned && !sabotaged!(self.cx, PushPinned);
            (!is_gpu || is_pinned) && !there.is_on_its_way_out()
        };
        let others = memory.residents().filter(|(other, there)| *other != model && there.stage != Stage::Absent);
        let fixed = others.filter(|(other, there)| is_fixed(*other, there)).map(|(other, _)| memory.bytes(other));
        let taken = fixed.fold(if is_gpu { 0 } else { memory.vectors() }, u64::saturating_add);
        if taken.saturating_add(memory.bytes(model)) > memory.ledger().room() {
            return Some(Fallback::OutOfMemory);
        }
        resident.tries.reason.filter(|_| resident.tries.are_enough(self.cx.now))
    }

    pub(super) fn reason_of(&self, may: DeviceSet, model: ModelId) -> Fallback {
        let is_left = |&device: &DeviceId| !self.devices.health(device).is_given_up();
        let Some(device) = may.iter().find(is_left).or(may.iter().next()) else { return Fallback::Lost };
        self.weights_reason(device, model).unwrap_or_else(|| self.devices.health(device).fallback())
    }

    /// Why a device that is used, or rests, does not compute a model; none if it is neither.
    fn weights_reason(&self, device: DeviceId, model: ModelId) -> Option<Fallback> {
        if !self.devices.health(device).is_used() {
            return None;
        }
        let failed = self.obstacle(device, model).or(self.resident(device, model).tries.reason);
        Some(failed.unwrap_or(Fallback::Waking))
    }

    /// Whether an answer of this device is one that a GPU should have given, and why no GPU could.
    pub(super) fn fallback_to(&self, device: DeviceId, model: ModelId) -> Option<Option<Fallback>> {
        let suited = self.devices.in_workers().iter().filter(|gpu| self.suits(*gpu, model));
        let in_workers: DeviceSet = suited.collect();
        let first_gpu = in_workers.iter().next().filter(|_| !in_workers.contains(device))?;
        let present = self.model(model).present.and(in_workers);
        if !present.is_empty() {
            let are_full = present.without(self.devices.full()).is_empty();
            return Some(are_full.then_some(Fallback::OutOfMemory));
        }
        let without_weights = in_workers.iter().find_map(|gpu| self.weights_reason(gpu, model));
        Some(Some(without_weights.unwrap_or_else(|| self.devices.health(first_gpu).fallback())))
    }

    /// Since when none of these devices computes a model, if so: it is out of rotation, or does not even begin to load.
    pub(super) fn stranded_since(&self, may: DeviceSet, model: ModelId) -> Option<Moment> {
        let mut last = Moment::START;
        for device in may.iter() {
            let resident = self.resident(device, model);
            if self.devices.health(device).is_used() && (resident.is_present() || resident.is_loading()) {
                return None;
            }
            last = last.max(resident.lost_since.unwrap_or(Moment::START));
        }
        Some(last)
    }

    /// When the last of these devices lost a model; the start of time where none ever had it.
    pub(super) fn lost_at(&self, devices: DeviceSet, model: ModelId) -> Moment {
        devices.iter().filter_map(|id| self.resident(id, model).lost_since).max().unwrap_or(Moment::START)
    }

    /// How much a model counts when models compete for memory: more than its plan says while a request of high priority is
    /// there for it, or it is preheated with such.
    pub(super) fn importance(&self, model: ModelId) -> Priority {
        let (known, is_urgent) = (self.model(model), self.requests.jobs().of(model).high > 0);
        let wanted = known.want.filter(|want| want.is_preheat).map(|want| want.priority);
        if is_urgent || wanted == Some(Priority::High) { Priority::High } else { known.plan.priority }
    }

    /// Whether nothing needs a model on a GPU any more.
    pub(super) fn is_unused(&self, id: ModelId) -> bool {
        let model = self.model(id);
        let is_over = model.idle_at().is_some_and(|idle| idle <= self.cx.now) || model.plan.offload_after_use;
        self.requests.jobs().of(id).gpu == 0 && is_over
    }

    pub(super) fn load_time(&self, id: DeviceId, model: ModelId) -> Duration {
        self.load_time_from(self.model(model).source(), id, model)
    }

    pub(super) fn load_time_from(&self, source: Source, id: DeviceId, model: ModelId) -> Duration {
        let memory = self.residency.memory(id);
        memory.resident(model).times.expected(source, memory.bytes(model), self.devices.get(id).spec().kind)
    }

    /// When a model that is not on a device yet is expected there, in microseconds from now. A load that is late is
    /// expected to take as long again as it is late.
    pub(super) fn arrival_us(&self, id: DeviceId, model: ModelId) -> f64 {
        let (now, resident) = (self.cx.now, self.resident(id, model));
        if resident.is_present() && resident.leave.is_none() && self.devices.health(id).is_in_rotation() {
            return 0.0;
        }
        let Some(at) = resident.ready_at else { return 0.0 };
        micros(if at > now { at.since(now) } else { now.since(at) })
    }
}
