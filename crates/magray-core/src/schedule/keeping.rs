//! Puts weights in order: what nobody uses leaves, what is wanted comes, workers without weights rest.
//! Nothing leaves under a batch or a probe, and nothing here costs anything while nothing has changed.

use super::resident::{Leave, Resident, Stage};
use super::sabotage::sabotaged;
use super::{Action, DeviceId, Machine, ModelId, Moment};

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
        self.residency.note_service(self.devices.in_rotation(), now);
        true
    }

    /// Sends off what is to leave, has been idle for too long, or has no room any more.
    fn let_go(&mut self, now: Moment, actions: &mut Vec<Action>) {
        for id in self.devices.all().iter() {
            if !self.devices.health(id).takes_orders() {
                continue;
            }
            if self.devices.in_workers().contains(id) {
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
        let device = self.devices.get(id);
        let resident = self.residency.memory(id).resident(model);
        let Stage::Present { has_computed, is_preheated, .. } = resident.stage else { return false };
        let is_used = self.devices.is_in_use(id, model);
        if resident.leave.is_some() {
            return !is_used || sabotaged!(self.cx, OffloadUnderBatch);
        }
        let plan = self.model(model).plan;
        // A device that waits for a probe needs weights for it.
        let is_kept = is_used || plan.is_pinned || device.health().needs_probe();
        if !self.devices.in_workers().contains(id)
            || is_kept
            || self.jobs.of(model).gpu > 0
            || sabotaged!(self.cx, IgnoreIdle)
        {
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
        let now = self.cx.now;
        self.preempt_all(id, Some(model), actions);
        self.residency.memory_mut(id).begin_offload(model, now);
        if self.devices.in_process().contains(id) {
            self.lose_cpu(model);
        }
        actions.push(Action::Offload { device: id, model });
    }

    /// Lets go of what is in the host's memory where that is requested, or nobody has used it for long.
    fn forget(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let host = self.cx.options.keeping.host;
        for id in self.residency.ids() {
            // What is on its way to the CPU has its time when it is there.
            let is_off_gpus =
                self.devices.all().iter().all(|device| match self.residency.memory(device).resident(id).stage {
                    Stage::Absent => true,
                    Stage::Present { .. } => self.devices.in_process().contains(device),
                    Stage::Loading { .. } | Stage::Leaving { .. } => false,
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
        if !sabotaged!(self.cx, HideRelease) {
            self.model_mut(id).releases += 1;
        }
    }

    fn release_from_cpus(&mut self, id: ModelId, actions: &mut Vec<Action>) {
        for cpu in self.devices.in_process().iter() {
            let is_running = self.devices.get(cpu).is_running(id);
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
        let kept = self.cx.options.keeping.worker;
        self.residency.is_rest_put_off = false;
        for id in self.devices.in_workers().iter() {
            let is_awaited = self.residency.models().any(|(_, model)| model.coming.contains(id));
            // Who waits for a model that is just being released brings it back: then its worker is needed.
            let is_called_for = self.queue.keys().any(|bucket| bucket.reach.may.contains(id));
            let is_careless = sabotaged!(self.cx, RestWithWeights);
            let (is_kept, lingers) = (sabotaged!(self.cx, NeverRest), sabotaged!(self.cx, LingerOn));
            let health = self.devices.health_mut(id);
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
            if !health.can_rest() || is_kept {
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
            health.rest(now, actions);
        }
    }

    /// Tells residency which devices are in rotation.
    pub(super) fn note_presence(&mut self) {
        let is_blind = sabotaged!(self.cx, PlaceOnOut);
        let usable = if is_blind { self.devices.all() } else { self.devices.in_rotation() };
        self.residency.note_presence(usable);
    }
}
