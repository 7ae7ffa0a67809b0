//! Puts sequences into the queue, takes those of a request out of it, ends requests, and watches what time alone brings.
//! Starts no batch and picks no device.

use super::device_set::DeviceSet;
use super::jobs::Job;
use super::phase::{Phase, Reach};
use super::queue::{BucketKey, Place, Run, Side, Ticket};
use super::residency::Want;
use super::sabotage::sabotaged;
use super::sequence::Status;
use super::{Action, DeviceId, Fallback, Group, Machine, ModelId, Moment, Refused, Report, RequestId};
use std::ops::Range;
use std::time::Duration;

impl Machine {
    /// Lets sequences of a request wait for their next step: neighbours that have one each, or one that has many. A
    /// request that no device can ever compute is refused instead.
    pub(super) fn enqueue(&mut self, id: RequestId, numbers: Range<u32>, reach: Reach, actions: &mut Vec<Action>) {
        let now = self.cx.now;
        let start_max = self.cx.options.recovery.start_max;
        let is_kept_apart = !sabotaged!(self.cx, KeepSuspectsTogether);
        let is_mixed = sabotaged!(self.cx, MixGroups);
        let Some(job) = self.jobs.get_mut(id).filter(|job| !job.is_over) else { return };
        let model = job.group.model;
        let present = self.residency.model(model).present.and(reach.may);
        if present.is_empty() {
            let own = (reach.may != job.may).then_some(job.failed).flatten();
            if !self.is_reachable(reach.may, model) {
                let reason = own.unwrap_or_else(|| self.reason_of(reach.may, model));
                return self.refuse(id, Refused::NoDevice(reason), actions);
            }
        }
        let unread_max = self.cx.step_bounds(&self.model(model).plan).unread_max;
        let Some(job) = self.jobs.get_mut(id) else { return };
        let mut next = (Phase::OneStep, 0);
        if let Some(progress) = job.progress_mut(numbers.start) {
            progress.reach = reach;
            progress.status = if progress.unread < unread_max { Status::Waiting } else { Status::Paused };
            if progress.status == Status::Paused {
                return;
            }
            next = (progress.phase(), u64::from(progress.ahead()));
        }
        // Two batches of a suspect at once could end two workers where one is enough to know.
        if job.is_suspect() && job.running > 0 && is_kept_apart {
            job.hold_back(numbers, reach);
            return;
        }
        let (phase, ahead) = next;
        let bucket = BucketKey {
            group: if is_mixed { Group { model: ModelId(0), key: 0 } } else { job.group },
            is_isolated: job.is_suspect() && is_kept_apart,
            phase,
            reach,
        };
        // One that goes on has waited since its last step.
        let (since, arrived) = if phase.device().is_some() { (now, now) } else { (Moment::START, job.arrived) };
        let ticket = Ticket {
            bucket,
            priority: job.priority,
            place: Place { since, arrival: job.arrival, first: numbers.start },
        };
        let tokens = if phase.is_turn() { ahead } else { job.tokens_of(numbers.clone()) };
        let is_new = self.queue.insert(ticket, Run { request: id, end: numbers.end, tokens, arrived });
        job.tickets.push(ticket);
        // The CPU does not go away, but it may not have the weights.
        if present.and(self.devices.in_process()).is_empty() && job.deadline.is_none() && job.patience.is_none() {
            let patience = self.cx.now + start_max;
            job.patience = Some(patience);
            self.patience.insert((patience, id));
        }
        if present.and(self.devices.in_workers()).is_empty() {
            self.ask_for_weights(bucket, is_new);
        }
    }

    /// The CPU does not have a model, or will not have it: who counted on that waits with an end.
    pub(super) fn lose_cpu(&mut self, model: ModelId) {
        let due = self.cx.now + self.cx.options.recovery.start_max;
        let aging = self.cx.aging();
        for (_, run) in self.queue.walk(self.queue.keys_of(model), Side::Front, aging) {
            let Some(job) = self.jobs.get_mut(run.request) else { continue };
            if job.deadline.is_none() && job.patience.is_none() {
                job.patience = Some(due);
                self.patience.insert((due, run.request));
            }
        }
    }

    /// Notes that a bucket may wait for weights that nobody brings yet.
    fn ask_for_weights(&mut self, bucket: BucketKey, is_new: bool) {
        let now = self.cx.now;
        let (gpus, cpus) =
            (bucket.reach.may.and(self.devices.in_workers()), bucket.reach.may.and(self.devices.in_process()));
        let model = self.residency.model_mut(bucket.group.model);
        let near = model.present.union(model.coming);
        if !gpus.is_empty() && gpus.and(near).is_empty() {
            // Also where the CPU computes it at once: the next one finds it on a GPU.
            let is_news = model.want.is_none();
            model.want.get_or_insert(Want { since: now, is_preheat: false });
            self.residency.unsettle_if(is_news || is_new);
        } else if is_new && !cpus.is_empty() && cpus.and(near).is_empty() && gpus.and(model.present).is_empty() {
            self.residency.unsettle();
        }
    }

    /// Takes sequences from the front or the back of a run out of the queue and into a batch; the others of it stay.
    pub(super) fn take(&mut self, ticket: &Ticket, texts: &Range<u32>) -> Option<(RequestId, &mut Job)> {
        let run = self.queue.remove(ticket)?;
        let job = self.jobs.step_started(run.request)?;
        job.tickets.retain(|other| other != ticket);
        let rest = if texts.end < run.end { texts.end..run.end } else { ticket.place.first..texts.start };
        if !rest.is_empty() {
            // Not counted anew: a long request gives many batches.
            let tokens = run.tokens - job.tokens_of(texts.clone());
            let place = Place { first: rest.start, ..ticket.place };
            let ticket = Ticket { place, ..*ticket };
            self.queue.insert(ticket, Run { end: rest.end, tokens, ..run });
            job.tickets.push(ticket);
        }
        Some((run.request, job))
    }

    /// Takes all waiting sequences of a request out of the queue.
    pub(super) fn withdraw(&mut self, id: RequestId) -> Vec<(Range<u32>, Reach)> {
        let Some(job) = self.jobs.get_mut(id) else { return Vec::new() };
        let mut waiting = std::mem::take(&mut job.set_aside);
        for ticket in std::mem::take(&mut job.tickets) {
            if let Some(run) = self.queue.remove(&ticket) {
                waiting.push((ticket.place.first..run.end, ticket.bucket.reach));
            }
        }
        waiting
    }

    /// Lets a suspect go on: nothing of it runs any more.
    pub(super) fn resume_suspect(&mut self, id: RequestId, actions: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(id).filter(|job| job.running == 0) else { return };
        for (texts, reach) in std::mem::take(&mut job.set_aside) {
            self.enqueue(id, texts, reach, actions);
        }
    }

    /// Answers a request with an error.
    pub(super) fn refuse(&mut self, id: RequestId, refused: Refused, actions: &mut Vec<Action>) {
        if self.close(id, actions) {
            actions.push(Action::Refuse { request: id, refused });
        }
    }

    /// Answers a request.
    pub(super) fn complete(&mut self, id: RequestId, report: Report, actions: &mut Vec<Action>) {
        if self.close(id, actions) {
            if sabotaged!(self.cx, AnswerTwice) {
                actions.push(Action::Complete { request: id, report: report.clone() });
            }
            actions.push(Action::Complete { request: id, report });
        }
    }

    /// Nobody waits for a request any more. False if that was so before.
    pub(super) fn close(&mut self, id: RequestId, actions: &mut Vec<Action>) -> bool {
        if self.jobs.get(id).is_none_or(|job| job.is_over) {
            return false;
        }
        self.free_request(id, actions);
        let Some(job) = self.jobs.get_mut(id) else { return false };
        job.set_aside.clear();
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
        self.residency.unsettle_if_blocked();
        true
    }

    /// Refuses what came too late, and what has waited too long for a device that does not come back.
    pub(super) fn expire(&mut self, now: Moment, actions: &mut Vec<Action>) {
        while let Some(&(deadline, id)) = self.deadlines.first() {
            if deadline > now || sabotaged!(self.cx, IgnoreDeadline) {
                break;
            }
            self.refuse(id, Refused::Expired, actions);
        }
        while let Some(&(due, id)) = self.patience.first() {
            if due > now {
                break;
            }
            self.patience.pop_first();
            self.lose_patience(id, now, actions);
        }
    }

    fn lose_patience(&mut self, id: RequestId, now: Moment, actions: &mut Vec<Action>) {
        let start_max = self.cx.options.recovery.start_max;
        let Some(job) = self.jobs.get(id) else { return };
        let model = job.group.model;
        let stranded = job.tickets.iter().filter_map(|ticket| {
            let may = ticket.bucket.reach.may;
            self.stranded_since(may, model).map(|since| (since.max(job.arrived) + start_max, may))
        });
        let first = stranded.min();
        // The CPU has it: that does not go away unseen.
        let on_cpus = self.devices.in_process().and(self.model(model).present);
        let is_safe = job.tickets.iter().all(|ticket| !ticket.bucket.reach.may.and(on_cpus).is_empty());
        if let Some((due, may)) = first
            && due <= now
        {
            let reason = match self.reason_of(may, model) {
                // All this time there was no room for it.
                Fallback::Waking => Fallback::OutOfMemory,
                reason => reason,
            };
            self.refuse(id, Refused::NoDevice(reason), actions);
        } else if let Some(job) = self.jobs.get_mut(id) {
            if is_safe {
                job.patience = None;
                return;
            }
            let due = first.map_or(now + start_max.max(Duration::from_millis(1)), |(due, _)| due);
            job.patience = Some(due);
            self.patience.insert((due, id));
        }
    }

    /// Since when none of these devices computes a model, if so: it is out of rotation, or does not even begin to load.
    fn stranded_since(&self, may: DeviceSet, model: ModelId) -> Option<Moment> {
        let mut last = Moment::START;
        for device in may.iter() {
            let place = self.residency.memory(device).resident(model);
            let device = self.devices.get(device);
            let is_used = device.health().is_in_rotation() || device.health().is_resting();
            let has_it = place.is_present() || place.is_loading();
            if is_used && has_it {
                return None;
            }
            last = last.max(place.lost_since.unwrap_or(Moment::START));
        }
        Some(last)
    }

    /// Refuses every request that waits for devices which were all given up.
    pub(super) fn refuse_unreachable(&mut self, actions: &mut Vec<Action>) {
        let dead: Vec<BucketKey> =
            self.queue.keys().filter(|bucket| !self.is_reachable(bucket.reach.may, bucket.group.model)).collect();
        for bucket in dead {
            let reason = self.reason_of(bucket.reach.may, bucket.group.model);
            while let Some(id) = self.queue.first_request(bucket) {
                self.refuse(id, Refused::NoDevice(reason), actions);
            }
        }
    }

    /// Whether one of these devices computes a model, or may do so without anybody's help.
    pub(super) fn is_reachable(&self, may: DeviceSet, model: ModelId) -> bool {
        let is_near = !may.and(self.model(model).present).is_empty();
        is_near || may.iter().any(|id| !self.devices.health(id).is_given_up() && self.obstacle(id, model).is_none())
    }

    /// Why these devices do not compute a model.
    pub(super) fn reason_of(&self, may: DeviceSet, model: ModelId) -> Fallback {
        let is_left = |&device: &DeviceId| !self.devices.health(device).is_given_up();
        let Some(device) = may.iter().find(is_left).or(may.iter().next()) else { return Fallback::Lost };
        self.weights_reason(device, model).unwrap_or_else(|| self.devices.health(device).fallback())
    }

    /// Why a device that is used, or rests, does not compute a model; none if it is neither.
    pub(super) fn weights_reason(&self, device: DeviceId, model: ModelId) -> Option<Fallback> {
        let own = self.devices.get(device);
        if !own.health().is_in_rotation() && !own.health().is_resting() {
            return None;
        }
        let failed = self.obstacle(device, model).or(self.residency.memory(device).resident(model).tries.reason);
        Some(failed.unwrap_or(Fallback::Waking))
    }
}
