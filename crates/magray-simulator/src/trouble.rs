//! What goes wrong with a device, from when to when.
//! Only scripts: the world makes it happen.

use crate::chance::Chance;
use magray_core::schedule::{Failure, Fault, Moment};
use std::time::Duration;

/// A fault of a GPU, for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Trouble {
    /// Index of the device.
    pub(crate) device: usize,
    /// When it begins.
    pub(crate) from: Moment,
    pub(crate) until: Moment,
    pub(crate) kind: Kind,
}

impl Trouble {
    pub(crate) fn is_on(&self, device: usize, now: Moment) -> bool {
        self.device == device && self.from <= now && now < self.until
    }
}

/// What goes wrong. `part` is the share of batches (or loads) that it happens to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// It is this many times slower, without a report.
    Slow { times: f64 },
    /// Telemetry reports heat, and it is slower.
    Hot {
        /// The part of its speed that is left.
        weight: f64,
    },
    /// Batches fail and the worker lives.
    Transient { part: f64 },
    /// A batch fails, and after it every other of the same worker.
    Sticky { part: f64 },
    /// A batch is never answered.
    Hang {
        part: f64,
        /// Whether heartbeats stop too.
        is_silent: bool,
    },
    /// The worker ends in the middle of a batch.
    Crash { part: f64 },
    /// The worker is killed from outside, once.
    Killed,
    /// The device is gone, and comes back later.
    Vanished {
        /// How the machine learns of it.
        found: Discovery,
    },
    /// There is memory for this many tokens of a batch only.
    Memory { tokens: u64 },
    /// Answers are wrong, and the canary shows it.
    Lies { part: f64 },
    /// Workers do not become ready.
    NoStart {
        /// Whether they report it, or stay silent.
        is_silent: bool,
    },
    /// Weights cannot be loaded.
    NoLoad { part: f64, failure: Failure },
    /// The worker ends while it loads weights.
    LoadCrash { part: f64 },
    /// A load never ends.
    LoadHang {
        /// Where it is 1, offloads do not end either.
        part: f64,
    },
    /// Workers do not end when they are asked to.
    Restless,
    /// Telemetry rules the device out.
    Ruled { fault: Fault },
}

/// How it is told that a device is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discovery {
    /// The worker ends and says so.
    WorkerExit,
    /// The next batch fails.
    BatchFailure,
    /// Telemetry finds it missing.
    Telemetry,
}

impl Kind {
    fn draw(chance: &mut Chance) -> Self {
        let part = if chance.is(0.3) { 1.0 } else { chance.magnitude(0.01, 1.0) };
        match chance.whole(0, 18) {
            0 => Self::Slow { times: chance.magnitude(2.0, 20.0) },
            1 => Self::Hot { weight: chance.between(0.1, 0.9) },
            2 | 3 => Self::Transient { part },
            4 => Self::Sticky { part },
            5 => Self::Hang { part, is_silent: chance.is(0.5) },
            6 => Self::Crash { part },
            7 => Self::Killed,
            8 => Self::Vanished {
                found: *chance.pick(&[Discovery::WorkerExit, Discovery::BatchFailure, Discovery::Telemetry]),
            },
            9 => Self::Memory { tokens: chance.magnitude(20.0, 5000.0) as u64 },
            10 => Self::Lies { part },
            11 => Self::NoStart { is_silent: chance.is(0.5) },
            12..=14 => Self::NoLoad { part, failure: draw_failure(chance) },
            15 => Self::LoadCrash { part },
            16 => Self::LoadHang { part },
            17 => Self::Restless,
            _ => {
                let faults = [Fault::Lost, Fault::Xid(79), Fault::Memory, Fault::NeedsReset, Fault::Overheated];
                Self::Ruled { fault: *chance.pick(&faults) }
            }
        }
    }
}

fn draw_failure(chance: &mut Chance) -> Failure {
    let failures = [
        Failure::OutOfMemory,
        Failure::OutOfMemory,
        Failure::Transient,
        Failure::Transient,
        Failure::Sticky,
        Failure::WrongAnswer,
        Failure::Lost,
    ];
    *chance.pick(&failures)
}

/// The CPU has no faults but unreadable files.
pub(crate) fn draw_for_cpu(cpu: usize, span: Duration, chance: &mut Chance) -> Option<Trouble> {
    let until = Moment::from_nanos((span.as_nanos() as f64 * chance.unit()) as u64 + 1);
    let kind = Kind::NoLoad { part: chance.magnitude(0.1, 1.0), failure: draw_failure(chance) };
    chance.is(0.1).then_some(Trouble { device: cpu, from: Moment::START, until, kind })
}

/// Draws troubles for these devices, all over after `span`.
pub(crate) fn draw(gpus: &[usize], span: Duration, chance: &mut Chance) -> Vec<Trouble> {
    if gpus.is_empty() || chance.is(0.15) {
        return Vec::new();
    }
    let nanos = span.as_nanos() as f64;
    (0..chance.whole(1, 5))
        .map(|_| {
            // From the very start often enough: a device that never works is another story than one that stops to.
            let from = if chance.is(0.25) { 0.0 } else { chance.between(0.0, 0.9) };
            let until = from + (1.0 - from) * chance.magnitude(0.02, 1.0);
            Trouble {
                device: *chance.pick(gpus),
                from: Moment::from_nanos((from * nanos) as u64),
                until: Moment::from_nanos((until * nanos) as u64 + 1),
                kind: Kind::draw(chance),
            }
        })
        .collect()
}
