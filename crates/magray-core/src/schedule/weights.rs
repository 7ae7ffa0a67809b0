//! What is told of weights: they came, did not come, went, have more or less room, were used.
//! Orders nothing itself: it writes down what happened, and what is to be done is found right after.

use super::device_set::DeviceSet;
use super::event::{Arrival, Growth};
use super::health::Trouble;
use super::load_time::Source;
use super::residency::Model;
use super::resident::{Resident, Stage};
use super::{Action, DeviceId, Failure, Fallback, Group, ModelId, ModelView, Moment, Residency};
use super::{Machine, sabotage::sabotaged};
use crate::ledger::{CollectionId, MemoryReport, Missing};
use std::time::Duration;

/// Room that turned out to be less than told is believed in for this much longer than the pause after it.
const DOUBT: Duration = Duration::from_secs(10);

impl Machine {
    /// Weights are on their device.
    pub(super) fn on_loaded(&mut self, id: DeviceId, load: Arrival, now: Moment) {
        let Some(Stage::Loading { .. }) = self.stage(id, load.model) else { return };
        let source = if load.from_host { Source::Host } else { Source::Files };
        let is_gpu = self.devices.in_workers().contains(id);
        let model = self.residency.model_mut(load.model);
        let is_preheated = model.want.is_some_and(|want| want.is_preheat) && is_gpu;
        model.is_in_host = true;
        model.used = model.used.max(now);
        if is_gpu {
            model.loads += 1;
            // It has its whole time from here on: before, nobody could use it.
            model.gpu_used = now;
            model.want = None;
        }
        if is_gpu || self.devices.in_workers().is_empty() {
            model.plan.bytes = load.bytes;
        }
        self.devices.health_mut(id).note_sign(now);
        let memory = self.residency.memory_mut(id);
        let resident = memory.resident_mut(load.model);
        resident.used = now;
        resident.tries = Default::default();
        resident.times.learn(source, load.bytes, load.took);
        let stage = Stage::Present { since: now, took: load.took, has_computed: false, is_preheated };
        memory.end_load(load.model, load.bytes, stage);
        self.expect_bytes(id, load);
        self.residency.unsettle();
    }

    /// What a model takes on one GPU, it is expected to take on others that have not told yet.
    fn expect_bytes(&mut self, from: DeviceId, load: Arrival) {
        if !self.devices.in_workers().contains(from) {
            return;
        }
        for gpu in self.devices.in_workers().without(DeviceSet::one(from)).iter() {
            let resident = self.residency.memory_mut(gpu).resident_mut(load.model);
            if resident.stage == Stage::Absent && !resident.times.is_measured() {
                resident.bytes = load.bytes;
            }
        }
    }

    /// Weights are not on their device although that was ordered.
    pub(super) fn on_not_loaded(
        &mut self,
        id: DeviceId,
        model: ModelId,
        failure: Failure,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let Some(Stage::Loading { is_restored, .. }) = self.stage(id, model) else { return };
        let is_gpu = self.devices.in_workers().contains(id);
        self.devices.health_mut(id).note_sign(now);
        let memory = self.residency.memory_mut(id);
        let is_asked_to_leave = memory.resident(model).leave.is_some();
        memory.end_offload(model);
        let resident = memory.resident_mut(model);
        resident.is_to_restore = is_restored && !is_asked_to_leave;
        match failure {
            Failure::OutOfMemory => {
                resident.tries.fail(Fallback::OutOfMemory, now);
                // Nobody is made to leave the CPU, so there it changes nothing.
                if is_gpu {
                    let until = resident.tries.next_at + DOUBT;
                    memory.out_of_memory(until);
                    actions.push(Action::Trim { device: id });
                }
            }
            Failure::Transient => resident.tries.fail(Fallback::NotLoaded, now),
            _ if !is_gpu => resident.tries.fail(Fallback::NotLoaded, now),
            Failure::Sticky | Failure::WrongAnswer | Failure::Lost => {
                resident.tries.fail_with_worker(now);
                resident.is_to_restore |= !is_asked_to_leave;
                let trouble = match failure {
                    Failure::Lost => Trouble::Lost,
                    Failure::WrongAnswer => Trouble::WrongAnswer,
                    _ => Trouble::Sticky,
                };
                self.take_out(id, trouble, actions);
                self.drop_worker(id, trouble, actions);
            }
        }
        if !is_gpu {
            self.lose_cpu(model);
        }
        self.residency.unsettle();
    }

    /// Weights have left their device.
    pub(super) fn on_offloaded(&mut self, id: DeviceId, model: ModelId, now: Moment) {
        let Some(Stage::Leaving { .. }) = self.stage(id, model) else { return };
        self.residency.model_mut(model).offloads += u64::from(self.devices.in_workers().contains(id));
        self.devices.health_mut(id).note_sign(now);
        self.residency.memory_mut(id).end_offload(model);
        self.residency.unsettle();
    }

    /// The form that GPUs load is in the host's memory, or is not.
    pub(super) fn on_imaged(&mut self, id: ModelId, is_there: bool) {
        if let Some(model) = self.residency.find_model(id) {
            model.has_image = is_there;
            model.is_in_host |= is_there;
        }
    }

    /// Nothing of a model is in the host's memory any more.
    pub(super) fn on_forgotten(&mut self, id: ModelId) {
        if let Some(model) = self.residency.find_model(id).filter(|model| model.is_forgetting) {
            model.is_forgetting = false;
            model.has_image = false;
            self.residency.unsettle();
            self.note_release(id);
        }
    }

    /// A worker reports its device's memory.
    pub(super) fn on_memory(&mut self, id: DeviceId, report: &MemoryReport) {
        let is_changed = self.residency.find_memory(id).is_some_and(|memory| memory.reconcile(report));
        self.residency.unsettle_if(is_changed);
    }

    /// A collection's vectors want so much more of a device's memory.
    pub(super) fn on_vectors_asked(&mut self, growth: Growth, now: Moment, actions: &mut Vec<Action>) {
        let Growth { device, collection, bytes } = growth;
        let is_used = self.devices.find(device).is_some_and(|device| device.health().takes_orders());
        let memory = self.residency.find_memory(device).filter(|_| is_used);
        let granted = memory.map_or(Err(Missing(bytes)), |memory| memory.grow_vectors(collection, bytes, now));
        actions.push(match granted {
            Ok(()) => Action::GrantVectors { device, collection, bytes },
            Err(Missing(missing)) => Action::RefuseVectors { device, collection, missing },
        });
    }

    /// A collection's vectors have left a device.
    pub(super) fn on_vectors_dropped(&mut self, id: DeviceId, collection: CollectionId) {
        if let Some(memory) = self.residency.find_memory(id) {
            memory.end_drop(collection);
            self.residency.unsettle();
        }
    }

    /// A batch of a model has left a device, computed or not.
    pub(super) fn batch_left(&mut self, id: DeviceId, group: Group, is_computed: bool) {
        let is_used = self.devices.get(id).is_running(group.model);
        let is_lost = sabotaged!(self.cx, LoseResidencyRequest);
        let memory = self.residency.memory_mut(id);
        let resident = memory.resident_mut(group.model);
        resident.used = self.cx.now;
        if let Stage::Present { has_computed, .. } = &mut resident.stage {
            *has_computed |= is_computed;
        }
        let is_awaited = resident.leave.is_some() || memory.is_blocked;
        self.residency.unsettle_if(is_awaited && !is_used && !is_lost);
    }

    /// Notes the models of which nothing waits or runs any more: their time begins.
    pub(super) fn note_quiet(&mut self, now: Moment) {
        while let Some(id) = self.jobs.pop_quiet() {
            let is_unused = self.jobs.of(id).gpu == 0;
            self.residency.unsettle_if(self.residency.is_rest_put_off);
            let Some(model) = self.residency.find_model(id) else { continue };
            model.used = now;
            if is_unused {
                model.gpu_used = now;
            }
            let (idle_at, leaves) = (model.idle_at(), is_unused && model.plan.offload_after_use);
            self.residency.unsettle_if(leaves);
            let host = self.cx.options.keeping.host.map(|kept| now + kept);
            self.residency.wake_by([idle_at, host].into_iter().flatten().min());
        }
    }

    /// Whether a model can be had on a device, now or before long; if not, why.
    pub(super) fn obstacle(&self, id: DeviceId, model: ModelId) -> Option<Fallback> {
        let memory = self.residency.memory(id);
        let resident = memory.resident(model);
        if matches!(resident.stage, Stage::Present { .. } | Stage::Loading { .. }) && resident.leave.is_none() {
            return None;
        }
        if self.model(model).is_removed {
            return Some(Fallback::NotLoaded);
        }
        // Other models can be made to leave a GPU, unless they are pinned; nobody is made to leave the CPU.
        let is_fixed = |other: ModelId, there: &Resident| match self.devices.in_workers().contains(id) {
            true => {
                let is_pinned = self.model(other).plan.is_pinned && !sabotaged!(self.cx, PushPinned);
                is_pinned && !there.is_on_its_way_out()
            }
            false => !there.is_on_its_way_out(),
        };
        let others = memory.residents().filter(|(other, there)| *other != model && there.stage != Stage::Absent);
        let fixed = others.filter(|(other, there)| is_fixed(*other, there)).map(|(other, _)| memory.bytes(other));
        let vectors = if self.devices.in_workers().contains(id) { 0 } else { memory.vectors() };
        let taken = fixed.fold(vectors, u64::saturating_add);
        if taken.saturating_add(memory.bytes(model)) > memory.ledger().room() {
            return Some(Fallback::OutOfMemory);
        }
        resident.tries.reason.filter(|_| resident.tries.are_enough(self.cx.now))
    }

    /// How long a load is expected to take.
    pub(super) fn load_time(&self, id: DeviceId, model: ModelId) -> Duration {
        let (memory, kind) = (self.residency.memory(id), self.devices.get(id).spec().kind);
        memory.resident(model).times.expected(self.model(model).source(), memory.bytes(model), kind)
    }

    /// How long it would take to bring a model back once it has left.
    pub(super) fn reload_time(&self, id: DeviceId, model: ModelId) -> Duration {
        let (memory, kind) = (self.residency.memory(id), self.devices.get(id).spec().kind);
        memory.resident(model).times.expected(Source::Host, memory.bytes(model), kind)
    }

    pub(super) fn model(&self, id: ModelId) -> &Model {
        self.residency.model(id)
    }

    pub(super) fn model_mut(&mut self, id: ModelId) -> &mut Model {
        self.residency.model_mut(id)
    }

    fn stage(&self, id: DeviceId, model: ModelId) -> Option<Stage> {
        self.residency.memories().nth(usize::from(id.0))?.stage(model)
    }

    /// How the models are.
    pub(super) fn model_views(&self) -> Vec<ModelView> {
        let view = |(id, model): (ModelId, &Model)| {
            let requests = self.jobs.of(id).all;
            ModelView {
                plan: model.plan,
                idle: if requests > 0 { Duration::ZERO } else { self.cx.now.since(model.used) },
                requests,
                residency: self.devices.all().iter().map(|device| self.residency_on(device, id)).collect(),
                loads: model.loads,
                offloads: model.offloads,
                departures: self.residency.memories().map(|memory| memory.resident(id).departures).collect(),
                releases: model.releases,
            }
        };
        self.residency.models().map(view).collect()
    }

    fn residency_on(&self, id: DeviceId, model: ModelId) -> Residency {
        let (device, has_image) = (self.devices.get(id), self.model(model).has_image);
        match self.residency.memory(id).resident(model).stage {
            Stage::Loading { .. } => Residency::Loading,
            Stage::Present { .. } => Residency::OnDevice,
            Stage::Leaving { .. } => Residency::Leaving,
            Stage::Absent if !has_image => Residency::Unloaded,
            Stage::Absent if device.health().is_without_worker() => Residency::OnCpuCold,
            Stage::Absent => Residency::OnCpu,
        }
    }
}
