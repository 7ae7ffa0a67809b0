//! A point in time, as the decisions see it: told from outside, never read from a clock.

use std::ops::Add;
use std::time::Duration;

/// Nanoseconds since the machine was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The moment the machine was started.
    pub const START: Self = Self(0);

    /// That many nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time since an earlier moment; nothing where that one is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Moment {
    /// That long before; the start where that would be earlier.
    pub(crate) fn before(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// A moment that is too far away is the last one there is.
    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// A time in microseconds.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Microseconds as a time, within a year.
pub(crate) fn from_micros(us: f64) -> Duration {
    const YEAR_US: f64 = 3.15e13;
    // What is no number is a time that is not known.
    let us = if us.is_nan() { YEAR_US } else { us };
    Duration::from_secs_f64(us.clamp(0.0, YEAR_US) / 1e6)
}
