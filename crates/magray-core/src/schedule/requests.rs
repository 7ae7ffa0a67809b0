//! The requests that were taken, the queue that their sequences wait in, and when they have waited too long.
//! Picks no device and answers no request.

use super::batcher::Choice;
use super::blame::Blame;
use super::context::Context;
use super::device_memory::State;
use super::device_set::DeviceSet;
use super::fair::Part;
use super::jobs::{Job, Jobs};
use super::phase::{Phase, Reach};
use super::queue::{BucketKey, Queue, Ticket};
use super::run::{Position, Run, Side};
use super::sabotage::sabotaged;
use super::sequence::{Held, Progress, SequenceId, Status, StepBounds};
use super::stream_rate::StreamRate;
use super::{Allowed, CallerId, DeviceId, Fallback, Group, ModelId, Moment, Outcome, RequestId, Span, Step};
use std::collections::BTreeSet;
use std::ops::Range;

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

/// A batch that was not computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    pub(super) device: DeviceId,
    pub(super) setback: Setback,
    /// What an answer of the CPU will say.
    pub(super) reason: Fallback,
}

/// What the end of a batch says about a request in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence<'a> {
    /// Its texts that were in the batch.
    pub(super) texts: &'a [u32],
    /// No other request was in it.
    pub(super) is_isolated: bool,
    /// The request was a suspect when it started.
    pub(super) is_trial: bool,
    /// It was computed by a worker.
    pub(super) is_in_worker: bool,
}

/// What follows for a request from a batch that was not computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is started again.
    Again,
    /// It may have ended a worker: from now on no other request shares its batches.
    Isolate,
    /// It ended too many workers.
    Poison,
}

/// A step that was taken out of the queue.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    pub(super) step: Step,
    /// What its device keeps of a sequence of many steps.
    pub(super) state: Option<State>,
    pub(super) allowed: Allowed,
    /// Why a GPU did not compute sequences of its request.
    pub(super) failed: Option<Fallback>,
}

/// What a step brought to a sequence of many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Advance {
    /// New tokens that it had before.
    pub(super) from: u32,
    pub(super) new: u32,
    pub(super) is_end: bool,
}

/// All requests and what waits of them.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    jobs: Jobs,
    queue: Queue,
    streams: StreamRate,
    /// Deadlines of the requests that have one.
    deadlines: BTreeSet<(Moment, RequestId)>,
    /// When to look after requests without one that need devices which may be away.
    patience: BTreeSet<(Moment, RequestId)>,
}

impl Requests {
    pub(super) fn new(models: usize) -> Self {
        Self {
            jobs: Jobs::new(models),
            queue: Queue::default(),
            streams: StreamRate::default(),
            deadlines: BTreeSet::new(),
            patience: BTreeSet::new(),
        }
    }

    pub(super) fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// How fast those that generate give their room back.
    pub(super) fn streams(&self) -> &StreamRate {
        &self.streams
    }

    pub(super) fn add_model(&mut self) {
        self.jobs.add_model();
    }

    /// A model of which nothing waits or runs since this was asked last.
    pub(super) fn pop_quiet(&mut self) -> Option<ModelId> {
        self.jobs.pop_quiet()
    }

    pub(super) fn insert(&mut self, id: RequestId, job: Job) {
        self.deadlines.extend(job.deadline.map(|deadline| (deadline, id)));
        self.streams.began(&job, job.arrived);
        self.jobs.insert(id, job);
    }

    pub(super) fn progress(&self, sequence: SequenceId) -> Option<&Progress> {
        self.jobs.get(sequence.request)?.progress_of(sequence.number)
    }

    fn progress_mut(&mut self, sequence: SequenceId) -> Option<&mut Progress> {
        self.jobs.get_mut(sequence.request)?.progress_mut(sequence.number)
    }

    pub(super) fn is_running(&self, sequence: SequenceId) -> bool {
        self.progress(sequence).is_some_and(|progress| progress.status == Status::Running)
    }

    /// Whether it will not have its next step before something else happens.
    pub(super) fn is_paused(&self, sequence: SequenceId) -> bool {
        let is_so = |progress: &Progress| matches!(progress.status, Status::Paused | Status::HeldBack);
        self.progress(sequence).is_some_and(is_so)
    }

    /// Lets sequences of a request wait for their next step: neighbours that have one each, or one that has many.
    /// Returns their bucket, and whether nothing like them waited before; none where they wait outside the queue.
    pub(super) fn enqueue(
        &mut self,
        id: RequestId,
        numbers: Range<u32>,
        reach: Reach,
        cx: &Context,
    ) -> Option<(BucketKey, bool)> {
        let is_kept_apart = !sabotaged!(cx, KeepSuspectsTogether);
        let job = self.jobs.get_mut(id)?;
        let mut next = (Phase::OneStep, 0);
        if let Some(progress) = job.progress_mut(numbers.start) {
            progress.reach = reach;
            progress.status = if progress.unread < cx.unread_max() { Status::Waiting } else { Status::Paused };
            if progress.status == Status::Paused {
                return None;
            }
            next = (progress.phase(), u64::from(progress.ahead()));
        }
        // Two batches of a suspect at once could end two workers where one is enough to know.
        if job.is_suspect() && job.running > 0 && is_kept_apart {
            job.hold_back(numbers, reach);
            return None;
        }
        let (phase, ahead) = next;
        let is_mixed = sabotaged!(cx, MixGroups);
        let bucket = BucketKey {
            group: if is_mixed { Group { model: ModelId(0), key: 0 } } else { job.group },
            is_isolated: job.is_suspect() && is_kept_apart,
            phase,
            reach,
        };
        // One that goes on has waited since its last step.
        let (since, arrived) = if phase.device().is_some() { (cx.now, cx.now) } else { (Moment::START, job.arrived) };
        let position = Position { since, turn: 0, arrival: job.arrival, first: numbers.start };
        // Sequences of many steps are in the order of their waiting, not of their callers.
        let caller = if phase.is_turn() { CallerId::default() } else { cx.caller(job.caller, id) };
        let mut ticket = Ticket { bucket, priority: job.priority, caller, position };
        let tokens = if phase.is_turn() { ahead } else { job.tokens_of(numbers.clone()) };
        if !phase.is_turn() {
            ticket.position.turn = *job.turn.get_or_insert_with(|| self.queue.turn(&ticket, job.tokens_total));
        }
        let is_new = self.queue.insert(ticket, Run { request: id, end: numbers.end, tokens, arrived });
        job.tickets.push(ticket);
        Some((bucket, is_new))
    }

    /// A request is looked after at this moment, unless it has an end to its wait already.
    pub(super) fn bound_wait(&mut self, id: RequestId, due: Moment) {
        let job = self.jobs.get_mut(id).filter(|job| job.deadline.is_none() && job.patience.is_none());
        if let Some(job) = job {
            job.patience = Some(due);
            self.patience.insert((due, id));
        }
    }

    /// The same for all that wait for a model.
    pub(super) fn bound_waits(&mut self, model: ModelId, due: Moment, cx: &Context) {
        let waiting = self.queue.walk(self.queue.keys_of(model), Side::Front, cx.aging());
        let waiting: Vec<RequestId> = waiting.map(|(_, run)| run.request).collect();
        waiting.into_iter().for_each(|request| self.bound_wait(request, due));
    }

    /// A request that was looked after is looked after again then, or not at all.
    pub(super) fn renew_wait(&mut self, id: RequestId, due: Option<Moment>) {
        if let Some(job) = self.jobs.get_mut(id) {
            job.patience = due;
            self.patience.extend(due.map(|due| (due, id)));
        }
    }

    pub(super) fn expired(&self, now: Moment) -> Option<RequestId> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|&(_, id)| id)
    }

    /// A request that is to be looked after now; it is no more after this.
    pub(super) fn pop_impatient(&mut self, now: Moment) -> Option<RequestId> {
        self.patience.first().filter(|(due, _)| *due <= now)?;
        self.patience.pop_first().map(|(_, id)| id)
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        [self.deadlines.first(), self.patience.first()].into_iter().flatten().map(|&(due, _)| due).min()
    }

    /// A batch is about to be taken from this side.
    pub(super) fn begin_batch(&mut self, side: Side) {
        self.queue.begin_batch(side);
    }

    /// Takes sequences from the front or the back of a run out of the queue and into a batch; the others of it stay.
    pub(super) fn take(&mut self, choice: Choice, bounds: StepBounds, cx: &Context) -> Option<Taken> {
        let Choice { ticket, numbers, tokens } = choice;
        let run = *self.queue.get(&ticket)?;
        let job = self.jobs.step_started(run.request)?;
        job.tickets.retain(|other| *other != ticket);
        let taken = if ticket.bucket.phase.is_turn() { tokens } else { job.tokens_of(numbers.clone()) };
        let rest = if numbers.end < run.end { numbers.end..run.end } else { ticket.position.first..numbers.start };
        let rest = (!rest.is_empty()).then(|| {
            let position = Position { first: rest.start, ..ticket.position };
            job.tickets.push(Ticket { position, ..ticket });
            // Its tokens are not counted anew: a long request gives many batches.
            (position, Run { end: rest.end, tokens: run.tokens - taken, arrived: cx.now, ..run })
        });
        let is_free = ticket.bucket.phase.is_turn() || sabotaged!(cx, ForgetServed);
        self.queue.take(&ticket, Part { tokens: taken, charged: if is_free { 0 } else { taken }, rest });
        let (allowed, failed) = (job.allowed, job.failed);
        let (mut span, mut state) = (Span::Whole, None);
        if let Some(progress) = job.progress_mut(numbers.start) {
            progress.status = Status::Running;
            let begin = progress.computed();
            let end = begin.saturating_add(u32::try_from(tokens).unwrap_or(u32::MAX));
            let (model, bytes) = (ticket.bucket.group.model, bounds.kept(progress));
            state = Some(State { model, bytes, token_bytes: bounds.token_bytes });
            let new_tokens_max = if end == progress.known { bounds.new_tokens_max(progress) } else { 0 };
            span = Span::Part { tokens: begin..end, new_tokens_max };
        }
        Some(Taken { step: Step { request: run.request, sequences: numbers, span }, state, allowed, failed })
    }

    pub(super) fn withdraw(&mut self, id: RequestId) -> Vec<(Range<u32>, Reach)> {
        let Some(job) = self.jobs.get_mut(id) else { return Vec::new() };
        let mut waiting = std::mem::take(&mut job.held_back);
        for ticket in std::mem::take(&mut job.tickets) {
            if let Some(run) = self.queue.remove(&ticket) {
                waiting.push((ticket.position.first..run.end, ticket.bucket.reach));
            }
        }
        waiting
    }

    /// Takes one sequence out of the queue that waits there. Returns where it may be computed.
    pub(super) fn withdraw_one(&mut self, sequence: SequenceId) -> Option<Reach> {
        let job = self.jobs.get_mut(sequence.request)?;
        let at = job.tickets.iter().position(|ticket| ticket.position.first == sequence.number)?;
        let ticket = job.tickets.swap_remove(at);
        self.queue.remove(&ticket);
        Some(ticket.bucket.reach)
    }

    /// A suspect has one batch at a time: the rest of it waits outside the queue.
    pub(super) fn hold_rest(&mut self, suspect: RequestId) {
        let rest = self.withdraw(suspect);
        if let Some(job) = self.jobs.get_mut(suspect) {
            rest.into_iter().for_each(|(numbers, reach)| job.hold_back(numbers, reach));
        }
    }

    /// What waits outside the queue, once nothing of the request runs any more.
    pub(super) fn take_held(&mut self, id: RequestId) -> Vec<(Range<u32>, Reach)> {
        let job = self.jobs.get_mut(id).filter(|job| job.running == 0);
        job.map(|job| std::mem::take(&mut job.held_back)).unwrap_or_default()
    }

    /// A request waits no more: its answer was given, or its caller is gone.
    pub(super) fn close(&mut self, id: RequestId, now: Moment) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        self.streams.ended(job, now);
        job.held_back.clear();
        for ticket in std::mem::take(&mut job.tickets) {
            self.queue.remove(&ticket);
        }
        if let Some(deadline) = job.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        if let Some(patience) = job.patience.take() {
            self.patience.remove(&(patience, id));
        }
        self.jobs.end(id);
    }

    pub(super) fn step_ended(&mut self, id: RequestId) -> bool {
        self.jobs.step_ended(id).is_some()
    }

    /// Sequences of one step are computed.
    pub(super) fn wholes_computed(&mut self, id: RequestId, numbers: Range<u32>) {
        if let Some(job) = self.jobs.get_mut(id) {
            job.blame.text_computed();
        }
        self.jobs.beginnings_computed(id, numbers.clone());
        self.jobs.sequences_ended(id, numbers);
    }

    /// A step of a sequence of many was computed on a device, which keeps its state.
    pub(super) fn advance(&mut self, id: DeviceId, step: &Step, outcome: Outcome, cx: &Context) -> Option<Advance> {
        let Span::Part { tokens, new_tokens_max } = &step.span else { return None };
        let (told, is_told_end) = match outcome {
            Outcome::Row => (0, true),
            Outcome::Tokens(new) => (new, false),
            Outcome::End(new) => (new, true),
        };
        let new = told.min(*new_tokens_max);
        let progress = self.progress_mut(step.sequence())?;
        let from = progress.new;
        progress.new += new;
        progress.known = progress.known.saturating_add(new);
        progress.unread += new;
        progress.held = Some(Held { device: id, computed: tokens.end + new.saturating_sub(1) });
        // A step that may give tokens and gives none is the last.
        let is_mute = *new_tokens_max > 0 && new == 0;
        let is_full = progress.new >= progress.new_max && !sabotaged!(cx, ExceedNewTokens);
        let is_end = is_told_end || is_mute || is_full;
        progress.status = if is_end { Status::Ended } else { Status::Waiting };
        if from == 0 && (new > 0 || is_end) {
            self.jobs.beginnings_computed(step.request, step.sequences.clone());
        }
        if new > 0 {
            self.streams.generated(new, cx.now);
            self.acquit(step.request);
        }
        if is_end {
            self.jobs.sequences_ended(step.request, step.sequences.clone());
        }
        Some(Advance { from, new, is_end })
    }

    /// A suspect has gone beyond where a worker was lost with it: all its tokens were computed again and brought a new one.
    /// Where others of its request are left, one of those may be to blame.
    fn acquit(&mut self, request: RequestId) {
        if let Some(job) = self.jobs.get_mut(request).filter(|job| job.unanswered == 1) {
            job.blame = Blame::default();
            job.is_excused = false;
        }
    }

    /// A reader has taken tokens. Returns where its sequence may go on, if it paused for that.
    pub(super) fn read(&mut self, sequence: SequenceId, tokens: u32, cx: &Context) -> Option<Reach> {
        let unread_max = cx.options.generation.unread_max.max(1);
        let progress = self.progress_mut(sequence)?;
        progress.unread = progress.unread.saturating_sub(tokens);
        let is_resumed = progress.status == Status::Paused && progress.unread < unread_max;
        (is_resumed && !sabotaged!(cx, NeverResume)).then_some(progress.reach)
    }

    /// The state of a sequence is kept nowhere any more: what is known of it becomes a prompt. Returns the device that
    /// had it.
    pub(super) fn lose_state(&mut self, sequence: SequenceId, cx: &Context) -> Option<DeviceId> {
        let progress = self.progress_mut(sequence)?;
        let held = progress.held?;
        let is_ended = progress.status == Status::Ended;
        if !sabotaged!(cx, SkipReplayedPrompt) || is_ended {
            progress.held = None;
        }
        if sabotaged!(cx, ForgetToken) && !is_ended && progress.new > 0 {
            progress.new -= 1;
            progress.known -= 1;
        }
        Some(held.device)
    }

    pub(super) fn end_idle(&mut self, sequence: SequenceId) -> bool {
        let progress = self.progress_mut(sequence).filter(|progress| progress.status != Status::Running);
        progress.map(|progress| progress.status = Status::Ended).is_some()
    }

    pub(super) fn note_loss(&mut self, id: RequestId, loss: Loss, evidence: Evidence<'_>, cx: &Context) -> Verdict {
        let Some(job) = self.jobs.get_mut(id).filter(|job| !job.is_over) else { return Verdict::Again };
        job.replays = job.replays.saturating_add(1);
        if evidence.is_in_worker {
            job.failed = Some(loss.reason);
        }
        let was_suspect = job.is_suspect();
        let blamed = match loss.setback {
            Setback::TooLarge | Setback::NeverFits | Setback::Transient | Setback::Lost => 0,
            // Once it may be the weights' fault; twice, or after other trouble, it is not.
            Setback::Unclear if !was_suspect && !std::mem::replace(&mut job.is_excused, true) => 0,
            Setback::Fatal | Setback::Unclear => job.blame.workers.blame(evidence.texts, evidence.is_trial),
            Setback::FailedInProcess => job.blame.cpu.blame(evidence.texts, evidence.is_trial),
        };
        job.transients += u32::from(loss.setback == Setback::Transient);
        job.setbacks += u32::from(!matches!(loss.setback, Setback::TooLarge | Setback::NeverFits));
        let is_enough = blamed >= cx.options.recovery.poison_kills.max(1);
        let is_poison = evidence.is_isolated && is_enough && !sabotaged!(cx, IgnorePoison);
        if is_poison || (sabotaged!(cx, BlameEverybody) && blamed > 0) {
            Verdict::Poison
        } else if job.is_suspect() && !was_suspect {
            Verdict::Isolate
        } else {
            Verdict::Again
        }
    }

    /// Where sequences may go after a failure; `cpus` are the devices in this process that can have their model.
    pub(super) fn reach_after(&self, id: RequestId, mut reach: Reach, loss: Loss, cpus: DeviceSet) -> Reach {
        let Some(job) = self.jobs.get(id) else { return reach };
        let here = DeviceSet::one(loss.device);
        match loss.setback {
            Setback::NeverFits => reach.may = reach.may.without(here),
            Setback::Transient if job.transients >= TRANSIENTS_SAME_DEVICE => {
                reach.rather_not = reach.rather_not.union(here);
            }
            _ => {}
        }
        let cpus = reach.may.and(cpus);
        if job.allowed.has_fallback() && job.setbacks >= SETBACKS_MAX && !cpus.is_empty() {
            reach = Reach { may: cpus, rather_not: DeviceSet::EMPTY };
        }
        reach
    }
}
