//! What happens to the steps of a batch that ended: answered, or started again, or refused because they end workers.
//! Never drops a sequence and never blames a request that was only near.

use super::device::{Running, RunningStep};
use super::device_set::DeviceSet;
use super::phase::Reach;
use super::sabotage::sabotaged;
use super::{Action, Allowed, DeviceId, Fallback, Machine, Outcome, Refused, Report, RequestId, Span};

/// Transient failures after which a request rather goes to another device.
const TRANSIENTS_SAME_DEVICE: u32 = 2;
/// Failures after which a request that may go to the CPU goes nowhere else.
const SETBACKS_MAX: u32 = 4;

/// Why the steps of a batch are started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setback {
    /// The device's memory was full; a smaller batch will do.
    TooLarge,
    /// The device's memory was full with a single sequence.
    NeverFits,
    /// An error after which the worker works on.
    Transient,
    /// The worker was lost, or may not be used any more, by no fault of the batch.
    Lost,
    /// The worker was lost while it computed this batch.
    Fatal,
    /// The worker was ended because this batch took too long, but it may have waited for its weights.
    Unclear,
    /// The CPU failed on this batch.
    FailedInProcess,
}

/// What the end of a batch says about a request in it.
#[derive(Clone, Copy, Debug)]
struct Evidence {
    /// No other request was in it.
    is_isolated: bool,
    /// The request was a suspect when it started.
    is_trial: bool,
}

/// A batch that was not computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    pub(super) device: DeviceId,
    pub(super) setback: Setback,
    /// What an answer of the CPU will say.
    pub(super) reason: Fallback,
}

impl Machine {
    /// Gives what came of the steps of a batch, and the answers that it was the last to wait for.
    pub(super) fn answer(
        &mut self,
        (device, batch): (DeviceId, Running),
        outcomes: &[Outcome],
        actions: &mut Vec<Action>,
    ) {
        let now = self.cx.now;
        // Nothing is delivered after a deadline.
        if self.deadlines.first().is_some_and(|(deadline, _)| *deadline <= now) {
            self.expire(now, actions);
        }
        let batch_texts = u32::try_from(batch.load.texts).unwrap_or(u32::MAX);
        for (nth, done) in batch.steps.into_iter().enumerate() {
            let (id, fallback) = (done.step.request, done.fallback);
            if self.jobs.step_ended(id).is_none() {
                self.free_state(device, done.step.sequence(), actions);
                continue;
            }
            if done.step.span == Span::Whole {
                self.jobs.beginnings_computed(id, done.step.sequences.clone());
                self.jobs.sequences_ended(id, done.step.sequences);
            } else {
                let outcome = outcomes.get(nth).copied();
                self.advance(device, done, outcome.expect("each part of a sequence has an outcome"), actions);
            }
            let Some(job) = self.jobs.get(id) else { continue };
            let report = Report {
                device,
                batch_texts,
                queued: batch.started.since(job.arrived),
                computed: now.since(batch.started),
                replays: job.replays,
                fallback,
            };
            if job.unanswered == 0 {
                self.complete(id, report, actions);
            } else {
                self.resume_suspect(id, actions);
            }
        }
    }

    /// Lets the steps of a batch wait again, or refuses those that must not be started again. What a device had of their
    /// sequences counts for nothing: their known tokens become prompts.
    pub(super) fn replay(&mut self, batch: Running, loss: Loss, actions: &mut Vec<Action>) {
        if sabotaged!(self.cx, ForgetReplay) {
            return;
        }
        let requests = distinct(&batch.steps);
        let evidence = Evidence { is_isolated: requests.len() == 1, is_trial: batch.is_trial };
        for &request in &requests {
            self.note(request, loss, evidence, actions);
        }
        for lost in batch.steps {
            let id = lost.step.request;
            if self.jobs.step_ended(id).is_none() {
                self.free_state(loss.device, lost.step.sequence(), actions);
                continue;
            }
            if lost.step.span != Span::Whole {
                self.lose_step(loss.device, lost.step.sequence(), actions);
            }
            let reach = self.reach_after(&lost, loss);
            self.enqueue(id, lost.step.sequences, reach, actions);
            self.resume_suspect(id, actions);
        }
    }

    /// Writes down what happened to a request, and refuses it if that was once too often.
    fn note(&mut self, id: RequestId, loss: Loss, evidence: Evidence, actions: &mut Vec<Action>) {
        let is_gpu = self.devices.in_workers().contains(loss.device);
        let poison_kills = self.cx.options.recovery.poison_kills;
        let is_everybody_blamed = sabotaged!(self.cx, BlameEverybody);
        let is_poison_ignored = sabotaged!(self.cx, IgnorePoison);
        let Some(job) = self.jobs.get_mut(id).filter(|job| !job.is_over) else { return };
        job.replays = job.replays.saturating_add(1);
        if is_gpu {
            job.failed = Some(loss.reason);
        }
        let was_suspect = job.is_suspect();
        let blamed = match loss.setback {
            Setback::TooLarge | Setback::NeverFits | Setback::Transient | Setback::Lost => 0,
            // Once it may be the weights' fault; twice, or after other trouble, it is not.
            Setback::Unclear if !was_suspect && !std::mem::replace(&mut job.is_excused, true) => 0,
            Setback::Fatal | Setback::Unclear => job.blame.workers.blame(evidence.is_trial),
            Setback::FailedInProcess => job.blame.cpu.blame(evidence.is_trial),
        };
        job.transients += u32::from(loss.setback == Setback::Transient);
        job.setbacks += u32::from(!matches!(loss.setback, Setback::TooLarge | Setback::NeverFits));
        let is_poison = evidence.is_isolated && blamed >= poison_kills.max(1) && !is_poison_ignored;
        if is_poison || (is_everybody_blamed && blamed > 0) {
            return self.refuse(id, Refused::Poison, actions);
        }
        if job.is_suspect() && !was_suspect {
            // Its other sequences must not drag others along either.
            for (texts, reach) in self.withdraw(id) {
                self.enqueue(id, texts, reach, actions);
            }
        }
    }

    /// Where sequences may go after a failure.
    fn reach_after(&self, lost: &RunningStep, loss: Loss) -> Reach {
        let Some(job) = self.jobs.get(lost.step.request) else { return lost.reach };
        let mut reach = lost.reach;
        let here = DeviceSet::one(loss.device);
        match loss.setback {
            Setback::NeverFits => reach.may = reach.may.without(here),
            Setback::Transient if job.transients >= TRANSIENTS_SAME_DEVICE => {
                reach.rather_not = reach.rather_not.union(here);
            }
            _ => {}
        }
        let can_have = |&cpu: &DeviceId| self.obstacle(cpu, job.group.model).is_none();
        let cpus: DeviceSet = reach.may.and(self.devices.in_process()).iter().filter(can_have).collect();
        if job.allowed == Allowed::Any && job.setbacks >= SETBACKS_MAX && !cpus.is_empty() {
            reach = Reach { may: cpus, rather_not: DeviceSet::EMPTY };
        }
        reach
    }
}

fn distinct(steps: &[RunningStep]) -> Vec<RequestId> {
    let mut requests: Vec<RequestId> = steps.iter().map(|running| running.step.request).collect();
    requests.sort_unstable();
    requests.dedup();
    requests
}
