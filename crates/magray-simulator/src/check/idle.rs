//! Judges waiting: nothing waits for an idle device, and no old request is overtaken.
//! Leaves out cases in which waiting may be right: a faster device that is busy, a request that failed before.

use super::batches::Batches;
use super::requests::{Entry, Ledger};
use super::rule::{Broken, Rule, Verdict, holds};
use super::streams::Streams;
use super::weights::Weights;
use magray_core::schedule::{DeviceId, DeviceSpec, DeviceState, Moment, Options, RequestId, Sizing, Step, View};
use std::time::Duration;

/// Requests that are checked after each step, oldest first: in a long queue the others are in the same situation.
const LOOKED_AT: usize = 100;

#[derive(Debug)]
pub(crate) struct Idle {
    specs: Vec<DeviceSpec>,
    is_adaptive: bool,
    age_max: Duration,
    in_rotation: Vec<bool>,
    /// Workers at rest: waiting for one to start may be the best choice.
    at_rest: Vec<bool>,
}

#[derive(Clone, Copy)]
pub(crate) struct Start<'a> {
    pub(crate) device: DeviceId,
    pub(crate) steps: &'a [Step],
}

/// What waiting is judged by.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) ledger: &'a Ledger,
    pub(crate) batches: &'a Batches,
    pub(crate) streams: &'a Streams,
    pub(crate) weights: &'a Weights,
}

impl Idle {
    pub(crate) fn new(options: &Options, specs: Vec<DeviceSpec>) -> Self {
        Self {
            in_rotation: vec![false; specs.len()],
            at_rest: vec![false; specs.len()],
            specs,
            is_adaptive: options.batching.sizing == Sizing::Adaptive,
            age_max: match options.batching.sizing {
                Sizing::Adaptive => options.batching.age_max,
                // Before its timeout a batch waits for more texts.
                Sizing::Fixed { timeout, .. } => options.batching.age_max.max(timeout),
            },
        }
    }

    /// A batch must not start on the only device of a request that has waited longer than the bound, if no request of the
    /// same group and priority as its first one has waited as long. Within a priority, callers share the devices.
    pub(crate) fn keeps_order(
        &self,
        start: &Start<'_>,
        ledger: &Ledger,
        batches: &Batches,
        weights: &Weights,
        now: Moment,
    ) -> Verdict {
        let Start { device, steps } = *start;
        let at = usize::from(device.0);
        let leader = ledger.entry(steps[0].request)?;
        // Who comes first in a turn, the book of sequences judges.
        if leader.is_generated() {
            return Ok(());
        }
        let is_alike = |entry: &&Entry| {
            let (one, other) = (&entry.request, &leader.request);
            one.group == other.group && one.priority == other.priority && entry.waiting > 0
        };
        // What failed before, or may go elsewhere, has its turn for other reasons.
        let is_plain = |entry: &Entry| entry.is_untouched() && self.is_only_choice(entry, at);
        if !is_plain(leader) || ledger.live().filter(is_alike).any(|entry| !is_plain(entry)) {
            return Ok(());
        }
        let is_there = |id: RequestId| steps.iter().any(|step| step.request == id);
        let oldest = ledger.live().filter(is_alike).map(Entry::waits_since).min().unwrap_or(now);
        let aged = ledger
            .live()
            .filter(|entry| now.since(entry.waits_since()) > self.age_max && entry.waits_since() < oldest)
            .filter(|entry| !batches.is_trying(device, entry.request.group) && !entry.is_generated())
            .find(|entry| entry.waiting > 0 && is_plain(entry) && !is_alike(entry) && !is_there(entry.request.id));
        let Some(aged) = aged else { return Ok(()) };
        // Its model may not be there, or be on its way out: that is not to be seen from outside.
        let (model, other) = (aged.request.group.model, leader.request.group.model);
        if model != other && (weights.is_crowded() || !weights.is_there(device, model)) {
            return Ok(());
        }
        let message = format!(
            "request {} waits since {:?} for device {at}, and request {} is started before it, whose like wait since {oldest:?}",
            aged.request.id.0,
            aged.waits_since(),
            leader.request.id.0
        );
        Err(Broken { rule: Rule::Ages, message })
    }

    pub(crate) fn settle(&mut self, view: &View, scene: Scene<'_>) -> Verdict {
        let Scene { ledger, batches, streams, weights } = scene;
        for (seen, device) in self.in_rotation.iter_mut().zip(&view.devices) {
            *seen = device.state == DeviceState::InRotation;
        }
        for (seen, device) in self.at_rest.iter_mut().zip(&view.devices) {
            *seen = device.state == DeviceState::Resting;
        }
        if !self.is_adaptive {
            return Ok(());
        }
        let is_busy: Vec<bool> =
            (0..self.specs.len()).map(|at| batches.oldest(DeviceId(at as u16)).is_some()).collect();
        if is_busy.iter().zip(&self.in_rotation).all(|(busy, inside)| *busy || !inside) {
            return Ok(());
        }
        let waits = |entry: &&Entry| match entry.is_generated() {
            true => streams.of(entry.request.id).any(|name| streams.is_ready(name, ledger)),
            false => entry.waiting > 0,
        };
        for entry in ledger.live().take(LOOKED_AT).filter(|entry| waits(entry) && entry.is_untouched()) {
            let mut choices = (0..self.specs.len())
                .filter(|at| self.in_rotation[*at] || self.at_rest[*at])
                .filter(|at| entry.may_use(*at, self.specs[*at].kind))
                .peekable();
            let model = entry.request.group.model;
            let is_ready = |at: usize| !is_busy[at] && weights.is_there(DeviceId(at as u16), model);
            let is_waiting_for_nothing = choices.peek().is_some() && choices.all(is_ready);
            holds(!is_waiting_for_nothing, Rule::NoIdling, || {
                format!("request {} waits, and all devices that may compute it are idle", entry.request.id.0)
            })?;
        }
        Ok(())
    }

    fn is_only_choice(&self, entry: &Entry, at: usize) -> bool {
        let is_used = |at: &usize| self.in_rotation[*at] || self.at_rest[*at];
        let mut choices = (0..self.specs.len()).filter(is_used).filter(|at| entry.may_use(*at, self.specs[*at].kind));
        choices.next() == Some(at) && choices.next().is_none()
    }
}
