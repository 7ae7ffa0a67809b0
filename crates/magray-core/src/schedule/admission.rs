//! Takes a request or says at once why not: bounds of requests, tokens and time, deadlines, devices that are not there.
//! Never waits and never takes more than the bounds; what it takes gets an answer. Small requests do not starve large ones,
//! and those of low priority leave room to the others.

use super::cost::as_f64;
use super::device::Device;
use super::device_set::DeviceSet;
use super::jobs::total;
use super::largest_refused::LargestRefused;
use super::outlook::Outlook;
use super::sabotage::sabotaged;
use super::{Allowed, Fallback, Moment, Priority, Refused, Request, Sequence, Sketch};
use crate::moment::from_micros;
use std::time::Duration;

/// A caller that was refused is told to wait at least and at most this long.
const RETRY_LEAST: Duration = Duration::from_millis(10);
const RETRY_MOST: Duration = Duration::from_secs(5);
/// What a caller is told to wait before any speed was measured.
const RETRY_UNMEASURED: Duration = Duration::from_secs(1);
/// A caller comes back when this part of what is there should be done: all callers together find room then.
const RETRY_PART: f64 = 0.25;

/// Requests of low priority leave all but one part in this of every bound to the others.
const LOW_PART: u8 = 2;

/// What is to be taken.
#[derive(Clone, Copy, Debug)]
struct Newcomer {
    tokens: u64,
    may: DeviceSet,
    /// Tokens of others that were told to come and are not here yet.
    coming: u64,
    priority: Priority,
}

/// Whether requests are taken, and which was refused lately.
#[derive(Clone, Debug, Default)]
pub(super) struct Admission {
    is_draining: bool,
    largest_refused: LargestRefused,
}

impl Admission {
    /// Nothing is taken any more.
    pub(super) fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Whether a request of about this many tokens would be taken now. One that would not is remembered as if it had been
    /// submitted.
    pub(super) fn would_take(&mut self, of: Outlook<'_>, request: &Sketch, now: Moment) -> Result<(), Refused> {
        if self.is_draining {
            return Err(Refused::Draining);
        }
        let tokens = request.tokens.min(of.cx.options.limits.tokens_max);
        let may = devices_for(of, request.allowed);
        self.check_room(of, Newcomer { tokens, may, coming: request.coming, priority: request.priority }, now)
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
        let may = devices_with_space(of, request, devices_for(of, request.allowed))?;
        if !of.is_reachable(may, model) {
            return Err(Refused::NoDevice(of.reason_of(may, model)));
        }
        self.check_room(of, Newcomer { tokens, may, coming: 0, priority: request.priority }, of.cx.now)?;
        self.largest_refused.note_taken(tokens);
        Ok(may)
    }

    /// Refuses what the bounds do not allow, and remembers it.
    fn check_room(&mut self, of: Outlook<'_>, newcomer: Newcomer, now: Moment) -> Result<(), Refused> {
        if self.has_room(of, newcomer, now) || sabotaged!(of.cx, IgnoreLimits) {
            return Ok(());
        }
        if newcomer.priority > Priority::Low {
            self.largest_refused.note_refused(newcomer.tokens, now);
        }
        Err(Refused::Full { retry_after: retry_after(of, newcomer.tokens) })
    }

    fn has_room(&self, of: Outlook<'_>, newcomer: Newcomer, now: Moment) -> bool {
        let Newcomer { tokens, may, coming, priority } = newcomer;
        let limits = of.cx.options.limits;
        let kept = |room: u64| match priority {
            Priority::High => 0,
            Priority::Normal | Priority::Low => self.largest_refused.kept_from(tokens, room, now),
        };
        let jobs = of.requests.jobs();
        let others = jobs.tokens().saturating_add(coming);
        let is_crowded = jobs.len() >= limits.requests_max.div_ceil(LOW_PART.into())
            || others > limits.tokens_max / u64::from(LOW_PART);
        if priority == Priority::Low && is_crowded {
            return false;
        }
        let held = others.saturating_add(tokens);
        if jobs.len() >= limits.requests_max || held.saturating_add(kept(limits.tokens_max)) > limits.tokens_max {
            return false;
        }
        let ahead = match priority {
            // It overtakes all others.
            Priority::High => jobs.left().high,
            _ if may.and(of.devices.in_workers()).is_empty() => jobs.left().cpu.saturating_add(coming),
            _ => jobs.left().all.saturating_add(coming),
        };
        let Some(wait_max) = limits.wait_max.filter(|_| ahead > 0 && !may.is_empty()) else { return true };
        let part = if priority == Priority::Low { LOW_PART } else { 1 };
        let most = tokens_within(of, wait_max, may) / u64::from(part);
        ahead.saturating_add(kept(most)) < most
    }
}

/// Those of the devices that can keep the state of each sequence to its end.
fn devices_with_space(of: Outlook<'_>, request: &Request, may: DeviceSet) -> Result<DeviceSet, Refused> {
    let generated = request.sequences.iter().filter(|one| one.is_generated());
    let Some(tokens) = generated.map(Sequence::tokens_max).max() else { return Ok(may) };
    let most = tokens.saturating_mul(of.model(request.group.model).plan.kv_token_bytes);
    let with_space: DeviceSet = may.iter().filter(|id| of.devices.get(*id).spec().memory.kv_max >= most).collect();
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

/// When there should be room for this many tokens, by the speed measured lately.
fn retry_after(of: Outlook<'_>, tokens: u64) -> Duration {
    let in_rotation = of.devices.iter().filter(|device| device.health().is_in_rotation());
    let tokens_per_us: f64 = in_rotation.filter_map(|device| device.tokens_per_us()).sum();
    if tokens_per_us <= 0.0 {
        return RETRY_UNMEASURED;
    }
    let ahead = as_f64(of.requests.jobs().tokens()) * RETRY_PART;
    from_micros(ahead.max(as_f64(tokens)) / tokens_per_us).clamp(RETRY_LEAST, RETRY_MOST)
}
