//! Counts a device's failures and says what follows from their number: try again, out for a while, out for good.
//! Knows nothing of workers and starts nothing.

use super::{Moment, Recovery};
use std::time::Duration;

/// What the number of failures means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Consequence {
    /// So few that it is simply tried again.
    Retry,
    /// Out, and probed after a while.
    Temporary,
    /// Out until it is reset.
    Permanent,
}

/// The failures of a device that are not forgotten, and how long it waits before it is tried again.
#[derive(Clone, Debug)]
pub(super) struct FailureCount {
    failures: u32,
    failures_total: u64,
    /// When the next failure is forgotten.
    forget_at: Moment,
    delay: Duration,
}

impl FailureCount {
    pub(super) fn new(recovery: &Recovery) -> Self {
        Self { failures: 0, failures_total: 0, forget_at: Moment::START, delay: recovery.probe_after }
    }

    /// One more failure.
    pub(super) fn count(&mut self, recovery: &Recovery, now: Moment) -> Consequence {
        self.decay(recovery, now);
        self.failures = self.failures.saturating_add(1);
        self.failures_total += 1;
        self.forget_at = now + recovery.decay;
        self.consequence(recovery)
    }

    /// A failure that does not count against the device.
    pub(super) fn note(&mut self) {
        self.failures_total += 1;
    }

    fn consequence(&self, recovery: &Recovery) -> Consequence {
        if self.failures <= recovery.retries_max {
            Consequence::Retry
        } else if self.failures <= recovery.temporary_max {
            Consequence::Temporary
        } else {
            Consequence::Permanent
        }
    }

    /// Forgets what is old enough.
    pub(super) fn decay(&mut self, recovery: &Recovery, now: Moment) {
        let step = recovery.decay.max(Duration::from_millis(1));
        while self.failures > 0 && now >= self.forget_at {
            self.failures -= 1;
            self.forget_at = self.forget_at + step;
        }
    }

    /// A probe passed: it gets its chance, but the next failure sends it out again.
    pub(super) fn forgive(&mut self, recovery: &Recovery) {
        self.failures = self.failures.min(recovery.retries_max);
        self.delay = recovery.probe_after;
    }

    /// An operator says that all is well again.
    pub(super) fn reset(&mut self, recovery: &Recovery) {
        self.failures = 0;
        self.delay = recovery.probe_after;
    }

    /// How long to wait before the next attempt; each further one waits twice as long.
    pub(super) fn next_delay(&mut self, recovery: &Recovery) -> Duration {
        let delay = self.delay.min(recovery.probe_after_max);
        self.delay = delay.saturating_mul(2).min(recovery.probe_after_max);
        delay
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    pub(super) fn failures_total(&self) -> u64 {
        self.failures_total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::START + Duration::from_secs(seconds)
    }

    #[test]
    fn three_are_tried_again_six_are_out_for_a_while_seven_for_good() {
        let recovery = Recovery::default();
        let mut failures = FailureCount::new(&recovery);
        let consequences: Vec<Consequence> = (0..7).map(|second| failures.count(&recovery, at(second))).collect();
        assert_eq!(consequences[..3], [Consequence::Retry; 3]);
        assert_eq!(consequences[3..6], [Consequence::Temporary; 3]);
        assert_eq!(consequences[6], Consequence::Permanent);
    }

    #[test]
    fn one_failure_is_forgotten_after_each_quiet_minute() {
        let recovery = Recovery::default();
        let mut failures = FailureCount::new(&recovery);
        (0..3).for_each(|_| assert_eq!(failures.count(&recovery, at(10)), Consequence::Retry));
        for (second, left) in [(69, 3), (70, 2), (129, 2), (130, 1), (1000, 0)] {
            failures.decay(&recovery, at(second));
            assert_eq!(failures.failures(), left, "after {second} s");
        }
        assert_eq!(failures.failures_total(), 3);
    }

    #[test]
    fn a_passed_probe_leaves_no_second_chance() {
        let recovery = Recovery::default();
        let mut failures = FailureCount::new(&recovery);
        let last = (0..5).map(|_| failures.count(&recovery, at(0))).last();
        assert_eq!(last, Some(Consequence::Temporary));
        failures.forgive(&recovery);
        assert_eq!(failures.consequence(&recovery), Consequence::Retry);
        assert_eq!(failures.count(&recovery, at(1)), Consequence::Temporary);
    }

    #[test]
    fn attempts_come_half_as_often_each_time_down_to_a_bound() {
        let recovery = Recovery::default();
        let mut failures = FailureCount::new(&recovery);
        let delays: Vec<u128> = (0..8).map(|_| failures.next_delay(&recovery).as_millis()).collect();
        assert_eq!(delays, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        failures.forgive(&recovery);
        assert_eq!(failures.next_delay(&recovery).as_millis(), 500);
    }
}
