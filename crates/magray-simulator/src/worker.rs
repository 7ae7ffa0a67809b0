//! A simulated device: a queue of batches, a worker that may be sick, and what becomes of the batch at its head.
//! Decides by the scripted troubles and chance alone; what follows is told to the machine by the world.

use crate::chance::Chance;
use crate::load::{Effect, Poison};
use crate::scenario::Device;
use crate::sequence::{Name, State};
use crate::trouble::{Discovery, Kind, Trouble};
use magray_core::ledger::CollectionId;
use magray_core::schedule::{BatchId, Failure, Location, ModelId, Moment};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) device: Device,
    pub(crate) phase: Phase,
    /// Number of the worker, so that events of an earlier one do not reach the next.
    pub(crate) generation: u64,
    pub(crate) jobs: VecDeque<Job>,
    /// Whether the first job is being computed.
    pub(crate) is_computing: bool,
    pub(crate) is_beating: bool,
    /// Events of this device arrive in order: none before this moment.
    pub(crate) told_until: Moment,
    pub(crate) busy: Duration,
    /// The state of sequences of many steps.
    pub(crate) states: BTreeMap<Name, State>,
    /// Bytes of weights and vectors.
    pub(crate) weights: BTreeMap<ModelId, u64>,
    pub(crate) vectors: BTreeMap<CollectionId, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Absent,
    Starting,
    Ready,
    /// Every batch fails from now on.
    Broken,
    /// It computes nothing any more and does not notice.
    Stuck,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) what: Work,
    pub(crate) tokens: u64,
    pub(crate) texts: u64,
    pub(crate) passes: u32,
    pub(crate) poison: Option<Poison>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Batch(BatchId),
    Probe,
}

/// What happens to the job at the head of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobOutcome {
    Finish,
    Fail(Failure),
    Crash,
    Hang { is_silent: bool },
}

/// What decides which faults a device has.
pub(crate) struct ActiveFaults<'a> {
    pub(crate) troubles: &'a [Trouble],
    pub(crate) device: usize,
    pub(crate) now: Moment,
}

impl ActiveFaults<'_> {
    pub(crate) fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.troubles.iter().filter(|trouble| trouble.is_on(self.device, self.now)).map(|trouble| trouble.kind)
    }

    pub(crate) fn has_vanished(&self) -> bool {
        self.kinds().any(|kind| matches!(kind, Kind::Vanished { .. }))
    }

    /// Whether workers fail to become ready, and if so whether they report it.
    pub(crate) fn no_start(&self) -> Option<bool> {
        self.kinds().find_map(|kind| match kind {
            Kind::NoStart { is_silent } => Some(is_silent),
            _ => None,
        })
    }
}

impl Executor {
    pub(crate) fn new(device: Device) -> Self {
        let is_cpu = device.spec.location == Location::InProcess;
        Self {
            device,
            phase: if is_cpu { Phase::Ready } else { Phase::Absent },
            generation: 0,
            jobs: VecDeque::new(),
            is_computing: false,
            is_beating: false,
            told_until: Moment::START,
            busy: Duration::ZERO,
            states: BTreeMap::new(),
            weights: BTreeMap::new(),
            vectors: BTreeMap::new(),
        }
    }

    /// The worker is gone, and all it had.
    pub(crate) fn end(&mut self) -> VecDeque<Job> {
        self.phase = Phase::Absent;
        self.generation += 1;
        self.is_computing = false;
        self.is_beating = false;
        self.states.clear();
        self.weights.clear();
        self.vectors.clear();
        std::mem::take(&mut self.jobs)
    }

    /// What happens to the first job, and how long that takes: of a group, to the parts that its ranks have.
    pub(crate) fn outcome(
        &self,
        job: &Job,
        faults: &ActiveFaults<'_>,
        noise: f64,
        chance: &mut Chance,
    ) -> (JobOutcome, Duration) {
        let first = self.outcome_of_rank(job, faults, noise, chance);
        (1..self.device.ranks).fold(first, |group, _| together(group, self.outcome_of_rank(job, faults, noise, chance)))
    }

    fn outcome_of_rank(
        &self,
        job: &Job,
        faults: &ActiveFaults<'_>,
        noise: f64,
        chance: &mut Chance,
    ) -> (JobOutcome, Duration) {
        let mut time =
            (self.device.cost.of(job.tokens, job.texts) * job.passes).mul_f64(1.0 + noise * chance.between(-1.0, 1.0));
        if self.device.spec.location == Location::InProcess {
            // What goes wrong there is caught: the batch fails and the CPU stays.
            let is_broken = job.poison.is_some_and(|poison| poison.breaks_cpu);
            return (if is_broken { JobOutcome::Fail(Failure::Transient) } else { JobOutcome::Finish }, time);
        }
        for kind in faults.kinds() {
            match kind {
                Kind::Slow { times } => time = time.mul_f64(times),
                Kind::Hot { weight } => time = time.div_f64(weight),
                _ => {}
            }
        }
        if self.phase == Phase::Broken {
            return (JobOutcome::Fail(Failure::Sticky), Duration::from_micros(30));
        }
        let outcome = job
            .poison
            .map(|poison| of_poison(poison.effect))
            .or_else(|| faults.kinds().find_map(|kind| of_trouble(kind, job, chance)));
        match outcome.unwrap_or(JobOutcome::Finish) {
            JobOutcome::Finish => (JobOutcome::Finish, time),
            // Whatever goes wrong does so somewhere on the way.
            bad => (bad, time.mul_f64(chance.unit())),
        }
    }
}

/// A batch of a group is done when all ranks are. The first that fails or dies ends it for all; the others wait for one that hangs.
fn together(one: (JobOutcome, Duration), other: (JobOutcome, Duration)) -> (JobOutcome, Duration) {
    let is_silent = |outcome: JobOutcome| matches!(outcome, JobOutcome::Hang { .. });
    match (one.0, other.0) {
        (JobOutcome::Finish, JobOutcome::Finish) => (JobOutcome::Finish, one.1.max(other.1)),
        (JobOutcome::Finish, _) => other,
        (_, JobOutcome::Finish) => one,
        (first, second) if is_silent(first) != is_silent(second) => {
            if is_silent(first) {
                other
            } else {
                one
            }
        }
        _ => {
            if one.1 <= other.1 {
                one
            } else {
                other
            }
        }
    }
}

fn of_poison(effect: Effect) -> JobOutcome {
    match effect {
        Effect::Crash => JobOutcome::Crash,
        Effect::Sticky => JobOutcome::Fail(Failure::Sticky),
        Effect::Hang => JobOutcome::Hang { is_silent: false },
    }
}

fn of_trouble(kind: Kind, job: &Job, chance: &mut Chance) -> Option<JobOutcome> {
    let happens = |part: f64, outcome: JobOutcome, chance: &mut Chance| chance.is(part).then_some(outcome);
    match kind {
        Kind::Transient { part } => happens(part, JobOutcome::Fail(Failure::Transient), chance),
        Kind::Sticky { part } => happens(part, JobOutcome::Fail(Failure::Sticky), chance),
        Kind::Crash { part } => happens(part, JobOutcome::Crash, chance),
        Kind::Hang { part, is_silent } => happens(part, JobOutcome::Hang { is_silent }, chance),
        Kind::Lies { part } => happens(part, JobOutcome::Fail(Failure::WrongAnswer), chance),
        Kind::Memory { tokens } => (job.tokens > tokens).then_some(JobOutcome::Fail(Failure::OutOfMemory)),
        Kind::Vanished { found: Discovery::BatchFailure | Discovery::Telemetry } => {
            Some(JobOutcome::Fail(Failure::Lost))
        }
        Kind::Vanished { found: Discovery::WorkerExit }
        | Kind::Slow { .. }
        | Kind::Hot { .. }
        | Kind::Killed
        | Kind::NoLoad { .. }
        | Kind::LoadCrash { .. }
        | Kind::LoadHang { .. }
        | Kind::Restless
        | Kind::NoStart { .. }
        | Kind::Ruled { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_to_one_rank_happens_to_the_group() {
        let at = |ms| Duration::from_millis(ms);
        let hang = JobOutcome::Hang { is_silent: false };
        let fail = JobOutcome::Fail(Failure::Sticky);
        let done = (JobOutcome::Finish, at(5));
        assert_eq!(together(done, (JobOutcome::Finish, at(7))), (JobOutcome::Finish, at(7)));
        for (one, other, ends) in [
            (done, (hang, at(1)), (hang, at(1))),
            ((fail, at(9)), done, (fail, at(9))),
            ((hang, at(1)), (fail, at(9)), (fail, at(9))),
            ((JobOutcome::Crash, at(3)), (fail, at(2)), (fail, at(2))),
        ] {
            assert_eq!((together(one, other), together(other, one)), (ends, ends));
        }
    }
}
