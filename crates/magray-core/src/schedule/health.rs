//! The health of one device: its worker, whether it is in rotation, its failures, and when it is tried again.
//! Knows neither batches nor weights: those who own them follow what is decided here.

use super::context::Context;
use super::failure_count::{Consequence, FailureCount};
use super::sabotage::sabotaged;
use super::{Action, Change, Condition, DeviceId, DeviceState, Ending, Fallback, Fault, KillCause};
use super::{Location, Moment, Recovery};
use std::time::Duration;

/// The first batch of a group may take this many times longer before it is overdue: the device may have to prepare
/// itself for it. So may a probe, and a worker that was asked to end.
pub(super) const FIRST_BATCH_GRACE: u32 = 5;
/// How long a worker is expected to take to start before one has.
const START: Duration = Duration::from_secs(2);

/// A device's worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worker {
    Absent,
    /// Asked for, not ready.
    Starting {
        since: Moment,
    },
    Ready,
    /// Asked to end because no request needs it.
    Resting {
        since: Moment,
    },
    /// Ordered to end.
    Ending {
        cause: KillCause,
        /// Whether what led to it was counted when it happened, or is nothing to count.
        is_settled: bool,
    },
}

/// What a device needs to be of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Worker,
    /// The end of the worker that it has.
    End(KillCause),
    Probe,
    /// Nothing more: it can be used.
    Rotation,
}

/// What the health of a device is watched by beside its worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vitals {
    pub(super) batch_overdue_at: Option<Moment>,
    pub(super) batch_late_at: Option<Moment>,
    pub(super) load_overdue_at: Option<Moment>,
    /// It has the weights of some model and no batch: a probe computes nothing else meanwhile.
    pub(super) can_probe: bool,
    /// Its worker rests and is needed.
    pub(super) is_woken: bool,
}

/// A worker that ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    /// Why it was killed, if it was.
    pub(super) cause: Option<KillCause>,
    pub(super) is_settled: bool,
    pub(super) reached: Reached,
}

/// How far a worker had come when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
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
    /// It can compute nothing any more.
    Sticky,
    WrongAnswer,
    /// Its device is gone.
    Lost,
}

impl Trouble {
    pub(super) fn reason(self) -> Fallback {
        match self {
            Self::Sticky => Fallback::Unhealthy,
            Self::WrongAnswer => Fallback::WrongAnswers,
            Self::Lost => Fallback::Lost,
        }
    }
}

/// How a device is, and what it waits for.
#[derive(Clone, Debug)]
pub(super) struct Health {
    device: DeviceId,
    location: Location,
    worker: Worker,
    state: DeviceState,
    condition: Condition,
    failures: FailureCount,
    /// Whether a known text must come back right before it is used.
    needs_probe: bool,
    probing_since: Option<Moment>,
    /// No worker is started, and no probe, before these.
    spawn_at: Moment,
    probe_at: Moment,
    /// Whether this worker has finished a batch.
    has_worked: bool,
    /// Whether an alert told of it, or it was in rotation.
    is_known: bool,
    last_sign: Moment,
    /// Whether a late driver was given time to tell of later signs.
    had_grace: bool,
    /// How long its last worker took to start.
    start_time: Duration,
    spawns: u64,
    probes: u64,
}

impl Health {
    pub(super) fn new(device: DeviceId, location: Location, recovery: &Recovery) -> Self {
        Self {
            device,
            location,
            worker: Worker::Absent,
            state: match location {
                Location::InProcess => DeviceState::InRotation,
                Location::Worker => DeviceState::Starting,
            },
            condition: Condition::Fine,
            failures: FailureCount::new(recovery),
            needs_probe: false,
            probing_since: None,
            spawn_at: Moment::START,
            probe_at: Moment::START,
            has_worked: false,
            is_known: false,
            last_sign: Moment::START,
            had_grace: false,
            start_time: START,
            spawns: 0,
            probes: 0,
        }
    }

    pub(super) fn state(&self) -> DeviceState {
        self.state
    }

    /// Whether a worker process computes for it, which may fail.
    pub(super) fn has_worker(&self) -> bool {
        self.location == Location::Worker
    }

    pub(super) fn is_in_rotation(&self) -> bool {
        self.state == DeviceState::InRotation
    }

    pub(super) fn is_resting(&self) -> bool {
        self.state == DeviceState::Resting
    }

    /// Whether it is in rotation, or would be as soon as it is woken.
    pub(super) fn is_used(&self) -> bool {
        self.is_in_rotation() || self.is_resting()
    }

    pub(super) fn is_given_up(&self) -> bool {
        matches!(self.state, DeviceState::Out(_))
    }

    /// Whether weights can be brought to it and taken off it.
    pub(super) fn takes_orders(&self) -> bool {
        !self.has_worker() || self.worker == Worker::Ready
    }

    pub(super) fn is_without_worker(&self) -> bool {
        self.has_worker() && self.worker == Worker::Absent
    }

    pub(super) fn is_worker_resting(&self) -> bool {
        matches!(self.worker, Worker::Resting { .. })
    }

    pub(super) fn needs_probe(&self) -> bool {
        self.needs_probe
    }

    pub(super) fn is_probing(&self) -> bool {
        self.probing_since.is_some()
    }

    pub(super) fn start_time(&self) -> Duration {
        self.start_time
    }

    pub(super) fn failures(&self) -> &FailureCount {
        &self.failures
    }

    pub(super) fn restarts(&self) -> u64 {
        self.spawns.saturating_sub(1)
    }

    pub(super) fn probes(&self) -> u64 {
        self.probes
    }

    pub(super) fn fallback(&self) -> Fallback {
        match self.state {
            DeviceState::Starting => Fallback::Starting,
            DeviceState::Recovering(reason) | DeviceState::Out(reason) => reason,
            DeviceState::Resting => Fallback::Waking,
            DeviceState::InRotation => Fallback::Unhealthy,
        }
    }

    /// The part of its speed that it is trusted with.
    pub(super) fn weight(&self) -> f64 {
        match self.condition {
            Condition::Hot { weight } if weight > 0.01 && weight < 1.0 => weight,
            Condition::Hot { weight } if weight <= 0.01 => 0.01,
            _ => 1.0,
        }
    }

    pub(super) fn need(&mut self, vitals: Vitals, cx: &Context) -> Option<Need> {
        let (now, recovery) = (cx.now, &cx.options.recovery);
        self.failures.decay(recovery, now);
        let is_due = |moment: Option<Moment>| moment.is_some_and(|moment| moment <= now);
        match self.worker {
            Worker::Absent => (self.wants_worker(vitals) && self.spawn_at <= now).then_some(Need::Worker),
            Worker::Starting { since } => {
                (since + recovery.start_max <= now).then_some(Need::End(KillCause::StartOverdue))
            }
            Worker::Ready => {
                if self.silent_at(vitals, recovery) <= now {
                    Some(Need::End(KillCause::Silent))
                } else if is_due(vitals.batch_overdue_at) || is_due(self.probe_overdue_at(recovery)) {
                    Some(Need::End(KillCause::Overdue))
                } else if is_due(vitals.load_overdue_at) {
                    Some(Need::End(KillCause::LoadOverdue))
                } else if self.needs_probe {
                    is_due(self.next_probe(vitals)).then_some(Need::Probe)
                } else {
                    (!self.is_in_rotation()).then_some(Need::Rotation)
                }
            }
            Worker::Resting { since } => {
                is_due(Some(rest_overdue_at(since, recovery))).then_some(Need::End(KillCause::Overdue))
            }
            Worker::Ending { .. } => None,
        }
    }

    /// When it may need something although nothing happens.
    pub(super) fn wake(&self, vitals: Vitals, recovery: &Recovery) -> Option<Moment> {
        match self.worker {
            Worker::Absent => self.wants_worker(vitals).then_some(self.spawn_at),
            Worker::Starting { since } => Some(since + recovery.start_max),
            Worker::Ready => {
                let silence = self.silent_at(vitals, recovery);
                let overdue = [vitals.batch_overdue_at, vitals.load_overdue_at, self.probe_overdue_at(recovery)];
                Some(overdue.into_iter().chain([self.next_probe(vitals)]).flatten().fold(silence, Moment::min))
            }
            Worker::Resting { since } => Some(rest_overdue_at(since, recovery)),
            Worker::Ending { .. } => None,
        }
    }

    /// When its silence has lasted too long.
    fn silent_at(&self, vitals: Vitals, recovery: &Recovery) -> Moment {
        let silent_at = self.last_sign + recovery.silence_max;
        let late_at = vitals.batch_late_at.map(|late| late.max(self.last_sign + recovery.late_silence_max));
        late_at.map_or(silent_at, |late_at| late_at.min(silent_at))
    }

    fn next_probe(&self, vitals: Vitals) -> Option<Moment> {
        (self.needs_probe && self.probing_since.is_none() && vitals.can_probe).then_some(self.probe_at)
    }

    fn probe_overdue_at(&self, recovery: &Recovery) -> Option<Moment> {
        self.probing_since.map(|since| since + recovery.overdue_least.saturating_mul(FIRST_BATCH_GRACE))
    }

    fn wants_worker(&self, vitals: Vitals) -> bool {
        let is_asleep = self.is_resting() && !vitals.is_woken;
        self.has_worker() && !is_asleep && !self.is_given_up() && !matches!(self.condition, Condition::Bad(_))
    }

    /// If the driver ran late, extends the deadlines of heartbeat and probe by as much.
    pub(super) fn excuse(&mut self, excused: impl Fn(Moment) -> Moment) {
        self.last_sign = excused(self.last_sign);
        self.probing_since = self.probing_since.map(excused);
    }

    /// Whether a late driver is given time to tell of signs: once after each sign.
    pub(super) fn take_grace(&mut self) -> bool {
        !std::mem::replace(&mut self.had_grace, true)
    }

    pub(super) fn note_sign(&mut self, now: Moment) {
        self.last_sign = now;
        self.had_grace = false;
    }

    pub(super) fn on_heartbeat(&mut self, now: Moment) {
        if self.worker == Worker::Ready {
            self.note_sign(now);
        }
    }

    pub(super) fn note_worked(&mut self) {
        self.has_worked = true;
    }

    pub(super) fn spawn(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.worker = Worker::Starting { since: now };
        self.has_worked = false;
        // One that is woken has not failed.
        self.spawns += u64::from(!self.is_resting());
        actions.push(Action::Spawn { device: self.device });
    }

    pub(super) fn on_up(&mut self, now: Moment) -> bool {
        let Worker::Starting { since } = self.worker else { return false };
        self.start_time = now.since(since);
        self.worker = Worker::Ready;
        self.has_worked = false;
        self.note_sign(now);
        true
    }

    /// Its worker is gone. None where that is news of the worker before.
    pub(super) fn on_down(&mut self, ending: Ending) -> Option<Ended> {
        let (cause, is_settled) = match self.worker {
            Worker::Absent => return None,
            // This one was not ordered to end: it is the one before.
            Worker::Starting { .. } if ending == Ending::Ordered => return None,
            Worker::Starting { .. } | Worker::Ready => (None, false),
            Worker::Resting { .. } => (None, true),
            Worker::Ending { cause, is_settled } => (Some(cause), is_settled),
        };
        let was_probing = self.probing_since.take().is_some();
        self.worker = Worker::Absent;
        let reached = if cause == Some(KillCause::StartOverdue) || ending == Ending::NotStarted {
            Reached::NotStarted
        } else if !self.has_worked || was_probing {
            Reached::Unproven
        } else {
            Reached::Proven
        };
        Some(Ended { cause, is_settled, reached })
    }

    /// Takes what telemetry says. Returns the fault for which its worker must be ended, if there is one.
    pub(super) fn judge(&mut self, condition: Condition, cx: &Context) -> Option<Fallback> {
        let fault = match condition {
            Condition::Bad(fault) => Some(fault),
            Condition::Fine | Condition::Hot { .. } => None,
        };
        // An executor in this process cannot be ruled out: there would be none left to say so.
        if fault.is_some() && (!self.has_worker() || sabotaged!(cx, IgnoreBad)) {
            return None;
        }
        let was_bad = matches!(std::mem::replace(&mut self.condition, condition), Condition::Bad(_));
        if self.is_given_up() {
            return None;
        }
        if fault.is_some() {
            self.needs_probe = true;
        } else if was_bad {
            (self.spawn_at, self.probe_at) = (cx.now, cx.now);
        }
        fault.map(reason_of_fault)
    }

    pub(super) fn begin_probe(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.probing_since = Some(now);
        self.probes += 1;
        actions.push(Action::Probe { device: self.device });
    }

    /// A probe is answered. Returns whether one was under way and has failed.
    pub(super) fn end_probe(&mut self, has_passed: bool, cx: &Context) -> bool {
        if self.worker != Worker::Ready || self.probing_since.take().is_none() {
            return false;
        }
        self.note_sign(cx.now);
        if has_passed {
            self.needs_probe = false;
            self.failures.forgive(&cx.options.recovery);
        } else {
            self.postpone(cx);
        }
        !has_passed
    }

    /// Forgets its failures. Returns whether it is tried again at once.
    pub(super) fn reset(&mut self, cx: &Context) -> bool {
        self.failures.reset(&cx.options.recovery);
        match self.state {
            DeviceState::Starting | DeviceState::InRotation | DeviceState::Resting => return false,
            DeviceState::Recovering(_) => {}
            DeviceState::Out(reason) => {
                self.state = DeviceState::Recovering(reason);
                self.needs_probe = true;
            }
        }
        (self.spawn_at, self.probe_at) = (cx.now, cx.now);
        true
    }

    /// Takes it out of rotation, or says why it still is. False if it was given up before.
    pub(super) fn leave(&mut self, reason: Fallback, actions: &mut Vec<Action>) -> bool {
        if self.is_given_up() {
            return false;
        }
        let was_in_rotation = self.is_used();
        // A cause that is known is the better reason than what followed from it.
        let reason = match (self.condition, self.state) {
            (Condition::Bad(fault), _) => reason_of_fault(fault),
            (_, DeviceState::Recovering(known)) if reason == Fallback::Unhealthy => known,
            _ => reason,
        };
        self.state = DeviceState::Recovering(reason);
        if was_in_rotation || !self.is_known {
            self.is_known = true;
            self.alert(Change::Left { reason, is_permanent: false }, actions);
        }
        true
    }

    /// Takes it out until it is reset. False if it was before.
    pub(super) fn give_up(&mut self, reason: Fallback, actions: &mut Vec<Action>) -> bool {
        let is_new = !self.is_given_up();
        if is_new {
            self.assume_given_up(reason);
            self.alert(Change::Left { reason, is_permanent: true }, actions);
        }
        is_new
    }

    /// The same without an alert: an earlier process sent it.
    pub(super) fn assume_given_up(&mut self, reason: Fallback) {
        self.state = DeviceState::Out(reason);
        self.is_known = true;
    }

    pub(super) fn enter(&mut self, cx: &Context, actions: &mut Vec<Action>) -> bool {
        if sabotaged!(cx, NeverReturn) && self.is_known {
            return false;
        }
        let has_rested = self.is_resting();
        self.state = DeviceState::InRotation;
        if std::mem::replace(&mut self.is_known, true) && !has_rested {
            self.alert(Change::Returned, actions);
        }
        true
    }

    fn alert(&self, change: Change, actions: &mut Vec<Action>) {
        actions.push(Action::Alert { device: self.device, change });
    }

    pub(super) fn can_rest(&self) -> bool {
        self.worker == Worker::Ready && self.is_in_rotation() && !self.needs_probe
    }

    pub(super) fn rest(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.worker = Worker::Resting { since: now };
        self.state = DeviceState::Resting;
        actions.push(Action::Rest { device: self.device });
    }

    pub(super) fn kill(&mut self, cause: KillCause, is_settled: bool, actions: &mut Vec<Action>) -> bool {
        match &mut self.worker {
            Worker::Absent => false,
            Worker::Ending { is_settled: settled, .. } => {
                *settled |= is_settled;
                false
            }
            Worker::Starting { .. } | Worker::Ready | Worker::Resting { .. } => {
                self.worker = Worker::Ending { cause, is_settled };
                actions.push(Action::Kill { device: self.device, cause });
                true
            }
        }
    }

    /// A failure that does not count against it.
    pub(super) fn note_failure(&mut self) {
        self.failures.note();
    }

    pub(super) fn count_failure(&mut self, cx: &Context) -> Consequence {
        self.failures.count(&cx.options.recovery, cx.now)
    }

    pub(super) fn require_probe(&mut self) {
        self.needs_probe = true;
    }

    pub(super) fn postpone_probe(&mut self, cx: &Context) {
        self.probe_at = cx.now + self.failures.next_delay(&cx.options.recovery);
    }

    /// A worker that has computed nothing is not replaced again and again without a pause.
    pub(super) fn postpone_spawn_if_unproven(&mut self) {
        if !self.has_worked {
            self.spawn_at = self.probe_at;
        }
    }

    /// The next worker and the next probe come after a pause.
    pub(super) fn postpone(&mut self, cx: &Context) {
        self.postpone_probe(cx);
        self.spawn_at = self.probe_at;
    }

    pub(super) fn spawn_now(&mut self, now: Moment) {
        self.spawn_at = now;
    }
}

/// When a worker that was asked to end is ended by force.
fn rest_overdue_at(since: Moment, recovery: &Recovery) -> Moment {
    since + recovery.overdue_least.saturating_mul(FIRST_BATCH_GRACE)
}

fn reason_of_fault(fault: Fault) -> Fallback {
    match fault {
        Fault::Lost => Fallback::Lost,
        other => Fallback::Ruled(other),
    }
}
