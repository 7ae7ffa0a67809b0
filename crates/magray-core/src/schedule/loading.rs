//! Brings weights to devices: what requests wait for, what is asked for, what a device had before its worker ended.
//! Orders one load at a time for each device, and none where the weights could never fit.

use super::device_set::DeviceSet;
use super::eviction::{Newcomer, RoomPlan};
use super::queue::BucketKey;
use super::residency::{Leave, Stage};
use super::sabotage::sabotaged;
use super::{Action, DeviceId, DeviceState, Machine, ModelId, Moment, Priority};
use std::cmp::Reverse;
use std::time::Duration;

/// What it takes about until weights that leave have left.
const LEAVING: Duration = Duration::from_millis(20);
/// Who waits for a load that is late looks again after this time at least.
const RECHECK_LEAST: Duration = Duration::from_millis(10);

/// A model that should be on a device.
#[derive(Clone, Copy, Debug)]
struct Demand {
    newcomer: Newcomer,
    /// One of these must have it.
    may: DeviceSet,
    /// It was there before, or is there from the start: only where there is room.
    is_owed: bool,
    priority: Priority,
}

/// A device that a demand could be met by.
#[derive(Clone, Debug)]
struct Choice {
    device: DeviceId,
    plan: RoomPlan,
    ready_at: Moment,
}

impl Machine {
    /// Orders the loads that should begin now, and makes room for those that cannot yet.
    pub(super) fn bring(&mut self, now: Moment, actions: &mut Vec<Action>) {
        for device in &mut self.devices {
            device.shelf.is_blocked = false;
            device.shelf.is_woken = false;
        }
        for model in &mut self.models {
            model.coming = DeviceSet::EMPTY;
        }
        self.note_presence();
        self.drop_old_debts(now);
        self.owe_for_probes();
        let mut promised = vec![0_u64; self.devices.len()];
        let mut counted_on = DeviceSet::EMPTY;
        for demand in self.demands(now) {
            let Some(choice) = self.best_choice(&demand, &promised, now) else { continue };
            if matches!(choice.plan, RoomPlan::Soon | RoomPlan::Push(_)) {
                counted_on = counted_on.with(choice.device);
            }
            self.meet(&demand, choice, &mut promised, actions);
        }
        self.is_blocked = self.devices.iter().any(|device| device.shelf.is_blocked);
        self.spare(counted_on);
        // What was owed may have turned out not to fit: then something else is.
        self.is_unsettled |= self.owe_for_probes();
        self.bring_to_cpus(now, actions);
        for gpu in self.gpus.iter() {
            if self.device(gpu).shelf.is_woken {
                self.tend(gpu, now, actions);
            }
        }
    }

    /// What was there before and is there again is not owed any more, nor is what nobody has used for long and does not
    /// come. Only where a device needs weights to be probed, it is tried again and again.
    fn drop_old_debts(&mut self, now: Moment) {
        for at in 0..self.models.len() {
            let id = ModelId(u32::try_from(at).unwrap_or(u32::MAX));
            let is_over = self.is_unused(id, now);
            for gpu in self.gpus.iter() {
                let device = self.device_mut(gpu);
                let needs_probe = device.needs_probe;
                let place = device.shelf.place_mut(id);
                let is_there = place.is_present() || place.is_loading();
                let is_given_up = is_over && place.tries.has_failed() && !needs_probe;
                place.is_owed &= !is_there && !is_given_up;
            }
        }
    }

    /// Whether nobody needs a model on a GPU any more.
    fn is_unused(&self, id: ModelId, now: Moment) -> bool {
        let model = self.model(id);
        let is_over = model.idle_at().is_some_and(|idle| idle <= now) || model.plan.offload_after_use;
        self.jobs.of(id).gpu == 0 && is_over
    }

    /// A device can only be probed with the weights of some model: the smallest that is there from the start, or the
    /// one that was used last. Returns whether one was found.
    fn owe_for_probes(&mut self) -> bool {
        let mut is_any_owed = false;
        for id in self.gpus.iter() {
            let device = self.device(id);
            let shelf = &device.shelf;
            let is_provided = !shelf.is_empty() || shelf.places.iter().any(|place| place.is_owed);
            if !device.takes_orders() || !device.needs_probe || is_provided {
                continue;
            }
            let fits = |&(model, _): &(ModelId, _)| !self.model(model).is_going() && self.obstacle(id, model).is_none();
            let best = shelf.iter().filter(fits).min_by_key(|(model, place)| {
                let model = self.model(*model);
                let bytes = if model.plan.is_preloaded { place.bytes } else { u64::MAX };
                (!model.plan.is_preloaded, bytes, Reverse(model.used))
            });
            if let Some((model, _)) = best {
                self.device_mut(id).shelf.place_mut(model).is_owed = true;
                is_any_owed = true;
            } else {
                let pauses = shelf.places.iter().filter(|place| place.tries.is_pausing(self.now));
                let next = pauses.map(|place| place.tries.next_at).min();
                self.wake_weights_by(next);
            }
        }
        is_any_owed
    }

    /// All that should be on GPUs and may not be there, the most important first.
    fn demands(&mut self, now: Moment) -> Vec<Demand> {
        let mut demands = Vec::new();
        let newcomer = |model, since, is_awaited| Newcomer { model, since, is_awaited };
        for bucket in self.queue.keys() {
            let may = bucket.reach.may.and(self.gpus);
            if may.is_empty() {
                continue;
            }
            let since = self.queue.oldest(bucket).unwrap_or(now);
            let model = bucket.group.model;
            let priority = self.model(model).plan.priority;
            demands.push(Demand { newcomer: newcomer(model, since, true), may, is_owed: false, priority });
        }
        for at in 0..self.models.len() {
            let id = ModelId(u32::try_from(at).unwrap_or(u32::MAX));
            let model = self.model(id);
            let priority = model.plan.priority;
            if let Some(want) = model.want {
                if self.is_unused(id, now) && !want.is_preheat {
                    self.model_mut(id).want = None;
                } else {
                    let newcomer = newcomer(id, want.since, want.is_preheat);
                    demands.push(Demand { newcomer, may: self.gpus, is_owed: false, priority });
                }
            }
            for gpu in self.gpus.iter() {
                if self.device(gpu).shelf.place(id).is_owed {
                    let newcomer = newcomer(id, Moment::START, false);
                    demands.push(Demand { newcomer, may: DeviceSet::one(gpu), is_owed: true, priority });
                }
            }
        }
        demands.sort_by_key(|demand| {
            let Newcomer { model, since, is_awaited } = demand.newcomer;
            (Reverse(demand.priority), !is_awaited, since, model, demand.is_owed)
        });
        demands
    }

    /// The device that has a model first. None where one has it already, or none can.
    fn best_choice(&mut self, demand: &Demand, promised: &[u64], now: Moment) -> Option<Choice> {
        let id = demand.newcomer.model;
        let model = self.model(id);
        let is_met = !demand.may.and(model.present.union(model.coming)).is_empty();
        if is_met || model.is_going() {
            return None;
        }
        let mut best: Option<Choice> = None;
        for gpu in demand.may.iter() {
            let Some(choice) = self.choice(gpu, demand, promised[usize::from(gpu.0)], now) else { continue };
            if best.as_ref().is_none_or(|best| choice.ready_at < best.ready_at) {
                best = Some(choice);
            }
        }
        best
    }

    fn choice(&mut self, gpu: DeviceId, demand: &Demand, promised: u64, now: Moment) -> Option<Choice> {
        let id = demand.newcomer.model;
        let device = self.device(gpu);
        let rests = device.state == DeviceState::Resting;
        let is_usable = match demand.is_owed {
            true => device.takes_orders(),
            false => device.takes_orders() && device.is_in_rotation() || rests,
        };
        if !is_usable {
            return None;
        }
        if self.obstacle(gpu, id).is_some() {
            let place = self.device_mut(gpu).shelf.place_mut(id);
            let next = place.tries.next_at;
            // What was there before and does not fit any more is not owed any more.
            place.is_owed &= place.tries.are_enough(now);
            self.wake_weights_by(Some(next).filter(|&next| next > now));
            return None;
        }
        let plan = self.room_plan(gpu, demand.newcomer, promised);
        if demand.is_owed && !matches!(plan, RoomPlan::Now | RoomPlan::Soon) {
            self.device_mut(gpu).shelf.place_mut(id).is_owed = false;
            return None;
        }
        let device = self.device(gpu);
        let place = device.shelf.place(id);
        let mut ready_at = now + self.load_time(gpu, id);
        if rests {
            ready_at = ready_at + device.start_time;
        }
        if let Some(other) = device.shelf.loading {
            ready_at = ready_at + super::device::from_micros(self.arrival_us(gpu, other));
        }
        ready_at = ready_at + place.tries.next_at.since(now);
        ready_at = match &plan {
            RoomPlan::Now if place.stage == Stage::Absent => ready_at,
            RoomPlan::Now | RoomPlan::Soon => ready_at + LEAVING,
            RoomPlan::Push(_) => ready_at + LEAVING.saturating_mul(2),
            RoomPlan::Wait(Some(until)) => ready_at + until.since(now) + LEAVING.saturating_mul(2),
            // Whoever is in the way may stay for ever.
            RoomPlan::Wait(None) => Moment::from_nanos(u64::MAX),
        };
        Some(Choice { device: gpu, plan, ready_at })
    }

    /// Does what can be done now for a demand on the device that was chosen for it.
    fn meet(&mut self, demand: &Demand, choice: Choice, promised: &mut [u64], actions: &mut Vec<Action>) {
        let now = self.now;
        let (gpu, id) = (choice.device, demand.newcomer.model);
        let own = usize::from(gpu.0);
        let device = &mut self.devices[own];
        let rests = device.state == DeviceState::Resting;
        let place = device.shelf.place(id);
        let (bytes, tries, stage) = (place.bytes, place.tries, place.stage);
        // Nobody waits for a device that is out of rotation, nor for room that may never be.
        let is_certain = (rests || device.is_in_rotation()) && !matches!(choice.plan, RoomPlan::Wait(None));
        if is_certain {
            device.shelf.place_mut(id).ready_at = Some(choice.ready_at);
            self.models[id.0 as usize].coming = self.models[id.0 as usize].coming.with(gpu);
        }
        if tries.is_pausing(now) {
            return self.wake_weights_by(Some(tries.next_at));
        }
        // It is still there, or on its way off: it comes back when it has left.
        if stage != Stage::Absent {
            promised[own] = promised[own].saturating_add(bytes);
            return;
        }
        match choice.plan {
            RoomPlan::Now | RoomPlan::Soon if rests => {
                promised[own] = promised[own].saturating_add(bytes);
                device.shelf.is_woken = !sabotaged!(self, LetRest);
            }
            RoomPlan::Now if device.shelf.loading.is_none() => self.load(gpu, id, actions),
            RoomPlan::Now | RoomPlan::Soon => promised[own] = promised[own].saturating_add(bytes),
            RoomPlan::Push(models) => {
                promised[own] = promised[own].saturating_add(bytes);
                for model in models {
                    let device = &mut self.devices[own];
                    let is_used = device.is_running(model) || device.probing_since.is_some();
                    device.shelf.place_mut(model).leave = Some(Leave::Pushed);
                    if !is_used || sabotaged!(self, OffloadUnderBatch) {
                        self.offload(gpu, model, actions);
                    }
                }
            }
            RoomPlan::Wait(until) => {
                device.shelf.is_blocked = true;
                self.wake_weights_by(until);
            }
        }
    }

    pub(super) fn load(&mut self, id: DeviceId, model: ModelId, actions: &mut Vec<Action>) {
        let now = self.now;
        let ready_at = now + self.load_time(id, model);
        let shelf = &mut self.device_mut(id).shelf;
        let was_owed = std::mem::take(&mut shelf.place_mut(model).is_owed);
        shelf.set(model, Stage::Loading { since: now, was_owed });
        shelf.place_mut(model).ready_at = Some(ready_at);
        shelf.rests_at_once = false;
        if sabotaged!(self, LoadTwice) {
            actions.push(Action::Load { device: id, model });
        }
        actions.push(Action::Load { device: id, model });
    }

    /// Lets models stay that were to leave for somebody who does not come any more.
    fn spare(&mut self, counted_on: DeviceSet) {
        for gpu in self.gpus.without(counted_on).iter() {
            let shelf = &mut self.device_mut(gpu).shelf;
            if shelf.used() > shelf.room {
                continue;
            }
            for place in &mut shelf.places {
                place.leave = place.leave.filter(|&leave| leave != Leave::Pushed);
            }
        }
    }

    /// The CPU gets a model where that is sooner than waiting for a GPU that gets it.
    fn bring_to_cpus(&mut self, now: Moment, actions: &mut Vec<Action>) {
        for cpu in self.cpus.iter() {
            let owed: Vec<ModelId> =
                self.device(cpu).shelf.iter().filter(|(_, place)| place.is_owed).map(|(model, _)| model).collect();
            for model in owed {
                let is_there = self.device(cpu).shelf.place(model).is_present();
                self.device_mut(cpu).shelf.place_mut(model).is_owed = !is_there;
                if !is_there {
                    self.load_on_cpu(cpu, model, actions);
                }
            }
            let buckets: Vec<BucketKey> = self.queue.keys().filter(|bucket| bucket.reach.may.contains(cpu)).collect();
            for bucket in buckets {
                let model = self.model(bucket.group.model);
                if model.present.union(model.coming).contains(cpu) {
                    continue;
                }
                if self.device(cpu).shelf.place(bucket.group.model).is_loading() {
                    continue;
                }
                if let Some(gpu_at) = self.is_gpu_sooner(bucket, cpu, now) {
                    self.wake_weights_by(Some(gpu_at.max(now + RECHECK_LEAST)));
                } else {
                    self.load_on_cpu(cpu, bucket.group.model, actions);
                }
            }
        }
    }

    /// Whether a bucket is done sooner by a GPU than by the CPU that would have to load the model first: when that GPU is
    /// ready, then.
    fn is_gpu_sooner(&self, bucket: BucketKey, cpu: DeviceId, now: Moment) -> Option<Moment> {
        let load = self.queue.load(bucket)?;
        let ready_us: Vec<f64> = self.devices.iter().map(|device| device.remaining_us(now)).collect();
        let gpu_us = self.first_finish_us(bucket, load, &ready_us)?;
        let loaded_us = super::device::micros(self.load_time(cpu, bucket.group.model));
        let cpu_us = ready_us[usize::from(cpu.0)] + loaded_us + self.cost(cpu, bucket.group).of(load);
        (gpu_us <= cpu_us).then(|| now + super::device::from_micros(gpu_us))
    }

    fn load_on_cpu(&mut self, cpu: DeviceId, id: ModelId, actions: &mut Vec<Action>) {
        let now = self.now;
        let shelf = &self.device(cpu).shelf;
        let place = shelf.place(id);
        if place.tries.is_pausing(now) {
            let next = place.tries.next_at;
            return self.wake_weights_by(Some(next));
        }
        let is_possible = place.stage == Stage::Absent && shelf.has_room(shelf.used(), place.bytes, now);
        if is_possible && shelf.loading.is_none() && !self.model(id).is_going() {
            self.load(cpu, id, actions);
        }
    }

    /// When a model that is not on a device yet is expected there, in microseconds from now. A load that is late is
    /// expected to take as long again as it is late.
    pub(super) fn arrival_us(&self, id: DeviceId, model: ModelId) -> f64 {
        let place = self.device(id).shelf.place(model);
        if place.is_present() && place.leave.is_none() && self.device(id).is_in_rotation() {
            return 0.0;
        }
        let Some(at) = place.ready_at else { return 0.0 };
        super::device::micros(if at > self.now { at.since(self.now) } else { self.now.since(at) })
    }
}
