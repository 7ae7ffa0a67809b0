//! Takes a request or says at once why not: bounds of requests, tokens and time, deadlines, devices that are not there.
//! Never waits and never takes more than the bounds; what it takes gets an answer. Small requests do not starve large ones.

use super::device::Device;
use super::device_set::DeviceSet;
use super::jobs::{Job, total};
use super::phase::Reach;
use super::sabotage::sabotaged;
use super::{Action, Allowed, Fallback, Machine, Moment, Refused, Request, Sequence, Sketch};
use crate::moment::from_micros;
use std::time::Duration;

/// A caller that was refused is told to wait at least and at most this long.
const RETRY_LEAST: Duration = Duration::from_millis(10);
const RETRY_MOST: Duration = Duration::from_secs(5);
/// What a caller is told to wait before any speed was measured.
const RETRY_UNMEASURED: Duration = Duration::from_secs(1);
/// A caller comes back when this part of what is there should be done: all callers together find room then.
const RETRY_PART: f64 = 0.25;

/// What is asked for at the door.
#[derive(Clone, Copy, Debug)]
struct Newcomer {
    tokens: u64,
    may: DeviceSet,
    /// Tokens of others that were told to come and are not here yet.
    coming: u64,
}

impl Machine {
    /// Whether a request of about so many tokens would be taken now, beside `coming` tokens of requests that were told so
    /// before and are not submitted yet. One that would not is remembered as if it had been submitted.
    pub fn would_take(&mut self, request: &Sketch, now: Moment) -> Result<(), Refused> {
        if self.is_draining {
            return Err(Refused::Draining);
        }
        let tokens = request.tokens.min(self.cx.options.limits.tokens_max);
        self.check_room(Newcomer { tokens, may: self.devices_for(request.allowed), coming: request.coming }, now)
    }

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
        self.turned_away.note_taken(total(&request.sequences));
        let mut job = Job::new(request, may, now);
        job.is_for_gpus = !may.and(self.devices.in_workers()).is_empty();
        let model = self.model_mut(job.group.model);
        model.used = now;
        if job.is_for_gpus {
            model.gpu_used = now;
        }
        if job.unanswered > 1 && sabotaged!(self.cx, SkipLastText) {
            job.unanswered -= 1;
        }
        let (sequences, is_generated) = (job.unanswered, !job.progress.is_empty());
        self.jobs.insert(id, job);
        self.deadlines.extend(deadline.map(|deadline| (deadline, id)));
        let reach = Reach { may, rather_not: DeviceSet::EMPTY };
        // Sequences of many steps go their own ways.
        for number in (0..sequences).filter(|_| is_generated) {
            self.enqueue(id, number..number + 1, reach, actions);
        }
        if !is_generated {
            self.enqueue(id, 0..sequences, reach, actions);
        }
    }

    /// The devices that may compute a request, or why it is not taken.
    fn check(&mut self, request: &Request, now: Moment) -> Result<DeviceSet, Refused> {
        if self.is_draining {
            return Err(Refused::Draining);
        }
        if request.deadline.is_some_and(|deadline| deadline <= now) && !sabotaged!(self.cx, IgnoreDeadline) {
            return Err(Refused::Expired);
        }
        let limits = self.cx.options.limits;
        let tokens = total(&request.sequences);
        if tokens > limits.tokens_max {
            return Err(Refused::TooLarge);
        }
        let model = request.group.model;
        if !self.residency.knows(model) {
            return Err(Refused::NoDevice(Fallback::NotLoaded));
        }
        let may = self.devices_with_space(request, self.devices_for(request.allowed))?;
        if !self.is_reachable(may, model) {
            return Err(Refused::NoDevice(self.reason_of(may, model)));
        }
        self.check_room(Newcomer { tokens, may, coming: 0 }, now)?;
        Ok(may)
    }

    /// Those of the devices that can keep the state of each sequence to its end.
    fn devices_with_space(&self, request: &Request, may: DeviceSet) -> Result<DeviceSet, Refused> {
        let generated = request.sequences.iter().filter(|one| one.is_generated());
        let Some(tokens) = generated.map(Sequence::tokens_max).max() else { return Ok(may) };
        let most = tokens.saturating_mul(self.model(request.group.model).plan.kv_token_bytes);
        let with_space: DeviceSet =
            may.iter().filter(|id| self.devices.get(*id).spec().memory.kv_max >= most).collect();
        if with_space.is_empty() && !may.is_empty() { Err(Refused::TooLarge) } else { Ok(with_space) }
    }

    /// Refuses what the bounds do not allow, and remembers it.
    fn check_room(&mut self, newcomer: Newcomer, now: Moment) -> Result<(), Refused> {
        if self.has_room(newcomer, now) || sabotaged!(self.cx, IgnoreLimits) {
            return Ok(());
        }
        self.turned_away.note_refused(newcomer.tokens, now);
        Err(Refused::Full { retry_after: self.retry_after(newcomer.tokens) })
    }

    fn has_room(&self, newcomer: Newcomer, now: Moment) -> bool {
        let Newcomer { tokens, may, coming } = newcomer;
        let limits = self.cx.options.limits;
        let kept = |room: u64| self.turned_away.kept_from(tokens, room, now);
        let held = self.jobs.tokens().saturating_add(coming).saturating_add(tokens);
        if self.jobs.len() >= limits.requests_max || held.saturating_add(kept(limits.tokens_max)) > limits.tokens_max {
            return false;
        }
        let left =
            if may.and(self.devices.in_workers()).is_empty() { self.jobs.left().cpu } else { self.jobs.left().all };
        let ahead = left.saturating_add(coming);
        let Some(wait_max) = limits.wait_max.filter(|_| ahead > 0 && !may.is_empty()) else { return true };
        let most = self.tokens_within(wait_max, may);
        ahead.saturating_add(kept(most)) < most
    }

    /// Tokens that these devices compute in this time; those that are not in rotation count where all of them are out.
    fn tokens_within(&self, time: Duration, may: DeviceSet) -> u64 {
        let within = |is_counted: &dyn Fn(&Device) -> bool| -> u64 {
            let devices = may.iter().map(|id| self.devices.get(id)).filter(|device| is_counted(device));
            devices.map(|device| device.tokens_within(time)).fold(0, u64::saturating_add)
        };
        match within(&|device| device.health().is_in_rotation()) {
            0 => within(&|_| true),
            tokens => tokens,
        }
    }

    fn devices_for(&self, allowed: Allowed) -> DeviceSet {
        let is_misled = allowed == Allowed::Gpu && sabotaged!(self.cx, GpuWorkOnCpu);
        self.devices.allowed(if is_misled { Allowed::Any } else { allowed })
    }

    /// When there should be room for so many tokens, by the speed measured lately.
    fn retry_after(&self, tokens: u64) -> Duration {
        let in_rotation = self.devices.iter().filter(|device| device.health().is_in_rotation());
        let tokens_per_us: f64 = in_rotation.filter_map(|device| device.tokens_per_us()).sum();
        if tokens_per_us <= 0.0 {
            return RETRY_UNMEASURED;
        }
        let ahead = super::cost::as_f64(self.jobs.tokens()) * RETRY_PART;
        from_micros(ahead.max(super::cost::as_f64(tokens)) / tokens_per_us).clamp(RETRY_LEAST, RETRY_MOST)
    }
}
