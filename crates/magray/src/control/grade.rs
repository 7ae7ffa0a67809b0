//! Grades a device: how much of its own capacity can be used.
//! Measures nothing: it goes by the device's state, its speed against its own best, its heat, and the last minute's fallbacks.

use magray_core::schedule::Location;
use magray_engine::engine::{DeviceState, DeviceView, Recent};
use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A grade, from all that there is to be had down to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) enum Grade {
    /// Used at full speed, and the CPU computed nothing in its place.
    A,
    /// A request in a hundred was computed in its place, or it lacks up to a fifth of its speed.
    B,
    /// A request in ten was, or it lacks up to half.
    C,
    /// Worse than that.
    D,
    /// Not used at all.
    F,
}

impl Grade {
    pub(crate) fn letter(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
            Self::D => "D",
            Self::F => "F",
        }
    }
}

/// The grade of a device. One that rests is as good as it was: the next request wakes it.
pub(super) fn grade(device: &DeviceView, recent: &Recent) -> Grade {
    if !matches!(device.state, DeviceState::InRotation | DeviceState::Resting) {
        return Grade::F;
    }
    let by_speed = device.speed.map_or(Grade::A, by_speed);
    by_weight(device.weight).max(by_speed).max(match device.location {
        Location::Worker => by_fallbacks(recent.fallback_rate().unwrap_or(0.0)),
        // What it computes in place of others is not held against it.
        Location::InProcess => Grade::A,
    })
}

/// What varies by a tenth from batch to batch is full speed.
fn by_speed(speed: f64) -> Grade {
    by_weight(if speed >= 0.9 { 1.0 } else { speed })
}

fn by_weight(weight: f64) -> Grade {
    match weight {
        _ if weight >= 1.0 => Grade::A,
        _ if weight >= 0.8 => Grade::B,
        _ if weight >= 0.5 => Grade::C,
        _ => Grade::D,
    }
}

fn by_fallbacks(rate: f64) -> Grade {
    match rate {
        _ if rate <= 0.0 => Grade::A,
        _ if rate <= 0.01 => Grade::B,
        _ if rate <= 0.1 => Grade::C,
        _ => Grade::D,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use magray_core::schedule::{DeviceKind, MemoryStep};
    use std::time::Duration;

    fn device(location: Location, state: DeviceState, weight: f64) -> DeviceView {
        DeviceView {
            is_reserved: false,
            kind: DeviceKind::Gpu,
            location,
            state,
            weight,
            speed: None,
            memory_step: MemoryStep::Roomy,
            batches: 0,
            memory_capacity: 0,
            kv_max: 0,
            accounts: Vec::new(),
            batches_finished: 0,
            texts_finished: 0,
            busy: Duration::ZERO,
            failures: 0,
            failures_total: 0,
            restarts: 0,
            recovery_attempts: 0,
            preemptions: 0,
            is_ending: false,
        }
    }

    fn recent(requests: u64, fallbacks: u64) -> Recent {
        Recent { requests, fallbacks, ..Recent::default() }
    }

    #[test]
    fn fallbacks_count_against_gpus_only() {
        let of = |kind, recent| grade(&device(kind, DeviceState::InRotation, 1.0), &recent);
        assert_eq!(of(Location::Worker, recent(0, 0)), Grade::A);
        assert_eq!(of(Location::Worker, recent(100, 1)), Grade::B);
        assert_eq!(of(Location::Worker, recent(100, 10)), Grade::C);
        assert_eq!(of(Location::Worker, recent(100, 11)), Grade::D);
        assert_eq!(of(Location::InProcess, recent(100, 100)), Grade::A);
    }

    #[test]
    fn a_device_is_graded_by_its_own_best_speed() {
        let of = |speed| {
            let slower = DeviceView { speed, ..device(Location::Worker, DeviceState::InRotation, 1.0) };
            grade(&slower, &recent(0, 0))
        };
        let grades = [None, Some(0.97), Some(0.85), Some(0.6), Some(0.3)].map(of);
        assert_eq!(grades, [Grade::A, Grade::A, Grade::B, Grade::C, Grade::D]);
    }

    #[test]
    fn the_worse_of_heat_and_fallbacks_counts_and_being_out_is_worst() {
        let of = |state, weight, recent| grade(&device(Location::Worker, state, weight), &recent);
        assert_eq!(of(DeviceState::InRotation, 0.7, recent(1000, 1)), Grade::C);
        assert_eq!(of(DeviceState::InRotation, 0.9, recent(10, 5)), Grade::D);
        assert_eq!(of(DeviceState::Resting, 1.0, recent(10, 0)), Grade::A);
        assert_eq!(of(DeviceState::Starting, 1.0, recent(0, 0)), Grade::F);
    }
}
