//! A device as the machine sees it: its worker, its batches, what they cost, how it stands.
//! Decides nothing: it answers what can be said of one device alone.

use super::cost::{Cost, CostModel, Sample};
use super::device_memory::DeviceMemory;
use super::ladder::Ladder;
use super::phase::Reach;
use super::queue::Load;
use super::{BatchId, Condition, DeviceKind, DeviceSpec, DeviceState, DeviceView, Fallback};
use super::{Group, KillCause, Location, ModelId, Moment, Options, Recovery, Span, Step};
use crate::moment::{from_micros, micros};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A batch is about to end when this is left of its expected time: long enough to hand the next one over.
pub(super) const NEAR_END_US: f64 = 100.0;
/// A batch that may wait for the last of its weights may take this much longer, or this many times as long as they took
/// to come.
const ARRIVAL_GRACE: Duration = Duration::from_secs(1);
const ARRIVAL_GRACE_TIMES: u32 = 2;
/// A batch of a group that this device has never computed may take this many times longer before it is overdue: the
/// device may have to prepare itself for it.
const FIRST_BATCH_GRACE: u32 = 5;
/// Good batches after which the cap that followed a full memory is doubled.
const GOOD_BATCHES: u32 = 8;
/// Groups whose costs are remembered. Beyond that, one is forgotten: its next batch measures it anew.
const GROUPS_MAX: usize = 1024;
/// How long a worker is expected to take to start before one has.
const START: Duration = Duration::from_secs(2);
/// How much of the measured speed is kept with each further batch.
const SPEED_KEPT: f64 = 0.9;
/// A turn with so many tokens a step is mostly prompts.
const PROMPT_TOKENS: u64 = 4;
/// However slow a CPU is, its largest batch divided by this may wait for it.
const CPU_LEAST_PART: u64 = 4;

/// A device's worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worker {
    /// There is none.
    Absent,
    /// Asked for, not ready.
    Starting { since: Moment },
    /// It takes batches.
    Ready,
    /// Asked to end because nobody needs it.
    Resting { since: Moment },
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
    /// A worker.
    Worker,
    /// The end of the one that it has.
    End(KillCause),
    /// A probe.
    Probe,
    /// Nothing more: it can be used.
    Rotation,
}

/// A batch under way.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) batch: BatchId,
    pub(super) group: Group,
    pub(super) steps: Vec<RunningStep>,
    /// Whether it holds one request because that was a suspect when it started.
    pub(super) is_trial: bool,
    pub(super) load: Load,
    pub(super) started: Moment,
    /// When the device began with it: those before it were done.
    pub(super) computing_since: Moment,
    pub(super) expected_us: f64,
    /// How long it may take.
    pub(super) patience: Duration,
    /// Whether the device had computed nothing of the model since its weights came: they may still be arriving.
    pub(super) is_first: bool,
}

/// A step in a batch.
#[derive(Clone, Debug)]
pub(super) struct RunningStep {
    pub(super) step: Step,
    pub(super) reach: Reach,
    pub(super) fallback: Option<Fallback>,
}

impl Running {
    /// Whether it computes parts of sequences.
    pub(super) fn is_turn(&self) -> bool {
        self.steps.first().is_some_and(|running| running.step.span != Span::Whole)
    }
}

/// A device.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) spec: DeviceSpec,
    pub(super) worker: Worker,
    pub(super) state: DeviceState,
    pub(super) condition: Condition,
    pub(super) ladder: Ladder,
    /// Whether a known text must come back right before it is used.
    pub(super) needs_probe: bool,
    pub(super) probing_since: Option<Moment>,
    /// No worker is started, and no probe, before these.
    pub(super) spawn_at: Moment,
    pub(super) probe_at: Moment,
    /// Whether this worker has finished a batch.
    pub(super) has_worked: bool,
    /// Whether people were told of it, or saw it in rotation.
    pub(super) is_known: bool,
    pub(super) last_sign: Moment,
    /// The one that it computes first, then those at hand.
    pub(super) running: VecDeque<Running>,
    /// Whether part of it has had nothing to do since the last batch was started.
    pub(super) has_spare: bool,
    pub(super) tally: Tally,
    /// How long its last worker took to start.
    pub(super) start_time: Duration,
    /// Tokens of a batch at most, after its memory was full.
    cap: Option<u64>,
    good_batches: u32,
    costs: BTreeMap<Group, CostModel>,
    tokens_per_us: Option<f64>,
}

/// What is counted of a device for people.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) batches: u64,
    pub(super) texts: u64,
    pub(super) busy: Duration,
    pub(super) spawns: u64,
    pub(super) probes: u64,
}

impl Device {
    pub(super) fn new(spec: DeviceSpec, options: &Options) -> Self {
        let state = match spec.location {
            Location::InProcess => DeviceState::InRotation,
            Location::Worker => DeviceState::Starting,
        };
        Self {
            spec,
            worker: Worker::Absent,
            state,
            condition: Condition::Fine,
            ladder: Ladder::new(&options.recovery),
            needs_probe: false,
            probing_since: None,
            spawn_at: Moment::START,
            probe_at: Moment::START,
            has_worked: false,
            is_known: false,
            last_sign: Moment::START,
            running: VecDeque::new(),
            has_spare: false,
            tally: Tally::default(),
            start_time: START,
            cap: None,
            good_batches: 0,
            costs: BTreeMap::new(),
            tokens_per_us: None,
        }
    }

    /// Whether a worker process computes for it, which may fail.
    pub(super) fn has_worker(&self) -> bool {
        self.spec.location == Location::Worker
    }

    pub(super) fn is_in_rotation(&self) -> bool {
        self.state == DeviceState::InRotation
    }

    /// Whether it is out until somebody resets it.
    pub(super) fn is_given_up(&self) -> bool {
        matches!(self.state, DeviceState::Out(_))
    }

    /// Whether weights can be brought to it and taken off it.
    pub(super) fn takes_orders(&self) -> bool {
        !self.has_worker() || self.worker == Worker::Ready
    }

    /// Whether it has a batch of a model.
    pub(super) fn is_running(&self, model: ModelId) -> bool {
        self.running.iter().any(|batch| batch.group.model == model)
    }

    /// Whether it has a turn of a group.
    pub(super) fn has_turn(&self, group: Group) -> bool {
        self.running.iter().any(|batch| batch.group == group && batch.is_turn())
    }

    /// Why it does not compute, in the words of an answer.
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

    pub(super) fn has_free_slot(&self) -> bool {
        self.running.len() < self.spec.slots.max(1)
    }

    /// When it is expected to be done with all its batches, in microseconds from now. A batch that is late is expected
    /// to take as long again as it is late: one that hangs soon keeps nobody waiting for it.
    pub(super) fn remaining_us(&self, now: Moment) -> f64 {
        let Some(front) = self.running.front() else { return 0.0 };
        let elapsed = micros(now.since(front.computing_since));
        let behind: f64 = self.running.iter().skip(1).map(|batch| batch.expected_us).sum();
        (front.expected_us - elapsed).abs() + behind
    }

    /// When the batch that it computes is expected to end.
    pub(super) fn expected_end(&self) -> Option<Moment> {
        self.running.front().map(|front| front.computing_since + from_micros(front.expected_us))
    }

    /// When the batch that it computes is overdue.
    fn overdue_at(&self) -> Option<Moment> {
        self.running.front().map(|front| front.computing_since + front.patience)
    }

    /// How long a batch may take that is expected to take so long.
    pub(super) fn patience(&self, group: Group, expected_us: f64, recovery: &Recovery) -> Duration {
        if !self.is_measured(group) {
            return recovery.overdue_least.saturating_mul(FIRST_BATCH_GRACE);
        }
        recovery.overdue_least.max(from_micros(expected_us * recovery.overdue_factor.max(1.0)))
    }

    /// How much longer than usual a batch of a model may take because its weights may still be arriving.
    pub(super) fn arrival_grace(memory: &DeviceMemory, model: ModelId) -> Option<Duration> {
        let took = memory.resident(model).unproven()?;
        Some(ARRIVAL_GRACE.max(took.saturating_mul(ARRIVAL_GRACE_TIMES)))
    }

    /// What it needs now.
    pub(super) fn need(&self, memory: &DeviceMemory, recovery: &Recovery, now: Moment) -> Option<Need> {
        match self.worker {
            Worker::Absent => (self.wants_worker(memory) && self.spawn_at <= now).then_some(Need::Worker),
            Worker::Starting { since } => {
                (since + recovery.start_max <= now).then_some(Need::End(KillCause::StartOverdue))
            }
            Worker::Ready => {
                let is_due = |moment: Option<Moment>| moment.is_some_and(|moment| moment <= now);
                if self.last_sign + recovery.silence_max <= now {
                    Some(Need::End(KillCause::Silent))
                } else if is_due(self.overdue_at()) || is_due(self.probe_overdue_at(recovery)) {
                    Some(Need::End(KillCause::Overdue))
                } else if is_due(memory.overdue_at()) {
                    Some(Need::End(KillCause::LoadOverdue))
                } else if self.needs_probe {
                    is_due(self.next_probe(memory)).then_some(Need::Probe)
                } else {
                    (!self.is_in_rotation()).then_some(Need::Rotation)
                }
            }
            Worker::Resting { .. } => {
                self.rest_overdue_at(recovery).filter(|&due| due <= now).map(|_| Need::End(KillCause::Overdue))
            }
            Worker::Ending { .. } => None,
        }
    }

    /// When it may need something although nothing happens.
    pub(super) fn wake(&self, memory: &DeviceMemory, recovery: &Recovery) -> Option<Moment> {
        match self.worker {
            Worker::Absent => self.wants_worker(memory).then_some(self.spawn_at),
            Worker::Starting { since } => Some(since + recovery.start_max),
            Worker::Ready => {
                let silence = self.last_sign + recovery.silence_max;
                let overdue = [self.overdue_at(), self.probe_overdue_at(recovery), memory.overdue_at()];
                let others = overdue.into_iter().chain([self.next_probe(memory)]);
                Some(others.flatten().fold(silence, Moment::min))
            }
            Worker::Resting { .. } => self.rest_overdue_at(recovery),
            Worker::Ending { .. } => None,
        }
    }

    /// When the next probe goes out. It needs the weights of some model, and the device computes nothing else
    /// meanwhile, so batches end before.
    fn next_probe(&self, memory: &DeviceMemory) -> Option<Moment> {
        let is_next = self.needs_probe && self.probing_since.is_none() && self.running.is_empty();
        (is_next && memory.has_weights()).then_some(self.probe_at)
    }

    /// When the probe under way is overdue.
    fn probe_overdue_at(&self, recovery: &Recovery) -> Option<Moment> {
        self.probing_since.map(|since| since + recovery.overdue_least.saturating_mul(FIRST_BATCH_GRACE))
    }

    /// When a worker that was asked to end is ended by force.
    fn rest_overdue_at(&self, recovery: &Recovery) -> Option<Moment> {
        let Worker::Resting { since } = self.worker else { return None };
        Some(since + recovery.overdue_least.saturating_mul(FIRST_BATCH_GRACE))
    }

    /// Whether a worker should be started for it.
    fn wants_worker(&self, memory: &DeviceMemory) -> bool {
        let is_asleep = self.state == DeviceState::Resting && !memory.is_woken;
        self.has_worker() && !is_asleep && !self.is_given_up() && !matches!(self.condition, Condition::Bad(_))
    }

    pub(super) fn batch_tokens_max(&self) -> u64 {
        let fixed = u64::from(self.spec.batch_tokens_max.max(1));
        self.cap.map_or(fixed, |cap| cap.min(fixed))
    }

    /// Its memory was full with a batch of so many tokens.
    pub(super) fn halve(&mut self, failed_tokens: u64) {
        self.cap = Some(self.batch_tokens_max().min((failed_tokens / 2).max(1)));
        self.good_batches = 0;
    }

    pub(super) fn is_measured(&self, group: Group) -> bool {
        self.costs.contains_key(&group)
    }

    /// What batches of a group cost here, if one was measured.
    pub(super) fn measured_cost(&self, group: Group) -> Option<Cost> {
        self.costs.get(&group).map(CostModel::cost)
    }

    /// The largest batch of a group that was computed here.
    pub(super) fn largest(&self, group: Group) -> Load {
        self.costs.get(&group).map(CostModel::largest).unwrap_or_default()
    }

    /// A batch was computed.
    pub(super) fn finished(&mut self, batch: &Running, compute: Duration, prior: Cost) {
        self.has_worked = true;
        self.tally.batches += 1;
        self.tally.texts += if batch.is_turn() { 0 } else { batch.load.texts };
        self.tally.busy = self.tally.busy.saturating_add(compute);
        let sample = Sample { load: batch.load, measured_us: micros(compute) };
        if let Some(model) = self.costs.get_mut(&batch.group) {
            model.learn(sample);
        } else {
            if self.costs.len() >= GROUPS_MAX {
                self.costs.pop_first();
            }
            self.costs.insert(batch.group, CostModel::new(prior, sample));
        }
        // Single tokens say nothing of how fast it computes what waits.
        if !batch.is_turn() || batch.load.tokens >= batch.load.texts * PROMPT_TOKENS {
            let speed = super::cost::as_f64(batch.load.tokens) / sample.measured_us.max(1.0);
            self.tokens_per_us =
                Some(self.tokens_per_us.map_or(speed, |known| known * SPEED_KEPT + speed * (1.0 - SPEED_KEPT)));
        }
        self.widen();
    }

    /// The speed measured lately.
    pub(super) fn tokens_per_us(&self) -> Option<f64> {
        self.tokens_per_us.map(|speed| speed * self.weight())
    }

    /// Tokens that it takes this long to compute, by the speed measured lately. At least so many that the next batch is
    /// a good one: a GPU that got single texts so far looks slow, and is not.
    pub(super) fn tokens_within(&self, time: Duration) -> u64 {
        let batch = self.batch_tokens_max();
        let Some(speed) = self.tokens_per_us() else { return batch };
        let least = if self.spec.kind == DeviceKind::Gpu { batch } else { batch.div_ceil(CPU_LEAST_PART) };
        super::cost::as_count(speed * micros(time)).max(least)
    }

    fn widen(&mut self) {
        let Some(cap) = self.cap else { return };
        self.good_batches += 1;
        if self.good_batches >= GOOD_BATCHES {
            let doubled = cap.saturating_mul(2);
            self.cap = (doubled < u64::from(self.spec.batch_tokens_max)).then_some(doubled);
            self.good_batches = 0;
        }
    }

    pub(super) fn view(&self, memory: &DeviceMemory) -> DeviceView {
        let restarts = self.tally.spawns.saturating_sub(1);
        let is_about_to = self.is_in_rotation() && memory.rests_at_once && memory.is_empty() && memory.vectors() == 0;
        DeviceView {
            kind: self.spec.kind,
            location: self.spec.location,
            state: self.state,
            is_ending: is_about_to || matches!(self.worker, Worker::Resting { .. }),
            weight: self.weight(),
            batches: self.running.len(),
            memory_capacity: memory.ledger().capacity(),
            accounts: memory.ledger().accounts().collect(),
            batches_finished: self.tally.batches,
            texts_finished: self.tally.texts,
            busy: self.tally.busy,
            failures: self.ladder.failures(),
            failures_total: self.ladder.failures_total(),
            restarts,
            recovery_attempts: restarts + self.tally.probes,
        }
    }
}
