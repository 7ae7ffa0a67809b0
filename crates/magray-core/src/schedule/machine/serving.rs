//! Requests from their arrival to their answer: taken, queued, started, advanced, started again after a failure, ended.
//! Never drops a sequence, and never starts one where its state has no space.

use super::Machine;
use crate::moment::from_micros;
use crate::schedule::batcher::{Choice, Chosen};
use crate::schedule::device::{Device, Running, RunningStep};
use crate::schedule::device_memory::State;
use crate::schedule::jobs::Job;
use crate::schedule::kv_space::{growth, last_in_order, space_wanted};
use crate::schedule::outlook::Outlook;
use crate::schedule::phase::Reach;
use crate::schedule::placement::{Order, choose, passes, should_leave};
use crate::schedule::queue::BucketKey;
use crate::schedule::requests::{Advance, Evidence, Loss, Taken, Verdict};
use crate::schedule::sabotage::sabotaged;
use crate::schedule::sequence::SequenceId;
use crate::schedule::{
    Action, DeviceId, Fallback, ModelId, Outcome, Priority, Refused, Report, Request, RequestId, Span,
};
use std::ops::Range;
use std::time::Duration;

impl Machine {
    pub(super) fn admit(&mut self, request: Request, actions: &mut Vec<Action>) {
        // A name that is still in use would make two requests one: the first keeps it.
        if self.requests.jobs().contains(request.id) {
            return;
        }
        let id = request.id;
        let (admission, of) = self.for_admission();
        let may = match admission.check(of, &request) {
            Ok(may) => may,
            Err(refused) => return actions.push(Action::Refuse { request: id, refused }),
        };
        let reach = Reach { may, rather_not: self.devices.avoided(request.allowed) };
        let mut job = Job::new(request, reach, self.cx.now);
        job.is_for_gpus = !may.and(self.devices.in_workers()).is_empty();
        self.residency.note_request(job.group.model, job.is_for_gpus, self.cx.now);
        if job.unanswered > 1 && sabotaged!(self.cx, SkipLastText) {
            job.unanswered -= 1;
        }
        let (sequences, is_generated) = (job.unanswered, !job.progress.is_empty());
        // Its model counts more from now on, and may evict others.
        let is_first_high = job.priority == Priority::High && self.requests.jobs().of(job.group.model).high == 0;
        self.residency.unsettle_if(is_first_high && job.is_for_gpus);
        self.requests.insert(id, job);
        // Sequences of many steps are queued one by one.
        for number in (0..sequences).filter(|_| is_generated) {
            self.enqueue(id, number..number + 1, reach, actions);
        }
        if !is_generated {
            self.enqueue(id, 0..sequences, reach, actions);
        }
    }

    /// Lets sequences of a request wait for their next step. A request that no device can ever compute is refused instead.
    fn enqueue(&mut self, id: RequestId, numbers: Range<u32>, reach: Reach, actions: &mut Vec<Action>) {
        let Some(job) = self.requests.jobs().get(id).filter(|job| !job.is_over) else { return };
        let model = job.group.model;
        let present = self.residency.model(model).present.and(reach.may);
        if present.is_empty() && !self.outlook().is_reachable(reach.may, model) {
            let own = (reach.may != job.may).then_some(job.failed).flatten();
            let reason = own.unwrap_or_else(|| self.outlook().reason_of(reach.may, model));
            return self.refuse(id, Refused::NoDevice(reason), actions);
        }
        let Some((bucket, is_new)) = self.requests.enqueue(id, numbers, reach, &self.cx) else { return };
        // The CPU does not go away, but it may not have the weights.
        if present.and(self.devices.in_process()).is_empty() {
            self.requests.bound_wait(id, self.cx.now + self.cx.options.recovery.start_max);
        }
        if present.and(self.devices.in_workers()).without(self.devices.full()).is_empty() {
            self.residency.ask_for(bucket, is_new, &self.devices, self.cx.now);
        }
    }

    /// Starts every batch that should start now. After each, others may be first: the order is looked at again.
    pub(super) fn dispatch(&mut self, actions: &mut Vec<Action>) {
        while !self.requests.queue().is_empty() && self.devices.iter().any(Device::has_free_slot) {
            let mut ready_us = self.devices.remaining_us(self.cx.now);
            let buckets = self.requests.queue().by_rank(self.cx.aging());
            let mut try_bucket = |bucket| match self.placer.order_for(self.outlook(), bucket, &mut ready_us) {
                Some(order) => self.start(bucket, order, actions),
                None => false,
            };
            if !buckets.into_iter().any(&mut try_bucket) {
                return;
            }
        }
    }

    /// Forms a batch and starts it. False if there is no space for any sequence of the bucket.
    fn start(&mut self, bucket: BucketKey, order: Order, actions: &mut Vec<Action>) -> bool {
        let (id, group) = (order.device, bucket.group);
        let cost = self.devices.cost(id, group);
        if bucket.phase.is_turn() {
            self.make_space(id, bucket, actions);
        }
        let Chosen { runs, load } = choose(self.outlook(), bucket, order, cost);
        let passes = passes(self.outlook(), bucket, id, cost.of(load), load);
        if runs.is_empty() {
            return false;
        }
        let mut steps = Vec::with_capacity(runs.len());
        let fallen_back = self.outlook().fallback_to(id, group.model);
        self.requests.begin_batch(order.side);
        for choice in runs {
            steps.extend(self.take_step(choice, id, fallen_back));
        }
        if let Some(suspect) = steps.first().filter(|_| bucket.is_isolated) {
            self.requests.hold_rest(suspect.step.request);
        }
        let batch = self.placer.note_start(id);
        let expected_us = cost.of(load) * f64::from(passes);
        let told = steps.iter().map(|running| running.step.clone()).collect();
        let is_followed = self.requests.queue().partners(bucket, id).next().is_some();
        let expected = from_micros(expected_us);
        actions.push(Action::Start { device: id, batch, steps: told, passes, expected, is_followed });
        let now = self.cx.now;
        let device = self.devices.get_mut(id);
        let grace = Device::arrival_grace(self.residency.memory(id), group.model);
        let patience = device.patience(group, expected_us, &self.cx.options.recovery) + grace.unwrap_or_default();
        device.start(Running {
            batch,
            group,
            steps,
            is_trial: bucket.is_isolated,
            load,
            passes,
            started: now,
            computing_since: now,
            expected_us,
            patience,
            late_after: from_micros(expected_us * self.cx.options.recovery.overdue_factor.max(1.0)),
            is_followed,
            is_first: grace.is_some(),
            company: None,
        });
        true
    }

    /// Takes sequences out of the queue for their next step on a device, which keeps state of those that have many.
    fn take_step(
        &mut self,
        choice: Choice,
        id: DeviceId,
        fallen_back: Option<Option<Fallback>>,
    ) -> Option<RunningStep> {
        let reach = choice.ticket.bucket.reach;
        let bounds = self.outlook().step_bounds(id, choice.ticket.bucket.group.model);
        let Taken { step, state, allowed, failed } = self.requests.take(choice, bounds, &self.cx)?;
        if let Some(state) = state {
            let granted = self.residency.memory_mut(id).keep(step.sequence(), state, self.cx.now);
            assert!(granted.is_ok(), "a step is chosen only where its state has space: {step:?}, {granted:?}");
        }
        let fallback = fallen_back.filter(|_| allowed.has_fallback());
        Some(RunningStep { step, reach, fallback: fallback.and_then(|general| failed.or(general)) })
    }

    /// Makes space for the next turn of a group: for what goes on, then for a prompt, for which only those give way that
    /// do not go on by themselves.
    fn make_space(&mut self, id: DeviceId, bucket: BucketKey, actions: &mut Vec<Action>) {
        if sabotaged!(self.cx, OverfillKv) {
            return;
        }
        let bounds = self.outlook().step_bounds(id, bucket.group.model);
        let free = |machine: &Self| machine.residency.memory(id).ledger().kv_free();
        while growth(self.outlook(), id, bucket, bounds) > free(self) {
            let Some(last) = last_in_order(self.outlook(), id, false) else { break };
            self.preempt(last, actions);
        }
        let Some(wanted) = space_wanted(self.outlook(), id, bucket, bounds) else { return };
        while wanted + self.residency.memory(id).headroom() > free(self) {
            let Some(paused) = last_in_order(self.outlook(), id, true) else { break };
            self.preempt(paused, actions);
        }
    }

    /// Gives what came of the steps of a batch, and the answers that it was the last to wait for.
    pub(super) fn answer(
        &mut self,
        (device, batch): (DeviceId, Running),
        outcomes: &[Outcome],
        actions: &mut Vec<Action>,
    ) {
        // Nothing is delivered after a deadline.
        if self.requests.expired(self.cx.now).is_some() {
            self.expire(actions);
        }
        let batch_texts = u32::try_from(batch.load.texts).unwrap_or(u32::MAX);
        for (nth, done) in batch.steps.into_iter().enumerate() {
            let (id, fallback) = (done.step.request, done.fallback);
            if !self.requests.step_ended(id) {
                self.free_state(device, done.step.sequence(), actions);
                continue;
            }
            if done.step.span == Span::Whole {
                self.requests.wholes_computed(id, done.step.sequences);
            } else {
                let outcome = outcomes.get(nth).copied();
                self.advance(device, done, outcome.expect("each part of a sequence has an outcome"), actions);
            }
            let Some(job) = self.requests.jobs().get(id) else { continue };
            let report = Report {
                device,
                batch_texts,
                queued: batch.started.since(job.arrived),
                computed: self.cx.now.since(batch.started),
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

    /// A step of a sequence was computed: delivers what it brought, and lets the sequence end or wait for its next step.
    fn advance(&mut self, id: DeviceId, done: RunningStep, outcome: Outcome, actions: &mut Vec<Action>) {
        let Some(Advance { from, new, is_end }) = self.requests.advance(id, &done.step, outcome, &self.cx) else {
            return;
        };
        let sequence = done.step.sequence();
        let is_faulty = from % 3 == 2;
        let deliver = Action::Deliver { request: sequence.request, sequence: sequence.number, from, tokens: new };
        if new > 0 && is_faulty && sabotaged!(self.cx, DoubleToken) {
            actions.push(deliver.clone());
        }
        if new > 0 && !(is_faulty && sabotaged!(self.cx, LoseToken)) {
            actions.push(deliver);
        }
        let leaves = !is_end && should_leave(self.outlook(), id, sequence, done.reach);
        if is_end || leaves || !self.may_keep_state(id, sequence.request) {
            self.lose_state(sequence, actions);
        }
        if is_end {
            self.devices.get_mut(id).sequence_ended();
        } else {
            self.enqueue(sequence.request, done.step.sequences, done.reach, actions);
        }
    }

    /// Whether a device goes on with sequences of a request.
    fn may_keep_state(&self, id: DeviceId, request: RequestId) -> bool {
        let health = self.devices.health(id);
        let has_weights = |job: &Job| self.outlook().resident(id, job.group.model).is_present();
        health.is_in_rotation() && health.takes_orders() && self.requests.jobs().get(request).is_some_and(has_weights)
    }

    /// A reader has taken tokens: its sequence may go on.
    pub(super) fn on_read(&mut self, request: RequestId, number: u32, tokens: u32, actions: &mut Vec<Action>) {
        if let Some(reach) = self.requests.read(SequenceId { request, number }, tokens, &self.cx) {
            self.enqueue(request, number..number + 1, reach, actions);
        }
    }

    /// Lets the steps of a batch wait again, or refuses those that must not be started again. What a device had of their
    /// sequences counts for nothing: their known tokens become prompts.
    pub(super) fn replay(&mut self, batch: Running, loss: Loss, actions: &mut Vec<Action>) {
        if sabotaged!(self.cx, ForgetReplay) {
            return;
        }
        let mut requests: Vec<RequestId> = batch.steps.iter().map(|running| running.step.request).collect();
        requests.sort_unstable();
        requests.dedup();
        let is_in_worker = self.devices.health(loss.device).has_worker();
        let (is_isolated, is_trial) = (requests.len() == 1, batch.is_trial);
        for &request in &requests {
            let own = batch.steps.iter().filter(|lost| lost.step.request == request);
            let texts: Vec<u32> = own.flat_map(|lost| lost.step.sequences.clone()).collect();
            let evidence = Evidence { texts: &texts, is_isolated, is_trial, is_in_worker };
            match self.requests.note_loss(request, loss, evidence, &self.cx) {
                Verdict::Again => {}
                Verdict::Poison => self.refuse(request, Refused::Poison, actions),
                Verdict::Isolate => {
                    for (numbers, reach) in self.requests.withdraw(request) {
                        self.enqueue(request, numbers, reach, actions);
                    }
                }
            }
        }
        for lost in batch.steps {
            let (id, sequence) = (lost.step.request, lost.step.sequence());
            if !self.requests.step_ended(id) {
                self.free_state(loss.device, sequence, actions);
                continue;
            }
            if lost.step.span != Span::Whole {
                self.lose_state(sequence, actions);
                // The device may have state of it that was never counted as its own.
                self.free_state(loss.device, sequence, actions);
            }
            let can_have = |&cpu: &DeviceId| self.outlook().obstacle(cpu, batch.group.model).is_none();
            let cpus = self.devices.in_process().iter().filter(can_have).collect();
            let reach = self.requests.reach_after(id, lost.reach, loss, cpus);
            self.enqueue(id, lost.step.sequences, reach, actions);
            self.resume_suspect(id, actions);
        }
    }

    /// Lets a suspect go on: nothing of it runs any more.
    fn resume_suspect(&mut self, id: RequestId, actions: &mut Vec<Action>) {
        for (numbers, reach) in self.requests.take_held(id) {
            self.enqueue(id, numbers, reach, actions);
        }
    }

    /// The state of a sequence is kept nowhere any more.
    fn lose_state(&mut self, sequence: SequenceId, actions: &mut Vec<Action>) {
        if let Some(device) = self.requests.lose_state(sequence, &self.cx) {
            self.free_state(device, sequence, actions);
        }
    }

    /// A device lets go of the state of a sequence. One whose worker is gone, or is being ended, has none.
    fn free_state(&mut self, id: DeviceId, sequence: SequenceId, actions: &mut Vec<Action>) {
        if self.residency.memory_mut(id).free(sequence) && self.devices.health(id).takes_orders() {
            let SequenceId { request, number } = sequence;
            actions.push(Action::Free { device: id, request, sequence: number });
        }
    }

    /// A sequence of which nothing runs gives way: it waits for a device like one that has just come.
    fn preempt(&mut self, sequence: SequenceId, actions: &mut Vec<Action>) {
        let SequenceId { request, number } = sequence;
        if let Some(held) = self.requests.progress(sequence).and_then(|progress| progress.held) {
            self.devices.get_mut(held.device).note_preempted();
        }
        self.lose_state(sequence, actions);
        if let Some(reach) = self.requests.withdraw_one(sequence) {
            self.enqueue(request, number..number + 1, reach, actions);
        }
    }

    /// A device does not go on with what it has state of, or not with that of one model.
    pub(super) fn preempt_all(&mut self, id: DeviceId, model: Option<ModelId>, actions: &mut Vec<Action>) {
        let is_meant = |state: &State| model.is_none_or(|model| state.model == model);
        let meant = self.residency.memory(id).sequences().filter(|(_, state)| is_meant(state));
        let meant = meant.map(|(sequence, _)| sequence).collect();
        self.preempt_those(meant, actions);
    }

    /// Those of these sequences give way of which nothing runs.
    pub(super) fn preempt_those(&mut self, sequences: Vec<SequenceId>, actions: &mut Vec<Action>) {
        for sequence in sequences {
            if self.requests.jobs().contains(sequence.request) && !self.requests.is_running(sequence) {
                self.preempt(sequence, actions);
            }
        }
    }

    /// Answers a request with an error.
    pub(super) fn refuse(&mut self, id: RequestId, refused: Refused, actions: &mut Vec<Action>) {
        if self.close(id, actions) {
            actions.push(Action::Refuse { request: id, refused });
        }
    }

    fn complete(&mut self, id: RequestId, report: Report, actions: &mut Vec<Action>) {
        if self.close(id, actions) {
            if sabotaged!(self.cx, AnswerTwice) {
                actions.push(Action::Complete { request: id, report: report.clone() });
            }
            actions.push(Action::Complete { request: id, report });
        }
    }

    /// A request needs no answer any more. Its state is let go of but for what steps under way use: that is when they
    /// end. False if it was closed before.
    pub(super) fn close(&mut self, id: RequestId, actions: &mut Vec<Action>) -> bool {
        let Some(job) = self.requests.jobs().get(id).filter(|job| !job.is_over) else { return false };
        let sequences = if sabotaged!(self.cx, LeakState) { 0 } else { job.progress.len() };
        for number in (0..).take(sequences) {
            let sequence = SequenceId { request: id, number };
            if self.requests.end_idle(sequence) {
                self.lose_state(sequence, actions);
            }
        }
        self.requests.close(id, self.cx.now);
        self.residency.unsettle_if_blocked();
        true
    }

    /// Refuses what came too late, and what has waited too long for a device that does not come back.
    pub(super) fn expire(&mut self, actions: &mut Vec<Action>) {
        let now = self.cx.now;
        while let Some(id) = self.requests.expired(now).filter(|_| !sabotaged!(self.cx, IgnoreDeadline)) {
            self.refuse(id, Refused::Expired, actions);
        }
        while let Some(id) = self.requests.pop_impatient(now) {
            self.lose_patience(id, actions);
        }
    }

    fn lose_patience(&mut self, id: RequestId, actions: &mut Vec<Action>) {
        let (now, start_max) = (self.cx.now, self.cx.options.recovery.start_max);
        let Some(job) = self.requests.jobs().get(id) else { return };
        let (model, of) = (job.group.model, self.outlook());
        let reaches = || job.tickets.iter().map(|ticket| ticket.bucket.reach.may);
        let stranded = reaches()
            .filter_map(|may| of.stranded_since(may, model).map(|since| (since.max(job.arrived) + start_max, may)));
        let first = stranded.min();
        if let Some((_, may)) = first.filter(|(due, _)| *due <= now) {
            let reason = match of.reason_of(may, model) {
                // All this time there was no room for it.
                Fallback::Waking => Fallback::OutOfMemory,
                reason => reason,
            };
            return self.refuse(id, Refused::NoDevice(reason), actions);
        }
        // Where the CPU has its model, that does not go away unseen.
        let on_cpus = self.devices.in_process().and(of.model(model).present);
        let is_safe = reaches().all(|may| !may.and(on_cpus).is_empty());
        let due = first.map_or(now + start_max.max(Duration::from_millis(1)), |(due, _)| due);
        self.requests.renew_wait(id, (!is_safe).then_some(due));
    }

    /// Refuses every request that waits for devices which were all given up.
    pub(super) fn refuse_unreachable(&mut self, actions: &mut Vec<Action>) {
        let of = self.outlook();
        let is_dead = |bucket: &BucketKey| !of.is_reachable(bucket.reach.may, bucket.group.model);
        let dead: Vec<BucketKey> = self.requests.queue().keys().filter(is_dead).collect();
        for bucket in dead {
            let reason = self.outlook().reason_of(bucket.reach.may, bucket.group.model);
            while let Some(id) = self.requests.queue().first_request(bucket) {
                self.refuse(id, Refused::NoDevice(reason), actions);
            }
        }
    }

    /// All parts, to read.
    pub(super) fn outlook(&self) -> Outlook<'_> {
        let Self { cx, devices, residency, requests, .. } = self;
        Outlook { cx, devices, residency, requests }
    }
}
