//! Judges a device by its telemetry: what it may be trusted with, and what rules it out.
//! Reads no hardware and no clock: samples and the time are told.

use crate::schedule::{Condition, Fault, MemoryUse, Moment};
use std::collections::VecDeque;
use std::time::Duration;

/// How a GPU was at one moment. What the machine does not tell is left out, and rules nothing out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthSample {
    /// Temperature of the chip.
    pub temperature_celsius: Option<u32>,
    /// Where the hardware slows itself down.
    pub slowdown_celsius: Option<u32>,
    /// Where the hardware switches itself off.
    pub shutdown_celsius: Option<u32>,
    /// Why the clock is lower than it could be.
    pub throttle: Option<ThrottleReasons>,
    /// Time that heat has lowered the clock, ever.
    pub thermal_violation_ns: Option<u64>,
    /// Time that heat or the power supply has slowed the GPU down, ever, where the driver counts each reason.
    pub slowdown_ns: Option<u64>,
    /// Time that the limit of power has lowered the clock, ever. Normal under load, so it is shown and not judged.
    pub power_violation_ns: Option<u64>,
    /// Memory errors since the driver was loaded that could not be corrected.
    pub ecc_uncorrected: Option<u64>,
    /// Error numbers that the driver reported since the sample before.
    pub xids: Vec<u32>,
    /// What the driver asks for, as its number; 0: nothing.
    pub recovery_action: Option<u32>,
    /// Memory in use, by all processes.
    pub memory_used_bytes: Option<u64>,
    /// All memory.
    pub memory_total_bytes: Option<u64>,
    /// Power drawn. Shown and not judged, as the next two.
    pub power_milliwatts: Option<u32>,
    /// Power that it is held to.
    pub power_limit_milliwatts: Option<u32>,
    /// Part of the last moments in which it computed.
    pub utilisation_percent: Option<u32>,
    /// Whether the GPU is not on the bus any more.
    pub lost: bool,
}

impl HealthSample {
    /// Of two GPUs that compute together: of each reading the one that says worse, and the sum of what is counted or consumed.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        fn of<T>(one: Option<T>, other: Option<T>, both: fn(T, T) -> T) -> Option<T> {
            match (one, other) {
                (Some(one), Some(other)) => Some(both(one, other)),
                (one, other) => one.or(other),
            }
        }
        fn sum<T: std::ops::Add<Output = T>>(one: Option<T>, other: Option<T>) -> Option<T> {
            of(one, other, |one, other| one + other)
        }
        let throttle = |one: ThrottleReasons, other: ThrottleReasons| ThrottleReasons(one.0 | other.0);
        Self {
            temperature_celsius: of(self.temperature_celsius, other.temperature_celsius, u32::max),
            slowdown_celsius: of(self.slowdown_celsius, other.slowdown_celsius, u32::min),
            shutdown_celsius: of(self.shutdown_celsius, other.shutdown_celsius, u32::min),
            throttle: of(self.throttle, other.throttle, throttle),
            thermal_violation_ns: sum(self.thermal_violation_ns, other.thermal_violation_ns),
            slowdown_ns: sum(self.slowdown_ns, other.slowdown_ns),
            power_violation_ns: sum(self.power_violation_ns, other.power_violation_ns),
            ecc_uncorrected: sum(self.ecc_uncorrected, other.ecc_uncorrected),
            xids: [self.xids, other.xids].concat(),
            recovery_action: of(self.recovery_action, other.recovery_action, u32::max),
            memory_used_bytes: sum(self.memory_used_bytes, other.memory_used_bytes),
            memory_total_bytes: sum(self.memory_total_bytes, other.memory_total_bytes),
            power_milliwatts: sum(self.power_milliwatts, other.power_milliwatts),
            power_limit_milliwatts: sum(self.power_limit_milliwatts, other.power_limit_milliwatts),
            utilisation_percent: of(self.utilisation_percent, other.utilisation_percent, u32::max),
            lost: self.lost || other.lost,
        }
    }
}

/// Reasons for a lower clock, as the driver's bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ThrottleReasons(pub u64);

impl ThrottleReasons {
    /// The limit of power is reached: what a GPU does under full load.
    pub const POWER_CAP: Self = Self(0x4);
    /// The hardware protects itself.
    pub const HARDWARE_SLOWDOWN: Self = Self(0x8);
    /// The driver lowers the clock because of heat.
    pub const THERMAL: Self = Self(0x20);
    /// The hardware lowers the clock because of heat.
    pub const HARDWARE_THERMAL: Self = Self(0x40);
    /// The power supply asks for less.
    pub const POWER_BRAKE: Self = Self(0x80);

    /// Whether any of them is trouble, as against being busy, idle or told to go slowly.
    pub fn is_trouble(self) -> bool {
        let trouble = [Self::HARDWARE_SLOWDOWN, Self::THERMAL, Self::HARDWARE_THERMAL, Self::POWER_BRAKE];
        trouble.iter().any(|bit| self.0 & bit.0 != 0)
    }
}

/// Whose fault an error number of the driver tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum XidKind {
    /// The hardware's: the GPU must not be used.
    Hardware,
    /// The program's: another program may use the GPU.
    Application,
    /// The hardware's, and it has helped itself.
    Warning,
    /// Nobody here knows: it is shown and not judged.
    Unknown,
}

impl XidKind {
    /// What a number tells of.
    pub fn of(xid: u32) -> Self {
        match xid {
            48 | 64 | 74 | 79 | 95 | 119 | 120 | 140 => Self::Hardware,
            13 | 31 | 43 | 45 | 68 | 109 => Self::Application,
            63 | 94 => Self::Warning,
            _ => Self::Unknown,
        }
    }
}

/// When a device is hot or bad. The defaults need no tuning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HealthRules {
    /// How far back slowdowns count.
    pub window: Duration,
    /// The part of the window that must have been slow for the device to count as hot.
    pub slow_share_least: f64,
    /// A device that is slow right now counts as if it had been so for at least this part of the window.
    pub slow_share_now: f64,
    /// The least part of its speed that a hot device is trusted with.
    pub weight_least: f64,
    /// A device without new evidence against it for this long is fine again; a probe decides what follows.
    pub quiet: Duration,
    /// An overheated device comes back this far below its limit.
    pub cool_by_celsius: u32,
}

impl Default for HealthRules {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(60),
            slow_share_least: 0.01,
            slow_share_now: 0.25,
            weight_least: 0.1,
            quiet: Duration::from_secs(10),
            cool_by_celsius: 5,
        }
    }
}

/// Judges one device, sample by sample.
#[derive(Clone, Debug)]
pub struct Judge {
    rules: HealthRules,
    slow: SlowWindow,
    sampled: Option<Moment>,
    ecc_uncorrected: Option<u64>,
    thermal_violation_ns: Option<u64>,
    slowdown_ns: Option<u64>,
    /// What rules the device out, and when that was last seen.
    fault: Option<(Fault, Moment)>,
    is_overheated: bool,
}

impl Judge {
    /// A judge who has seen nothing yet. Errors that were counted before its first sample are not held against the
    /// device.
    pub fn new(rules: HealthRules) -> Self {
        let is_part = |part: f64| part > 0.0 && part < 1.0;
        assert!(is_part(rules.weight_least) && is_part(rules.slow_share_least) && is_part(rules.slow_share_now));
        Self {
            rules,
            slow: SlowWindow::default(),
            sampled: None,
            ecc_uncorrected: None,
            thermal_violation_ns: None,
            slowdown_ns: None,
            fault: None,
            is_overheated: false,
        }
    }

    /// What a sample, and those before it, say of the device. Time never goes back.
    pub fn judge(&mut self, sample: &HealthSample, now: Moment) -> Condition {
        let slow_share = self.take_slowness(sample, now);
        self.take_fault(sample, now);
        self.take_heat(sample);
        self.sampled = Some(now);
        match self.fault {
            Some((fault, _)) => Condition::Bad(fault),
            None if self.is_overheated => Condition::Bad(Fault::Overheated),
            None if slow_share >= self.rules.slow_share_least => {
                let weight_most = 1.0 - self.rules.slow_share_least;
                Condition::Hot { weight: (1.0 - slow_share).max(self.rules.weight_least).min(weight_most) }
            }
            None => Condition::Fine,
        }
    }

    /// The part of the window in which the device was slowed down by heat or by its power supply.
    fn take_slowness(&mut self, sample: &HealthSample, now: Moment) -> f64 {
        let is_slow = sample.throttle.is_some_and(ThrottleReasons::is_trouble);
        // A long gap between two samples tells little of what was in it.
        let passed = self.sampled.map_or(Duration::ZERO, |before| now.since(before)).min(SlowWindow::GAP_MAX);
        let counted = [
            growth(&mut self.thermal_violation_ns, sample.thermal_violation_ns),
            growth(&mut self.slowdown_ns, sample.slowdown_ns),
        ];
        let counted = counted.into_iter().max().map_or(Duration::ZERO, Duration::from_nanos);
        let slow = if is_slow { passed } else { counted.min(passed) };
        self.slow.push(Stretch { end: now, length: passed, slow }, self.rules.window);
        let share = self.slow.share();
        if is_slow { share.max(self.rules.slow_share_now) } else { share }
    }

    fn take_fault(&mut self, sample: &HealthSample, now: Moment) {
        let ecc_grew = growth(&mut self.ecc_uncorrected, sample.ecc_uncorrected) > 0;
        let xid = sample.xids.iter().copied().find(|xid| XidKind::of(*xid) == XidKind::Hardware);
        let found = if sample.lost {
            Some(Fault::Lost)
        } else if sample.recovery_action.is_some_and(|action| action != 0) {
            Some(Fault::NeedsReset)
        } else {
            xid.map(Fault::Xid).or(ecc_grew.then_some(Fault::Memory))
        };
        self.fault = match (found, self.fault) {
            // The worse of two is what people should hear of; either starts the quiet time anew.
            (Some(found), Some((known, _))) if gravity(known) > gravity(found) => Some((known, now)),
            (Some(found), _) => Some((found, now)),
            (None, Some((_, seen))) if now.since(seen) >= self.rules.quiet => None,
            (None, known) => known,
        };
    }

    fn take_heat(&mut self, sample: &HealthSample) {
        let limits = [sample.slowdown_celsius, sample.shutdown_celsius];
        // Drivers write 0 for a limit that they do not know.
        let limit = limits.into_iter().flatten().filter(|limit| *limit > 0).min();
        self.is_overheated = match (sample.temperature_celsius, limit) {
            (Some(celsius), Some(limit)) if celsius >= limit => true,
            (Some(celsius), Some(limit)) if celsius > limit.saturating_sub(self.rules.cool_by_celsius) => {
                self.is_overheated
            }
            _ => false,
        };
    }
}

/// By how much a counter grew. One that went back was started anew by the driver; one that is not told has not moved.
fn growth(known: &mut Option<u64>, told: Option<u64>) -> u64 {
    let Some(told) = told else { return 0 };
    known.replace(told).map_or(0, |known| told.saturating_sub(known))
}

/// Which of two faults is the worse.
fn gravity(fault: Fault) -> u8 {
    match fault {
        Fault::Overheated => 0,
        Fault::Memory => 1,
        Fault::Xid(_) => 2,
        Fault::NeedsReset => 3,
        Fault::Lost => 4,
    }
}

/// The last minute, in stretches between samples.
#[derive(Clone, Debug, Default)]
struct SlowWindow {
    stretches: VecDeque<Stretch>,
}

#[derive(Clone, Copy, Debug)]
struct Stretch {
    end: Moment,
    length: Duration,
    /// Of it, how long the device was slow.
    slow: Duration,
}

impl SlowWindow {
    const GAP_MAX: Duration = Duration::from_secs(5);
    /// A device that was watched for less than this is judged as if it had been well before.
    const LENGTH_LEAST: Duration = Duration::from_secs(10);
    /// More than a window has, unless it is sampled far more often than makes sense.
    const STRETCHES_MAX: usize = 1024;

    fn push(&mut self, stretch: Stretch, window: Duration) {
        self.stretches.push_back(stretch);
        let is_old = |old: &Stretch| stretch.end.since(old.end) >= window;
        while self.stretches.front().is_some_and(is_old) || self.stretches.len() > Self::STRETCHES_MAX {
            self.stretches.pop_front();
        }
    }

    fn share(&self) -> f64 {
        let slow: Duration = self.stretches.iter().map(|stretch| stretch.slow).sum();
        let length: Duration = self.stretches.iter().map(|stretch| stretch.length).sum();
        slow.as_secs_f64() / length.max(Self::LENGTH_LEAST).as_secs_f64()
    }
}

impl HealthSample {
    /// How full its memory is, if that is told.
    pub fn memory_use(&self) -> Option<MemoryUse> {
        Some(MemoryUse { used: self.memory_used_bytes?, total: self.memory_total_bytes? })
    }

    /// Errors that people should hear of and that change nothing, in words.
    pub fn remarks(&self) -> impl Iterator<Item = String> {
        self.xids.iter().filter_map(|xid| match XidKind::of(*xid) {
            XidKind::Hardware => None,
            XidKind::Application => Some(format!("the driver reported Xid {xid}: a program's fault, not the GPU's")),
            XidKind::Warning => Some(format!("the driver reported Xid {xid}: a memory error that it has contained")),
            XidKind::Unknown => Some(format!("the driver reported Xid {xid}")),
        })
    }
}

#[cfg(test)]
mod tests;
