//! Takes a request or says at once why not: bounds of requests and tokens, deadlines, devices that are not there.
//! Never waits and never takes more than the bounds; what it takes gets an answer.

use super::device::from_micros;
use super::device_set::DeviceSet;
use super::jobs::{Job, total};
use super::queue::Reach;
use super::sabotage::sabotaged;
use super::{Action, Allowed, Fallback, Machine, Moment, Refused, Request};
use std::time::Duration;

/// A caller that was refused is told to wait at least and at most this long.
const RETRY_LEAST: Duration = Duration::from_millis(10);
const RETRY_MOST: Duration = Duration::from_secs(5);
/// What a caller is told to wait before any speed was measured.
const RETRY_UNMEASURED: Duration = Duration::from_secs(1);
/// A caller comes back when this part of what is there should be done: all callers together find room then.
const RETRY_PART: f64 = 0.25;

impl Machine {
    pub(super) fn admit(&mut self, request: Request, now: Moment, actions: &mut Vec<Action>) {
        // A name that is still in use would make two requests one; whoever used it first keeps it.
        if self.jobs.contains(request.id) {
            return;
        }
        let (id, deadline) = (request.id, request.deadline);
        let may = match self.check(&request, now) {
            Ok(may) => may,
            Err(refused) => return actions.push(Action::Refuse { request: id, refused }),
        };
        let mut job = Job::new(request, may, now);
        job.is_for_gpus = !may.and(self.gpus).is_empty();
        let model = self.model_mut(job.group.model);
        model.used = now;
        if job.is_for_gpus {
            model.gpu_used = now;
        }
        if job.unanswered > 1 && sabotaged!(self, SkipLastText) {
            job.unanswered -= 1;
        }
        let texts = 0..job.unanswered;
        self.jobs.insert(id, job);
        self.deadlines.extend(deadline.map(|deadline| (deadline, id)));
        self.enqueue(id, texts, Reach { may, rather_not: DeviceSet::EMPTY }, actions);
    }

    /// The devices that may compute a request, or why it is not taken.
    fn check(&self, request: &Request, now: Moment) -> Result<DeviceSet, Refused> {
        if self.is_draining {
            return Err(Refused::Draining);
        }
        if request.deadline.is_some_and(|deadline| deadline <= now) && !sabotaged!(self, IgnoreDeadline) {
            return Err(Refused::Expired);
        }
        let limits = self.options.limits;
        let tokens = total(&request.tokens);
        if tokens > limits.tokens_max {
            return Err(Refused::TooLarge);
        }
        let model = request.group.model;
        if model.0 as usize >= self.models.len() {
            return Err(Refused::NoDevice(Fallback::NotLoaded));
        }
        let may = self.devices_for(request.allowed);
        if !self.is_reachable(may, model) {
            return Err(Refused::NoDevice(self.reason_of(may, model)));
        }
        let has_room = self.jobs.len() < limits.requests_max && self.jobs.tokens() + tokens <= limits.tokens_max;
        if !has_room && !sabotaged!(self, IgnoreLimits) {
            return Err(Refused::Full { retry_after: self.retry_after(tokens) });
        }
        Ok(may)
    }

    fn devices_for(&self, allowed: Allowed) -> DeviceSet {
        match allowed {
            Allowed::Any => self.cpus.union(self.gpus),
            Allowed::Gpu if sabotaged!(self, GpuWorkOnCpu) => self.cpus.union(self.gpus),
            Allowed::Gpu => self.gpus,
            Allowed::Cpu => self.cpus,
            Allowed::Only(device) => DeviceSet::one(device).and(self.cpus.union(self.gpus)),
        }
    }

    /// When there should be room for so many tokens, by the speed measured lately.
    fn retry_after(&self, tokens: u64) -> Duration {
        let in_rotation = self.devices.iter().filter(|device| device.is_in_rotation());
        let tokens_per_us: f64 = in_rotation.filter_map(|device| device.tokens_per_us()).sum();
        if tokens_per_us <= 0.0 {
            return RETRY_UNMEASURED;
        }
        let ahead = super::cost::as_f64(self.jobs.tokens()) * RETRY_PART;
        from_micros(ahead.max(super::cost::as_f64(tokens)) / tokens_per_us).clamp(RETRY_LEAST, RETRY_MOST)
    }
}
