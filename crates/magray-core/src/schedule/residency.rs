//! What is in the memory of devices and host: the models, the memory of each device, and when to look at them again.
//! Decides nothing: what comes, goes and stays is decided in the files beside it.

use super::device_memory::DeviceMemory;
use super::device_set::DeviceSet;
use super::load_time::Source;
use super::resident::Stage;
use super::{DeviceId, DeviceSpec, ModelId, ModelPlan, Moment};
use std::time::Duration;

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
    /// Some worker rests as soon as nobody waits who might need it.
    pub(super) is_rest_put_off: bool,
}

impl Residency {
    pub(super) fn new(devices: &[DeviceSpec], plans: &[ModelPlan], load_max: Duration) -> Self {
        let memory = |spec: &DeviceSpec| DeviceMemory::new(spec, plans.iter().copied(), load_max);
        Self {
            memories: devices.iter().map(memory).collect(),
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

    /// The memory of all devices, in their order.
    pub(super) fn memories(&self) -> impl Iterator<Item = &DeviceMemory> {
        self.memories.iter()
    }

    pub(super) fn memories_mut(&mut self) -> impl Iterator<Item = &mut DeviceMemory> {
        self.memories.iter_mut()
    }

    /// A device's memory, if there is such a device.
    pub(super) fn find_memory(&mut self, device: DeviceId) -> Option<&mut DeviceMemory> {
        self.memories.get_mut(usize::from(device.0))
    }

    pub(super) fn model(&self, id: ModelId) -> &Model {
        &self.models[id.0 as usize]
    }

    pub(super) fn model_mut(&mut self, id: ModelId) -> &mut Model {
        &mut self.models[id.0 as usize]
    }

    /// A model, if there is such a model.
    pub(super) fn find_model(&mut self, id: ModelId) -> Option<&mut Model> {
        self.models.get_mut(id.0 as usize)
    }

    /// Whether there is such a model, and still is.
    pub(super) fn knows(&self, id: ModelId) -> bool {
        self.models.get(id.0 as usize).is_some_and(|model| !model.is_removed)
    }

    /// One model more, whose time begins now.
    pub(super) fn add_model(&mut self, plan: ModelPlan, now: Moment) {
        self.memories.iter_mut().for_each(|memory| memory.add_model(&plan));
        self.models.push(Model { used: now, gpu_used: now, is_in_host: false, ..Model::new(plan) });
        self.unsettle();
    }

    pub(super) fn models(&self) -> impl Iterator<Item = (ModelId, &Model)> {
        (0..).map(ModelId).zip(&self.models)
    }

    /// Their names.
    pub(super) fn ids(&self) -> impl Iterator<Item = ModelId> + use<> {
        (0..u32::try_from(self.models.len()).unwrap_or(u32::MAX)).map(ModelId)
    }

    /// Nothing waits for room, and no worker is woken, before it is looked at what should be loaded.
    pub(super) fn begin_loading(&mut self) {
        for memory in &mut self.memories {
            memory.is_blocked = false;
            memory.is_woken = false;
        }
        for model in &mut self.models {
            model.coming = DeviceSet::EMPTY;
        }
    }

    /// It was looked at: notes whether something waits for room.
    pub(super) fn note_blocked(&mut self) {
        self.is_blocked = self.memories.iter().any(|memory| memory.is_blocked);
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

    /// Something has happened that may move weights.
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

    /// Weights are looked at again at this moment at the latest.
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
            self.wake = None;
        }
        is_due
    }

    pub(super) fn next_wake(&self, now: Moment) -> Option<Moment> {
        if self.is_unsettled { Some(now) } else { self.wake }
    }
}

/// A model, wherever its weights are.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) plan: ModelPlan,
    /// When something of it came or ended last.
    pub(super) used: Moment,
    /// The same of what may go to a GPU.
    pub(super) gpu_used: Moment,
    /// It is wanted on a GPU, and none has it yet.
    pub(super) want: Option<Want>,
    /// It is no more: nothing of it is loaded again.
    pub(super) is_removed: bool,
    /// It leaves all memory; nothing of it is loaded before that is done.
    pub(super) is_releasing: bool,
    /// It is being taken out of the host's memory, whatever was requested since.
    pub(super) is_forgetting: bool,
    /// Some form of its weights is in the host's memory ...
    pub(super) is_in_host: bool,
    /// ... namely the one that GPUs load.
    pub(super) has_image: bool,
    pub(super) loads: u64,
    pub(super) offloads: u64,
    /// How often it was in no memory after it was to be in none.
    pub(super) releases: u64,
    /// Devices in rotation that may start batches of it.
    pub(super) present: DeviceSet,
    /// Devices that it is on its way to, or that it waits for.
    pub(super) coming: DeviceSet,
}

/// That a GPU should have a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) since: Moment,
    pub(super) is_preheat: bool,
}

impl Model {
    pub(super) fn new(plan: ModelPlan) -> Self {
        Self {
            plan,
            used: Moment::START,
            gpu_used: Moment::START,
            want: None,
            is_removed: false,
            is_releasing: false,
            is_forgetting: false,
            is_in_host: plan.is_preloaded,
            has_image: false,
            loads: 0,
            offloads: 0,
            releases: 0,
            present: DeviceSet::EMPTY,
            coming: DeviceSet::EMPTY,
        }
    }

    /// Whether nothing of it may be loaded now.
    pub(super) fn is_going(&self) -> bool {
        self.is_removed || self.is_releasing || self.is_forgetting
    }

    /// Where a device would load it from.
    pub(super) fn source(&self) -> Source {
        if self.has_image { Source::Host } else { Source::Files }
    }

    /// When it leaves GPUs by itself, if nothing of it comes.
    pub(super) fn idle_at(&self) -> Option<Moment> {
        self.plan.idle_timeout.filter(|_| !self.plan.is_pinned).map(|timeout| self.gpu_used + timeout)
    }
}
