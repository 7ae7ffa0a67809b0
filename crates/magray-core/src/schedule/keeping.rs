//! Puts weights in order: what nobody uses leaves, what is wanted comes, workers without weights rest.
//! Nothing leaves under a batch or a probe, and nothing here costs anything while nothing has changed.

use super::device::Worker;
use super::device_set::DeviceSet;
use super::resident::{Leave, Resident, Stage};
use super::sabotage::sabotaged;
use super::{Action, DeviceId, DeviceState, Machine, ModelId, Moment};

impl Machine {
    /// Does all that has to be done about weights. Returns whether it looked.
    pub(super) fn settle_weights(&mut self, now: Moment, actions: &mut Vec<Action>) -> bool {
        if !self.residency.take_due(now) {
            return false;
        }
        self.note_presence();
        self.refuse_unreachable(actions);
        self.let_go(now, actions);
        self.forget(now, actions);
        self.bring(now, actions);
        self.rest(now, actions);
        self.note_presence();
        self.note_service(now);
        true
    }

    /// Writes down since when devices are of no use for a model. What was there only between two decisions of one moment
    /// was of no use to anybody.
    fn note_service(&mut self, now: Moment) {
        for (device, memory) in self.devices.iter().zip(self.residency.memories_mut()) {
            let is_used = device.is_in_rotation();
            for resident in memory.residents_mut() {
                let has_it = (resident.is_present() || resident.is_loading()) && resident.leave.is_none();
                let is_served = is_used && has_it;
                if is_served != resident.is_served {
                    resident.is_served = is_served;
                    resident.lost_since = (!is_served).then_some(now);
                }
            }
        }
    }

    /// Sends off what is to leave, has been idle for too long, or has no room any more.
    fn let_go(&mut self, now: Moment, actions: &mut Vec<Action>) {
        for id in self.in_workers.union(self.in_process).iter() {
            if !self.device(id).takes_orders() {
                continue;
            }
            if self.in_workers.contains(id) {
                self.evict_overdrawn(id, actions);
            }
            for model in self.residency.ids() {
                if self.is_leaving_now(id, model, now) {
                    self.offload(id, model, actions);
                }
            }
        }
    }

    /// Whether a model leaves a device now. Notes when it may have to, if not.
    fn is_leaving_now(&mut self, id: DeviceId, model: ModelId, now: Moment) -> bool {
        let device = self.device(id);
        let resident = self.residency.memory(id).resident(model);
        let Stage::Present { has_computed, is_preheated, .. } = resident.stage else { return false };
        let is_used = self.is_in_use(id, model);
        if resident.leave.is_some() {
            return !is_used || sabotaged!(self, OffloadUnderBatch);
        }
        let plan = self.model(model).plan;
        // A device that waits for a probe needs weights for it.
        let is_kept = is_used || plan.is_pinned || device.needs_probe;
        if !self.in_workers.contains(id) || is_kept || self.jobs.of(model).gpu > 0 || sabotaged!(self, IgnoreIdle) {
            return false;
        }
        if plan.offload_after_use && (has_computed || !is_preheated) {
            return true;
        }
        let idle_at = self.model(model).idle_at();
        let is_idle = idle_at.is_some_and(|idle_at| idle_at <= now);
        if !is_idle {
            self.residency.wake_by(idle_at);
        }
        is_idle
    }

    pub(super) fn offload(&mut self, id: DeviceId, model: ModelId, actions: &mut Vec<Action>) {
        let now = self.now;
        self.preempt_all(id, Some(model), actions);
        self.residency.memory_mut(id).begin_offload(model, now);
        if self.in_process.contains(id) {
            self.lose_cpu(model);
        }
        actions.push(Action::Offload { device: id, model });
    }

    /// Lets go of what is in the host's memory where that is requested, or nobody has used it for long.
    fn forget(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let host = self.options.keeping.host;
        for id in self.residency.ids() {
            // What is on its way to the CPU has its time when it is there.
            let is_off_gpus = self.in_workers.union(self.in_process).iter().all(|device| {
                match self.residency.memory(device).resident(id).stage {
                    Stage::Absent => true,
                    Stage::Present { .. } => self.in_process.contains(device),
                    Stage::Loading { .. } | Stage::Leaving { .. } => false,
                }
            });
            let model = self.model(id);
            let is_needed = model.want.is_some() || model.plan.is_pinned || self.jobs.of(id).all > 0;
            let is_kept = !model.is_in_host || !is_off_gpus || is_needed || model.is_forgetting;
            if let Some(due) = host.map(|kept| model.used + kept).filter(|_| !is_kept && !model.is_releasing) {
                if due > now {
                    self.residency.wake_by(Some(due));
                } else {
                    self.model_mut(id).is_releasing = true;
                    self.release_from_cpus(id, actions);
                }
            }
            let is_gone = self.residency.memories().all(|memory| memory.resident(id).stage == Stage::Absent);
            let model = self.model_mut(id);
            if model.is_releasing && is_gone && !model.is_forgetting {
                model.is_releasing = false;
                model.has_image = false;
                if std::mem::take(&mut model.is_in_host) {
                    model.is_forgetting = true;
                    actions.push(Action::Forget { model: id });
                } else {
                    // There was nothing to let go of. It may be loaded again before anybody looks, so it is counted.
                    self.note_release(id);
                }
            }
        }
    }

    /// A model that was to be in no memory is in none.
    pub(super) fn note_release(&mut self, id: ModelId) {
        if !sabotaged!(self, HideRelease) {
            self.model_mut(id).releases += 1;
        }
    }

    fn release_from_cpus(&mut self, id: ModelId, actions: &mut Vec<Action>) {
        for cpu in self.in_process.iter() {
            let is_running = self.device(cpu).is_running(id);
            let resident = self.residency.memory_mut(cpu).resident_mut(id);
            if matches!(resident.stage, Stage::Loading { .. } | Stage::Present { .. }) {
                resident.leave = Some(Leave::Requested);
                if resident.is_present() && !is_running {
                    self.offload(cpu, id, actions);
                }
            }
        }
    }

    /// Lets workers go that have had no weights for a while.
    fn rest(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let kept = self.options.keeping.worker;
        self.residency.is_rest_put_off = false;
        for id in self.in_workers.iter() {
            let is_awaited = self.residency.models().any(|(_, model)| model.coming.contains(id));
            // Who waits for a model that is just being released brings it back: then its worker is needed.
            let is_called_for = self.queue.keys().any(|bucket| bucket.reach.may.contains(id));
            let is_careless = sabotaged!(self, RestWithWeights);
            let (is_kept, lingers) = (sabotaged!(self, NeverRest), sabotaged!(self, LingerOn));
            let device = &mut self.devices[usize::from(id.0)];
            let is_well = device.worker == Worker::Ready && device.is_in_rotation() && !device.needs_probe;
            let memory = self.residency.memory_mut(id);
            let is_empty = memory.is_empty() || is_careless;
            let stays = |resident: &Resident| resident.stage != Stage::Absent && !resident.is_on_its_way_out();
            if memory.residents().any(|(_, resident)| stays(resident)) {
                // Others need it: it rests when they have not for a while.
                memory.rests_at_once = false;
            }
            let is_needed = is_awaited || memory.vectors() > 0;
            if !is_empty || memory.residents().any(|(_, resident)| resident.is_to_restore) || is_needed {
                memory.note_use();
                continue;
            }
            if !is_well || is_kept {
                continue;
            }
            let since = memory.empty_since(now);
            let due = kept.map(|kept| since + kept);
            let is_hurried = memory.rests_at_once && !lingers;
            if (!is_hurried || is_called_for) && due.is_none_or(|due| due > now) {
                // They may be computed elsewhere: then it is looked at again when nothing of their model is left.
                self.residency.is_rest_put_off |= is_hurried;
                self.residency.wake_by(due);
                continue;
            }
            memory.rests_at_once = false;
            device.worker = Worker::Resting { since: now };
            device.state = DeviceState::Resting;
            actions.push(Action::Rest { device: id });
        }
    }

    /// Writes down for each model which devices have it, and which it is coming to.
    pub(super) fn note_presence(&mut self) {
        for id in self.residency.ids() {
            let (mut present, mut loading) = (DeviceSet::EMPTY, DeviceSet::EMPTY);
            for device in self.in_workers.union(self.in_process).iter() {
                let own = self.device(device);
                let resident = self.residency.memory(device).resident(id);
                let is_usable = (own.is_in_rotation() || sabotaged!(self, PlaceOnOut)) && resident.leave.is_none();
                if is_usable && resident.is_present() {
                    present = present.with(device);
                }
                if is_usable && resident.is_loading() {
                    loading = loading.with(device);
                }
            }
            let model = self.model_mut(id);
            model.present = present;
            model.coming = model.coming.without(present).union(loading);
        }
    }
}
