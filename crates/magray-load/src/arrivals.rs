//! When requests are sent in an open loop: independently of each other, by a seed, whatever the answers do.
//! Sends nothing itself.

use std::{
    thread,
    time::{Duration, Instant},
};

use magray_core::SplitMix64;

/// Requests a second that one thread sends on time.
const RATE_OF_A_SENDER: f64 = 20_000.0;
const SENDERS_MAX: usize = 8;

/// The due times of one sender's requests, counted from the start.
#[derive(Clone, Debug)]
pub(crate) struct Arrivals {
    chance: SplitMix64,
    gap_mean_s: f64,
    at_s: f64,
}

impl Arrivals {
    /// One list a sender: independent Poisson arrivals add up to Poisson arrivals of the summed rate.
    pub(crate) fn divide(rate: f64, seed: u64) -> Vec<Self> {
        let senders = ((rate / RATE_OF_A_SENDER).ceil() as usize).clamp(1, SENDERS_MAX);
        let mut seeds = SplitMix64::new(seed);
        let gap_mean_s = senders as f64 / rate;
        (0..senders).map(|_| Self { chance: SplitMix64::new(seeds.bits()), gap_mean_s, at_s: 0.0 }).collect()
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.at_s += self.chance.exponential(self.gap_mean_s);
        Some(Duration::from_secs_f64(self.at_s))
    }
}

/// Waits for a due time more exactly than sleeping does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    spin: Duration,
}

impl Pacer {
    /// How much later than asked for the system may wake a thread.
    const SPIN: Duration = Duration::from_micros(100);

    pub(crate) fn new() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        // On few cores, spinning takes from the engine what it measures.
        Self { spin: if cores > 2 { Self::SPIN } else { Duration::ZERO } }
    }

    pub(crate) fn wait_until(self, moment: Instant) {
        let left = moment.saturating_duration_since(Instant::now());
        if let Some(sleep) = left.checked_sub(self.spin).filter(|sleep| !sleep.is_zero()) {
            thread::sleep(sleep);
        }
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_the_schedule() {
        let take = |seed| -> Vec<Vec<Duration>> {
            Arrivals::divide(50_000.0, seed).into_iter().map(|list| list.take(100).collect()).collect()
        };
        assert_eq!(take(3), take(3));
        assert_ne!(take(3), take(4));
        let lists = take(3);
        assert!(lists.len() > 1 && lists[0] != lists[1], "senders must not send at the same moments");
        assert!(lists.iter().all(|list| list.is_sorted()));
    }

    #[test]
    fn all_senders_together_have_the_rate() {
        for rate in [50.0, 2_000.0, 100_000.0] {
            let seconds = Duration::from_secs_f64(200_000.0 / rate);
            let lists = Arrivals::divide(rate, 5);
            assert!(lists.len() <= SENDERS_MAX);
            let count: usize = lists.into_iter().map(|list| list.take_while(|at| *at < seconds).count()).sum();
            // The deviation of the count is its root, 450: this is more than eight of them.
            assert!(count.abs_diff(200_000) < 4_000, "{count} at {rate}/s");
        }
    }

    #[test]
    fn nothing_is_sent_before_its_moment() {
        for spin in [Duration::ZERO, Pacer::SPIN] {
            let moment = Instant::now() + Duration::from_millis(3);
            Pacer { spin }.wait_until(moment);
            assert!(Instant::now() >= moment);
            // A moment that has passed is not waited for.
            Pacer { spin }.wait_until(moment);
        }
    }
}
