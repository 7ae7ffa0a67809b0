//! What residency is told: weights came, did not come, went; models are added, removed and asked to come, go or stay.
//! Nothing that is asked for is done under a running batch, and nothing makes a request fail.

use super::{Residency, Want};
use crate::ledger::{CollectionId, MemoryReport, Missing};
use crate::schedule::context::Context;
use crate::schedule::device_set::DeviceSet;
use crate::schedule::devices::Devices;
use crate::schedule::event::{Arrival, Growth};
use crate::schedule::health::Trouble;
use crate::schedule::load_time::Source;
use crate::schedule::queue::BucketKey;
use crate::schedule::resident::{Leave, Stage};
use crate::schedule::sabotage::sabotaged;
use crate::schedule::{Action, DeviceId, Failure, Fallback, ModelId, Moment, Priority, ResidencyRequest};
use std::time::Duration;

/// Room that turned out to be less than told is believed in for this much longer than the pause after it.
const DOUBT: Duration = Duration::from_secs(10);

impl Residency {
    pub(in crate::schedule) fn request(
        &mut self,
        id: ModelId,
        request: ResidencyRequest,
        devices: &Devices,
        cx: &Context,
    ) {
        if !self.knows(id) {
            return;
        }
        self.unsettle();
        let model = self.model_mut(id);
        match request {
            ResidencyRequest::Offload | ResidencyRequest::Release => model.sent_away = Some(request),
            ResidencyRequest::Preheat(_) => model.sent_away = None,
            _ => {}
        }
        match request {
            ResidencyRequest::Offload => {
                model.want = None;
                self.send_away_all(id, devices.in_workers());
            }
            ResidencyRequest::Release => {
                model.want = None;
                model.is_releasing = true;
                self.send_away_all(id, devices.all());
                for gpu in devices.in_workers().iter() {
                    let is_left = self.is_left_by(gpu, id);
                    self.memory_mut(gpu).rests_at_once |= is_left;
                }
            }
            ResidencyRequest::Preheat(priority) => self.preheat(id, priority, devices, cx),
            ResidencyRequest::IdleTimeout(timeout) => model.plan.idle_timeout = timeout,
            ResidencyRequest::OffloadAfterUse(is_wanted) => model.plan.offload_after_use = is_wanted,
            ResidencyRequest::Pin(is_pinned) => {
                model.plan.is_pinned = is_pinned;
                if is_pinned {
                    self.keep(id, Some(Leave::Evicted), devices.in_workers());
                }
            }
            ResidencyRequest::Priority(priority) => model.plan.priority = priority,
        }
    }

    /// A model is no more. What waits for it is refused when weights are looked at, right after this.
    pub(in crate::schedule) fn remove_model(&mut self, id: ModelId, devices: &Devices, cx: &Context) {
        self.request(id, ResidencyRequest::Release, devices, cx);
        if let Some(model) = self.find_model(id) {
            model.is_removed = true;
        }
    }

    fn is_left_by(&self, gpu: DeviceId, id: ModelId) -> bool {
        let mut others = self.memory(gpu).residents().filter(|(model, _)| *model != id);
        others.all(|(_, resident)| {
            (resident.stage == Stage::Absent || resident.is_on_its_way_out()) && !resident.is_to_restore
        })
    }

    fn preheat(&mut self, id: ModelId, priority: Priority, devices: &Devices, cx: &Context) {
        let model = self.model_mut(id);
        // The last request counts.
        model.is_releasing = false;
        model.used = cx.now;
        model.gpu_used = cx.now;
        self.keep(id, None, devices.all());
        let plan = self.model(id).plan;
        let suits = |id: &DeviceId| plan.suits(*id, devices.get(*id).spec());
        if devices.in_workers().iter().filter(suits).all(|gpu| devices.health(gpu).is_given_up()) {
            for cpu in devices.in_process().iter().filter(suits) {
                self.memory_mut(cpu).resident_mut(id).is_to_restore = true;
            }
        }
        let mut is_there = false;
        for gpu in devices.in_workers().iter() {
            if let Stage::Present { is_preheated, .. } = &mut self.memory_mut(gpu).resident_mut(id).stage {
                *is_preheated = true;
                is_there |= devices.health(gpu).is_in_rotation();
            }
        }
        if !is_there && !sabotaged!(cx, IgnorePreheat) {
            self.model_mut(id).want = Some(Want { since: cx.now, is_preheat: true, priority });
        }
    }

    /// A model leaves these devices as soon as no batch of it is there.
    fn send_away_all(&mut self, id: ModelId, from: DeviceSet) {
        for device in from.iter() {
            self.memory_mut(device).resident_mut(id).is_to_restore = false;
            self.send_away(device, id);
        }
    }

    /// A model that was to leave these devices, for this reason or any, does not.
    fn keep(&mut self, id: ModelId, reason: Option<Leave>, on: DeviceSet) {
        on.iter().for_each(|device| self.memory_mut(device).resident_mut(id).keep(reason));
    }

    /// A device was probed: weights of a model without requests that came for that alone go where they had been sent.
    pub(in crate::schedule) fn probed(&mut self, device: DeviceId, id: ModelId, devices: &Devices, cx: &Context) {
        let is_there = self.memory(device).resident(id).is_staying();
        let model = self.model(id);
        if let Some(request) = model.sent_away.filter(|_| is_there && !model.plan.is_pinned) {
            self.request(id, request, devices, cx);
        }
    }

    pub(in crate::schedule) fn note_request(&mut self, id: ModelId, is_for_gpus: bool, now: Moment) {
        let model = self.model_mut(id);
        model.used = now;
        model.sent_away = None;
        if is_for_gpus {
            model.gpu_used = now;
        }
    }

    /// Sequences wait in a bucket, new or not, whose weights may be on no device and on no way to one.
    pub(in crate::schedule) fn ask_for(&mut self, bucket: BucketKey, is_new: bool, devices: &Devices, now: Moment) {
        let gpus = bucket.reach.may.and(devices.in_workers());
        let cpus = bucket.reach.may.and(devices.in_process());
        let model = self.model_mut(bucket.group.model);
        let near = model.present.union(model.coming);
        let not_full = gpus.and(model.present).without(devices.full());
        if !gpus.is_empty() && gpus.and(near).is_empty() {
            // Also where the CPU computes it at once: the next one finds it on a GPU.
            let is_news = model.want.is_none();
            model.want.get_or_insert(Want { since: now, is_preheat: false, priority: Priority::Normal });
            self.unsettle_if(is_news || is_new);
        } else if is_new && !cpus.is_empty() && cpus.and(near).is_empty() && not_full.is_empty() {
            self.unsettle();
        }
    }

    /// Weights are on a device. False if none were on their way.
    pub(in crate::schedule) fn loaded(&mut self, id: DeviceId, load: Arrival, devices: &Devices, now: Moment) -> bool {
        let Some(Stage::Loading { .. }) = self.stage(id, load.model) else { return false };
        let source = if load.from_host { Source::Host } else { Source::Files };
        let in_workers = devices.in_workers();
        let is_gpu = in_workers.contains(id);
        let model = self.model_mut(load.model);
        let is_preheated = model.want.is_some_and(|want| want.is_preheat) && is_gpu;
        // One that has a home leaves nothing in the host's memory for others.
        model.is_in_host = model.plan.home.is_none();
        model.used = model.used.max(now);
        // Those of the CPU count where it is all that there is.
        model.loads += u64::from(is_gpu || in_workers.is_empty());
        if is_gpu {
            // It has its whole time from here on: before, no request could use it.
            model.gpu_used = now;
            model.want = None;
        }
        if is_gpu || in_workers.is_empty() {
            model.plan.bytes = load.bytes;
        }
        let memory = self.memory_mut(id);
        let resident = memory.resident_mut(load.model);
        resident.used = now;
        resident.tries = Default::default();
        resident.times.learn(source, load.bytes, load.took);
        let stage = Stage::Present { since: now, took: load.took, has_computed: false, is_preheated };
        memory.end_load(load.model, load.bytes, stage);
        // What a model takes on one GPU, it is expected to take on others that have not told yet.
        for gpu in in_workers.without(DeviceSet::one(id)).iter().filter(|_| is_gpu) {
            let resident = self.memory_mut(gpu).resident_mut(load.model);
            if resident.stage == Stage::Absent && !resident.times.is_measured() {
                resident.bytes = load.bytes;
            }
        }
        self.unsettle();
        true
    }

    /// Weights are not on their device although that was ordered. Returns what is wrong with its worker, if that is; none
    /// at all where no weights were on their way.
    pub(in crate::schedule) fn not_loaded(
        &mut self,
        (id, model): (DeviceId, ModelId),
        failure: Failure,
        is_gpu: bool,
        now: Moment,
    ) -> Option<Option<Trouble>> {
        let Some(Stage::Loading { is_restored, .. }) = self.stage(id, model) else { return None };
        self.unsettle();
        let memory = self.memory_mut(id);
        let is_asked_to_leave = memory.resident(model).leave.is_some();
        memory.end_offload(model);
        let resident = memory.resident_mut(model);
        resident.is_to_restore = is_restored && !is_asked_to_leave;
        let trouble = match failure {
            Failure::OutOfMemory => {
                resident.tries.fail(Fallback::OutOfMemory, now);
                // Nothing is evicted from the CPU, so there it changes nothing.
                if is_gpu {
                    let until = resident.tries.next_at + DOUBT;
                    memory.out_of_memory(until);
                }
                return Some(None);
            }
            Failure::Sticky if is_gpu => Trouble::Sticky,
            Failure::WrongAnswer if is_gpu => Trouble::WrongAnswer,
            Failure::Lost if is_gpu => Trouble::Lost,
            _ => {
                resident.tries.fail(Fallback::NotLoaded, now);
                return Some(None);
            }
        };
        resident.tries.fail_with_worker(now);
        resident.is_to_restore |= !is_asked_to_leave;
        Some(Some(trouble))
    }

    pub(in crate::schedule) fn offloaded(&mut self, id: DeviceId, model: ModelId, devices: &Devices) -> bool {
        let Some(Stage::Leaving { .. }) = self.stage(id, model) else { return false };
        let in_workers = devices.in_workers();
        self.model_mut(model).offloads += u64::from(in_workers.contains(id) || in_workers.is_empty());
        self.memory_mut(id).end_offload(model);
        self.unsettle();
        true
    }

    /// The form that GPUs load is in the host's memory, or is not.
    pub(in crate::schedule) fn imaged(&mut self, id: ModelId, is_there: bool) {
        if let Some(model) = self.find_model(id) {
            model.has_image = is_there;
            model.is_in_host |= is_there;
        }
    }

    pub(in crate::schedule) fn forgotten(&mut self, id: ModelId, cx: &Context) {
        if let Some(model) = self.find_model(id).filter(|model| model.is_forgetting) {
            model.is_forgetting = false;
            // An image may have been completed after it was to be forgotten.
            model.is_in_host = false;
            model.has_image = false;
            model.note_release(cx);
            self.unsettle();
        }
    }

    pub(in crate::schedule) fn reported(&mut self, id: DeviceId, report: &MemoryReport) {
        let is_changed = self.find_memory(id).is_some_and(|memory| memory.reconcile(report));
        self.unsettle_if(is_changed);
    }

    pub(in crate::schedule) fn vectors_asked(
        &mut self,
        growth: Growth,
        devices: &Devices,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let Growth { device, collection, bytes } = growth;
        let health = devices.find(device).map(|device| device.health());
        if health.is_some_and(|health| health.is_resting()) {
            self.find_memory(device).into_iter().for_each(|memory| memory.is_called = true);
            self.unsettle();
        }
        let is_used = health.is_some_and(|health| health.takes_orders());
        let memory = self.find_memory(device).filter(|_| is_used);
        let granted = memory.map_or(Err(Missing(bytes)), |memory| memory.grow_vectors(collection, bytes, now));
        actions.push(match granted {
            Ok(()) => Action::GrantVectors { device, collection, bytes },
            Err(Missing(missing)) => Action::RefuseVectors { device, collection, missing },
        });
    }

    pub(in crate::schedule) fn vectors_used(&mut self, id: DeviceId, collection: CollectionId, now: Moment) {
        self.find_memory(id).into_iter().for_each(|memory| memory.note_vectors_use(collection, now));
    }

    pub(in crate::schedule) fn vectors_dropped(&mut self, id: DeviceId, collection: CollectionId) {
        if let Some(memory) = self.find_memory(id) {
            memory.end_drop(collection);
            self.unsettle();
        }
    }

    /// A batch of a model has left a device, computed or not; `is_used`: others of it are there.
    pub(in crate::schedule) fn batch_left(
        &mut self,
        (id, model): (DeviceId, ModelId),
        is_computed: bool,
        is_used: bool,
        cx: &Context,
    ) {
        let memory = self.memory_mut(id);
        let resident = memory.resident_mut(model);
        resident.used = cx.now;
        if let Stage::Present { has_computed, .. } = &mut resident.stage {
            *has_computed |= is_computed;
        }
        let is_awaited = resident.leave.is_some() || memory.is_blocked;
        if is_computed {
            memory.resident_mut(model).evicted_unused = 0;
            self.model_mut(model).sent_away = None;
        }
        self.unsettle_if(is_awaited && !is_used && !sabotaged!(cx, LoseResidencyRequest));
    }

    /// Nothing of a model waits or runs any more, or nothing that may go to a GPU: its time begins.
    pub(in crate::schedule) fn note_quiet(&mut self, id: ModelId, is_unused: bool, cx: &Context) {
        self.unsettle_if(self.is_rest_put_off);
        let Some(model) = self.find_model(id) else { return };
        model.used = cx.now;
        if is_unused {
            model.gpu_used = cx.now;
        }
        let (idle_at, leaves) = (model.idle_at(), is_unused && model.plan.offload_after_use);
        self.unsettle_if(leaves);
        let host = cx.options.keeping.host.map(|kept| cx.now + kept);
        self.wake_by([idle_at, host].into_iter().flatten().min());
    }

    fn stage(&self, id: DeviceId, model: ModelId) -> Option<Stage> {
        self.memories.get(usize::from(id.0))?.stage(model)
    }
}
