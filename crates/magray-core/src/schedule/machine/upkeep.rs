//! Devices and weights: takes devices out of rotation and brings them back, saves their batches, and moves weights.
//! Never waits for a worker without an end, and takes no weights off a device under a batch or a probe.

use super::Machine;
use crate::schedule::device::Device;
use crate::schedule::device_set::DeviceSet;
use crate::schedule::event::Arrival;
use crate::schedule::eviction::{RoomPlan, Tenant, is_only_here, leaves_now, overdrawn};
use crate::schedule::failure_count::Consequence;
use crate::schedule::health::{Need, Reached, Trouble};
use crate::schedule::loading::Loading;
use crate::schedule::requests::{Loss, Setback};
use crate::schedule::resident::Leave;
use crate::schedule::sabotage::sabotaged;
use crate::schedule::speed::SpeedChange;
use crate::schedule::{
    Action, BatchId, Condition, DeviceId, Ending, Failure, Fallback, KillCause, MemoryStep, MemoryUse, ModelId,
    MoveReason, Notice, Outcome,
};
use std::time::Duration;

impl Machine {
    /// A batch was computed.
    pub(super) fn on_finished(
        &mut self,
        batch: BatchId,
        compute: Duration,
        outcomes: &[Outcome],
        actions: &mut Vec<Action>,
    ) {
        let Some((id, batch)) = self.devices.take_batch(batch, self.cx.now) else { return };
        let guessed = self.devices.guessed_cost(id, batch.group);
        let device = self.devices.get_mut(id);
        device.finished(&batch, compute, outcomes, guessed, self.cx.now);
        let watch = self.cx.speed_watch(device.meter());
        tell_speed(id, device.compare(&batch, compute, &watch, self.cx.now), actions);
        // A part of a prompt is lost with the weights: it is no progress.
        let has_progressed = !batch.is_turn() || outcomes.iter().any(|outcome| *outcome != Outcome::Tokens(0));
        self.batch_left(id, batch.group.model, has_progressed);
        self.answer((id, batch), outcomes, actions);
    }

    /// A batch was not computed.
    pub(super) fn on_failed(&mut self, batch: BatchId, failure: Failure, actions: &mut Vec<Action>) {
        let Some((id, batch)) = self.devices.take_batch(batch, self.cx.now) else { return };
        self.batch_left(id, batch.group.model, false);
        let loss = |setback, reason| Loss { device: id, setback, reason };
        let in_process = Loss { device: id, setback: Setback::FailedInProcess, reason: Fallback::Unhealthy };
        let trouble = match failure {
            Failure::OutOfMemory => {
                actions.push(Action::Trim { device: id });
                // A prompt can be computed in smaller chunks.
                let is_divisible = batch.load.texts > 1 || batch.is_turn() && batch.load.tokens > 1;
                let setback = if is_divisible { Setback::TooLarge } else { Setback::NeverFits };
                self.devices.get_mut(id).halve(batch.load.tokens);
                return self.replay(batch, loss(setback, Fallback::OutOfMemory), actions);
            }
            _ if !self.devices.health(id).has_worker() => return self.replay(batch, in_process, actions),
            Failure::Transient => {
                let was_waiting = self.devices.health(id).needs_probe();
                let consequence = self.count_failure(id, Fallback::Unhealthy, actions);
                if consequence == Consequence::Temporary && !was_waiting {
                    self.devices.health_mut(id).postpone_probe(&self.cx);
                }
                return self.replay(batch, loss(Setback::Transient, Fallback::Unhealthy), actions);
            }
            Failure::Sticky => Trouble::Sticky,
            Failure::WrongAnswer => Trouble::WrongAnswer,
            Failure::Lost => Trouble::Lost,
        };
        let setback = if trouble == Trouble::Sticky { Setback::Fatal } else { Setback::Lost };
        self.take_out(id, trouble, actions);
        self.replay(batch, loss(setback, trouble.reason()), actions);
        self.drop_worker(id, trouble, actions);
    }

    /// Takes a device out of rotation whose worker is to be replaced.
    fn take_out(&mut self, id: DeviceId, trouble: Trouble, actions: &mut Vec<Action>) {
        match trouble {
            Trouble::Sticky => self.leave(id, trouble.reason(), actions),
            Trouble::WrongAnswer => {
                self.leave(id, trouble.reason(), actions);
                let health = self.devices.health_mut(id);
                health.require_probe();
                health.postpone_probe(&self.cx);
                if self.count_failure(id, trouble.reason(), actions) != Consequence::Retry {
                    self.devices.health_mut(id).postpone_spawn_if_unproven();
                }
            }
            Trouble::Lost => self.lose(id, actions),
        }
    }

    /// Ends a worker after such trouble. What a sticky failure means is found when it is gone.
    fn drop_worker(&mut self, id: DeviceId, trouble: Trouble, actions: &mut Vec<Action>) {
        self.abandon(id, KillCause::Sticky, trouble != Trouble::Sticky, actions);
    }

    pub(super) fn on_up(&mut self, id: DeviceId) {
        let now = self.cx.now;
        let is_up = self.devices.find_worker(id).is_some_and(|health| health.on_up(now));
        self.residency.unsettle_if(is_up);
    }

    /// A worker is gone, and its batches with it.
    pub(super) fn on_down(&mut self, id: DeviceId, ending: Ending, actions: &mut Vec<Action>) {
        let Some(ended) = self.devices.find_worker(id).and_then(|health| health.on_down(ending)) else { return };
        let now = self.cx.now;
        let batches = self.devices.get_mut(id).take_batches();
        let is_load_to_blame = ending == Ending::Crashed || ended.cause == Some(KillCause::LoadOverdue);
        let memory = self.residency.memory_mut(id);
        if let Some(model) = memory.loading().filter(|_| is_load_to_blame) {
            memory.resident_mut(model).tries.fail_with_worker(now);
        }
        let sequences = memory.clear();
        self.preempt_those(sequences, actions);
        if ending == Ending::Lost {
            self.lose(id, actions);
        } else if !ended.is_settled {
            self.leave(id, Fallback::Unhealthy, actions);
            self.plan_respawn(id, ended.reached, actions);
        }
        let is_overdue = ended.cause == Some(KillCause::Overdue) && ending == Ending::Ordered;
        let is_to_blame = ending == Ending::Crashed || is_overdue;
        let reason = self.devices.health(id).fallback();
        for (nth, batch) in batches.into_iter().enumerate() {
            // The worker computed the oldest; those behind it were only at hand.
            let setback = match is_to_blame && nth == 0 {
                true if is_overdue && batch.is_first => Setback::Unclear,
                true => Setback::Fatal,
                false => Setback::Lost,
            };
            self.replay(batch, Loss { device: id, setback, reason }, actions);
        }
        self.residency.unsettle();
    }

    /// The next worker comes at once, unless this one did not even start, or they end again and again before they have
    /// computed anything.
    fn plan_respawn(&mut self, id: DeviceId, reached: Reached, actions: &mut Vec<Action>) {
        let health = self.devices.health_mut(id);
        health.spawn_now(self.cx.now);
        let reason = health.fallback();
        let consequence = match reached {
            Reached::Proven => return health.note_failure(),
            // A device that is away does not start either; that says nothing new about it.
            Reached::NotStarted if reason == Fallback::Lost => Consequence::Temporary,
            Reached::NotStarted | Reached::Unproven => self.count_failure(id, reason, actions),
        };
        if reached == Reached::NotStarted || consequence != Consequence::Retry {
            self.devices.health_mut(id).postpone(&self.cx);
        }
    }

    pub(super) fn on_judged(&mut self, id: DeviceId, condition: Condition, actions: &mut Vec<Action>) {
        let device = self.devices.find_mut(id).map(Device::health_mut);
        if let Some(reason) = device.and_then(|health| health.judge(condition, &self.cx)) {
            self.leave(id, reason, actions);
            self.abandon(id, KillCause::RuledOut, true, actions);
        }
    }

    /// The memory of a whole device is so full, other processes included.
    pub(super) fn on_memory_use(&mut self, id: DeviceId, memory: MemoryUse, actions: &mut Vec<Action>) {
        let Some(device) = self.devices.find_mut(id).filter(|device| device.health().has_worker()) else { return };
        let before = device.memory_step();
        if before == MemoryStep::Avoided && sabotaged!(self.cx, NeverRoomy) {
            return;
        }
        let Some(step) = device.note_memory(memory) else { return };
        let is_rising = step > before;
        actions.push(Action::Notice { device: id, notice: Notice::Memory { step, is_rising, memory } });
        if is_rising && device.health().takes_orders() {
            actions.push(Action::Trim { device: id });
        }
        self.residency.unsettle();
    }

    pub(super) fn on_probed(&mut self, id: DeviceId, has_passed: bool, actions: &mut Vec<Action>) {
        let Some(health) = self.devices.find_worker(id) else { return };
        if !health.end_probe(has_passed, &self.cx) {
            return;
        }
        let reason = health.fallback();
        if reason != Fallback::Lost {
            self.count_failure(id, reason, actions);
        }
        // What is wrong may be wrong with the worker: the next probe asks another one.
        self.abandon(id, KillCause::Sticky, true, actions);
    }

    pub(super) fn on_reset(&mut self, id: DeviceId) {
        let is_tried = self.devices.find_mut(id).is_some_and(|device| device.health_mut().reset(&self.cx));
        self.residency.unsettle_if(is_tried);
    }

    /// An earlier process gave the device up.
    pub(super) fn on_given_up(&mut self, id: DeviceId, actions: &mut Vec<Action>) {
        let Some(health) = self.devices.find_worker(id) else { return };
        health.assume_given_up(Fallback::Unhealthy);
        self.residency.unsettle();
        self.abandon(id, KillCause::RuledOut, true, actions);
        self.refuse_unreachable(actions);
    }

    /// Does what time asks for: starts workers, ends those that hang, probes, brings back.
    pub(super) fn tend(&mut self, id: DeviceId, actions: &mut Vec<Action>) {
        let now = self.cx.now;
        let device = self.devices.get_mut(id);
        let watch = self.cx.speed_watch(device.meter());
        tell_speed(id, device.tend_speed(&watch, now), actions);
        let vitals = device.vitals(self.residency.memory(id));
        let health = device.health_mut();
        match health.need(vitals, &self.cx) {
            None => {}
            Some(Need::Worker) => health.spawn(now, actions),
            Some(Need::End(_)) if sabotaged!(self.cx, SkipHangCheck) => {}
            // That it does not even end says nothing of how it worked.
            Some(Need::End(cause)) if health.is_worker_resting() => self.kill(id, cause, true, actions),
            Some(Need::End(cause)) => {
                self.leave(id, Fallback::Unhealthy, actions);
                self.kill(id, cause, false, actions);
            }
            Some(Need::Probe) => health.begin_probe(now, actions),
            Some(Need::Rotation) => {
                let has_entered = health.enter(&self.cx, actions);
                self.residency.unsettle_if(has_entered);
                for model in self.residency.ids().filter(|_| has_entered) {
                    if self.requests.jobs().of(model).all == 0 {
                        self.residency.probed(id, model, &self.devices, &self.cx);
                    }
                }
            }
        }
    }

    /// One more failure of a device, and what follows from their number.
    fn count_failure(&mut self, id: DeviceId, reason: Fallback, actions: &mut Vec<Action>) -> Consequence {
        let consequence = self.devices.health_mut(id).count_failure(&self.cx);
        match consequence {
            Consequence::Retry => {}
            Consequence::Temporary => {
                self.leave(id, reason, actions);
                self.devices.health_mut(id).require_probe();
            }
            Consequence::Permanent => {
                if self.devices.health_mut(id).give_up(reason, actions) {
                    self.residency.unsettle();
                    self.abandon(id, KillCause::RuledOut, true, actions);
                    self.refuse_unreachable(actions);
                }
            }
        }
        consequence
    }

    /// The device is not there: it is looked for again after a while.
    fn lose(&mut self, id: DeviceId, actions: &mut Vec<Action>) {
        if self.devices.health(id).is_given_up() {
            return;
        }
        self.leave(id, Fallback::Lost, actions);
        let health = self.devices.health_mut(id);
        health.require_probe();
        health.postpone(&self.cx);
    }

    /// Takes a device out of rotation: it does not go on with what it has state of.
    fn leave(&mut self, id: DeviceId, reason: Fallback, actions: &mut Vec<Action>) {
        if self.devices.health_mut(id).leave(reason, actions) {
            self.residency.unsettle();
            self.preempt_all(id, None, actions);
        }
    }

    /// Ends a worker whose batches are not waited for: they are started elsewhere at once.
    fn abandon(&mut self, id: DeviceId, cause: KillCause, is_settled: bool, actions: &mut Vec<Action>) {
        self.kill(id, cause, is_settled, actions);
        let device = self.devices.get_mut(id);
        let batches = device.take_batches();
        let reason = device.health().fallback();
        for batch in batches {
            self.replay(batch, Loss { device: id, setback: Setback::Lost, reason }, actions);
        }
    }

    fn kill(&mut self, id: DeviceId, cause: KillCause, is_settled: bool, actions: &mut Vec<Action>) {
        if self.devices.health_mut(id).kill(cause, is_settled, actions) {
            self.preempt_all(id, None, actions);
        }
    }

    /// A batch of a model has left a device, computed or not.
    fn batch_left(&mut self, id: DeviceId, model: ModelId, is_computed: bool) {
        let is_used = self.devices.get(id).is_running(model);
        self.residency.batch_left((id, model), is_computed, is_used, &self.cx);
    }

    pub(super) fn on_loaded(&mut self, id: DeviceId, load: Arrival) {
        if self.residency.loaded(id, load, &self.devices, self.cx.now) {
            self.devices.health_mut(id).note_sign(self.cx.now);
        }
    }

    /// Weights are not on their device although that was ordered.
    pub(super) fn on_not_loaded(&mut self, id: DeviceId, model: ModelId, failure: Failure, actions: &mut Vec<Action>) {
        let (now, is_gpu) = (self.cx.now, self.devices.in_workers().contains(id));
        let at = (id, model);
        let Some(trouble) = self.residency.not_loaded(at, failure, is_gpu, now) else { return };
        // The memory of a worker that is ending is free soon.
        if failure == Failure::OutOfMemory && is_gpu && self.devices.health(id).takes_orders() {
            actions.push(Action::Trim { device: id });
        }
        self.devices.health_mut(id).note_sign(now);
        if let Some(trouble) = trouble {
            self.take_out(id, trouble, actions);
            self.drop_worker(id, trouble, actions);
        }
        if !is_gpu {
            self.lose_cpu(model);
        }
    }

    pub(super) fn on_offloaded(&mut self, id: DeviceId, model: ModelId) {
        if self.residency.offloaded(id, model, &self.devices) {
            self.devices.health_mut(id).note_sign(self.cx.now);
        }
    }

    /// Notes the models of which nothing waits or runs any more: their time begins.
    pub(super) fn note_quiet(&mut self) {
        while let Some(model) = self.requests.pop_quiet() {
            let is_unused = self.requests.jobs().of(model).gpu == 0;
            self.residency.note_quiet(model, is_unused, &self.cx);
        }
    }

    /// Does all that has to be done about weights. Returns whether it looked.
    pub(super) fn settle_weights(&mut self, actions: &mut Vec<Action>) -> bool {
        if !self.residency.take_due(self.cx.now) {
            return false;
        }
        self.note_presence();
        self.refuse_unreachable(actions);
        self.let_go(actions);
        self.forget(actions);
        self.bring(actions);
        self.rest(actions);
        self.note_presence();
        self.residency.note_service(self.devices.in_rotation(), self.cx.now);
        true
    }

    /// Tells residency which devices are in rotation.
    pub(super) fn note_presence(&mut self) {
        let is_blind = sabotaged!(self.cx, PlaceOnOut);
        self.residency.note_presence(if is_blind { self.devices.all() } else { self.devices.in_rotation() });
    }

    /// Sends off what is to leave, has been idle for too long, or has no room any more.
    fn let_go(&mut self, actions: &mut Vec<Action>) {
        for id in self.devices.all().iter() {
            if !self.devices.health(id).takes_orders() {
                continue;
            }
            if self.devices.in_workers().contains(id) {
                for tenant in overdrawn(self.outlook(), id) {
                    self.evict(id, tenant, actions);
                }
            }
            for model in self.residency.ids() {
                match leaves_now(self.outlook(), id, model) {
                    Ok(()) => self.offload(id, model, actions),
                    Err(wake) => self.residency.wake_by(wake),
                }
            }
        }
    }

    /// Makes weights or vectors leave. Weights do so when no batch of theirs is there any more.
    fn evict(&mut self, id: DeviceId, tenant: Tenant, actions: &mut Vec<Action>) {
        match tenant {
            Tenant::Weights(model) => self.residency.evict(id, model),
            Tenant::Vectors(collection) => {
                self.residency.memory_mut(id).begin_drop(collection, self.cx.now);
                actions.push(Action::DropVectors { device: id, collection });
            }
        }
    }

    fn offload(&mut self, id: DeviceId, model: ModelId, actions: &mut Vec<Action>) {
        self.preempt_all(id, Some(model), actions);
        let leaves_after_use = self.residency.model(model).plan.offload_after_use;
        let is_only_here = is_only_here(self.outlook(), id, model);
        let memory = self.residency.memory_mut(id);
        let is_unused = memory.resident(model).unproven().is_some();
        let reason = match memory.resident(model).leave {
            Some(Leave::Requested) => MoveReason::Requested,
            Some(Leave::Evicted) => MoveReason::Evicted,
            None if leaves_after_use => MoveReason::AfterUse,
            None => MoveReason::Idle,
        };
        let resident = memory.resident_mut(model);
        resident.moved_for = Some(reason);
        resident.evicted_unused += u32::from(reason == MoveReason::Evicted && is_unused && !is_only_here);
        memory.begin_offload(model, self.cx.now);
        if self.devices.in_process().contains(id) {
            self.lose_cpu(model);
        }
        actions.push(Action::Offload { device: id, model });
    }

    /// The CPU does not have a model, or will not have it: what counted on that waits with an end.
    fn lose_cpu(&mut self, model: ModelId) {
        self.requests.bound_waits(model, self.cx.now + self.cx.options.recovery.start_max, &self.cx);
    }

    /// Lets go of what is in the host's memory where that is requested, or it was not used for long.
    fn forget(&mut self, actions: &mut Vec<Action>) {
        for id in self.residency.ids() {
            let requests = self.requests.jobs().of(id).all;
            if self.residency.is_host_overdue(id, requests, &self.devices, &self.cx) {
                for cpu in self.devices.in_process().iter() {
                    let is_there = self.residency.send_away(cpu, id) && self.outlook().resident(cpu, id).is_present();
                    if is_there && !self.devices.get(cpu).is_running(id) {
                        self.offload(cpu, id, actions);
                    }
                }
            }
            self.residency.forget_released(id, &self.cx, actions);
        }
    }

    /// Orders the loads that should begin now, and makes room for those that cannot yet.
    fn bring(&mut self, actions: &mut Vec<Action>) {
        self.residency.begin_loading();
        self.note_presence();
        let mut promised = vec![0_u64; self.devices.iter().count()];
        let mut counted_on = DeviceSet::EMPTY;
        for demand in self.loading().demands() {
            let Some(choice) = self.loading().best_choice(&demand, &promised) else { continue };
            let gpu = choice.device;
            if matches!(choice.plan, RoomPlan::Soon | RoomPlan::Evict(_)) {
                counted_on = counted_on.with(gpu);
            }
            for tenant in self.loading().meet(&demand, choice, &mut promised, actions) {
                self.evict(gpu, tenant, actions);
                if let Tenant::Weights(model) = tenant
                    && (!self.devices.is_in_use(gpu, model) || sabotaged!(self.cx, OffloadUnderBatch))
                {
                    self.offload(gpu, model, actions);
                }
            }
        }
        self.loading().end(counted_on);
        self.loading().bring_to_cpus(actions);
        for gpu in self.devices.in_workers().iter() {
            if self.residency.memory(gpu).is_woken {
                self.tend(gpu, actions);
            }
        }
    }

    fn loading(&mut self) -> Loading<'_> {
        let Self { cx, devices, residency, requests, .. } = self;
        Loading { cx, devices, requests, residency }
    }

    /// Lets workers go that have had no weights for a while.
    fn rest(&mut self, actions: &mut Vec<Action>) {
        for id in self.devices.in_workers().iter() {
            // What waits for a model that is just being released brings it back: then its worker is needed.
            let is_called_for = self.requests.queue().keys().any(|bucket| bucket.reach.may.contains(id));
            let health = self.devices.health_mut(id);
            if self.residency.rests(id, is_called_for, health.can_rest(), &self.cx) {
                health.rest(self.cx.now, actions);
            }
        }
    }
}

fn tell_speed(device: DeviceId, change: Option<SpeedChange>, actions: &mut Vec<Action>) {
    let notice = match change {
        None | Some(SpeedChange::Untested { was_told: false, .. }) => return,
        Some(SpeedChange::Slowed { figures, .. }) => Notice::Slowed(figures),
        Some(SpeedChange::Regained { figures, .. }) => Notice::Regained(figures),
        Some(SpeedChange::Untested { was_told: true, .. }) => Notice::Untested,
    };
    actions.push(Action::Notice { device, notice });
}
