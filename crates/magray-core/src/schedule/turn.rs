//! Sequences of many steps: what a step brings, who pauses, who gives way, and what happens to those whose state is lost.
//! A turn is a batch of their steps. Picks no device, and keeps no more state on one than there is space for.

use super::blame::Blame;
use super::cost::as_f64;
use super::device::RunningStep;
use super::device_memory::State;
use super::jobs::Job;
use super::phase::Phase;
use super::queue::{BucketKey, Side};
use super::sabotage::sabotaged;
use super::sequence::{Held, Progress, SequenceId, Status, StepBounds};
use super::{Action, DeviceId, Machine, ModelId, Outcome, RequestId, Span};
use crate::ledger::{Candidate, Rank, first};

/// Prompts that find no space and may be passed over when a device is looked for.
const MISFITS_MAX: usize = 16;

impl Machine {
    /// A step of a sequence was computed: delivers what it brought, and lets the sequence end or wait for its next step.
    pub(super) fn advance(&mut self, id: DeviceId, done: RunningStep, outcome: Outcome, actions: &mut Vec<Action>) {
        let Span::Part { tokens, new_tokens_max } = &done.step.span else { return };
        let sequence = done.step.sequence();
        let (told, is_told_end) = match outcome {
            Outcome::Row => (0, true),
            Outcome::Tokens(new) => (new, false),
            Outcome::End(new) => (new, true),
        };
        let new = told.min(*new_tokens_max);
        let is_endless = sabotaged!(self.cx, ExceedNewTokens);
        let Some(progress) = self.progress_mut(sequence) else { return };
        let from = progress.new;
        progress.new += new;
        progress.known = progress.known.saturating_add(new);
        progress.unread += new;
        progress.held = Some(Held { device: id, computed: tokens.end + new.saturating_sub(1) });
        // A step that may give tokens and gives none has nothing more to say.
        let is_mute = *new_tokens_max > 0 && new == 0;
        let is_full = progress.new >= progress.new_max && !is_endless;
        let is_end = is_told_end || is_mute || is_full;
        if from == 0 && (new > 0 || is_end) {
            self.jobs.beginnings_computed(sequence.request, done.step.sequences.clone());
        }
        if new > 0 {
            self.acquit(sequence.request);
            self.deliver(sequence, from, new, actions);
        }
        if is_end {
            self.set_status(sequence, Status::Ended);
            self.lose_state(sequence, actions);
            self.jobs.sequences_ended(sequence.request, done.step.sequences);
            self.devices.get_mut(id).sequence_ended();
            return;
        }
        self.set_status(sequence, Status::Waiting);
        if !self.may_keep_state(id, sequence.request) {
            self.lose_state(sequence, actions);
        }
        self.enqueue(sequence.request, done.step.sequences, done.reach, actions);
    }

    /// A suspect has gone beyond where a worker was lost with it: all its tokens were computed again and brought a new one.
    /// Where others of its request are left, one of those may be to blame.
    fn acquit(&mut self, request: RequestId) {
        if let Some(job) = self.jobs.get_mut(request).filter(|job| job.unanswered == 1) {
            job.blame = Blame::default();
            job.is_excused = false;
        }
    }

    fn deliver(&self, sequence: SequenceId, from: u32, tokens: u32, actions: &mut Vec<Action>) {
        let SequenceId { request, number } = sequence;
        let deliver = Action::Deliver { request, sequence: number, from, tokens };
        if from % 3 == 2 && sabotaged!(self.cx, LoseToken) {
            return;
        }
        if from % 3 == 2 && sabotaged!(self.cx, DoubleToken) {
            actions.push(deliver.clone());
        }
        actions.push(deliver);
    }

    /// A reader has taken tokens: its sequence may go on.
    pub(super) fn on_read(&mut self, request: RequestId, number: u32, tokens: u32, actions: &mut Vec<Action>) {
        let unread_max = self.cx.options.generation.unread_max.max(1);
        let is_left = sabotaged!(self.cx, NeverResume);
        let Some(progress) = self.progress_mut(SequenceId { request, number }) else { return };
        progress.unread = progress.unread.saturating_sub(tokens);
        if progress.status == Status::Paused && progress.unread < unread_max && !is_left {
            let reach = progress.reach;
            self.enqueue(request, number..number + 1, reach, actions);
        }
    }

    /// Whether a device goes on with sequences of a request.
    fn may_keep_state(&self, id: DeviceId, request: RequestId) -> bool {
        let device = self.devices.get(id);
        let has_weights = |job: &Job| self.residency.memory(id).resident(job.group.model).is_present();
        device.health().is_in_rotation()
            && device.health().takes_orders()
            && self.jobs.get(request).is_some_and(has_weights)
    }

    /// The state of a sequence is kept nowhere any more: what is known of it becomes a prompt.
    pub(super) fn lose_state(&mut self, sequence: SequenceId, actions: &mut Vec<Action>) {
        let (is_forgetful, is_bold) = (sabotaged!(self.cx, ForgetToken), sabotaged!(self.cx, SkipReplayedPrompt));
        let Some(progress) = self.progress_mut(sequence) else { return };
        let Some(held) = progress.held else { return };
        let is_ended = progress.status == Status::Ended;
        if !is_bold || is_ended {
            progress.held = None;
        }
        if is_forgetful && !is_ended && progress.new > 0 {
            progress.new -= 1;
            progress.known -= 1;
        }
        self.free_state(held.device, sequence, actions);
    }

    /// The same where a step of it was lost: the device may have state of it that was never counted as its own.
    pub(super) fn lose_step(&mut self, id: DeviceId, sequence: SequenceId, actions: &mut Vec<Action>) {
        self.lose_state(sequence, actions);
        self.free_state(id, sequence, actions);
    }

    /// A device lets go of the state of a sequence. One whose worker is gone, or is being ended, has none.
    pub(super) fn free_state(&mut self, id: DeviceId, sequence: SequenceId, actions: &mut Vec<Action>) {
        if self.residency.memory_mut(id).free(sequence) && self.devices.health(id).takes_orders() {
            let SequenceId { request, number } = sequence;
            actions.push(Action::Free { device: id, request, sequence: number });
        }
    }

    /// Lets go of all state of a request but what steps under way use: that is let go of when they end.
    pub(super) fn free_request(&mut self, request: RequestId, actions: &mut Vec<Action>) {
        let sequences = self.jobs.get(request).map_or(0, |job| job.progress.len());
        if sabotaged!(self.cx, LeakState) {
            return;
        }
        for number in (0..).take(sequences) {
            let sequence = SequenceId { request, number };
            if self.progress_mut(sequence).is_some_and(|progress| progress.status != Status::Running) {
                self.set_status(sequence, Status::Ended);
                self.lose_state(sequence, actions);
            }
        }
    }

    /// A sequence of which nothing runs gives way: it waits for a device like one that has just come.
    fn preempt(&mut self, sequence: SequenceId, actions: &mut Vec<Action>) {
        let SequenceId { request, number } = sequence;
        self.lose_state(sequence, actions);
        let Some(job) = self.jobs.get_mut(request) else { return };
        let Some(at) = job.tickets.iter().position(|ticket| ticket.place.first == number) else { return };
        let ticket = job.tickets.swap_remove(at);
        self.queue.remove(&ticket);
        self.enqueue(request, number..number + 1, ticket.bucket.reach, actions);
    }

    /// A device does not go on with what it has state of, or not with that of one model.
    pub(super) fn preempt_all(&mut self, id: DeviceId, model: Option<ModelId>, actions: &mut Vec<Action>) {
        let memory = self.residency.memory(id);
        if !memory.has_sequences() {
            return;
        }
        let is_meant = |state: &State| model.is_none_or(|model| state.model == model);
        let meant = memory.sequences().filter(|(_, state)| is_meant(state)).map(|(sequence, _)| sequence);
        let meant = meant.collect();
        self.preempt_those(meant, actions);
    }

    /// Those of these sequences give way of which nothing runs.
    pub(super) fn preempt_those(&mut self, sequences: Vec<SequenceId>, actions: &mut Vec<Action>) {
        for sequence in sequences {
            if self.jobs.get(sequence.request).is_some() && !self.is_running(sequence) {
                self.preempt(sequence, actions);
            }
        }
    }

    /// Makes space for the next turn of a group: for what goes on, then for a prompt, for which only those give way that
    /// do not go on by themselves.
    pub(super) fn make_space(&mut self, id: DeviceId, bucket: BucketKey, actions: &mut Vec<Action>) {
        if sabotaged!(self.cx, OverfillKv) {
            return;
        }
        let bounds = self.cx.step_bounds(&self.model(bucket.group.model).plan);
        while self.growth(id, bucket, bounds) > self.residency.memory(id).ledger().kv_free() {
            let Some(last) = self.last_in_order(id, false) else { break };
            self.preempt(last, actions);
        }
        let Some(wanted) = self.space_wanted(id, bucket, bounds) else { return };
        while wanted + self.residency.memory(id).headroom() > self.residency.memory(id).ledger().kv_free() {
            let Some(paused) = self.last_in_order(id, true) else { break };
            self.preempt(paused, actions);
        }
    }

    /// What the ready sequences of a group need beyond what they have, for one step each.
    fn growth(&self, id: DeviceId, bucket: BucketKey, bounds: StepBounds) -> u64 {
        let buckets = self.queue.partners(bucket, id).filter(|key| key.phase == Phase::Next(id));
        let ready = self.queue.walk(buckets, Side::Front, self.cx.aging());
        let growth = ready.filter_map(|(ticket, run)| {
            let sequence = SequenceId { request: run.request, number: ticket.place.first };
            Some(self.residency.memory(id).growth(sequence, bounds.kept(self.progress(sequence)?)))
        });
        growth.sum()
    }

    /// What the first prompt needs that a device would have space for, if sequences that pause gave way.
    fn space_wanted(&self, id: DeviceId, bucket: BucketKey, bounds: StepBounds) -> Option<u64> {
        let memory = self.residency.memory(id);
        let paused = memory.sequences().filter(|(one, _)| self.is_paused(*one)).map(|(_, state)| state);
        let paused = paused.fold((0, 0), |(bytes, headroom), one| (bytes + one.bytes, headroom + one.headroom()));
        let free = memory.ledger().kv_free().saturating_add(paused.0);
        let headroom = memory.headroom() - paused.1;
        let buckets = self.queue.partners(bucket, id).filter(|key| key.phase == Phase::Fresh);
        let prompts = self.queue.walk(buckets, Side::Front, self.cx.aging()).take(MISFITS_MAX);
        let mut needs = prompts.filter_map(|(ticket, run)| {
            let sequence = SequenceId { request: run.request, number: ticket.place.first };
            Some((bounds.kept(self.progress(sequence)?), self.cx.aging().is_aged(run)))
        });
        // Nobody overtakes a prompt that has waited long.
        let first = needs.find(|(need, is_aged)| need + headroom <= free || *is_aged)?;
        Some(first.0).filter(|need| need + headroom <= free)
    }

    /// Whether a device has space for some prompt of a bucket.
    pub(super) fn has_space(&self, id: DeviceId, bucket: BucketKey) -> bool {
        sabotaged!(self.cx, OverfillKv)
            || self.space_wanted(id, bucket, self.cx.step_bounds(&self.model(bucket.group.model).plan)).is_some()
    }

    /// The sequence that gives way first: of those that are alike, the one that came last.
    fn last_in_order(&self, id: DeviceId, only_paused: bool) -> Option<SequenceId> {
        let candidate = |(who, state): (SequenceId, State)| {
            let rank = if self.is_paused(who) { Rank::PausedSequence } else { Rank::WaitingSequence };
            let is_movable = !self.is_running(who) && (!only_paused || rank == Rank::PausedSequence);
            let job = self.jobs.get(who.request).filter(|_| is_movable)?;
            Some(Candidate { who, bytes: state.bytes, rank, priority: job.priority, score: as_f64(job.arrival) })
        };
        first(self.residency.memory(id).sequences().rev().filter_map(candidate))
    }

    fn is_running(&self, sequence: SequenceId) -> bool {
        self.progress(sequence).is_some_and(|progress| progress.status == Status::Running)
    }

    /// Whether it will not have its next step before something else happens.
    fn is_paused(&self, sequence: SequenceId) -> bool {
        let is_so = |progress: &Progress| matches!(progress.status, Status::Paused | Status::SetAside);
        self.progress(sequence).is_some_and(is_so)
    }

    fn set_status(&mut self, sequence: SequenceId, status: Status) {
        if let Some(progress) = self.progress_mut(sequence) {
            progress.status = status;
        }
    }

    fn progress(&self, sequence: SequenceId) -> Option<&Progress> {
        self.jobs.get(sequence.request)?.progress_of(sequence.number)
    }

    fn progress_mut(&mut self, sequence: SequenceId) -> Option<&mut Progress> {
        self.jobs.get_mut(sequence.request)?.progress_mut(sequence.number)
    }
}
