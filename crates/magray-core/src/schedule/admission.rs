//! Takes a request or says at once why not: bounds of requests, tokens and time, deadlines, devices that are not there.
//! Never waits and never takes more than the bounds; what it takes gets an answer. Small requests do not starve large ones,
//! no caller takes all of the room, and those of low priority leave room to the others.

use super::cost::{as_count, as_f64};
use super::device::Device;
use super::device_set::DeviceSet;
use super::jobs::total;
use super::outlook::Outlook;
use super::promises::{Asking, Promised, Promises};
use super::sabotage::sabotaged;
use super::{Allowed, Fallback, ModelId, Moment, Priority, Refused, Request, Sequence, Sketch};
use crate::moment::{from_micros, micros};
use std::time::Duration;

/// A caller that was refused is told to wait at least and at most this long.
const RETRY_LEAST: Duration = Duration::from_millis(10);
const RETRY_MOST: Duration = Duration::from_secs(60);
/// What a caller is told to wait before any speed was measured.
const RETRY_UNMEASURED: Duration = Duration::from_secs(1);
/// A caller that holds more than one part in `LARGE_PART` of a bound leaves one part in `SPARED_PART` to others.
const LARGE_PART: u64 = 64;
const SPARED_PART: u64 = 4;

/// Of every bound, all but one part in this may be kept for those who were promised room.
const UNKEPT_PART: u64 = 4;
/// One that comes when it was told to may wait longer by one part in this: a prediction is not exact.
const LATE_PART: u64 = 4;

/// Up to one part in this of every bound is taken without a look at the rest.
const FREE_PART: u64 = 8;

/// Requests of low priority leave all but one part in this of every bound to the others.
const LOW_PART: u64 = 2;

/// What is to be taken.
#[derive(Clone, Copy, Debug)]
struct Newcomer {
    asking: Asking,
    may: DeviceSet,
    /// Others that were told to come and are not here yet, and their tokens.
    coming: (u64, u64),
    priority: Priority,
    /// The model of one that generates.
    generates: Option<ModelId>,
}

/// Whether requests are taken, and what those were told that were not.
#[derive(Clone, Debug, Default)]
pub(super) struct Admission {
    is_draining: bool,
    promises: Promises,
}

impl Admission {
    /// Nothing is taken any more.
    pub(super) fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Whether a request of about this many tokens would be taken now, and how long all that is there should take. One that
    /// would not be is remembered as if it had been submitted.
    pub(super) fn would_take(&mut self, of: Outlook<'_>, request: &Sketch, now: Moment) -> Result<Duration, Refused> {
        if self.is_draining {
            return Err(Refused::Draining);
        }
        let tokens = request.tokens.min(of.cx.options.limits.tokens_max);
        let may = devices_for(of, request.allowed);
        let coming = (request.coming, request.coming_tokens);
        let asking = Asking { caller: request.caller, tokens, mark: Some(request.mark) };
        let newcomer = Newcomer { asking, may, coming, priority: request.priority, generates: None };
        self.check_room(of, newcomer, now)?;
        if request.is_here {
            self.promises.note_back(asking);
        }
        Ok(time_for(of, may, as_f64(of.requests.jobs().left().all)).unwrap_or_default())
    }

    /// Tokens that are taken whatever their priority, and whichever devices may compute them: far from every bound, and
    /// while nothing was refused lately.
    pub(super) fn free_tokens(&self, of: Outlook<'_>) -> u64 {
        let limits = of.cx.options.limits;
        let jobs = of.requests.jobs();
        if self.is_draining || !self.promises.is_empty() || jobs.len() >= limits.requests_max / FREE_PART as usize {
            return 0;
        }
        let slowest = limits.wait_max.and_then(|wait| of.devices.iter().map(|device| device.tokens_within(wait)).min());
        (limits.tokens_max.min(slowest.unwrap_or(u64::MAX)) / FREE_PART).saturating_sub(jobs.tokens())
    }

    /// The devices that may compute a request, or why it is not taken.
    pub(super) fn check(&mut self, of: Outlook<'_>, request: &Request) -> Result<DeviceSet, Refused> {
        if self.is_draining {
            return Err(Refused::Draining);
        }
        if request.deadline.is_some_and(|deadline| deadline <= of.cx.now) && !sabotaged!(of.cx, IgnoreDeadline) {
            return Err(Refused::Expired);
        }
        let limits = of.cx.options.limits;
        let tokens = total(&request.sequences);
        if tokens > limits.tokens_max {
            return Err(Refused::TooLarge);
        }
        let model = request.group.model;
        if !of.residency.knows(model) {
            return Err(Refused::NoDevice(Fallback::NotLoaded));
        }
        let may = devices_for(of, request.allowed).iter().filter(|id| of.suits(*id, model)).collect();
        let may = devices_with_space(of, request, may)?;
        if !of.is_reachable(may, model) {
            return Err(Refused::NoDevice(of.reason_of(may, model)));
        }
        let asking = Asking { caller: request.caller, tokens, mark: None };
        let generates = request.sequences.iter().any(Sequence::is_generated).then_some(model);
        let newcomer = Newcomer { asking, may, coming: (0, 0), priority: request.priority, generates };
        self.check_room(of, newcomer, of.cx.now)?;
        self.promises.note_taken(asking);
        Ok(may)
    }

    /// Refuses what the bounds do not allow, and promises it room.
    fn check_room(&mut self, of: Outlook<'_>, newcomer: Newcomer, now: Moment) -> Result<(), Refused> {
        self.promises.forget_late(now);
        let promised = match newcomer.priority {
            Priority::High => Promised::default(),
            Priority::Normal | Priority::Low => self.promises.before(newcomer.asking),
        };
        // Some room is never kept, so that devices do not run dry where those who were promised it do not come.
        let kept = |room: u64| promised.tokens.min(room - room / UNKEPT_PART);
        let may_be_late = self.promises.is_due(newcomer.asking, now);
        if excess(of, newcomer, kept, may_be_late).most() == 0 || sabotaged!(of.cx, IgnoreLimits) {
            return Ok(());
        }
        let wait = retry_after(of, newcomer, promised);
        let retry_after = match newcomer.priority {
            Priority::Low => wait,
            Priority::Normal | Priority::High => self.promises.make(newcomer.asking, wait, now),
        };
        Err(Refused::Full { retry_after: retry_after.max(RETRY_LEAST) })
    }
}

/// Tokens by which a request is beyond each bound.
#[derive(Clone, Copy, Debug)]
struct Excess {
    /// These must be computed before there is room.
    by_size: u64,
    /// By these there is too much ahead of it.
    by_time: u64,
}

impl Excess {
    fn most(self) -> u64 {
        self.by_size.max(self.by_time)
    }
}

/// By how much a request is beyond the bounds, where `kept` of a room is kept from it.
fn excess(of: Outlook<'_>, newcomer: Newcomer, kept: impl Fn(u64) -> u64, may_be_late: bool) -> Excess {
    let Newcomer { asking: Asking { caller, tokens, .. }, may, coming, priority, .. } = newcomer;
    let limits = of.cx.options.limits;
    let part = if priority == Priority::Low { LOW_PART } else { 1 };
    let (jobs, own) = (of.requests.jobs(), of.requests.jobs().held(caller));
    let requests_max = room_for(limits.requests_max as u64, own.requests as u64, 1).div_ceil(part);
    let requests = (jobs.len() as u64 + 1).saturating_sub(requests_max);
    // Some of the requests must end first, each of the mean size.
    let by_requests = requests.saturating_mul((jobs.tokens() / (jobs.len() as u64).max(1)).max(1));
    let others = jobs.tokens().saturating_add(coming.1);
    let tokens_max = room_for(limits.tokens_max, own.tokens, tokens);
    let held = others.saturating_add(tokens).saturating_add(kept(limits.tokens_max));
    let by_tokens = held.saturating_sub(tokens_max).max(others.saturating_sub(limits.tokens_max / part));
    let (ahead, _) = ahead(of, newcomer);
    let by_time = match limits.wait_max.filter(|_| ahead > 0 && !may.is_empty() && !sabotaged!(of.cx, IgnoreWait)) {
        Some(wait_max) => {
            let wait_max = if may_be_late { wait_max + wait_max / LATE_PART as u32 } else { wait_max };
            let most = tokens_within(of, wait_max, may) / part;
            (ahead.saturating_add(kept(most)) + 1).saturating_sub(most)
        }
        None => 0,
    };
    let by_space = excess_of_space(of, newcomer, kept);
    Excess { by_size: by_requests.max(by_tokens).max(by_space), by_time }
}

/// The part of a bound for a caller that holds `own` of it and wants `more`: all of it where that is little.
fn room_for(most: u64, own: u64, more: u64) -> u64 {
    let is_large = most >= LARGE_PART && own > 0 && own.saturating_add(more) > most / LARGE_PART;
    if is_large { most - most / SPARED_PART } else { most }
}

/// Tokens that are computed before the last of a request, beside its own; and those of them all that wait. Its caller's other
/// requests have a part of that caller's time each, and other callers a part of all: none gets more than it needs, or than the
/// request itself gets.
fn ahead(of: Outlook<'_>, newcomer: Newcomer) -> (u64, u64) {
    let Newcomer { asking: Asking { caller, tokens, .. }, may, coming, priority, .. } = newcomer;
    let (jobs, own) = (of.requests.jobs(), of.requests.jobs().held(caller));
    let (left, coming) = match priority {
        // It overtakes all others.
        Priority::High => (jobs.left().high, (0, 0)),
        _ if may.and(of.devices.in_workers()).is_empty() => (jobs.left().cpu, coming),
        _ => (jobs.left().all, coming),
    };
    let own_left = own.left.min(left);
    let own_ahead = own_left.min((own.requests as u64).saturating_mul(tokens));
    let others = (left - own_left).saturating_add(coming.1);
    let callers = (jobs.callers() - usize::from(own.requests > 0)) as u64 + coming.0;
    let ahead = own_ahead.saturating_add(others.min(callers.saturating_mul(own_ahead.saturating_add(tokens))));
    (ahead, left.saturating_add(coming.1))
}

/// Tokens by which requests that generate are beyond what devices have space for, and beyond what ends in the time that one of
/// them may wait for space.
fn excess_of_space(of: Outlook<'_>, newcomer: Newcomer, kept: impl Fn(u64) -> u64) -> u64 {
    let Newcomer { asking, may, generates: Some(model), priority, .. } = newcomer else { return 0 };
    // It takes the space of others.
    if priority == Priority::High {
        return 0;
    }
    let (Some(wait_max), streams) = (of.cx.options.limits.wait_max, of.requests.streams()) else { return 0 };
    let Some(room_per_us) = streams.room_per_us().filter(|_| !sabotaged!(of.cx, IgnoreWait)) else { return 0 };
    let token_bytes = |id: ModelId| as_f64(of.model(id).plan.kv_token_bytes);
    // In bytes of the whole state of tokens: where a device keeps a part of it, more of them have space.
    let kept_part = |id| token_bytes(model) / as_f64(of.step_bounds(id, model).token_bytes).max(1.0);
    let devices = may.iter().filter(|id| of.devices.get(*id).health().is_in_rotation());
    let space: f64 = devices.map(|id| as_f64(of.residency.memory(id).ledger().kv_share()) * kept_part(id)).sum();
    let models = of.residency.models().map(|(id, _)| (id, of.requests.jobs().of(id).generated_tokens));
    let taken: f64 = models.map(|(id, tokens)| as_f64(tokens) * token_bytes(id)).sum();
    if taken == 0.0 || space == 0.0 {
        return 0;
    }
    // In tokens of this model, of which each request uses a part.
    let in_tokens = |bytes: f64| bytes / token_bytes(model).max(1.0);
    let has = in_tokens(space) / streams.used_part();
    let before = as_f64(kept(as_count(has)));
    if in_tokens(taken) + as_f64(asking.tokens) + before <= has {
        return 0;
    }
    let late_us = (streams.wait_for_space_us(has, before) - micros(wait_max)).max(0.0);
    as_count((late_us * room_per_us).ceil())
}

/// Those of the devices that can keep the state of each sequence to its end.
fn devices_with_space(of: Outlook<'_>, request: &Request, may: DeviceSet) -> Result<DeviceSet, Refused> {
    let generated = request.sequences.iter().filter(|one| one.is_generated());
    let Some(tokens) = generated.map(Sequence::tokens_max).max() else { return Ok(may) };
    let most = |id| tokens.saturating_mul(of.step_bounds(id, request.group.model).token_bytes);
    let with_space: DeviceSet = may.iter().filter(|id| of.devices.get(*id).spec().memory.kv_max >= most(*id)).collect();
    if with_space.is_empty() && !may.is_empty() { Err(Refused::TooLarge) } else { Ok(with_space) }
}

/// Tokens that these devices compute in this time; those that are not in rotation count where all of them are out.
fn tokens_within(of: Outlook<'_>, time: Duration, may: DeviceSet) -> u64 {
    let within = |is_counted: &dyn Fn(&Device) -> bool| -> u64 {
        let devices = may.iter().map(|id| of.devices.get(id)).filter(|device| is_counted(device));
        devices.map(|device| device.tokens_within(time)).fold(0, u64::saturating_add)
    };
    match within(&|device| device.health().is_in_rotation()) {
        0 => within(&|_| true),
        tokens => tokens,
    }
}

fn devices_for(of: Outlook<'_>, allowed: Allowed) -> DeviceSet {
    let is_misled = allowed == Allowed::Gpu && sabotaged!(of.cx, GpuWorkOnCpu);
    of.devices.allowed(if is_misled { Allowed::Any } else { allowed })
}

/// When there should be room for a request: after those that were promised room before it.
fn retry_after(of: Outlook<'_>, newcomer: Newcomer, promised: Promised) -> Duration {
    let size = newcomer.asking.tokens;
    let by_size = excess(of, newcomer, |_| promised.tokens, false).by_size;
    // Of what is promised, too, as much is ahead of it as it gets itself.
    let kept = promised.tokens.min(promised.requests.saturating_mul(size));
    let by_time = excess(of, newcomer, |_| kept, false).by_time;
    let (ahead, left) = ahead(of, newcomer);
    // Where little of what waits is ahead of it, that little becomes less as slowly as all of it.
    let by_time = as_f64(by_time) * (as_f64(left) / as_f64(ahead.max(1))).max(1.0);
    // What generates holds its room to its end, however fast prompts are computed.
    let for_size = match of.requests.streams().room_per_us() {
        Some(room_per_us) => Some(from_micros(as_f64(by_size) / room_per_us)),
        None => time_for(of, newcomer.may, as_f64(by_size)),
    };
    for_size.max(time_for(of, newcomer.may, by_time)).unwrap_or(RETRY_UNMEASURED).clamp(RETRY_LEAST, RETRY_MOST)
}

/// How long all that is there should take, on the devices that any request may use; `None`: no speed is known yet.
pub(super) fn predicted_wait(of: Outlook<'_>) -> Option<Duration> {
    match of.requests.jobs().left().all {
        0 => Some(Duration::ZERO),
        left => time_for(of, devices_for(of, Allowed::Any), as_f64(left)),
    }
}

/// How long these devices take for this many tokens, by the speed measured lately.
fn time_for(of: Outlook<'_>, may: DeviceSet, tokens: f64) -> Option<Duration> {
    let in_rotation = may.iter().map(|id| of.devices.get(id)).filter(|device| device.health().is_in_rotation());
    let tokens_per_us: f64 = in_rotation.filter_map(|device| device.tokens_per_us()).sum();
    (tokens_per_us > 0.0).then(|| from_micros(tokens / tokens_per_us))
}
