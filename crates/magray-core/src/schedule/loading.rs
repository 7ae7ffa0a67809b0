//! Brings weights to devices: what requests wait for, what is asked for, what a device had before its worker ended.
//! Orders one load at a time for each device, and none where the weights could never fit.

use super::device_set::DeviceSet;
use super::eviction::{Newcomer, RoomPlan, Tenant};
use super::queue::BucketKey;
use super::resident::{Leave, Stage};
use super::sabotage::sabotaged;
use super::{Action, DeviceId, Machine, ModelId, Moment, Priority};
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
    is_to_restore: bool,
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
        self.residency.begin_loading();
        self.note_presence();
        self.drop_old_restores(now);
        self.restore_for_probes();
        let mut promised = vec![0_u64; self.devices.iter().count()];
        let mut counted_on = DeviceSet::EMPTY;
        for demand in self.demands(now) {
            let Some(choice) = self.best_choice(&demand, &promised, now) else { continue };
            if matches!(choice.plan, RoomPlan::Soon | RoomPlan::Evict(_)) {
                counted_on = counted_on.with(choice.device);
            }
            self.meet(&demand, choice, &mut promised, actions);
        }
        self.residency.note_blocked();
        self.spare(counted_on);
        // What was to be restored may have turned out not to fit: then something else is.
        let is_restored = self.restore_for_probes();
        self.residency.unsettle_if(is_restored);
        self.bring_to_cpus(now, actions);
        for gpu in self.devices.in_workers().iter() {
            if self.residency.memory(gpu).is_woken {
                self.tend(gpu, actions);
            }
        }
    }

    /// What was there before and is there again is not to be restored any more, nor is what was not used for long and does
    /// not come. Only where a device needs weights to be probed, it is tried again and again.
    fn drop_old_restores(&mut self, now: Moment) {
        for id in self.residency.ids() {
            let is_over = self.is_unused(id, now);
            for gpu in self.devices.in_workers().iter() {
                let needs_probe = self.devices.get(gpu).health().needs_probe();
                let resident = self.residency.memory_mut(gpu).resident_mut(id);
                let is_there = resident.is_present() || resident.is_loading();
                let is_given_up = is_over && resident.tries.has_failed() && !needs_probe;
                resident.is_to_restore &= !is_there && !is_given_up;
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
    fn restore_for_probes(&mut self) -> bool {
        let mut is_any_found = false;
        for id in self.devices.in_workers().iter() {
            let device = self.devices.get(id);
            let memory = self.residency.memory(id);
            let is_provided = !memory.is_empty() || memory.residents().any(|(_, resident)| resident.is_to_restore);
            if !device.health().takes_orders() || !device.health().needs_probe() || is_provided {
                continue;
            }
            let fits = |&(model, _): &(ModelId, _)| !self.model(model).is_going() && self.obstacle(id, model).is_none();
            let best = memory.residents().filter(fits).min_by_key(|(model, resident)| {
                let model = self.model(*model);
                let bytes = if model.plan.is_preloaded { resident.bytes } else { u64::MAX };
                (!model.plan.is_preloaded, bytes, Reverse(model.used))
            });
            if let Some((model, _)) = best {
                self.residency.memory_mut(id).resident_mut(model).is_to_restore = true;
                is_any_found = true;
            } else {
                let pauses = memory.residents().filter(|(_, resident)| resident.tries.is_pausing(self.cx.now));
                let next = pauses.map(|(_, resident)| resident.tries.next_at).min();
                self.residency.wake_by(next);
            }
        }
        is_any_found
    }

    /// All that should be on GPUs and may not be there, the most important first.
    fn demands(&mut self, now: Moment) -> Vec<Demand> {
        let mut demands = Vec::new();
        let newcomer = |model, since, is_awaited| Newcomer { model, since, is_awaited };
        for bucket in self.queue.keys() {
            let may = bucket.reach.may.and(self.devices.in_workers());
            if may.is_empty() {
                continue;
            }
            let since = self.queue.oldest(bucket).unwrap_or(now);
            let model = bucket.group.model;
            let priority = self.model(model).plan.priority;
            demands.push(Demand { newcomer: newcomer(model, since, true), may, is_to_restore: false, priority });
        }
        for id in self.residency.ids() {
            let model = self.model(id);
            let priority = model.plan.priority;
            if let Some(want) = model.want {
                if self.is_unused(id, now) && !want.is_preheat {
                    self.model_mut(id).want = None;
                } else {
                    let newcomer = newcomer(id, want.since, want.is_preheat);
                    demands.push(Demand { newcomer, may: self.devices.in_workers(), is_to_restore: false, priority });
                }
            }
            for gpu in self.devices.in_workers().iter() {
                if self.residency.memory(gpu).resident(id).is_to_restore {
                    let newcomer = newcomer(id, Moment::START, false);
                    demands.push(Demand { newcomer, may: DeviceSet::one(gpu), is_to_restore: true, priority });
                }
            }
        }
        demands.sort_by_key(|demand| {
            let Newcomer { model, since, is_awaited } = demand.newcomer;
            (Reverse(demand.priority), !is_awaited, since, model, demand.is_to_restore)
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
        let device = self.devices.get(gpu);
        let rests = device.health().is_resting();
        let is_usable = match demand.is_to_restore {
            true => device.health().takes_orders(),
            false => device.health().takes_orders() && device.health().is_in_rotation() || rests,
        };
        if !is_usable {
            return None;
        }
        if self.obstacle(gpu, id).is_some() {
            let resident = self.residency.memory_mut(gpu).resident_mut(id);
            let next = resident.tries.next_at;
            // What was there before and does not fit any more is not restored.
            resident.is_to_restore &= resident.tries.are_enough(now);
            self.residency.wake_by(Some(next).filter(|&next| next > now));
            return None;
        }
        let plan = self.room_plan(gpu, demand.newcomer, promised);
        // A device that has no weights to be probed with makes its vectors leave; for others nobody does.
        let is_probed = self.devices.get(gpu).health().needs_probe() && self.residency.memory(gpu).is_empty();
        if demand.is_to_restore && !is_probed && !matches!(plan, RoomPlan::Now | RoomPlan::Soon) {
            self.residency.memory_mut(gpu).resident_mut(id).is_to_restore = false;
            return None;
        }
        let memory = self.residency.memory(gpu);
        let resident = memory.resident(id);
        let mut ready_at = now + self.load_time(gpu, id);
        if rests {
            ready_at = ready_at + self.devices.get(gpu).health().start_time();
        }
        if let Some(other) = memory.loading() {
            ready_at = ready_at + crate::moment::from_micros(self.arrival_us(gpu, other));
        }
        ready_at = ready_at + resident.tries.next_at.since(now);
        ready_at = match &plan {
            RoomPlan::Now if resident.stage == Stage::Absent => ready_at,
            RoomPlan::Now | RoomPlan::Soon => ready_at + LEAVING,
            RoomPlan::Evict(_) => ready_at + LEAVING.saturating_mul(2),
            RoomPlan::Wait(Some(until)) => ready_at + until.since(now) + LEAVING.saturating_mul(2),
            // Whoever is in the way may stay for ever.
            RoomPlan::Wait(None) => Moment::from_nanos(u64::MAX),
        };
        Some(Choice { device: gpu, plan, ready_at })
    }

    /// Does what can be done now for a demand on the device that was chosen for it.
    fn meet(&mut self, demand: &Demand, choice: Choice, promised: &mut [u64], actions: &mut Vec<Action>) {
        let now = self.cx.now;
        let (gpu, id) = (choice.device, demand.newcomer.model);
        let own = usize::from(gpu.0);
        let device = self.devices.get(gpu);
        let rests = device.health().is_resting();
        let is_used = rests || device.health().is_in_rotation();
        let memory = self.residency.memory_mut(gpu);
        let bytes = memory.bytes(id);
        let resident = memory.resident_mut(id);
        let (tries, stage) = (resident.tries, resident.stage);
        // Nobody waits for a device that is out of rotation, nor for room that may never be.
        let is_certain = is_used && !matches!(choice.plan, RoomPlan::Wait(None));
        if is_certain {
            resident.ready_at = Some(choice.ready_at);
            let model = self.residency.model_mut(id);
            model.coming = model.coming.with(gpu);
        }
        if tries.is_pausing(now) {
            return self.residency.wake_by(Some(tries.next_at));
        }
        // It is still there, or on its way off: it comes back when it has left.
        if stage != Stage::Absent {
            promised[own] = promised[own].saturating_add(bytes);
            return;
        }
        match choice.plan {
            RoomPlan::Now | RoomPlan::Soon if rests => {
                promised[own] = promised[own].saturating_add(bytes);
                self.residency.memory_mut(gpu).is_woken = !sabotaged!(self.cx, LetRest);
            }
            RoomPlan::Now if self.residency.memory(gpu).loading().is_none() => self.load(gpu, id, actions),
            RoomPlan::Now | RoomPlan::Soon => promised[own] = promised[own].saturating_add(bytes),
            RoomPlan::Evict(tenants) => {
                promised[own] = promised[own].saturating_add(bytes);
                for tenant in tenants {
                    self.evict(gpu, tenant, actions);
                    if let Tenant::Weights(model) = tenant
                        && (!self.devices.is_in_use(gpu, model) || sabotaged!(self.cx, OffloadUnderBatch))
                    {
                        self.offload(gpu, model, actions);
                    }
                }
            }
            RoomPlan::Wait(until) => {
                self.residency.memory_mut(gpu).is_blocked = true;
                self.residency.wake_by(until);
            }
        }
    }

    pub(super) fn load(&mut self, id: DeviceId, model: ModelId, actions: &mut Vec<Action>) {
        let now = self.cx.now;
        let ready_at = now + self.load_time(id, model);
        let memory = self.residency.memory_mut(id);
        if memory.begin_load(model, now).is_err() {
            memory.is_blocked = true;
            return;
        }
        memory.resident_mut(model).ready_at = Some(ready_at);
        memory.rests_at_once = false;
        if sabotaged!(self.cx, LoadTwice) {
            actions.push(Action::Load { device: id, model });
        }
        actions.push(Action::Load { device: id, model });
    }

    /// Lets models stay that were to leave for one that does not come any more.
    fn spare(&mut self, counted_on: DeviceSet) {
        for gpu in self.devices.in_workers().without(counted_on).iter() {
            let memory = self.residency.memory_mut(gpu);
            if memory.ledger().overdrawn() > 0 {
                continue;
            }
            for resident in memory.residents_mut() {
                resident.leave = resident.leave.filter(|&leave| leave != Leave::Evicted);
            }
        }
    }

    /// The CPU gets a model where that is sooner than waiting for a GPU that gets it.
    fn bring_to_cpus(&mut self, now: Moment, actions: &mut Vec<Action>) {
        for cpu in self.devices.in_process().iter() {
            let restored: Vec<ModelId> = self
                .residency
                .memory(cpu)
                .residents()
                .filter(|(_, resident)| resident.is_to_restore)
                .map(|(model, _)| model)
                .collect();
            for model in restored {
                let is_there = self.residency.memory(cpu).resident(model).is_present();
                self.residency.memory_mut(cpu).resident_mut(model).is_to_restore = !is_there;
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
                if self.residency.memory(cpu).resident(bucket.group.model).is_loading() {
                    continue;
                }
                if let Some(gpu_at) = self.is_gpu_sooner(bucket, cpu, now) {
                    self.residency.wake_by(Some(gpu_at.max(now + RECHECK_LEAST)));
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
        let ready_us = self.devices.remaining_us(now);
        let gpu_us = self.first_finish_us(bucket, load, &ready_us)?;
        let loaded_us = crate::moment::micros(self.load_time(cpu, bucket.group.model));
        let cpu_us = ready_us[usize::from(cpu.0)] + loaded_us + self.devices.cost(cpu, bucket.group).of(load);
        (gpu_us <= cpu_us).then(|| now + crate::moment::from_micros(gpu_us))
    }

    fn load_on_cpu(&mut self, cpu: DeviceId, id: ModelId, actions: &mut Vec<Action>) {
        let now = self.cx.now;
        let memory = self.residency.memory(cpu);
        let resident = memory.resident(id);
        if resident.tries.is_pausing(now) {
            let next = resident.tries.next_at;
            return self.residency.wake_by(Some(next));
        }
        let is_possible = resident.stage == Stage::Absent && memory.missing(id, 0, 0, now) == 0;
        if is_possible && memory.loading().is_none() && !self.model(id).is_going() {
            self.load(cpu, id, actions);
        }
    }

    /// When a model that is not on a device yet is expected there, in microseconds from now. A load that is late is
    /// expected to take as long again as it is late.
    pub(super) fn arrival_us(&self, id: DeviceId, model: ModelId) -> f64 {
        let resident = self.residency.memory(id).resident(model);
        if resident.is_present() && resident.leave.is_none() && self.devices.health(id).is_in_rotation() {
            return 0.0;
        }
        let Some(at) = resident.ready_at else { return 0.0 };
        crate::moment::micros(if at > self.cx.now { at.since(self.cx.now) } else { self.cx.now.since(at) })
    }
}
