//! What is told of weights: they came, did not come, went, have more or less room, were used.
//! Orders nothing itself: it writes down what happened, and what is to be done is found right after.

use super::device::{Device, Worker};
use super::device_set::DeviceSet;
use super::load_time::Source;
use super::recovery::Trouble;
use super::residency::{Model, Place, Stage};
use super::{Action, DeviceId, Failure, Fallback, Group, ModelId, ModelView, Moment, Residency};
use super::{Machine, sabotage::sabotaged};
use std::time::Duration;

/// Room that turned out to be less than told is believed in for this much longer than the pause after it.
const DOUBT: Duration = Duration::from_secs(10);

impl Machine {
    /// Weights are on their device.
    pub(super) fn on_loaded(&mut self, id: DeviceId, load: Load, now: Moment) {
        let Some(Stage::Loading { .. }) = self.stage(id, load.model) else { return };
        let source = if load.from_host { Source::Host } else { Source::Files };
        let is_gpu = self.gpus.contains(id);
        let model = &mut self.models[load.model.0 as usize];
        let is_preheated = model.want.is_some_and(|want| want.is_preheat) && is_gpu;
        model.is_in_host = true;
        model.used = model.used.max(now);
        if is_gpu {
            model.loads += 1;
            // It has its whole time from here on: before, nobody could use it.
            model.gpu_used = now;
            model.want = None;
        }
        if is_gpu || self.gpus.is_empty() {
            model.plan.bytes = load.bytes;
        }
        let device = self.device_mut(id);
        device.last_sign = now;
        let place = device.shelf.place_mut(load.model);
        place.bytes = load.bytes;
        place.used = now;
        place.tries = Default::default();
        place.times.learn(source, load.bytes, load.took);
        let stage = Stage::Present { since: now, took: load.took, has_computed: false, is_preheated };
        device.shelf.set(load.model, stage);
        self.expect_bytes(id, load);
        self.is_unsettled = true;
    }

    /// What a model takes on one GPU, it is expected to take on others that have not told yet.
    fn expect_bytes(&mut self, from: DeviceId, load: Load) {
        if !self.gpus.contains(from) {
            return;
        }
        for gpu in self.gpus.without(DeviceSet::one(from)).iter() {
            let place = self.device_mut(gpu).shelf.place_mut(load.model);
            if place.stage == Stage::Absent && !place.times.is_measured() {
                place.bytes = load.bytes;
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
        let Some(Stage::Loading { was_owed, .. }) = self.stage(id, model) else { return };
        let is_gpu = self.gpus.contains(id);
        let device = self.device_mut(id);
        device.last_sign = now;
        let shelf = &mut device.shelf;
        let is_asked_to_leave = shelf.place(model).leave.is_some();
        shelf.set(model, Stage::Absent);
        let there = shelf.used();
        let place = shelf.place_mut(model);
        place.is_owed = was_owed && !is_asked_to_leave;
        match failure {
            Failure::OutOfMemory => {
                place.tries.fail(Fallback::OutOfMemory, now);
                // Nobody is made to leave the CPU, so there it changes nothing.
                if is_gpu {
                    shelf.doubt = Some((there, shelf.place(model).tries.next_at + DOUBT));
                    actions.push(Action::Trim { device: id });
                }
            }
            Failure::Transient => place.tries.fail(Fallback::NotLoaded, now),
            _ if !is_gpu => place.tries.fail(Fallback::NotLoaded, now),
            Failure::Sticky | Failure::WrongAnswer | Failure::Lost => {
                place.tries.fail_with_worker(now);
                place.is_owed |= !is_asked_to_leave;
                let trouble = match failure {
                    Failure::Lost => Trouble::Lost,
                    Failure::WrongAnswer => Trouble::WrongAnswer,
                    _ => Trouble::Sticky,
                };
                self.take_out(id, trouble, now, actions);
                self.drop_worker(id, trouble, actions);
            }
        }
        if !is_gpu {
            self.lose_cpu(model);
        }
        self.is_unsettled = true;
    }

    /// Weights have left their device.
    pub(super) fn on_offloaded(&mut self, id: DeviceId, model: ModelId, now: Moment) {
        let Some(Stage::Leaving { .. }) = self.stage(id, model) else { return };
        self.models[model.0 as usize].offloads += u64::from(self.gpus.contains(id));
        let device = self.device_mut(id);
        device.last_sign = now;
        device.shelf.set(model, Stage::Absent);
        self.is_unsettled = true;
    }

    /// The form that GPUs load is in the host's memory, or is not.
    pub(super) fn on_imaged(&mut self, id: ModelId, is_there: bool) {
        if let Some(model) = self.models.get_mut(id.0 as usize) {
            model.has_image = is_there;
            model.is_in_host |= is_there;
        }
    }

    /// Nothing of a model is in the host's memory any more.
    pub(super) fn on_forgotten(&mut self, id: ModelId) {
        if let Some(model) = self.models.get_mut(id.0 as usize).filter(|model| model.is_forgetting) {
            model.is_forgetting = false;
            model.has_image = false;
            self.is_unsettled = true;
            self.note_release(id);
        }
    }

    /// The room for weights on a device has changed.
    pub(super) fn on_room(&mut self, id: DeviceId, bytes: u64) {
        if let Some(device) = self.devices.get_mut(usize::from(id.0)) {
            device.shelf.room = bytes;
            device.shelf.doubt = None;
            self.is_unsettled = true;
        }
    }

    /// A batch of a model has left a device, computed or not.
    pub(super) fn batch_left(&mut self, id: DeviceId, group: Group, is_computed: bool, now: Moment) {
        let device = self.device_mut(id);
        let is_used = device.is_running(group.model);
        let shelf = &mut device.shelf;
        let place = shelf.place_mut(group.model);
        place.used = now;
        if let Stage::Present { has_computed, .. } = &mut place.stage {
            *has_computed |= is_computed;
        }
        let is_awaited = place.leave.is_some() || shelf.is_blocked;
        self.is_unsettled |= is_awaited && !is_used && !sabotaged!(self, LoseResidencyRequest);
    }

    /// Notes the models of which nothing waits or runs any more: their time begins.
    pub(super) fn note_quiet(&mut self, now: Moment) {
        while let Some(id) = self.jobs.pop_quiet() {
            let is_unused = self.jobs.of(id).gpu == 0;
            self.is_unsettled |= self.is_rest_put_off;
            let Some(model) = self.models.get_mut(id.0 as usize) else { continue };
            model.used = now;
            if is_unused {
                model.gpu_used = now;
                self.is_unsettled |= model.plan.offload_after_use;
            }
            let host = self.options.keeping.host.map(|kept| now + kept);
            let due = [model.idle_at(), host].into_iter().flatten().min();
            self.wake_weights_by(due);
        }
    }

    /// Weights are looked at again at this moment at the latest.
    pub(super) fn wake_weights_by(&mut self, due: Option<Moment>) {
        self.weights_wake = match (self.weights_wake, due) {
            (Some(known), Some(due)) => Some(known.min(due)),
            (known, due) => known.or(due),
        };
    }

    /// Whether a model can be had on a device, now or before long; if not, why.
    pub(super) fn obstacle(&self, id: DeviceId, model: ModelId) -> Option<Fallback> {
        let shelf = &self.device(id).shelf;
        let place = shelf.place(model);
        if matches!(place.stage, Stage::Present { .. } | Stage::Loading { .. }) && place.leave.is_none() {
            return None;
        }
        // Other models can be made to leave a GPU, unless they are pinned; nobody is made to leave the CPU.
        let is_fixed = |other: ModelId, there: &Place| match self.gpus.contains(id) {
            true => {
                let is_pinned = self.model(other).plan.is_pinned && !sabotaged!(self, PushPinned);
                is_pinned && !there.is_on_its_way_out()
            }
            false => !there.is_on_its_way_out(),
        };
        let others = shelf.iter().filter(|(other, there)| *other != model && there.stage != Stage::Absent);
        let fixed = others.filter(|(other, there)| is_fixed(*other, there)).map(|(_, there)| there.bytes);
        let taken = fixed.fold(0, u64::saturating_add);
        if taken.saturating_add(place.bytes) > shelf.room && !sabotaged!(self, IgnoreRoom) {
            return Some(Fallback::OutOfMemory);
        }
        place.tries.reason.filter(|_| place.tries.are_enough(self.now))
    }

    /// How long a load is expected to take.
    pub(super) fn load_time(&self, id: DeviceId, model: ModelId) -> Duration {
        let device = self.device(id);
        let place = device.shelf.place(model);
        place.times.expected(self.model(model).source(), place.bytes, device.spec.kind)
    }

    /// How long it would take to bring a model back once it has left.
    pub(super) fn reload_time(&self, id: DeviceId, model: ModelId) -> Duration {
        let device = self.device(id);
        let place = device.shelf.place(model);
        place.times.expected(Source::Host, place.bytes, device.spec.kind)
    }

    pub(super) fn model(&self, id: ModelId) -> &Model {
        &self.models[id.0 as usize]
    }

    pub(super) fn model_mut(&mut self, id: ModelId) -> &mut Model {
        &mut self.models[id.0 as usize]
    }

    fn stage(&self, id: DeviceId, model: ModelId) -> Option<Stage> {
        let places = &self.devices.get(usize::from(id.0))?.shelf.places;
        places.get(model.0 as usize).map(|place| place.stage)
    }

    /// How the models are.
    pub(super) fn model_views(&self) -> Vec<ModelView> {
        let view = |(id, model): (ModelId, &Model)| {
            let requests = self.jobs.of(id).all;
            ModelView {
                plan: model.plan,
                idle: if requests > 0 { Duration::ZERO } else { self.now.since(model.used) },
                requests,
                residency: self.devices.iter().map(|device| residency(device, id, model.has_image)).collect(),
                loads: model.loads,
                offloads: model.offloads,
                departures: self.devices.iter().map(|device| device.shelf.place(id).departures).collect(),
                releases: model.releases,
            }
        };
        (0..).map(ModelId).zip(&self.models).map(view).collect()
    }
}

/// A model whose weights came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) model: ModelId,
    pub(super) bytes: u64,
    pub(super) took: Duration,
    pub(super) from_host: bool,
}

fn residency(device: &Device, model: ModelId, has_image: bool) -> Residency {
    match device.shelf.place(model).stage {
        Stage::Loading { .. } => Residency::Loading,
        Stage::Present { .. } => Residency::OnDevice,
        Stage::Leaving { .. } => Residency::Leaving,
        Stage::Absent if !has_image => Residency::Unloaded,
        Stage::Absent if device.is_gpu() && device.worker == Worker::Absent => Residency::OnCpuCold,
        Stage::Absent => Residency::OnCpu,
    }
}
