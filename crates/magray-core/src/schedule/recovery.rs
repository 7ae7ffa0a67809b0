//! Workers that come, go, hang and lie: takes devices out of rotation, brings them back, saves their batches.
//! Never gives a device a batch while its worker is not known to be well, and never waits for one without an end.

use super::device::{Device, Need, Worker};
use super::event::Done;
use super::ladder::Rung;
use super::replay::{Loss, Setback};
use super::sabotage::sabotaged;
use super::{Action, BatchId, Change, Condition, DeviceId, DeviceState, Ending, Failure, Fallback, Fault, KillCause};
use super::{Machine, Moment};
use std::time::Duration;

/// How far a worker had come when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerEnd {
    /// It never was ready.
    NotStarted,
    /// It had computed nothing.
    Unproven,
    /// It had computed: whatever ended it, the next one may work as well.
    Proven,
}

/// What can be wrong with a worker after which it is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It can do nothing any more.
    Sticky,
    /// What it said was wrong.
    WrongAnswer,
    /// Its device is gone.
    Lost,
}

impl Trouble {
    fn reason(self) -> Fallback {
        match self {
            Self::Sticky => Fallback::Unhealthy,
            Self::WrongAnswer => Fallback::WrongAnswers,
            Self::Lost => Fallback::Lost,
        }
    }

    fn setback(self) -> Setback {
        match self {
            Self::Sticky => Setback::Fatal,
            Self::WrongAnswer | Self::Lost => Setback::Lost,
        }
    }
}

impl Machine {
    /// A batch was computed.
    pub(super) fn on_finished(&mut self, batch: BatchId, done: Done<'_>, now: Moment, actions: &mut Vec<Action>) {
        let Some((id, batch)) = self.take_batch(batch, now) else { return };
        let Done { compute, outcomes } = done;
        let prior = self.prior(id, batch.group);
        self.device_mut(id).finished(&batch, compute, prior);
        self.batch_left(id, batch.group, true, now);
        self.answer((id, batch), outcomes, now, actions);
    }

    /// A batch was not computed.
    pub(super) fn on_failed(&mut self, batch: BatchId, failure: Failure, now: Moment, actions: &mut Vec<Action>) {
        let Some((id, batch)) = self.take_batch(batch, now) else { return };
        self.batch_left(id, batch.group, false, now);
        let loss = |setback, reason| Loss { device: id, setback, reason };
        if failure == Failure::OutOfMemory {
            actions.push(Action::Trim { device: id });
            // A prompt can be computed in smaller chunks.
            let is_divisible = batch.load.texts > 1 || batch.is_turn() && batch.load.tokens > 1;
            let setback = if is_divisible { Setback::TooLarge } else { Setback::NeverFits };
            self.device_mut(id).halve(batch.load.tokens);
            return self.replay(batch, loss(setback, Fallback::OutOfMemory), actions);
        }
        if !self.in_workers.contains(id) {
            return self.replay(batch, loss(Setback::FailedInProcess, Fallback::Unhealthy), actions);
        }
        let trouble = match failure {
            Failure::OutOfMemory => return,
            Failure::Transient => {
                let was_waiting = self.device(id).needs_probe;
                let rung = self.climb(id, Fallback::Unhealthy, now, actions);
                if rung == Rung::Temporary && !was_waiting {
                    self.device_mut(id).probe_at = now + self.next_delay(id);
                }
                return self.replay(batch, loss(Setback::Transient, Fallback::Unhealthy), actions);
            }
            Failure::Sticky => Trouble::Sticky,
            Failure::WrongAnswer => Trouble::WrongAnswer,
            Failure::Lost => Trouble::Lost,
        };
        self.take_out(id, trouble, now, actions);
        self.replay(batch, loss(trouble.setback(), trouble.reason()), actions);
        self.drop_worker(id, trouble, actions);
    }

    /// Takes a device out of rotation whose worker is to be replaced.
    pub(super) fn take_out(&mut self, id: DeviceId, trouble: Trouble, now: Moment, actions: &mut Vec<Action>) {
        match trouble {
            Trouble::Sticky => self.leave(id, trouble.reason(), actions),
            Trouble::WrongAnswer => {
                self.leave(id, trouble.reason(), actions);
                let next = now + self.next_delay(id);
                let device = self.device_mut(id);
                device.needs_probe = true;
                device.probe_at = next;
                let has_worked = device.has_worked;
                // A worker that has computed nothing is not replaced again and again without a pause.
                if self.climb(id, trouble.reason(), now, actions) != Rung::Retry && !has_worked {
                    self.device_mut(id).spawn_at = next;
                }
            }
            Trouble::Lost => self.lose(id, now, actions),
        }
    }

    /// Ends a worker after such trouble. What a sticky failure means is found when it is gone.
    pub(super) fn drop_worker(&mut self, id: DeviceId, trouble: Trouble, actions: &mut Vec<Action>) {
        self.abandon(id, KillCause::Sticky, trouble != Trouble::Sticky, actions);
    }

    pub(super) fn on_up(&mut self, id: DeviceId, now: Moment) {
        let Some(device) = self.in_worker_mut(id) else { return };
        if let Worker::Starting { since } = device.worker {
            device.start_time = now.since(since);
            device.worker = Worker::Ready;
            device.has_worked = false;
            device.last_sign = now;
            self.residency.unsettle();
        }
    }

    pub(super) fn on_heartbeat(&mut self, id: DeviceId, now: Moment) {
        if let Some(device) = self.in_worker_mut(id).filter(|device| device.worker == Worker::Ready) {
            device.last_sign = now;
        }
    }

    /// A worker is gone, and its batches with it.
    pub(super) fn on_down(&mut self, id: DeviceId, ending: Ending, now: Moment, actions: &mut Vec<Action>) {
        let Some(device) = self.in_worker_mut(id) else { return };
        let worker = device.worker;
        let is_stale = match worker {
            Worker::Absent => true,
            // Nobody ordered this one to end: the news is of the worker before it.
            Worker::Starting { .. } => ending == Ending::Ordered,
            Worker::Ready | Worker::Resting { .. } | Worker::Ending { .. } => false,
        };
        if is_stale {
            return;
        }
        let was_probing = device.probing_since.take().is_some();
        let is_unproven = !device.has_worked || was_probing;
        device.worker = Worker::Absent;
        let batches = std::mem::take(&mut device.running);
        let (cause, is_settled) = match worker {
            Worker::Ending { cause, is_settled } => (Some(cause), is_settled),
            Worker::Resting { .. } => (None, true),
            _ => (None, false),
        };
        let is_load_to_blame = ending == Ending::Crashed || cause == Some(KillCause::LoadOverdue);
        let memory = self.residency.memory_mut(id);
        if let Some(model) = memory.loading().filter(|_| is_load_to_blame) {
            memory.resident_mut(model).tries.fail_with_worker(now);
        }
        let sequences = memory.clear();
        self.preempt_those(sequences, actions);
        if ending == Ending::Lost {
            self.lose(id, now, actions);
        } else if !is_settled {
            self.leave(id, Fallback::Unhealthy, actions);
            let end = match cause {
                Some(KillCause::StartOverdue) => WorkerEnd::NotStarted,
                _ if ending == Ending::NotStarted => WorkerEnd::NotStarted,
                _ if is_unproven => WorkerEnd::Unproven,
                _ => WorkerEnd::Proven,
            };
            self.plan_respawn(id, end, now, actions);
        }
        let is_overdue = cause == Some(KillCause::Overdue) && ending == Ending::Ordered;
        let is_to_blame = ending == Ending::Crashed || is_overdue;
        let reason = self.device(id).fallback();
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

    /// Telemetry has spoken.
    pub(super) fn on_judged(&mut self, id: DeviceId, condition: Condition, actions: &mut Vec<Action>) {
        let now = self.now;
        let is_bad = matches!(condition, Condition::Bad(_));
        // The CPU is this process: if it were not well, nobody would know.
        let Some(device) = self.devices.get_mut(usize::from(id.0)).filter(|device| device.has_worker() || !is_bad)
        else {
            return;
        };
        let was_bad = matches!(device.condition, Condition::Bad(_));
        if is_bad && sabotaged!(self, IgnoreBad) {
            return;
        }
        device.condition = condition;
        if device.is_given_up() {
            return;
        }
        if let Condition::Bad(fault) = condition {
            device.needs_probe = true;
            self.leave(id, reason_of_fault(fault), actions);
            self.abandon(id, KillCause::RuledOut, true, actions);
        } else if was_bad {
            device.spawn_at = now;
            device.probe_at = now;
        }
    }

    /// A probe is answered.
    pub(super) fn on_probed(&mut self, id: DeviceId, has_passed: bool, now: Moment, actions: &mut Vec<Action>) {
        let recovery = self.options.recovery;
        let Some(device) = self.in_worker_mut(id).filter(|device| device.worker == Worker::Ready) else { return };
        if device.probing_since.take().is_none() {
            return;
        }
        device.last_sign = now;
        if has_passed {
            device.needs_probe = false;
            device.ladder.forgive(&recovery);
            return;
        }
        let next = now + self.next_delay(id);
        let device = self.device_mut(id);
        device.spawn_at = next;
        device.probe_at = next;
        let reason = device.fallback();
        if reason != Fallback::Lost {
            self.climb(id, reason, now, actions);
        }
        // What is wrong may be wrong with the worker: the next probe asks another one.
        self.abandon(id, KillCause::Sticky, true, actions);
    }

    /// Somebody says that the device is in order.
    pub(super) fn on_reset(&mut self, id: DeviceId, now: Moment) {
        let recovery = self.options.recovery;
        let Some(device) = self.devices.get_mut(usize::from(id.0)) else { return };
        device.ladder.reset(&recovery);
        match device.state {
            DeviceState::Starting | DeviceState::InRotation | DeviceState::Resting => return,
            DeviceState::Recovering(_) => {}
            DeviceState::Out(reason) => {
                device.state = DeviceState::Recovering(reason);
                device.needs_probe = true;
            }
        }
        device.spawn_at = now;
        device.probe_at = now;
        self.residency.unsettle();
    }

    /// An earlier process gave the device up.
    pub(super) fn on_given_up(&mut self, id: DeviceId, actions: &mut Vec<Action>) {
        let Some(device) = self.in_worker_mut(id) else { return };
        device.state = DeviceState::Out(Fallback::Unhealthy);
        // Whoever told this knows it: no alert, but its return is one.
        device.is_known = true;
        self.residency.unsettle();
        self.abandon(id, KillCause::RuledOut, true, actions);
        self.refuse_unreachable(actions);
    }

    /// Does what time asks for: starts workers, ends those that hang, probes, brings back.
    pub(super) fn tend(&mut self, id: DeviceId, now: Moment, actions: &mut Vec<Action>) {
        let recovery = self.options.recovery;
        let device = &mut self.devices[usize::from(id.0)];
        device.ladder.decay(&recovery, now);
        let need = device.need(self.residency.memory(id), &recovery, now);
        match need {
            None => {}
            Some(Need::Worker) => {
                let device = self.device_mut(id);
                device.worker = Worker::Starting { since: now };
                device.has_worked = false;
                // One that is woken has not failed.
                device.tally.spawns += u64::from(device.state != DeviceState::Resting);
                actions.push(Action::Spawn { device: id });
            }
            Some(Need::End(_)) if sabotaged!(self, SkipHangCheck) => {}
            // That it does not even end says nothing of how it worked.
            Some(Need::End(cause)) if matches!(self.device(id).worker, Worker::Resting { .. }) => {
                self.kill(id, cause, true, actions);
            }
            Some(Need::End(cause)) => {
                self.leave(id, Fallback::Unhealthy, actions);
                self.kill(id, cause, false, actions);
            }
            Some(Need::Probe) => {
                let device = self.device_mut(id);
                device.probing_since = Some(now);
                device.tally.probes += 1;
                actions.push(Action::Probe { device: id });
            }
            Some(Need::Rotation) if sabotaged!(self, NeverReturn) && self.device(id).is_known => {}
            Some(Need::Rotation) => self.enter(id, actions),
        }
    }

    /// One more failure of a device, and what follows from their number.
    fn climb(&mut self, id: DeviceId, reason: Fallback, now: Moment, actions: &mut Vec<Action>) -> Rung {
        let recovery = self.options.recovery;
        let rung = self.device_mut(id).ladder.count(&recovery, now);
        match rung {
            Rung::Retry => {}
            Rung::Temporary => {
                self.leave(id, reason, actions);
                self.device_mut(id).needs_probe = true;
            }
            Rung::Permanent => self.give_up(id, reason, actions),
        }
        rung
    }

    /// Decides when a device whose worker ended gets the next one: at once, unless it does not even start, or ends
    /// again and again before it has computed anything.
    fn plan_respawn(&mut self, id: DeviceId, end: WorkerEnd, now: Moment, actions: &mut Vec<Action>) {
        let reason = self.device(id).fallback();
        self.device_mut(id).spawn_at = now;
        if end == WorkerEnd::Proven {
            return self.device_mut(id).ladder.note();
        }
        let has_not_started = end == WorkerEnd::NotStarted;
        // A device that is away does not start either; that says nothing new about it.
        let is_away = has_not_started && reason == Fallback::Lost;
        let rung = if is_away { Rung::Temporary } else { self.climb(id, reason, now, actions) };
        if has_not_started || rung != Rung::Retry {
            let delay = self.next_delay(id);
            let device = self.device_mut(id);
            device.spawn_at = now + delay;
            device.probe_at = now + delay;
        }
    }

    /// The device is not there: it is looked for again after a while.
    fn lose(&mut self, id: DeviceId, now: Moment, actions: &mut Vec<Action>) {
        if self.device(id).is_given_up() {
            return;
        }
        self.leave(id, Fallback::Lost, actions);
        let delay = self.next_delay(id);
        let device = self.device_mut(id);
        device.needs_probe = true;
        device.spawn_at = now + delay;
        device.probe_at = now + delay;
    }

    /// Takes a device out of rotation, or says why it still is.
    fn leave(&mut self, id: DeviceId, reason: Fallback, actions: &mut Vec<Action>) {
        let device = self.device_mut(id);
        if device.is_given_up() {
            return;
        }
        let was_in_rotation = matches!(device.state, DeviceState::InRotation | DeviceState::Resting);
        // A cause that is known is the better reason than what followed from it.
        let reason = match (device.condition, device.state) {
            (Condition::Bad(fault), _) => reason_of_fault(fault),
            (_, DeviceState::Recovering(known)) if reason == Fallback::Unhealthy => known,
            _ => reason,
        };
        device.state = DeviceState::Recovering(reason);
        if was_in_rotation || !device.is_known {
            device.is_known = true;
            actions.push(Action::Alert { device: id, change: Change::Left { reason, is_permanent: false } });
        }
        self.residency.unsettle();
        self.preempt_all(id, None, actions);
    }

    /// Takes a device out until somebody resets it.
    fn give_up(&mut self, id: DeviceId, reason: Fallback, actions: &mut Vec<Action>) {
        let device = self.device_mut(id);
        if device.is_given_up() {
            return;
        }
        device.state = DeviceState::Out(reason);
        device.is_known = true;
        self.residency.unsettle();
        actions.push(Action::Alert { device: id, change: Change::Left { reason, is_permanent: true } });
        self.abandon(id, KillCause::RuledOut, true, actions);
        self.refuse_unreachable(actions);
    }

    fn enter(&mut self, id: DeviceId, actions: &mut Vec<Action>) {
        let device = self.device_mut(id);
        let has_rested = std::mem::replace(&mut device.state, DeviceState::InRotation) == DeviceState::Resting;
        self.residency.unsettle();
        let device = self.device_mut(id);
        if std::mem::replace(&mut device.is_known, true) && !has_rested {
            actions.push(Action::Alert { device: id, change: Change::Returned });
        }
    }

    /// Ends a worker whose batches are not waited for: they are started elsewhere at once.
    fn abandon(&mut self, id: DeviceId, cause: KillCause, is_settled: bool, actions: &mut Vec<Action>) {
        self.kill(id, cause, is_settled, actions);
        let device = self.device_mut(id);
        let batches = std::mem::take(&mut device.running);
        let reason = device.fallback();
        for batch in batches {
            self.replay(batch, Loss { device: id, setback: Setback::Lost, reason }, actions);
        }
    }

    fn kill(&mut self, id: DeviceId, cause: KillCause, is_settled: bool, actions: &mut Vec<Action>) {
        let device = self.device_mut(id);
        match &mut device.worker {
            Worker::Absent => {}
            Worker::Ending { is_settled: settled, .. } => *settled |= is_settled,
            Worker::Starting { .. } | Worker::Ready | Worker::Resting { .. } => {
                device.worker = Worker::Ending { cause, is_settled };
                actions.push(Action::Kill { device: id, cause });
                self.preempt_all(id, None, actions);
            }
        }
    }

    /// Takes a batch from the device that had it; none if it was given up before.
    fn take_batch(&mut self, batch: BatchId, now: Moment) -> Option<(DeviceId, super::device::Running)> {
        let ids = self.in_workers.union(self.in_process);
        for id in ids.iter() {
            let device = self.device_mut(id);
            let Some(at) = device.running.iter().position(|running| running.batch == batch) else { continue };
            device.last_sign = now;
            let running = device.running.remove(at)?;
            if at == 0
                && let Some(next) = device.running.front_mut()
            {
                next.computing_since = now;
            }
            return Some((id, running));
        }
        None
    }

    fn next_delay(&mut self, id: DeviceId) -> Duration {
        let recovery = self.options.recovery;
        self.device_mut(id).ladder.next_delay(&recovery)
    }

    fn in_worker_mut(&mut self, id: DeviceId) -> Option<&mut Device> {
        self.devices.get_mut(usize::from(id.0)).filter(|device| device.has_worker())
    }

    pub(super) fn device(&self, id: DeviceId) -> &Device {
        &self.devices[usize::from(id.0)]
    }

    pub(super) fn device_mut(&mut self, id: DeviceId) -> &mut Device {
        &mut self.devices[usize::from(id.0)]
    }
}

fn reason_of_fault(fault: Fault) -> Fallback {
    match fault {
        Fault::Lost => Fallback::Lost,
        other => Fallback::Ruled(other),
    }
}
