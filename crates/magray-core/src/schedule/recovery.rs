//! Workers that come, go, hang and lie: takes devices out of rotation, brings them back, saves their batches.
//! Never gives a device a batch while its worker is not known to be well, and never waits for one without an end.

use super::device::Device;
use super::event::Done;
use super::failure_count::Consequence;
use super::health::{Need, Trouble};
use super::replay::{Loss, Setback};
use super::sabotage::sabotaged;
use super::{Action, BatchId, Condition, DeviceId, Ending, Failure, Fallback, KillCause, Machine};

impl Machine {
    /// A batch was computed.
    pub(super) fn on_finished(&mut self, batch: BatchId, done: Done<'_>, actions: &mut Vec<Action>) {
        let Some((id, batch)) = self.devices.take_batch(batch, self.cx.now) else { return };
        let guessed = self.devices.guessed_cost(id, batch.group);
        self.devices.get_mut(id).finished(&batch, done.compute, guessed);
        self.batch_left(id, batch.group, true);
        self.answer((id, batch), done.outcomes, actions);
    }

    /// A batch was not computed.
    pub(super) fn on_failed(&mut self, batch: BatchId, failure: Failure, actions: &mut Vec<Action>) {
        let Some((id, batch)) = self.devices.take_batch(batch, self.cx.now) else { return };
        self.batch_left(id, batch.group, false);
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
    pub(super) fn take_out(&mut self, id: DeviceId, trouble: Trouble, actions: &mut Vec<Action>) {
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
    pub(super) fn drop_worker(&mut self, id: DeviceId, trouble: Trouble, actions: &mut Vec<Action>) {
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
            let health = self.devices.health_mut(id);
            let reason = health.fallback();
            let is_counted = health.plan_respawn(ended, now);
            let counted = is_counted.then(|| self.count_failure(id, reason, actions));
            self.devices.health_mut(id).delay_respawn(ended, counted, &self.cx);
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

    pub(super) fn on_judged(&mut self, id: DeviceId, condition: Condition, actions: &mut Vec<Action>) {
        let device = self.devices.find_mut(id).map(Device::health_mut);
        if let Some(reason) = device.and_then(|health| health.judge(condition, &self.cx)) {
            self.leave(id, reason, actions);
            self.abandon(id, KillCause::RuledOut, true, actions);
        }
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
}
