//! Brings weights to devices: what requests wait for, what is asked for, what a device had before its worker ended.
//! Orders one load at a time for each device, and none where the weights could never fit.

use super::context::Context;
use super::device_set::DeviceSet;
use super::devices::Devices;
use super::eviction::{Newcomer, RoomPlan, Tenant, room_plan};
use super::outlook::Outlook;
use super::placement::first_finish_us;
use super::queue::BucketKey;
use super::requests::Requests;
use super::residency::Residency;
use super::resident::Stage;
use super::sabotage::sabotaged;
use super::{Action, DeviceId, ModelId, Moment, MoveReason, Priority};
use crate::moment::{from_micros, micros};
use std::cmp::Reverse;
use std::time::Duration;

/// What it takes about until weights that leave have left.
const LEAVING: Duration = Duration::from_millis(20);
/// What waits for a load that is late is looked at again after this time at least.
const RECHECK_LEAST: Duration = Duration::from_millis(10);

/// A model that should be on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    newcomer: Newcomer,
    /// One of these must have it.
    may: DeviceSet,
    /// It was there before, or is there from the start: only where there is room.
    is_to_restore: bool,
    priority: Priority,
}

/// A device that a demand could be met by.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) device: DeviceId,
    pub(super) plan: RoomPlan,
    ready_at: Moment,
}

/// Residency to change, and what its loads depend on.
#[derive(Debug)]
pub(super) struct Loading<'a> {
    pub(super) cx: &'a Context,
    pub(super) devices: &'a Devices,
    pub(super) requests: &'a Requests,
    pub(super) residency: &'a mut Residency,
}

impl Loading<'_> {
    fn of(&self) -> Outlook<'_> {
        Outlook { cx: self.cx, devices: self.devices, residency: self.residency, requests: self.requests }
    }

    /// What was there before and is there again is not to be restored any more, nor is what was not used for long and does
    /// not come. Only where a device needs weights to be probed, it is tried again and again.
    fn drop_old_restores(&mut self) {
        for id in self.residency.ids() {
            let is_over = self.of().is_unused(id);
            for gpu in self.devices.in_workers().iter() {
                let needs_probe = self.devices.health(gpu).needs_probe();
                let resident = self.residency.memory_mut(gpu).resident_mut(id);
                let is_there = resident.is_present() || resident.is_loading();
                let is_given_up = is_over && resident.tries.has_failed() && !needs_probe;
                resident.is_to_restore &= !is_there && !is_given_up;
            }
        }
    }

    /// A device can only be probed with the weights of some model: the smallest that is there from the start, or the
    /// one that was used last. Returns whether one was found.
    fn restore_for_probes(&mut self) -> bool {
        let mut is_any_found = false;
        for id in self.devices.in_workers().iter() {
            let health = self.devices.health(id);
            let (of, memory) = (self.of(), self.residency.memory(id));
            let is_provided = !memory.is_empty() || memory.is_restoring();
            if !health.takes_orders() || !health.needs_probe() || is_provided {
                continue;
            }
            let fits = |&(model, _): &(ModelId, _)| !of.model(model).is_going() && of.obstacle(id, model).is_none();
            let best = memory.residents().filter(fits).min_by_key(|(model, resident)| {
                let model = of.model(*model);
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
    pub(super) fn demands(&mut self) -> Vec<Demand> {
        self.drop_old_restores();
        self.restore_for_probes();
        let mut demands = Vec::new();
        let newcomer = |model, since, is_awaited| Newcomer { model, since, is_awaited };
        for bucket in self.requests.queue().keys() {
            let may = bucket.reach.may.and(self.devices.in_workers());
            if may.is_empty() {
                continue;
            }
            let model = bucket.group.model;
            // A model that gave way to another must not come before that one because its requests are older: it would take
            // the room back, and give way again.
            let waits_since = self.requests.queue().oldest(bucket).unwrap_or(self.cx.now);
            let is_first_again = sabotaged!(self.cx, ComeBackFirst);
            let since = if is_first_again { waits_since } else { waits_since.max(self.of().lost_at(may, model)) };
            let priority = self.of().importance(model);
            demands.push(Demand { newcomer: newcomer(model, since, true), may, is_to_restore: false, priority });
        }
        for id in self.residency.ids() {
            let (model, priority) = (self.residency.model(id), self.of().importance(id));
            if let Some(want) = model.want {
                if self.of().is_unused(id) && !want.is_preheat {
                    self.residency.drop_want(id);
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
    pub(super) fn best_choice(&mut self, demand: &Demand, promised: &[u64]) -> Option<Choice> {
        let id = demand.newcomer.model;
        let model = self.residency.model(id);
        let is_met = !demand.may.and(model.present.union(model.coming)).is_empty();
        if is_met || model.is_going() {
            return None;
        }
        let mut best: Option<Choice> = None;
        for gpu in demand.may.iter() {
            let Some(choice) = self.choice(gpu, demand, promised[usize::from(gpu.0)]) else { continue };
            if best.as_ref().is_none_or(|best| choice.ready_at < best.ready_at) {
                best = Some(choice);
            }
        }
        best
    }

    fn choice(&mut self, gpu: DeviceId, demand: &Demand, promised: u64) -> Option<Choice> {
        let id = demand.newcomer.model;
        let (now, health) = (self.cx.now, self.devices.health(gpu));
        let rests = health.is_resting();
        let is_usable = match demand.is_to_restore {
            true => health.takes_orders(),
            false => health.takes_orders() && health.is_in_rotation() || rests,
        };
        if !is_usable {
            return None;
        }
        if self.of().obstacle(gpu, id).is_some() {
            let resident = self.residency.memory_mut(gpu).resident_mut(id);
            let next = resident.tries.next_at;
            // What was there before and does not fit any more is not restored.
            resident.is_to_restore &= resident.tries.are_enough(now);
            self.residency.wake_by(Some(next).filter(|&next| next > now));
            return None;
        }
        let plan = room_plan(self.of(), gpu, demand.newcomer, promised);
        // A device that has no weights to be probed with makes its vectors leave; nothing leaves for others.
        let is_probed = health.needs_probe() && self.residency.memory(gpu).is_empty();
        if demand.is_to_restore && !is_probed && !matches!(plan, RoomPlan::Now | RoomPlan::Soon) {
            self.residency.memory_mut(gpu).resident_mut(id).is_to_restore = false;
            return None;
        }
        let memory = self.residency.memory(gpu);
        let resident = memory.resident(id);
        let mut ready_at = now + self.of().load_time(gpu, id);
        if rests {
            ready_at = ready_at + health.start_time();
        }
        if let Some(other) = memory.loading() {
            ready_at = ready_at + from_micros(self.of().arrival_us(gpu, other));
        }
        ready_at = ready_at + resident.tries.next_at.since(now);
        ready_at = match &plan {
            RoomPlan::Now if resident.stage == Stage::Absent => ready_at,
            RoomPlan::Now | RoomPlan::Soon => ready_at + LEAVING,
            RoomPlan::Evict(_) => ready_at + LEAVING.saturating_mul(2),
            RoomPlan::Wait(Some(until)) => ready_at + until.since(now) + LEAVING.saturating_mul(2),
            // What is in its place may stay for ever.
            RoomPlan::Wait(None) => Moment::from_nanos(u64::MAX),
        };
        Some(Choice { device: gpu, plan, ready_at })
    }

    /// Does what can be done now for a demand on the device that was chosen for it. Returns what must leave for it.
    pub(super) fn meet(
        &mut self,
        demand: &Demand,
        choice: Choice,
        promised: &mut [u64],
        actions: &mut Vec<Action>,
    ) -> Vec<Tenant> {
        let now = self.cx.now;
        let (gpu, id) = (choice.device, demand.newcomer.model);
        let health = self.devices.health(gpu);
        let memory = self.residency.memory(gpu);
        let (tries, stage, bytes) = (memory.resident(id).tries, memory.resident(id).stage, memory.bytes(id));
        let is_loading = memory.loading().is_some();
        let promised = &mut promised[usize::from(gpu.0)];
        let mut promise = || *promised = promised.saturating_add(bytes);
        // Nothing waits for a device that is out of rotation, nor for room that may never be.
        if health.is_used() && !matches!(choice.plan, RoomPlan::Wait(None)) {
            self.residency.expect(gpu, id, choice.ready_at);
        }
        if tries.is_pausing(now) {
            self.residency.wake_by(Some(tries.next_at));
            return Vec::new();
        }
        // It is still there, or on its way off: it comes back when it has left.
        if stage != Stage::Absent {
            promise();
            return Vec::new();
        }
        match choice.plan {
            RoomPlan::Now | RoomPlan::Soon if health.is_resting() => {
                promise();
                self.residency.memory_mut(gpu).is_woken = !sabotaged!(self.cx, LetRest);
            }
            RoomPlan::Now if !is_loading => self.load(gpu, id, actions),
            RoomPlan::Now | RoomPlan::Soon => promise(),
            RoomPlan::Evict(tenants) => {
                promise();
                return tenants;
            }
            RoomPlan::Wait(until) => {
                self.residency.memory_mut(gpu).is_blocked = true;
                self.residency.wake_by(until);
            }
        }
        Vec::new()
    }

    /// All demands were looked at; room was made on some devices.
    pub(super) fn end(&mut self, counted_on: DeviceSet) {
        self.residency.end_loading(counted_on);
        // What was to be restored may have turned out not to fit: then something else is.
        let is_restored = self.restore_for_probes();
        self.residency.unsettle_if(is_restored);
    }

    fn load(&mut self, id: DeviceId, model: ModelId, actions: &mut Vec<Action>) {
        let now = self.cx.now;
        let ready_at = now + self.of().load_time(id, model);
        let want = self.residency.model(model).want;
        let reason = match want {
            Some(want) if want.is_preheat => MoveReason::Preheated,
            None if self.requests.jobs().of(model).all == 0 => MoveReason::Restored,
            _ => MoveReason::Needed,
        };
        let memory = self.residency.memory_mut(id);
        if memory.begin_load(model, now).is_err() {
            memory.is_blocked = true;
            return;
        }
        memory.resident_mut(model).moved_for = Some(reason);
        memory.resident_mut(model).ready_at = Some(ready_at);
        memory.rests_at_once = false;
        if sabotaged!(self.cx, LoadTwice) {
            actions.push(Action::Load { device: id, model });
        }
        actions.push(Action::Load { device: id, model });
    }

    /// The CPU gets a model where that is sooner than waiting for a GPU that gets it.
    pub(super) fn bring_to_cpus(&mut self, actions: &mut Vec<Action>) {
        for cpu in self.devices.in_process().iter() {
            for model in self.residency.ids() {
                let resident = self.residency.memory_mut(cpu).resident_mut(model);
                resident.is_to_restore &= !resident.is_present();
                if resident.is_to_restore {
                    self.load_on_cpu(cpu, model, actions);
                }
            }
            let requests = self.requests;
            for bucket in requests.queue().keys().filter(|bucket| bucket.reach.may.contains(cpu)) {
                let model = self.residency.model(bucket.group.model);
                let is_loading = self.residency.memory(cpu).resident(bucket.group.model).is_loading();
                if is_loading || model.present.union(model.coming).contains(cpu) {
                    continue;
                }
                if let Some(gpu_at) = self.is_gpu_sooner(bucket, cpu) {
                    self.residency.wake_by(Some(gpu_at.max(self.cx.now + RECHECK_LEAST)));
                } else {
                    self.load_on_cpu(cpu, bucket.group.model, actions);
                }
            }
        }
    }

    /// Whether a bucket is done sooner by a GPU than by the CPU that would have to load the model first: when that GPU is
    /// ready, then.
    fn is_gpu_sooner(&self, bucket: BucketKey, cpu: DeviceId) -> Option<Moment> {
        let now = self.cx.now;
        let model = self.residency.model(bucket.group.model);
        let near = bucket.reach.may.and(model.present.union(model.coming));
        if !near.is_empty() && near.without(self.devices.full()).is_empty() {
            return None;
        }
        let load = self.requests.queue().load(bucket)?;
        let ready_us = self.devices.remaining_us(now);
        let gpu_us = first_finish_us(self.of(), bucket, load, &ready_us)?;
        let loaded_us = micros(self.of().load_time(cpu, bucket.group.model));
        let cpu_us = ready_us[usize::from(cpu.0)] + loaded_us + self.devices.cost(cpu, bucket.group).of(load);
        (gpu_us <= cpu_us).then(|| now + from_micros(gpu_us))
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
        if is_possible && memory.loading().is_none() && !self.residency.model(id).is_going() {
            self.load(cpu, id, actions);
        }
    }
}
