//! Counts times in buckets that are never wider than a hundredth of what they hold, so that memory does not grow with
//! the number of times. Keeps no single time but the longest.

use std::time::Duration;

/// Each power of two is divided into this many buckets, by powers of two itself.
const PARTS_LOG2: u32 = 7;
const PARTS: usize = 1 << PARTS_LOG2;
/// Longer times, of more than an hour, share the last bucket.
const NANOS_LOG2_MAX: u32 = 42;
const BUCKETS: usize = (NANOS_LOG2_MAX - PARTS_LOG2 + 1) as usize * PARTS;

/// How often which times occurred.
#[derive(Clone, Debug)]
pub(in crate::commands::bench) struct Histogram {
    buckets: Box<[u64]>,
    count: u64,
    sum_ns: u128,
    max_ns: u64,
}

impl Histogram {
    pub(in crate::commands::bench) fn new() -> Self {
        Self { buckets: vec![0; BUCKETS].into(), count: 0, sum_ns: 0, max_ns: 0 }
    }

    pub(in crate::commands::bench) fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(nanos)] += 1;
        self.count += 1;
        self.sum_ns += u128::from(nanos);
        self.max_ns = self.max_ns.max(nanos);
    }

    /// Adds what another one counted.
    pub(super) fn merge(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(mine, theirs)| *mine += theirs);
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    pub(in crate::commands::bench) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn mean(&self) -> Duration {
        let mean = self.sum_ns / u128::from(self.count.max(1));
        Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    pub(super) fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// The time that this share (0 to 1) of all times does not exceed: the end of its bucket, and no time that is
    /// longer than the longest. Nothing where nothing was counted.
    pub(in crate::commands::bench) fn at(&self, share: f64) -> Duration {
        let wanted = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut passed = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            passed += count;
            if passed >= wanted {
                return Duration::from_nanos(end_of(bucket).min(self.max_ns));
            }
        }
        self.max()
    }
}

fn bucket_of(nanos: u64) -> usize {
    let nanos = nanos.min((1 << NANOS_LOG2_MAX) - 1);
    if nanos < PARTS as u64 {
        return nanos as usize;
    }
    let octave = nanos.ilog2() - PARTS_LOG2;
    // The leading bit tells the octave, the next seven the part of it.
    let part = (nanos >> octave) as usize - PARTS;
    (octave as usize + 1) * PARTS + part
}

/// The longest time of a bucket.
fn end_of(bucket: usize) -> u64 {
    let (octave, part) = (bucket / PARTS, (bucket % PARTS) as u64);
    match octave.checked_sub(1) {
        None => part,
        Some(octave) => ((part + PARTS as u64 + 1) << octave) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_lies_in_its_bucket_and_buckets_are_narrow() {
        let mut nanos = 1u64;
        while nanos < 1 << NANOS_LOG2_MAX {
            for time in [nanos - 1, nanos, nanos + 1, nanos + nanos / 3] {
                let time = time.min((1 << NANOS_LOG2_MAX) - 1);
                let bucket = bucket_of(time);
                let start = bucket.checked_sub(1).map_or(0, |before| end_of(before) + 1);
                assert!((start..=end_of(bucket)).contains(&time), "{time} is not in {start}..={}", end_of(bucket));
                assert!(end_of(bucket) - start <= start / 100, "{start}..={}", end_of(bucket));
            }
            nanos *= 2;
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_mean_and_longest() {
        let mut histogram = Histogram::new();
        assert_eq!((histogram.at(0.5), histogram.max(), histogram.mean()), Default::default());
        (1..=1000).map(Duration::from_micros).for_each(|time| histogram.record(time));
        let near = |found: Duration, micros: f64| (found.as_secs_f64() * 1e6 / micros - 1.0).abs() < 0.01;
        for (share, micros) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0), (0.999, 999.0), (1.0, 1000.0)] {
            assert!(near(histogram.at(share), micros), "{share}: {:?}", histogram.at(share));
        }
        assert_eq!(histogram.max(), Duration::from_millis(1));
        assert_eq!(histogram.mean(), Duration::from_nanos(500_500));
        assert!(histogram.at(0.9999) <= histogram.max());
    }

    #[test]
    fn merged_counts_are_those_of_both() {
        let (mut one, mut other) = (Histogram::new(), Histogram::new());
        one.record(Duration::from_millis(1));
        other.record(Duration::from_millis(9));
        one.merge(&other);
        assert_eq!((one.count(), one.max(), one.mean()), (2, Duration::from_millis(9), Duration::from_millis(5)));
    }
}
