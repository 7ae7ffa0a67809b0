//! A device: its health, its batches and what they cost.
//! Decides nothing: it answers what can be said of one device alone.

use super::cost::{Cost, CostModel, Sample, as_count, as_f64};
use super::device_memory::DeviceMemory;
use super::health::{FIRST_BATCH_GRACE, Health, Vitals};
use super::memory_step::MemoryWatch;
use super::phase::Reach;
use super::queue::Load;
use super::speed::{Company, Computed, Learnt, SpeedChange, SpeedMeter};
use super::{BatchId, DeviceId, DeviceKind, DeviceSpec, DeviceView, Fallback};
use super::{Group, MemoryStep, MemoryUse, ModelId, Moment, Outcome, Recovery, Span, SpeedWatch, Step};
use crate::moment::{from_micros, micros};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A batch is about to end when this is left of its expected time: long enough to hand the next one over.
pub(super) const NEAR_END_US: f64 = 100.0;
/// A batch that may wait for the last of its weights may take this much longer, or this many times as long as they took
/// to come.
const ARRIVAL_GRACE: Duration = Duration::from_secs(1);
const ARRIVAL_GRACE_TIMES: u32 = 2;
/// Good batches after which the cap that followed a full memory is doubled.
const GOOD_BATCHES: u32 = 8;
/// Batches of a device whose memory is nearly full have at most this part of the usual tokens.
const REDUCED_PART: u32 = 4;
/// Groups whose costs are remembered. Beyond that, one is forgotten: its next batch measures it anew.
const GROUPS_MAX: usize = 1024;
/// How much of the measured speed is kept with each further batch. Long batches say more than short ones.
const SPEED_KEPT: f64 = 0.9;
/// A turn with this many tokens a step is mostly prompts.
const PROMPT_TOKENS: u64 = 4;
/// Next tokens take this many times the time of what waits, at most.
const NEXT_TOKENS_MOST: f64 = 3.0;
/// However slow a CPU is, its largest batch divided by this may wait for it.
const CPU_LEAST_PART: u64 = 4;

/// A batch under way.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) batch: BatchId,
    pub(super) group: Group,
    pub(super) steps: Vec<RunningStep>,
    /// Whether it holds one request because that was a suspect when it started.
    pub(super) is_trial: bool,
    pub(super) load: Load,
    /// Passes over its steps at most.
    pub(super) passes: u32,
    pub(super) started: Moment,
    /// When the device began with it: those before it were done.
    pub(super) computing_since: Moment,
    pub(super) expected_us: f64,
    /// How long it may take.
    pub(super) patience: Duration,
    /// After this time it is late, though it may be under way.
    pub(super) late_after: Duration,
    /// Whether more waited when it was started than it could hold.
    pub(super) is_followed: bool,
    /// Whether the device had computed nothing of the model since its weights came: they may still be arriving.
    pub(super) is_first: bool,
    /// Set by the device. `None` where others came or went while it was computed.
    pub(super) company: Option<Company>,
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

    /// Whether it computes nothing but the next tokens of sequences.
    pub(super) fn is_next_tokens(&self) -> bool {
        self.is_turn() && self.load.tokens == self.load.texts
    }

    /// Passes that were computed, by what came of them. A sequence that proposes tokens gets more of them than passes.
    fn passes_done(&self, outcomes: &[Outcome]) -> u32 {
        let new = |outcome: &Outcome| match outcome {
            Outcome::Row => 1,
            Outcome::Tokens(new) | Outcome::End(new) => *new,
        };
        outcomes.iter().map(new).max().unwrap_or(1).clamp(1, self.passes.max(1))
    }
}

/// A device.
#[derive(Clone, Debug)]
pub(super) struct Device {
    spec: DeviceSpec,
    health: Health,
    /// The one that it computes first, then those at hand.
    running: VecDeque<Running>,
    /// Whether part of it has had nothing to do since the last batch was started.
    has_spare: bool,
    batches_finished: u64,
    texts_finished: u64,
    busy: Duration,
    preemptions: u64,
    /// Tokens of a batch at most, after its memory was full.
    cap: Option<u64>,
    good_batches: u32,
    costs: BTreeMap<Group, CostModel>,
    speed: Speed,
    meter: SpeedMeter,
    memory_watch: MemoryWatch,
    /// Since when it computes nothing but the next tokens of a group.
    undisturbed: Option<(Group, Moment)>,
    /// Microseconds that whole texts may take before the next turn; below nothing where they took more.
    beside_turns_us: f64,
}

/// Tokens lately computed, and the time they took.
#[derive(Clone, Copy, Debug, Default)]
struct Speed {
    tokens: f64,
    us: f64,
    /// Time that went to single tokens of sequences meanwhile.
    next_tokens_us: f64,
    /// The same since the last batch that counted.
    since_us: f64,
}

impl Device {
    pub(super) fn new(id: DeviceId, spec: DeviceSpec, recovery: &Recovery) -> Self {
        Self {
            spec,
            health: Health::new(id, spec.location, recovery),
            running: VecDeque::new(),
            has_spare: false,
            batches_finished: 0,
            texts_finished: 0,
            busy: Duration::ZERO,
            preemptions: 0,
            cap: None,
            good_batches: 0,
            costs: BTreeMap::new(),
            speed: Speed::default(),
            meter: SpeedMeter::default(),
            memory_watch: MemoryWatch::default(),
            undisturbed: None,
            beside_turns_us: 0.0,
        }
    }

    pub(super) fn spec(&self) -> &DeviceSpec {
        &self.spec
    }

    pub(super) fn health(&self) -> &Health {
        &self.health
    }

    pub(super) fn health_mut(&mut self) -> &mut Health {
        &mut self.health
    }

    /// The part of its speed that it is trusted with.
    pub(super) fn weight(&self) -> f64 {
        self.trust() * self.meter.weight()
    }

    /// The part of its measured speed that it is trusted with.
    pub(super) fn trust(&self) -> f64 {
        self.health.weight() * self.memory_step().weight()
    }

    pub(super) fn memory_step(&self) -> MemoryStep {
        self.memory_watch.step()
    }

    /// How full its memory is. Returns the next step, if one is taken.
    pub(super) fn note_memory(&mut self, memory: MemoryUse) -> Option<MemoryStep> {
        self.memory_watch.note(memory)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    pub(super) fn batches(&self) -> usize {
        self.running.len()
    }

    pub(super) fn is_running(&self, model: ModelId) -> bool {
        self.running.iter().any(|batch| batch.group.model == model)
    }

    pub(super) fn has_turn(&self, group: Group) -> bool {
        self.running.iter().any(|batch| batch.group == group && batch.is_turn())
    }

    /// Whether its next batch is due: part of it has nothing to do, or its batches are about to end.
    pub(super) fn is_next_due(&self, now: Moment) -> bool {
        self.has_spare || self.remaining_us(now) < NEAR_END_US
    }

    /// Whether whole texts go before turns: they may take as long as the turn before them.
    pub(super) fn is_for_texts(&self) -> bool {
        self.beside_turns_us > 0.0
    }

    /// Part of it has nothing to do; that all of it has none is known.
    pub(super) fn note_spare(&mut self) {
        self.has_spare = !self.running.is_empty();
    }

    pub(super) fn start(&mut self, batch: Running) {
        self.has_spare = false;
        let is_same = batch.is_next_tokens() && self.undisturbed.is_some_and(|(group, _)| group == batch.group);
        if !is_same {
            self.undisturbed = Some((batch.group, batch.started));
        }
        // More than one turn is never made up for.
        self.beside_turns_us = match batch.is_turn() {
            true => self.beside_turns_us.clamp(-batch.expected_us, 0.0) + batch.expected_us,
            false => self.beside_turns_us.max(0.0) - batch.expected_us,
        };
        let company = self.running.is_empty().then_some(Company::Alone);
        self.running.iter_mut().for_each(|other| other.company = other.company.filter(|it| *it != Company::Alone));
        self.running.push_back(Running { company, ..batch });
    }

    /// For how long it has computed nothing but the next tokens of a group.
    pub(super) fn undisturbed_for(&self, group: Group, now: Moment) -> Duration {
        let since = self.undisturbed.filter(|(other, _)| *other == group).map(|(_, since)| since);
        since.map_or(Duration::ZERO, |since| now.since(since))
    }

    pub(super) fn take_batch(&mut self, batch: BatchId, now: Moment) -> Option<Running> {
        let at = self.running.iter().position(|running| running.batch == batch)?;
        self.health.note_sign(now);
        let mut running = self.running.remove(at)?;
        if at == 0
            && let Some(next) = self.running.front_mut()
        {
            next.computing_since = now;
            next.company = Some(Company::Queued);
        }
        if self.running.is_empty() && running.company == Some(Company::Queued) {
            running.company = None;
        }
        Some(running)
    }

    pub(super) fn take_batches(&mut self) -> VecDeque<Running> {
        std::mem::take(&mut self.running)
    }

    /// If the driver ran late, extends the deadlines of its worker by as much.
    pub(super) fn excuse(&mut self, excused: impl Fn(Moment) -> Moment + Copy) {
        self.health.excuse(excused);
        if let Some(front) = self.running.front_mut() {
            front.computing_since = excused(front.computing_since);
        }
    }

    pub(super) fn vitals(&self, memory: &DeviceMemory) -> Vitals {
        let front = self.running.front();
        let is_known = |front: &&Running| !front.is_first && self.is_measured(front.group);
        Vitals {
            batch_overdue_at: front.map(|front| front.computing_since + front.patience),
            batch_late_at: front.filter(is_known).map(|front| front.computing_since + front.late_after),
            load_overdue_at: memory.overdue_at(),
            can_probe: self.health.needs_probe() && self.running.is_empty() && memory.has_weights(),
            is_woken: memory.is_woken,
        }
    }

    pub(super) fn has_free_slot(&self) -> bool {
        self.running.len() < self.spec.slots.max(1)
    }

    /// When it is expected to be done with all its batches, in microseconds from now. A batch that is late is expected
    /// to take as long again as it is late: nothing waits long for one that hangs.
    pub(super) fn remaining_us(&self, now: Moment) -> f64 {
        let Some(front) = self.running.front() else { return 0.0 };
        let elapsed = micros(now.since(front.computing_since));
        let behind: f64 = self.running.iter().skip(1).map(|batch| batch.expected_us).sum();
        (front.expected_us - elapsed).abs() + behind
    }

    pub(super) fn expected_end(&self) -> Option<Moment> {
        self.running.front().map(|front| front.computing_since + from_micros(front.expected_us))
    }

    /// How long the turn that it computes should still take, where it computes one.
    pub(super) fn turn_left_us(&self, now: Moment) -> f64 {
        let is_turn = self.running.front().is_some_and(Running::is_turn);
        self.expected_end().filter(|_| is_turn).map_or(0.0, |end| micros(end.since(now)))
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

    pub(super) fn batch_tokens_max(&self) -> u64 {
        let part = if self.memory_step() >= MemoryStep::Reduced { REDUCED_PART } else { 1 };
        let fixed = u64::from((self.spec.batch_tokens_max / part).max(1));
        self.cap.map_or(fixed, |cap| cap.min(fixed))
    }

    /// Its memory was full with a batch of this many tokens.
    pub(super) fn halve(&mut self, failed_tokens: u64) {
        self.cap = Some(self.batch_tokens_max().min((failed_tokens / 2).max(1)));
        self.good_batches = 0;
    }

    pub(super) fn is_measured(&self, group: Group) -> bool {
        self.costs.contains_key(&group)
    }

    pub(super) fn measured_cost(&self, group: Group) -> Option<Cost> {
        self.costs.get(&group).map(CostModel::cost)
    }

    pub(super) fn largest(&self, group: Group) -> Load {
        self.costs.get(&group).map(CostModel::largest).unwrap_or_default()
    }

    pub(super) fn finished(
        &mut self,
        batch: &Running,
        compute: Duration,
        outcomes: &[Outcome],
        prior: Cost,
        now: Moment,
    ) {
        self.health.note_worked();
        self.batches_finished += 1;
        self.texts_finished += if batch.is_turn() { 0 } else { batch.load.texts };
        self.busy = self.busy.saturating_add(compute);
        // Costs are those of a pass.
        let measured_us = micros(compute) / f64::from(batch.passes_done(outcomes));
        let sample = Sample { load: batch.load, measured_us, at: now };
        if let Some(model) = self.costs.get_mut(&batch.group) {
            model.learn(sample);
        } else {
            if self.costs.len() >= GROUPS_MAX {
                self.costs.pop_first();
            }
            self.costs.insert(batch.group, CostModel::new(prior, sample));
        }
        // A batch that has all that waits may be small, which a device is slow with. Nor do single tokens say how fast it
        // computes what waits.
        let is_telling = batch.is_followed && !batch.is_trial;
        let is_next_tokens = batch.is_turn() && batch.load.tokens < batch.load.texts * PROMPT_TOKENS;
        if is_next_tokens {
            self.speed.since_us += micros(compute);
        } else if is_telling {
            let us = sample.measured_us.max(1.0);
            self.speed.tokens = self.speed.tokens * SPEED_KEPT + as_f64(batch.load.tokens);
            self.speed.us = self.speed.us * SPEED_KEPT + us;
            let next_tokens_us = std::mem::take(&mut self.speed.since_us).min(us * NEXT_TOKENS_MOST);
            self.speed.next_tokens_us = self.speed.next_tokens_us * SPEED_KEPT + next_tokens_us;
        }
        self.widen();
    }

    /// Compares the time of a batch with that of others like it, where that says something of a GPU.
    pub(super) fn compare(
        &mut self,
        batch: &Running,
        time: Duration,
        watch: &SpeedWatch,
        now: Moment,
    ) -> Option<SpeedChange> {
        self.meter.note_busy(time, watch, now);
        let company = batch.company.filter(|_| self.health.has_worker() && !batch.is_first && !batch.is_turn())?;
        let model = self.costs.get(&batch.group)?;
        let learnt = Learnt { cost: model.cost(), largest: model.largest() };
        let computed = Computed { group: batch.group, load: batch.load, company, time, learnt };
        let change = self.meter.compare(&computed, watch, now);
        self.adapt(change)
    }

    /// Time has passed: a device that was slow may be tried at full weight.
    pub(super) fn tend_speed(&mut self, watch: &SpeedWatch, now: Moment) -> Option<SpeedChange> {
        let change = self.meter.tend(watch, now);
        self.adapt(change)
    }

    pub(super) fn meter(&self) -> &SpeedMeter {
        &self.meter
    }

    /// What was learnt of batches before its speed changed is scaled by as much.
    fn adapt(&mut self, change: Option<SpeedChange>) -> Option<SpeedChange> {
        let (from, until, ratio) = match change? {
            SpeedChange::Slowed { since, .. } => (Moment::START, since, 1.0 / self.meter.weight()),
            SpeedChange::Regained { slow, since, before, .. } => (slow, since, before),
            SpeedChange::Untested { slow, before, .. } => (slow, Moment::from_nanos(u64::MAX), before),
        };
        let is_old = |model: &&mut CostModel| from <= model.learnt() && model.learnt() < until;
        self.costs.values_mut().filter(is_old).for_each(|model| model.rescale(ratio));
        change
    }

    pub(super) fn sequence_ended(&mut self) {
        self.texts_finished += 1;
    }

    /// The speed at which it lately computed what waited for it, beside the next tokens of sequences.
    pub(super) fn tokens_per_us(&self) -> Option<f64> {
        let Speed { tokens, us, next_tokens_us, .. } = self.speed;
        (us > 0.0).then(|| tokens / (us + next_tokens_us) * self.health.weight())
    }

    /// A sequence whose state it had gave way.
    pub(super) fn note_preempted(&mut self) {
        self.preemptions += 1;
    }

    /// Tokens that it takes this long to compute, by the speed measured lately; without a speed there is no such bound. At
    /// least as many as a good batch has.
    pub(super) fn tokens_within(&self, time: Duration) -> u64 {
        let batch = self.batch_tokens_max();
        let Some(speed) = self.tokens_per_us() else { return u64::MAX };
        let least = match self.spec.kind {
            DeviceKind::Gpu => batch,
            DeviceKind::Cpu => batch.div_ceil(CPU_LEAST_PART),
        };
        as_count(speed * micros(time)).max(least)
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
        let restarts = self.health.restarts();
        let is_about_to =
            self.health.is_in_rotation() && memory.rests_at_once && memory.is_empty() && memory.vectors() == 0;
        DeviceView {
            kind: self.spec.kind,
            location: self.spec.location,
            is_reserved: self.spec.is_reserved,
            state: self.health.state(),
            is_ending: is_about_to || self.health.is_worker_resting(),
            weight: self.weight(),
            speed: self.meter.lately(),
            memory_step: self.memory_step(),
            batches: self.running.len(),
            memory_capacity: memory.ledger().capacity(),
            kv_max: memory.ledger().kv_share(),
            accounts: memory.ledger().accounts().collect(),
            batches_finished: self.batches_finished,
            texts_finished: self.texts_finished,
            busy: self.busy,
            failures: self.health.failures().failures(),
            failures_total: self.health.failures().failures_total(),
            restarts,
            recovery_attempts: restarts + self.health.probes(),
            preemptions: self.preemptions,
        }
    }
}
