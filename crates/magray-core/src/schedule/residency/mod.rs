//! What is in the memory of devices and host: the models, the memory of each device, and when to look at them again.
//! Only notes what happened and what is wanted: what comes, goes and stays is decided by those who read it.

mod events;
mod model;

use super::context::Context;
use super::device_memory::DeviceMemory;
use super::device_set::DeviceSet;
use super::devices::Devices;
use super::resident::{Leave, Resident, Stage};
use super::sabotage::sabotaged;
use super::{Action, DeviceId, DeviceSpec, ModelId, ModelPlan, Moment};
use std::time::Duration;

pub(super) use model::{Model, Want};

/// All models and all memory.
#[derive(Clone, Debug)]
pub(super) struct Residency {
    models: Vec<Model>,
    /// By device.
    memories: Vec<DeviceMemory>,
    /// Something has happened that may move weights.
    is_unsettled: bool,
    /// Some device has no room for weights that a batch, or a request that ends, may make.
    is_blocked: bool,
    /// When they may have to move although nothing happens.
    wake: Option<Moment>,
    /// Some worker rests as soon as nothing waits that might need it.
    is_rest_put_off: bool,
}

impl Residency {
    pub(super) fn new(devices: &[DeviceSpec], plans: &[ModelPlan], load_max: Duration) -> Self {
        let memory = |(id, spec): (DeviceId, &DeviceSpec)| {
            let there =
                |plan: &ModelPlan| ModelPlan { is_preloaded: plan.is_preloaded && plan.suits(id, spec), ..*plan };
            DeviceMemory::new(spec, plans.iter().map(there), load_max)
        };
        Self {
            memories: (0..).map(DeviceId).zip(devices).map(memory).collect(),
            models: plans.iter().copied().map(Model::new).collect(),
            is_unsettled: true,
            is_blocked: false,
            wake: None,
            is_rest_put_off: false,
        }
    }

    pub(super) fn memory(&self, device: DeviceId) -> &DeviceMemory {
        &self.memories[usize::from(device.0)]
    }

    pub(super) fn memory_mut(&mut self, device: DeviceId) -> &mut DeviceMemory {
        &mut self.memories[usize::from(device.0)]
    }

    pub(super) fn memories(&self) -> impl Iterator<Item = &DeviceMemory> {
        self.memories.iter()
    }

    pub(super) fn memories_mut(&mut self) -> impl Iterator<Item = &mut DeviceMemory> {
        self.memories.iter_mut()
    }

    fn find_memory(&mut self, device: DeviceId) -> Option<&mut DeviceMemory> {
        self.memories.get_mut(usize::from(device.0))
    }

    pub(super) fn model(&self, id: ModelId) -> &Model {
        &self.models[id.0 as usize]
    }

    fn model_mut(&mut self, id: ModelId) -> &mut Model {
        &mut self.models[id.0 as usize]
    }

    fn find_model(&mut self, id: ModelId) -> Option<&mut Model> {
        self.models.get_mut(id.0 as usize)
    }

    /// Whether there is such a model, and still is.
    pub(super) fn knows(&self, id: ModelId) -> bool {
        self.models.get(id.0 as usize).is_some_and(|model| !model.is_removed)
    }

    pub(super) fn add_model(&mut self, plan: ModelPlan, now: Moment) {
        self.memories.iter_mut().for_each(|memory| memory.add_model(&plan));
        self.models.push(Model { used: now, gpu_used: now, is_in_host: false, ..Model::new(plan) });
        self.unsettle();
    }

    pub(super) fn models(&self) -> impl Iterator<Item = (ModelId, &Model)> {
        (0..).map(ModelId).zip(&self.models)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = ModelId> + use<> {
        (0..u32::try_from(self.models.len()).unwrap_or(u32::MAX)).map(ModelId)
    }

    /// Nothing waits for room, and no worker is woken, before it is looked at what should be loaded.
    pub(super) fn begin_loading(&mut self) {
        for memory in &mut self.memories {
            memory.is_blocked = false;
            memory.is_woken = memory.is_called;
        }
        for model in &mut self.models {
            model.coming = DeviceSet::EMPTY;
        }
    }

    /// What should be loaded was looked at: notes whether something waits for room. Models stay that were to leave for one
    /// that does not come any more: those of the devices that are not `counted_on`.
    pub(super) fn end_loading(&mut self, counted_on: DeviceSet) {
        self.is_blocked = self.memories.iter().any(|memory| memory.is_blocked);
        for (device, memory) in (0..).map(DeviceId).zip(&mut self.memories) {
            if !counted_on.contains(device) && memory.ledger().overdrawn() == 0 {
                memory.residents_mut().for_each(|resident| resident.keep(Some(Leave::Evicted)));
            }
        }
    }

    /// A model is expected on a device then.
    pub(super) fn expect(&mut self, device: DeviceId, id: ModelId, ready_at: Moment) {
        self.memory_mut(device).resident_mut(id).ready_at = Some(ready_at);
        let model = self.model_mut(id);
        model.coming = model.coming.with(device);
    }

    pub(super) fn drop_want(&mut self, id: ModelId) {
        self.model_mut(id).want = None;
    }

    /// Weights leave a device for others as soon as no batch of theirs is there.
    pub(super) fn evict(&mut self, device: DeviceId, model: ModelId) {
        self.memory_mut(device).resident_mut(model).leave = Some(Leave::Evicted);
    }

    /// A model leaves a device as soon as no batch of it is there. False if it is not there, nor on its way.
    pub(super) fn send_away(&mut self, device: DeviceId, model: ModelId) -> bool {
        let resident = self.memory_mut(device).resident_mut(model);
        let is_there = resident.is_present() || resident.is_loading();
        if is_there {
            resident.leave = Some(Leave::Requested);
        }
        is_there
    }

    /// Whether the host's memory is to let go of a model that was not used for long. It is being released from then on.
    pub(super) fn is_host_overdue(&mut self, id: ModelId, requests: usize, devices: &Devices, cx: &Context) -> bool {
        // What is on its way to the CPU has its time when it is there.
        let is_off_gpus = devices.all().iter().all(|device| match self.memory(device).resident(id).stage {
            Stage::Absent => true,
            Stage::Present { .. } => devices.in_process().contains(device),
            Stage::Loading { .. } | Stage::Leaving { .. } => false,
        });
        let model = self.model(id);
        let is_needed = model.want.is_some() || model.plan.is_pinned || requests > 0;
        let is_kept = !model.is_in_host || !is_off_gpus || is_needed || model.is_forgetting || model.is_releasing;
        let Some(due) = cx.options.keeping.host.map(|kept| model.used + kept).filter(|_| !is_kept) else {
            return false;
        };
        if due > cx.now {
            self.wake_by(Some(due));
            return false;
        }
        self.model_mut(id).is_releasing = true;
        true
    }

    /// Lets go of what the host has of a model that is released and on no device any more.
    pub(super) fn forget_released(&mut self, id: ModelId, cx: &Context, actions: &mut Vec<Action>) {
        let is_gone = self.memories.iter().all(|memory| memory.resident(id).stage == Stage::Absent);
        let model = self.model_mut(id);
        if !model.is_releasing || !is_gone || model.is_forgetting {
            return;
        }
        model.is_releasing = false;
        model.has_image = false;
        if std::mem::take(&mut model.is_in_host) {
            model.is_forgetting = true;
            actions.push(Action::Forget { model: id });
        } else {
            // There was nothing to let go of. It may be loaded again before the driver looks, so it is counted.
            model.note_release(cx);
        }
    }

    /// Whether a worker is to rest that has had no weights for a while. `is_called_for`: what waits may need it.
    pub(super) fn rests(&mut self, id: DeviceId, is_called_for: bool, can_rest: bool, cx: &Context) -> bool {
        let is_awaited = self.models.iter().any(|model| model.coming.contains(id));
        let memory = self.memory_mut(id);
        let stays = |resident: &Resident| resident.stage != Stage::Absent && !resident.is_on_its_way_out();
        if memory.residents().any(|(_, resident)| stays(resident)) {
            // Others need it: it rests when they have not for a while.
            memory.rests_at_once = false;
        }
        let is_needed = is_awaited || memory.vectors() > 0 || memory.is_restoring();
        if is_needed || !memory.is_empty() && !sabotaged!(cx, RestWithWeights) {
            memory.note_use();
            return false;
        }
        if !can_rest || sabotaged!(cx, NeverRest) {
            return false;
        }
        let since = memory.empty_since(cx.now);
        let due = cx.options.keeping.worker.map(|kept| since + kept);
        let is_hurried = memory.rests_at_once && !sabotaged!(cx, LingerOn);
        let is_due = is_hurried && !is_called_for || due.is_some_and(|due| due <= cx.now);
        if is_due {
            memory.rests_at_once = false;
        } else {
            // What waits may be computed elsewhere: then it is looked at again when nothing of its model is left.
            self.is_rest_put_off |= is_hurried;
            self.wake_by(due);
        }
        is_due
    }

    /// Notes for each model which of the usable devices have it, and which it is coming to.
    pub(super) fn note_presence(&mut self, usable: DeviceSet) {
        for (id, model) in (0..).map(ModelId).zip(&mut self.models) {
            let (mut present, mut loading) = (DeviceSet::EMPTY, DeviceSet::EMPTY);
            for device in usable.iter() {
                let resident = self.memories[usize::from(device.0)].resident(id);
                match resident.stage {
                    _ if resident.leave.is_some() => {}
                    Stage::Present { .. } => present = present.with(device),
                    Stage::Loading { .. } => loading = loading.with(device),
                    Stage::Absent | Stage::Leaving { .. } => {}
                }
            }
            model.present = present;
            model.coming = model.coming.without(present).union(loading);
        }
    }

    /// Notes since when devices do not serve a model. What was there only between two decisions of one moment served
    /// no request.
    pub(super) fn note_service(&mut self, in_rotation: DeviceSet, now: Moment) {
        for (device, memory) in (0..).map(DeviceId).zip(&mut self.memories) {
            for resident in memory.residents_mut() {
                let has_it = (resident.is_present() || resident.is_loading()) && resident.leave.is_none();
                let is_served = in_rotation.contains(device) && has_it;
                if is_served != resident.is_served {
                    resident.is_served = is_served;
                    resident.lost_since = (!is_served).then_some(now);
                }
            }
        }
    }

    pub(super) fn unsettle(&mut self) {
        self.is_unsettled = true;
    }

    pub(super) fn unsettle_if(&mut self, is_so: bool) {
        self.is_unsettled |= is_so;
    }

    /// A request has ended: what was kept for it may leave now.
    pub(super) fn unsettle_if_blocked(&mut self) {
        self.is_unsettled |= self.is_blocked;
    }

    pub(super) fn wake_by(&mut self, due: Option<Moment>) {
        self.wake = match (self.wake, due) {
            (Some(known), Some(due)) => Some(known.min(due)),
            (known, due) => known.or(due),
        };
    }

    /// Whether weights are to be looked at now. What made it so is over with this.
    pub(super) fn take_due(&mut self, now: Moment) -> bool {
        let is_due = self.is_unsettled || self.wake.is_some_and(|wake| wake <= now);
        if is_due {
            self.is_unsettled = false;
            self.is_rest_put_off = false;
            self.wake = None;
        }
        is_due
    }

    pub(super) fn next_wake(&self, now: Moment) -> Option<Moment> {
        if self.is_unsettled { Some(now) } else { self.wake }
    }
}
