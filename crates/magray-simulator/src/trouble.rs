//! What goes wrong with a device, from when to when.
//! Only scripts: the world makes it happen.

use crate::chance::Chance;
use magray_core::schedule::{Failure, Fault, Moment};
use std::time::Duration;

/// Something that goes wrong with a GPU for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trouble {
    /// Which device, by its place in the list.
    pub device: usize,
    /// When it begins.
    pub from: Moment,
    /// When it is over.
    pub until: Moment,
    /// What it is.
    pub kind: Kind,
}

impl Trouble {
    pub(crate) fn is_on(&self, device: usize, now: Moment) -> bool {
        self.device == device && self.from <= now && now < self.until
    }
}

/// What goes wrong. Where there is a part, it is the part of batches that it happens to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// It is so many times slower, and nobody says so.
    Slow {
        /// How many times.
        times: f64,
    },
    /// Telemetry says that it is hot, and it is slower.
    Hot {
        /// The part of its speed that is left.
        weight: f64,
    },
    /// Batches fail and the worker lives.
    Transient {
        /// How many of them.
        part: f64,
    },
    /// A batch fails, and after it every other of the same worker.
    Sticky {
        /// How many of them.
        part: f64,
    },
    /// A batch is never answered.
    Hang {
        /// How many of them.
        part: f64,
        /// Whether the worker does not even say that it lives.
        is_silent: bool,
    },
    /// The worker ends in the middle of a batch.
    Crash {
        /// How many of them.
        part: f64,
    },
    /// Somebody ends the worker from outside, once.
    Killed,
    /// The device is gone, and comes back later.
    Vanished {
        /// How the machine learns of it.
        told: Told,
    },
    /// There is memory for so many tokens only.
    Memory {
        /// Tokens of a batch at most.
        tokens: u64,
    },
    /// Answers are wrong, and the known text among them shows it.
    Lies {
        /// How many of them.
        part: f64,
    },
    /// Workers do not become ready.
    NoStart {
        /// Whether they say so, or are never heard of.
        is_silent: bool,
    },
    /// Weights do not come.
    NoLoad {
        /// How many of them; here and below, of loads.
        part: f64,
        /// What is said of it.
        failure: Failure,
    },
    /// The worker ends while weights come.
    LoadCrash {
        /// How many of them.
        part: f64,
    },
    /// Weights are never heard of again.
    LoadHang {
        /// How many of them. Where it is all, those that go are not heard of either.
        part: f64,
    },
    /// Workers do not end when they are asked to.
    Restless,
    /// Telemetry rules the device out.
    Ruled {
        /// Why.
        fault: Fault,
    },
}

/// How it is told that a device is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The worker ends and says so.
    ByEnding,
    /// The next batch fails.
    ByFailure,
    /// Telemetry finds it missing.
    ByTelemetry,
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
            8 => Self::Vanished { told: *chance.pick(&[Told::ByEnding, Told::ByFailure, Told::ByTelemetry]) },
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

/// Mostly what says nothing against the device.
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

/// The CPU is never in trouble but for files that cannot be read.
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
