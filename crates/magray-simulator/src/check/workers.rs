//! The book of workers: which device has one, what it was told to be, and what the machine may do with it.
//! Knows only what the machine was told, not how the device truly is.

use super::batches::{Batch, Batches};
use super::requests::SLACK;
use super::rule::{Broken, Rule, Verdict, holds};
use super::weights::Weights;
use magray_core::schedule::{
    Change, Condition, DeviceId, DeviceSpec, DeviceState, Ending, Event, Failure, Fault, KillCause, Location, Moment,
    Recovery, View,
};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Workers {
    known: Vec<Known>,
    recovery: Recovery,
}

#[derive(Debug)]
struct Known {
    location: Location,
    worker: Worker,
    killed: Option<KillCause>,
    /// Since when it was asked to end for lack of work.
    resting: Option<Moment>,
    /// Telemetry rules it out.
    ruled: Option<Fault>,
    /// It must answer a probe before it gets work.
    must_probe: bool,
    probing: Option<Moment>,
    /// It vanished and has not shown that it is back.
    is_lost: bool,
    /// Its worker failed in a way that needs a new worker.
    is_broken: bool,
    /// It failed a probe.
    has_failed_probe: bool,
    /// A batch failed for lack of memory at this step: the machine must trim.
    must_trim: bool,
    /// An alert said that it left.
    has_left: bool,
    is_permanent: bool,
    was_in_rotation: bool,
    /// Something was started on it at this step.
    is_started: bool,
    last_sign: Moment,
    /// Since when the batch that is now its oldest has been that.
    head: Option<(Moment, Moment)>,
    /// Cost of its slowest batch so far.
    slowest: Duration,
    /// How long a batch may wait for the last of its weights.
    arrival_grace: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worker {
    Absent,
    Starting { since: Moment },
    Up,
}

impl Workers {
    pub(crate) fn new(specs: &[DeviceSpec], recovery: Recovery, arrival_grace: Duration) -> Self {
        let known = |spec: &DeviceSpec| Known {
            location: spec.location,
            worker: Worker::Absent,
            killed: None,
            resting: None,
            ruled: None,
            must_probe: false,
            probing: None,
            is_lost: false,
            is_broken: false,
            has_failed_probe: false,
            must_trim: false,
            has_left: false,
            is_permanent: false,
            was_in_rotation: false,
            is_started: false,
            last_sign: Moment::START,
            head: None,
            slowest: Duration::ZERO,
            arrival_grace,
        };
        Self { known: specs.iter().map(known).collect(), recovery }
    }

    /// The true cost of a batch on this device, which the machine has to find out.
    pub(crate) fn note_cost(&mut self, device: DeviceId, cost: Duration) {
        let known = self.at_mut(device);
        known.slowest = known.slowest.max(cost);
    }

    pub(crate) fn heard(&mut self, event: &Event, batches: &Batches, weights: &Weights, now: Moment) {
        match event {
            Event::Up { device } => {
                let known = self.at_mut(*device);
                if let Worker::Starting { .. } = known.worker {
                    known.worker = Worker::Up;
                    known.last_sign = now;
                }
            }
            Event::Down { device, ending } => {
                let known = self.at_mut(*device);
                if known.worker != Worker::Absent {
                    known.worker = Worker::Absent;
                    known.killed = None;
                    known.resting = None;
                    known.probing = None;
                    known.is_broken = false;
                    known.has_failed_probe = false;
                    known.must_trim = false;
                    known.must_probe |= *ending == Ending::Lost;
                    known.is_lost |= *ending == Ending::Lost;
                }
            }
            Event::Heartbeat { device } => self.at_mut(*device).last_sign = now,
            Event::Finished { batch, .. } => {
                if let Some(device) = batches.get(*batch).map(|batch| batch.device) {
                    self.at_mut(device).last_sign = now;
                }
            }
            Event::Failed { batch, failure } => {
                if let Some(device) = batches.get(*batch).map(|batch| batch.device) {
                    self.at_mut(device).last_sign = now;
                    self.failed(device, *failure);
                }
            }
            Event::Judged { device, condition } => {
                let known = self.at_mut(*device);
                known.ruled = match condition {
                    Condition::Bad(fault) => Some(*fault),
                    Condition::Fine | Condition::Hot { .. } => None,
                };
                known.must_probe |= known.ruled.is_some();
                known.is_lost |= known.ruled == Some(Fault::Lost);
            }
            Event::Probed { device, passed } => {
                let known = self.at_mut(*device);
                if known.probing.take().is_some() {
                    known.last_sign = now;
                    known.must_probe &= !*passed;
                    known.is_lost &= !*passed;
                    known.has_failed_probe = !*passed;
                }
            }
            Event::Reset { device } => {
                let known = self.at_mut(*device);
                known.must_probe &= known.ruled.is_some();
                // That it is given up again is news again.
                known.is_permanent = false;
            }
            Event::GivenUp { device } => {
                // An earlier process told people.
                let known = self.at_mut(*device);
                (known.has_left, known.is_permanent) = (true, true);
            }
            Event::Loaded { device, model, .. } if weights.is_loading(*device, *model) => {
                self.at_mut(*device).last_sign = now;
            }
            Event::NotLoaded { device, model, failure } if weights.is_loading(*device, *model) => {
                let known = self.at_mut(*device);
                known.last_sign = now;
                if known.location == Location::Worker {
                    self.failed(*device, *failure);
                }
            }
            Event::Offloaded { device, model } if weights.is_leaving(*device, *model) => {
                self.at_mut(*device).last_sign = now;
            }
            Event::Loaded { .. } | Event::NotLoaded { .. } | Event::Offloaded { .. } => {}
            Event::Imaged { .. }
            | Event::Forgotten { .. }
            | Event::Memory { .. }
            | Event::MemoryUse { .. }
            | Event::VectorsAsked { .. }
            | Event::VectorsUsed { .. }
            | Event::VectorsDropped { .. }
            | Event::ModelAdded { .. }
            | Event::ModelRemoved { .. }
            | Event::ResidencyRequested { .. } => {}
            Event::Submitted(_) | Event::Cancelled(_) | Event::Read { .. } => {}
            Event::Spare { .. } | Event::Draining | Event::Tick => {}
        }
    }

    fn failed(&mut self, device: DeviceId, failure: Failure) {
        let known = self.at_mut(device);
        match failure {
            Failure::OutOfMemory => known.must_trim = known.killed.is_none(),
            Failure::Transient => {}
            Failure::Sticky => known.is_broken = true,
            Failure::WrongAnswer | Failure::Lost => {
                known.is_broken = true;
                known.must_probe = true;
                known.is_lost |= failure == Failure::Lost;
            }
        }
    }

    /// Whether the device's worker is being ended or gone.
    pub(crate) fn is_being_ended(&self, device: DeviceId) -> bool {
        let known = self.at(device);
        known.location == Location::Worker
            && (known.killed.is_some() || known.worker == Worker::Absent || known.is_broken)
    }

    /// Whether the device has a worker that is ready and not being ended.
    pub(crate) fn takes_orders(&self, device: DeviceId) -> bool {
        let known = self.at(device);
        known.worker == Worker::Up && known.killed.is_none() && known.resting.is_none()
    }

    /// The device's worker is to end for lack of work.
    pub(crate) fn rest(&mut self, device: DeviceId, now: Moment) -> Verdict {
        let is_possible = self.takes_orders(device) && !self.is_probing(device);
        let known = self.at_mut(device);
        holds(is_possible, Rule::WorkerOrder, || format!("device {} is to rest and cannot: {known:?}", device.0))?;
        known.resting = Some(now);
        Ok(())
    }

    /// Whether the device's worker was asked to end for lack of work.
    pub(crate) fn is_resting(&self, device: DeviceId) -> bool {
        self.at(device).resting.is_some()
    }

    /// Whether there is a reason beside counted failures not to use the device.
    pub(crate) fn has_reason_to_leave(&self, device: DeviceId) -> bool {
        let known = self.at(device);
        known.ruled.is_some() || known.must_probe || known.worker != Worker::Up || self.is_being_ended(device)
    }

    /// Whether the device has a worker, ready or not.
    pub(crate) fn has_worker(&self, device: DeviceId) -> bool {
        self.at(device).worker != Worker::Absent
    }

    /// Whether the device has a worker that reported ready.
    pub(crate) fn is_up(&self, device: DeviceId) -> bool {
        self.at(device).worker == Worker::Up
    }

    /// The cost of the slowest batch of any device.
    pub(crate) fn slowest(&self) -> Duration {
        self.known.iter().map(|known| known.slowest).max().unwrap_or_default()
    }

    /// Whether the device was missing at its last report.
    pub(crate) fn is_lost(&self, device: DeviceId) -> bool {
        self.at(device).is_lost
    }

    /// Whether a probe is unanswered.
    pub(crate) fn is_probing(&self, device: DeviceId) -> bool {
        self.at(device).probing.is_some()
    }

    /// Why the device's worker was ordered to end.
    pub(crate) fn kill_cause(&self, device: DeviceId) -> Option<KillCause> {
        self.at(device).killed
    }

    pub(crate) fn may_start(&mut self, device: DeviceId) -> Verdict {
        let known = self.at_mut(device);
        known.is_started = true;
        let is_usable = known.location == Location::InProcess
            || (known.worker == Worker::Up
                && known.killed.is_none()
                && !known.is_broken
                && !known.must_probe
                && known.ruled.is_none_or(|fault| fault == Fault::Lost));
        holds(is_usable, Rule::InRotation, || format!("a batch is started on device {}: {known:?}", device.0))
    }

    pub(crate) fn kill(&mut self, device: DeviceId, cause: KillCause, oldest: Option<&Batch>, now: Moment) -> Verdict {
        let recovery = self.recovery;
        let known = self.at_mut(device);
        let is_possible = known.worker != Worker::Absent && known.killed.is_none();
        holds(is_possible, Rule::WorkerOrder, || {
            format!("the worker of device {} is to be ended: it has none, or it was said before", device.0)
        })?;
        let begun = oldest.map(|batch| batch.started).or(known.probing).or(known.resting);
        let is_honest = match cause {
            KillCause::Overdue => begun.is_some_and(|begun| now.since(begun) >= recovery.overdue_least),
            KillCause::Silent => {
                let late = oldest.map_or(recovery.silence_max, |_| recovery.late_silence_max);
                now.since(known.last_sign) >= late.min(recovery.silence_max)
            }
            KillCause::Sticky => known.is_broken || known.has_failed_probe,
            // The book of weights judges it.
            KillCause::LoadOverdue => true,
            KillCause::RuledOut => known.ruled.is_some() || known.must_probe || known.has_left,
            KillCause::StartOverdue => {
                matches!(known.worker, Worker::Starting { since } if now.since(since) >= recovery.start_max)
            }
        };
        holds(is_honest, Rule::HonestKill, || {
            format!("the worker of device {} is ended as {cause:?}, and there is no such reason: {known:?}", device.0)
        })?;
        known.killed = Some(cause);
        Ok(())
    }

    pub(crate) fn spawn(&mut self, device: DeviceId, now: Moment) -> Verdict {
        let known = self.at_mut(device);
        let is_possible = known.location == Location::Worker
            && known.worker == Worker::Absent
            && known.ruled.is_none_or(|fault| fault == Fault::Lost);
        holds(is_possible, Rule::WorkerOrder, || {
            format!("a worker of device {} is to be started, and it has one or may have none: {known:?}", device.0)
        })?;
        known.worker = Worker::Starting { since: now };
        Ok(())
    }

    /// Its memory is nearly full: it must be trimmed where it can be.
    pub(crate) fn fills(&mut self, device: DeviceId) {
        let takes_orders = self.takes_orders(device);
        self.at_mut(device).must_trim |= takes_orders;
    }

    pub(crate) fn trim(&mut self, device: DeviceId) -> Verdict {
        let known = self.at_mut(device);
        let was_wanted = std::mem::take(&mut known.must_trim);
        holds(was_wanted, Rule::WorkerOrder, || {
            format!("device {} is to trim, and has not run out of memory", device.0)
        })
    }

    pub(crate) fn probe(&mut self, device: DeviceId, batches: &Batches, now: Moment) -> Verdict {
        let known = self.at_mut(device);
        let is_possible = known.worker == Worker::Up && known.killed.is_none() && known.probing.is_none();
        holds(is_possible && batches.oldest(device).is_none(), Rule::WorkerOrder, || {
            format!("device {} is to be probed and cannot be now: {known:?}", device.0)
        })?;
        known.probing = Some(now);
        Ok(())
    }

    pub(crate) fn alert(&mut self, device: DeviceId, change: Change) -> Verdict {
        let known = self.at_mut(device);
        let (is_news, has_left, is_permanent) = match change {
            // That it stays out is news even where it is out already.
            Change::Left { is_permanent, .. } => {
                (!known.has_left || (is_permanent && !known.is_permanent), true, is_permanent)
            }
            Change::Returned => (known.has_left, false, false),
        };
        holds(is_news, Rule::Alerts, || format!("{change:?} of device {} is no news", device.0))?;
        known.has_left = has_left;
        known.is_permanent = is_permanent;
        Ok(())
    }

    pub(crate) fn settle(&mut self, view: &View, batches: &Batches, now: Moment) -> Verdict {
        let recovery = self.recovery;
        for (at, known) in self.known.iter_mut().enumerate() {
            let device = DeviceId(at as u16);
            known.judge_state(at, view.devices[at].state)?;
            known.judge_end(at)?;
            if let Some(since) = known.resting.filter(|_| known.killed.is_none()) {
                holds(now.since(since) <= recovery.overdue_least * 10 + SLACK, Rule::HangsEnd, || {
                    format!("device {at} should rest since {since:?}, and its worker is not ended")
                })?;
                continue;
            }
            if known.worker != Worker::Up || known.killed.is_some() {
                known.head = None;
                continue;
            }
            holds(now.since(known.last_sign) <= recovery.silence_max + SLACK, Rule::HangsEnd, || {
                format!("device {at} is silent since {:?}, and its worker is not ended", known.last_sign)
            })?;
            known.judge_progress(at, batches.oldest(device), &recovery, now)?;
        }
        Ok(())
    }

    fn at(&self, device: DeviceId) -> &Known {
        &self.known[usize::from(device.0)]
    }

    fn at_mut(&mut self, device: DeviceId) -> &mut Known {
        &mut self.known[usize::from(device.0)]
    }
}

impl Known {
    /// Compares the machine's view of the device with its actions and alerts.
    fn judge_state(&mut self, at: usize, state: DeviceState) -> Verdict {
        let is_in = state == DeviceState::InRotation;
        let is_started = std::mem::take(&mut self.is_started);
        holds(is_in || !is_started, Rule::InRotation, || {
            format!("a batch was started on device {at}, which is {state:?}")
        })?;
        if self.location == Location::InProcess {
            return holds(is_in, Rule::HonestView, || format!("the CPU is {state:?}"));
        }
        let is_gone = self.worker != Worker::Up || self.resting.is_some();
        holds(state != DeviceState::Resting || is_gone, Rule::Rests, || {
            format!("device {at} is said to rest: {self:?}")
        })?;
        let is_ready = self.worker == Worker::Up && self.killed.is_none() && self.resting.is_none();
        holds(!is_in || is_ready, Rule::HonestView, || format!("device {at} is said to be in rotation: {self:?}"))?;
        self.was_in_rotation |= is_in;
        let is_told = if is_in || state == DeviceState::Resting {
            !self.has_left
        } else {
            self.has_left || !self.was_in_rotation
        };
        let is_out = matches!(state, DeviceState::Out(_));
        holds(is_told && (!is_out || self.is_permanent), Rule::Alerts, || {
            format!("device {at} is {state:?}, and people think that it left: {}", self.has_left)
        })
    }

    /// What must follow at once.
    fn judge_end(&mut self, at: usize) -> Verdict {
        let is_ended = self.worker == Worker::Absent || self.killed.is_some();
        let is_ruled = self.ruled.is_some_and(|fault| fault != Fault::Lost);
        holds(is_ended || !is_ruled, Rule::RuledOut, || {
            format!("device {at} is ruled out ({:?}) and its worker is not ended", self.ruled)
        })?;
        let must_trim = std::mem::take(&mut self.must_trim);
        holds(!must_trim || is_ended, Rule::WorkerOrder, || {
            format!("device {at} ran out of memory and is not asked to free any")
        })
    }

    /// A worker with heartbeats that does not finish is ended. How long is too long depends on the machine's prediction, which
    /// this book does not know: it allows 10 times the true cost of the device's slowest batch, and 10 times the minimum where
    /// nothing was predicted.
    fn judge_progress(&mut self, at: usize, oldest: Option<&Batch>, recovery: &Recovery, now: Moment) -> Verdict {
        let begun = oldest.map(|batch| batch.started).or(self.probing);
        let Some(begun) = begun else {
            self.head = None;
            return Ok(());
        };
        let since = match self.head {
            Some((head, since)) if head == begun => since,
            _ => now,
        };
        self.head = Some((begun, since));
        let most = (recovery.overdue_least * 10).max(self.slowest.mul_f64(10.0 * recovery.overdue_factor));
        let most = most + self.arrival_grace + SLACK;
        if now.since(since) > most {
            let message = format!("device {at} has not answered since {since:?}, and its worker is not ended");
            return Err(Broken { rule: Rule::HangsEnd, message });
        }
        Ok(())
    }
}
