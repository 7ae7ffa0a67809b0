//! Judges that no request starves: without faults, it waits no longer than the work before it takes.
//! Leaves worlds with troubles to the other rules: there, waiting has other reasons.

use super::batches::Batches;
use super::requests::{Entry, Ledger};
use super::rule::{Rule, Verdict, holds};
use super::streams::Streams;
use crate::scenario::{Cost, Model, Scenario};
use magray_core::schedule::{Event, Moment, Sequence, Sizing};
use std::time::Duration;

/// Bounds of waiting times.
#[derive(Debug)]
pub(crate) struct Patience {
    is_calm: bool,
    /// The slowest device: no text takes longer elsewhere.
    slowest: Cost,
    /// Fixed delays: starting workers, and being overtaken until the request is old.
    allowance: Duration,
    /// Work that arrived since the queue was last empty.
    came: Duration,
}

impl Patience {
    pub(crate) fn new(scenario: &Scenario, is_crowded: bool) -> Self {
        let devices = || scenario.devices.iter().map(|device| device.cost);
        let most = |part: fn(Cost) -> f64| devices().map(part).fold(0.0, f64::max);
        let starts = scenario.devices.iter().map(|device| device.start * 2).max();
        let batching = scenario.options.batching;
        // A model may come to each device it is tried on, one after the other, and from its files.
        let load = |model: &Model| scenario.devices.iter().map(|device| device.loads.of(model.bytes, false) * 3).max();
        let loads: Duration = scenario.models.iter().filter_map(load).sum();
        Self {
            is_calm: scenario.troubles.is_empty()
                && scenario.given_up.is_empty()
                && scenario.load.shape.poison == 0.0
                && !is_crowded
                && batching.sizing == Sizing::Adaptive,
            slowest: Cost {
                // Each batch has its way there and back, which is long now and then.
                fixed_us: most(|cost| cost.fixed_us) + scenario.latency.as_secs_f64() * 3e6,
                token_us: most(|cost| cost.token_us),
                text_us: most(|cost| cost.text_us),
            },
            allowance: batching.age_max + starts.unwrap_or_default() + loads + Duration::from_millis(50),
            came: Duration::ZERO,
        }
    }

    pub(crate) fn heard(&mut self, event: &Event) {
        if let Event::Submitted(request) = event
            && self.is_calm
        {
            let work =
                |one: &Sequence| self.slowest.of(u64::from(one.tokens), 1) + self.slowest.of(1, 1) * one.new_tokens_max;
            self.came += request.sequences.iter().map(work).sum::<Duration>();
        }
    }

    /// This many tokens of a preempted sequence are to be computed again.
    pub(crate) fn repeats(&mut self, tokens: u32) {
        if self.is_calm && tokens > 0 {
            self.came += self.slowest.of(u64::from(tokens), 1);
        }
    }

    /// Each request waits for all that arrived since the queue was empty at most, times three for noise. How callers share
    /// that is another book's.
    pub(crate) fn settle(&mut self, ledger: &Ledger, batches: &Batches, streams: &Streams, now: Moment) -> Verdict {
        if !self.is_calm {
            return Ok(());
        }
        if ledger.live_count() == 0 {
            // Cancelled work may still be computed; when that is over too, new requests wait for nothing.
            if batches.is_empty() {
                self.came = Duration::ZERO;
            }
            return Ok(());
        }
        // A sequence of many steps waits for each of them no longer than all that came takes.
        let bound = self.allowance + self.came * 3;
        for name in ledger.live().filter(|entry| entry.is_generated()).flat_map(|entry| streams.of(entry.request.id)) {
            let waited = streams.waits_since(name, ledger).map(|since| now.since(since));
            holds(waited.is_none_or(|waited| waited <= bound), Rule::Starves, || {
                format!("sequence {name:?} waits for {waited:?} for its next step, and all work takes {bound:?}")
            })?;
        }
        // Once started it waits for its batch only.
        let is_waiting = |entry: &&Entry| entry.waiting > 0 && !entry.is_generated();
        let Some(oldest) = ledger.live().find(is_waiting) else { return Ok(()) };
        holds(now.since(oldest.arrived) <= bound, Rule::Starves, || {
            let waited = now.since(oldest.arrived);
            format!("request {} waits for {waited:?}, and all work takes {bound:?}", oldest.request.id.0)
        })
    }
}
