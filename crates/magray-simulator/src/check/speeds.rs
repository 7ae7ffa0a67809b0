//! The book of speeds: a device loses weight while it is slow, people are told, and it has its full weight afterwards.
//! Knows from the script when a device is slow; how the machine finds out is not its concern.

use super::rule::{Rule, Verdict, holds};
use crate::scenario::Scenario;
use crate::trouble::{Kind, Trouble};
use magray_core::schedule::{Condition, DeviceId, Event, MemoryStep, Moment, Notice, View};
use std::time::Duration;

/// Differences of weights that are none.
const EXACT: f64 = 1e-9;

#[derive(Debug)]
pub(crate) struct Speeds {
    known: Vec<Known>,
    window: Duration,
}

#[derive(Debug, Default)]
struct Known {
    /// From when to when it is slow.
    slow: Vec<(Moment, Moment)>,
    /// What telemetry left of its weight.
    heat: f64,
    /// People were told that it is slow.
    is_told: bool,
    was_told: bool,
    must_be_told: bool,
}

impl Speeds {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let is_slow = |trouble: &&Trouble| matches!(trouble.kind, Kind::Slow { .. } | Kind::Hot { .. });
        let known = |device: usize| Known {
            slow: scenario
                .troubles
                .iter()
                .filter(|trouble| trouble.device == device)
                .filter(is_slow)
                .map(|trouble| (trouble.from, trouble.until))
                .collect(),
            heat: 1.0,
            must_be_told: scenario.slowed == Some(device),
            ..Known::default()
        };
        Self { known: (0..scenario.devices.len()).map(known).collect(), window: scenario.options.speed.window }
    }

    pub(crate) fn heard(&mut self, event: &Event) {
        if let Event::Judged { device, condition } = event {
            self.known[usize::from(device.0)].heat = match condition {
                Condition::Hot { weight } => *weight,
                Condition::Fine | Condition::Bad(_) => 1.0,
            };
        }
    }

    /// People are told that a device is slow, or is not any more.
    pub(crate) fn noticed(&mut self, device: DeviceId, notice: Notice) -> Verdict {
        let known = &mut self.known[usize::from(device.0)];
        let is_told = matches!(notice, Notice::Slowed(_));
        holds(known.is_told != is_told, Rule::Alerts, || format!("{notice:?} of device {} is no news", device.0))?;
        known.is_told = is_told;
        known.was_told |= is_told;
        Ok(())
    }

    /// Compares the weights with the script. `slowest`: what the slowest batch takes.
    pub(crate) fn settle(&self, view: &View, slowest: Duration, now: Moment) -> Verdict {
        let grace = self.window * 2 + slowest * 4;
        for (at, (known, seen)) in self.known.iter().zip(&view.devices).enumerate() {
            let full = if seen.memory_step >= MemoryStep::Reduced { 0.5 } else { 1.0 };
            let is_light = seen.weight < known.heat * full - EXACT;
            holds(is_light == known.is_told, Rule::Alerts, || {
                format!(
                    "device {at} has weight {} and people were told that it is slow: {}",
                    seen.weight, known.is_told
                )
            })?;
            let has_reason = known.slow.iter().any(|(from, until)| *from <= now && now <= *until + grace);
            holds(!is_light || has_reason, Rule::Speeds, || {
                format!("device {at} has weight {}, and is slow only at {:?}", seen.weight, known.slow)
            })?;
        }
        Ok(())
    }

    /// All is over, and memories have had room for long.
    pub(crate) fn end(&self, view: &View) -> Verdict {
        let full = view.devices.iter().position(|device| device.memory_step != MemoryStep::Roomy);
        holds(full.is_none(), Rule::Roomy, || format!("device {full:?} is treated as if its memory were full"))?;
        let missed = self.known.iter().position(|known| known.must_be_told && !known.was_told);
        holds(missed.is_none(), Rule::Speeds, || format!("that device {missed:?} was slow for long was not noticed"))
    }
}
