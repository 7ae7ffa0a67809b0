//! Takes a request or says at once why not: bounds of requests, tokens and time, deadlines, devices that are not there.
//! Never waits and never takes more than the bounds; what it takes gets an answer. Small requests do not starve large ones,
//! no caller takes all of the room, and those of low priority leave room to the others.

use super::cost::{as_count, as_f64};
use super::device::Device;
use super::device_set::DeviceSet;
use super::jobs::total;
use super::options::to_generate;
use super::outlook::Outlook;
use super::promises::{Asking, Promised, Promises, Wait};
use super::sabotage::sabotaged;
use super::{Allowed, Coming, Fallback, Limits, ModelId, Moment, Priority, Refused, Request, Sequence, Sketch};
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
/// One that comes when it was told to may wait longer by one part in this: a prediction is not exact. It may also have this part of
/// what its caller leaves to others.
const LATE_PART: u64 = 4;
/// One that waits for requests that generate is told to come sooner by one part in this: a place that is free before it comes is lost.
const SOONER_PART: u32 = 8;

/// Up to one part in this of every bound is taken without a look at the rest.
const FREE_PART: u64 = 8;

/// Requests of low priority leave all but one part in this of every bound to the others.
const LOW_PART: u64 = 2;

/// What is to be taken.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    asking: Asking,
    may: DeviceSet,
    /// Others that were told to come and are not here yet.
    coming: Coming,
    priority: Priority,
    /// The model of one that generates, once it is read.
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
        let Sketch { caller, jobs, mark, priority, coming, .. } = *request;
        // Guesses are no more than is ever taken.
        let Limits { tokens_max: most, requests_max, .. } = of.cx.options.limits;
        let tokens = request.tokens.min(most - request.new_tokens.min(1));
        let new_tokens = request.new_tokens.min(most - tokens);
        // The last of several finds the others held by its caller, which leaves a part to others.
        let room = request.tokens.saturating_add(request.new_tokens);
        let are_many = jobs as usize > requests_max - requests_max / SPARED_PART as usize;
        if jobs > 1 && (are_many || room > to_generate(most - most / SPARED_PART)) {
            return Err(Refused::TooLarge);
        }
        let may = devices_for(of, request.allowed);
        let asking = Asking { caller, tokens, new_tokens, jobs, mark, is_read: false };
        self.check_room(of, Incoming { asking, may, coming, priority, generates: None }, now)?;
        if request.is_here {
            self.promises.note_back(asking, now);
        }
        Ok(time_for(of, may, as_f64(of.requests.jobs().left().all)).unwrap_or_default())
    }

    /// Tokens that are taken whatever their priority, and whichever devices may compute them: far from every bound, and
    /// while nothing was refused lately.
    pub(super) fn free_tokens(&self, of: Outlook<'_>) -> u64 {
        let limits = of.cx.options.limits;
        let jobs = of.requests.jobs();
        if self.is_draining || self.promises.are_awaited() || jobs.len() >= limits.requests_max / FREE_PART as usize {
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
        let new_tokens = request.sequences.iter().map(|one| u64::from(one.new_tokens_max)).sum();
        let (caller, tokens) = (request.caller, tokens - new_tokens);
        let asking = Asking { caller, tokens, new_tokens, jobs: 1, mark: None, is_read: true };
        let generates = (new_tokens > 0).then_some(model);
        let incoming = Incoming { asking, may, coming: Coming::default(), priority: request.priority, generates };
        self.check_room(of, incoming, of.cx.now)?;
        self.promises.note_taken(asking, of.cx.now);
        Ok(may)
    }

    /// Refuses what the bounds do not allow, and promises it room.
    fn check_room(&mut self, of: Outlook<'_>, incoming: Incoming, now: Moment) -> Result<(), Refused> {
        self.promises.forget_late(now);
        let promised = match incoming.priority {
            Priority::High => Promised::default(),
            Priority::Normal | Priority::Low => self.promises.before(incoming.asking, now),
        };
        let may_be_late = self.promises.is_due(incoming.asking, now);
        let kept = Kept { promised, is_bounded: true };
        let excess = excess(of, incoming, kept, may_be_late);
        if excess.is_none() || sabotaged!(of.cx, IgnoreLimits) {
            return Ok(());
        }
        let (wait, is_for_time) = (retry_after(of, incoming, promised, excess.by_time), excess.by_time > 0);
        let retry_after = match incoming.priority {
            Priority::Low => wait,
            Priority::Normal | Priority::High => self.promises.make(incoming.asking, Wait { wait, is_for_time }, now),
        };
        Err(Refused::Full { retry_after })
    }
}

/// Room that is kept for those who were promised it.
#[derive(Clone, Copy, Debug)]
struct Kept {
    promised: Promised,
    /// Some room is never kept, so that devices do not run dry where those who were promised it do not come.
    is_bounded: bool,
}

impl Kept {
    fn of(self, promised: u64, room: u64) -> u64 {
        if self.is_bounded { promised.min(room - room / UNKEPT_PART) } else { promised }
    }

    /// Of the tokens that may be held, where `others` are held by those that are not alike: of what generates and what does not,
    /// neither is promised so much that nothing is left for the other.
    fn of_tokens(self, room: u64, others: u64) -> u64 {
        let for_others = (room - room / SPARED_PART).saturating_sub(others).min(self.promised.room_others);
        self.of(self.promised.room_alike, room).saturating_add(for_others)
    }
}

/// By how much a request is beyond each bound.
#[derive(Clone, Copy, Debug)]
struct Excess {
    /// These tokens must be given back before there is room.
    by_size: u64,
    /// These must be given back by requests that generate.
    by_streams: u64,
    /// By these tokens there is too much ahead of it.
    by_time: u64,
    /// Microseconds that it would wait too long for space for its state.
    space_us: f64,
}

impl Excess {
    fn is_none(self) -> bool {
        self.by_size == 0 && self.by_streams == 0 && self.by_time == 0 && self.space_us <= 0.0
    }
}

/// By how much a request is beyond the bounds, where some of their room is kept from it.
fn excess(of: Outlook<'_>, incoming: Incoming, kept: Kept, may_be_late: bool) -> Excess {
    let Incoming { asking, may, coming, priority, .. } = incoming;
    let limits = of.cx.options.limits;
    let part = if priority == Priority::Low { LOW_PART } else { 1 };
    let (jobs, own) = (of.requests.jobs(), of.requests.jobs().held(asking.caller));
    // Of one that is submitted as several, all but the last are there before it.
    let before = u64::from(asking.jobs.saturating_sub(1));
    let own_requests = (own.requests as u64).saturating_add(before);
    let requests_max = room_for(limits.requests_max as u64, own_requests, 1, false).div_ceil(part);
    let requests = (jobs.len() as u64 + before + 1).saturating_sub(requests_max);
    // Some of the requests must end first, each of the mean size.
    let by_requests = requests.saturating_mul((jobs.tokens() / (jobs.len() as u64).max(1)).max(1));
    let held = jobs.tokens().saturating_add(coming.tokens).saturating_add(coming.new_tokens);
    let own_tokens = own.tokens.saturating_add(asking.room() - asking.room_of_one());
    let tokens_max = room_for(limits.tokens_max, own_tokens, asking.room_of_one(), may_be_late);
    let (by_tokens, by_streams) = excess_of_tokens(of, incoming, kept, tokens_max);
    let by_tokens = by_tokens.max(held.saturating_sub(limits.tokens_max / part));
    let (ahead, _) = ahead(of, incoming);
    let by_time = match limits.wait_max.filter(|_| ahead > 0 && !may.is_empty() && !sabotaged!(of.cx, IgnoreWait)) {
        Some(wait_max) => {
            let most = tokens_within(of, late(wait_max, may_be_late), may) / part;
            (ahead.saturating_add(kept.of(kept.promised.tokens, most)) + 1).saturating_sub(most)
        }
        None => 0,
    };
    let space_us = excess_of_space_us(of, incoming, kept, may_be_late);
    Excess { by_size: by_requests.max(by_tokens), by_streams, by_time, space_us }
}

/// Tokens by which a request is beyond this room for all of them, and beyond the part of it that is for requests that generate: those
/// hold their room for long, so they leave a part to the others.
fn excess_of_tokens(of: Outlook<'_>, incoming: Incoming, kept: Kept, most: u64) -> (u64, u64) {
    let Incoming { asking, coming, .. } = incoming;
    let streams = of.requests.streams().room();
    let in_one_step = of.requests.jobs().tokens().saturating_sub(streams);
    let (alike, others) = if asking.is_generated() { (streams, in_one_step) } else { (in_one_step, streams) };
    // Of those that come it is not said which generate.
    let come = coming.tokens.saturating_add(coming.new_tokens);
    let wanted = alike.saturating_add(asking.room()).saturating_add(come);
    let of_all = wanted.saturating_add(others).saturating_add(kept.of_tokens(most, others));
    let beyond_all = of_all.saturating_sub(most);
    if !asking.is_generated() {
        return (beyond_all, 0);
    }
    // The only one may have any size.
    let for_streams = to_generate(most).max(asking.room_of_one());
    let of_streams = wanted.saturating_add(kept.of(kept.promised.room_alike, for_streams));
    (beyond_all, of_streams.saturating_sub(for_streams))
}

/// The part of a bound for a caller that holds `own` of it and wants `more`: all of it where that is little.
fn room_for(most: u64, own: u64, more: u64, may_be_late: bool) -> u64 {
    let is_large = most >= LARGE_PART && own > 0 && own.saturating_add(more) > most / LARGE_PART;
    let spared = if is_large { most / SPARED_PART } else { 0 };
    most - spared + if may_be_late { spared / LATE_PART } else { 0 }
}

/// How long a request may wait.
fn late(wait_max: Duration, may_be_late: bool) -> Duration {
    if may_be_late { wait_max + wait_max / LATE_PART as u32 } else { wait_max }
}

/// Tokens that are computed before the last of a request, beside its own; and those of them all that wait. Its caller's other
/// requests have a part of that caller's time each, and other callers a part of all: none gets more than it needs, or than the
/// request itself gets.
fn ahead(of: Outlook<'_>, incoming: Incoming) -> (u64, u64) {
    let Incoming { asking: Asking { caller, tokens, .. }, may, coming, priority, .. } = incoming;
    let (jobs, own) = (of.requests.jobs(), of.requests.jobs().held(caller));
    let (left, coming) = match priority {
        // It overtakes all others.
        Priority::High => (jobs.left().high, Coming::default()),
        _ if may.and(of.devices.in_workers()).is_empty() => (jobs.left().cpu, coming),
        _ => (jobs.left().all, coming),
    };
    let own_left = own.left.min(left);
    let own_ahead = own_left.min((own.requests as u64).saturating_mul(tokens));
    let others = (left - own_left).saturating_add(coming.tokens);
    let callers = (jobs.callers() - usize::from(own.requests > 0)) as u64 + coming.requests;
    let ahead = own_ahead.saturating_add(others.min(callers.saturating_mul(own_ahead.saturating_add(tokens))));
    (ahead, left.saturating_add(coming.tokens))
}

/// Microseconds that a request which generates would wait for space for its state beyond the time that it may.
fn excess_of_space_us(of: Outlook<'_>, incoming: Incoming, kept: Kept, may_be_late: bool) -> f64 {
    let Incoming { asking, may, generates: Some(model), priority, .. } = incoming else { return 0.0 };
    // It takes the space of others.
    if priority == Priority::High || sabotaged!(of.cx, IgnoreWait) {
        return 0.0;
    }
    let (Some(wait_max), streams) = (of.cx.options.limits.wait_max, of.requests.streams()) else { return 0.0 };
    let token_bytes = |id: ModelId| as_f64(of.model(id).plan.kv_token_bytes);
    // In bytes of the whole state of tokens: where a device keeps a part of it, more of them have space.
    let kept_part = |id| token_bytes(model) / as_f64(of.step_bounds(id, model).token_bytes).max(1.0);
    let devices = may.iter().filter(|id| of.devices.get(*id).health().is_in_rotation());
    let space: f64 = devices.map(|id| as_f64(of.residency.memory(id).ledger().kv_share()) * kept_part(id)).sum();
    let models = of.residency.models().map(|(id, _)| (id, of.requests.jobs().of(id).generated_tokens));
    let taken: f64 = models.map(|(id, tokens)| as_f64(tokens) * token_bytes(id)).sum();
    if taken == 0.0 || space == 0.0 {
        return 0.0;
    }
    // In tokens of this model, of which each request uses a part.
    let in_tokens = |bytes: f64| bytes / token_bytes(model).max(1.0);
    let has = in_tokens(space) / streams.used_part();
    let before = as_f64(kept.of(kept.promised.room_alike, as_count(has)));
    if in_tokens(taken) + as_f64(asking.room()) + before <= has {
        return 0.0;
    }
    streams.wait_for_space_us(has, before) - micros(late(wait_max, may_be_late))
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

/// When there should be room for a request that was refused since `by_time` tokens too many are ahead of it: after those that were promised room before it.
fn retry_after(of: Outlook<'_>, incoming: Incoming, promised: Promised, by_time: u64) -> Duration {
    let Excess { by_size, by_streams, space_us, .. } =
        excess(of, incoming, Kept { promised, is_bounded: false }, false);
    // Of what is promised, too, as much is ahead of it as it gets itself.
    let ahead_of_it = promised.tokens.min(promised.requests.saturating_mul(incoming.asking.tokens));
    let promised = Promised { tokens: ahead_of_it, ..promised };
    let by_time = excess(of, incoming, Kept { promised, is_bounded: false }, false).by_time.max(by_time);
    let (ahead, left) = ahead(of, incoming);
    // Where little of what waits is ahead of it, that little becomes less as slowly as all of it.
    let by_time = as_f64(by_time) * (as_f64(left) / as_f64(ahead.max(1))).max(1.0);
    let for_size = (by_size > 0).then(|| time_to_free(of, incoming, by_size));
    let for_streams = (by_streams > 0).then(|| time_of_streams(of, by_streams));
    let for_time = (by_time > 0.0).then(|| time_for(of, incoming.may, by_time));
    let waits = [for_size, for_streams, for_time].into_iter().flatten().map(|time| time.unwrap_or(RETRY_UNMEASURED));
    waits.fold(from_micros(space_us), Duration::max).clamp(RETRY_LEAST, RETRY_MOST)
}

/// How long it takes until requests have given back this many tokens of room: those of one step, as long as there are such or
/// could be.
fn time_to_free(of: Outlook<'_>, incoming: Incoming, tokens: u64) -> Option<Duration> {
    let streams = of.requests.streams();
    let (jobs, asking) = (of.requests.jobs(), incoming.asking);
    let in_one_step = jobs.tokens().saturating_sub(streams.room());
    // Of the room that those which generate leave to them, what is free or only promised now is expected to be half in use: as fast
    // as they leave it full it would be too fast, and as fast as they leave now, those told so would keep it empty.
    let own = jobs.held(asking.caller).tokens;
    let left = room_for(of.cx.options.limits.tokens_max, own, asking.room(), false).saturating_sub(streams.room());
    let is_theirs = !asking.is_generated() && left >= asking.room();
    let turned_over = if is_theirs { in_one_step + left.saturating_sub(in_one_step) / 2 } else { in_one_step };
    if turned_over == 0 {
        return time_of_streams(of, tokens);
    }
    // None of them ends before a turn that is computed now.
    let turns_us = incoming.may.iter().map(|id| of.devices.get(id).turn_left_us(of.cx.now));
    let turn_us = turns_us.min_by(f64::total_cmp).unwrap_or_default();
    let known = streams.time_in_one_step_us(tokens, turned_over).map(|us| from_micros(us.max(turn_us)));
    known.or_else(|| time_for(of, incoming.may, as_f64(tokens)))
}

/// The same of requests that generate: they hold their room to their end, however fast prompts are computed.
fn time_of_streams(of: Outlook<'_>, tokens: u64) -> Option<Duration> {
    let known = of.requests.streams().time_to_free_us(tokens, of.requests.jobs().streams()).map(from_micros);
    known.map(|time| time - time / SOONER_PART)
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
