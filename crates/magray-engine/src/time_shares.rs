//! Divides a device's time among the batches that it computes side by side, by their tokens.
//! What they cost together is known. What each would have cost alone is not: they take turns on the device.

use std::time::{Duration, Instant};

/// Batches under way and the time that each was given.
#[derive(Debug)]
pub(crate) struct TimeShares {
    /// Up to when time was divided.
    divided: Instant,
    under_way: Vec<Share>,
    next: u64,
    batch_tokens: u64,
}

#[derive(Debug)]
struct Share {
    key: u64,
    weight: u64,
    spent: Duration,
}

impl TimeShares {
    /// `batch_tokens`: how many tokens cost about as much as a batch does beside them.
    pub(crate) fn new(batch_tokens: u64) -> Self {
        Self { divided: Instant::now(), under_way: Vec::new(), next: 0, batch_tokens }
    }

    /// A batch is begun. Returns its key.
    pub(crate) fn begin(&mut self, tokens: u64, now: Instant) -> u64 {
        self.divide(now);
        let key = self.next;
        self.next += 1;
        let weight = tokens.saturating_add(self.batch_tokens).max(1);
        self.under_way.push(Share { key, weight, spent: Duration::ZERO });
        key
    }

    /// A batch is done. Returns its part of the time.
    pub(crate) fn end(&mut self, key: u64, now: Instant) -> Duration {
        self.divide(now);
        let at = self.under_way.iter().position(|share| share.key == key);
        at.map_or(Duration::ZERO, |at| self.under_way.swap_remove(at).spent)
    }

    fn divide(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(std::mem::replace(&mut self.divided, now));
        let all: u64 = self.under_way.iter().map(|share| share.weight).sum();
        for share in &mut self.under_way {
            share.spent += elapsed.mul_f64(share.weight as f64 / all as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn about(time: Duration, ms: f64) {
        assert!((time.as_secs_f64() * 1e3 - ms).abs() < 1e-3, "{time:?}, not {ms} ms");
    }

    #[test]
    fn a_batch_alone_has_all_the_time() {
        let mut shares = TimeShares::new(0);
        let start = Instant::now();
        let first = shares.begin(100, start);
        about(shares.end(first, start + 4 * MS), 4.0);
        let second = shares.begin(100, start + 9 * MS);
        about(shares.end(second, start + 10 * MS), 1.0);
    }

    #[test]
    fn a_short_batch_beside_a_long_one_was_counted_with_the_time_of_both() {
        let mut shares = TimeShares::new(0);
        let start = Instant::now();
        let long = shares.begin(900, start);
        let short = shares.begin(100, start);
        about(shares.end(short, start + 10 * MS), 1.0);
        about(shares.end(long, start + 12 * MS), 11.0);
    }

    #[test]
    fn a_batch_without_tokens_costs_what_a_batch_does() {
        let mut shares = TimeShares::new(50);
        let start = Instant::now();
        let long = shares.begin(100, start);
        let empty = shares.begin(0, start);
        about(shares.end(empty, start + 4 * MS), 1.0);
        about(shares.end(long, start + 4 * MS), 3.0);
    }

    #[test]
    fn what_is_not_under_way_has_no_time() {
        let mut shares = TimeShares::new(0);
        assert_eq!(shares.end(7, Instant::now()), Duration::ZERO);
    }
}
