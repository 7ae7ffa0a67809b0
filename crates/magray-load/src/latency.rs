//! Times in an HDR histogram: a bounded table, whatever the number of times, exact to a thousandth.
//! Times beyond an hour count as an hour.

use std::time::Duration;

use hdrhistogram::Histogram;

const HOUR_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

/// Times, counted.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// None.
    pub fn new() -> Self {
        Self(Histogram::new_with_max(HOUR_NS, DIGITS).unwrap_or_else(|error| unreachable!("fixed bounds: {error}")))
    }

    /// Counts one.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts those of another too.
    pub fn merge(&mut self, other: &Self) {
        self.0 += &other.0;
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The mean; zero where nothing was counted.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.mean() as u64)
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    /// The time that this share (0 to 1) of all times does not exceed; zero where nothing was counted.
    pub fn at(&self, share: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(share))
    }
}

/// In milliseconds.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Milliseconds with as many digits as mean something.
pub fn short(ms: f64) -> String {
    if ms < 10.0 { format!("{ms:.3}") } else { format!("{ms:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_zero_and_percentiles_are_near() {
        let mut times = Latencies::new();
        assert_eq!((times.at(0.5), times.max(), times.mean(), times.count()), Default::default());
        (1..=1000).map(Duration::from_micros).for_each(|time| times.record(time));
        let near = |found: Duration, micros: f64| (found.as_secs_f64() * 1e6 / micros - 1.0).abs() < 0.002;
        for (share, micros) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            assert!(near(times.at(share), micros), "{share}: {:?}", times.at(share));
        }
        assert!(near(times.max(), 1000.0) && near(times.mean(), 500.5), "{times:?}");
        let mut both = Latencies::new();
        both.record(Duration::from_secs(100_000));
        both.merge(&times);
        assert_eq!(both.count(), 1001);
        assert!(near(both.max(), 3.6e9), "{:?}", both.max());
    }
}
