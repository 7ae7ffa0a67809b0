//! Limits the requests of each key by a generic cell rate algorithm: one atomic time for each key.
//! Callers without a key have no rate: the queue bounds them.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::errors::{Kind, Problem};

#[derive(Debug, Default)]
pub(crate) struct Rates {
    /// The time that one request takes of a key's rate, in nanoseconds; 0: no limit.
    interval: u64,
    /// How far a key may be ahead of its rate.
    ahead_max: u64,
    /// By key: until when it has spent its requests, in nanoseconds since the server started.
    spent: Vec<AtomicU64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent(u64);

/// One part in this of a minute's requests may come at once.
const BURST_PART: u64 = 6;

impl Rates {
    pub(crate) fn new(keys: usize, requests_per_minute: Option<u64>) -> Self {
        let Some(rate) = requests_per_minute.filter(|rate| *rate > 0) else { return Self::default() };
        let interval = Duration::from_secs(60).as_nanos() as u64 / rate;
        let ahead_max = interval * (rate / BURST_PART).max(1);
        Self { interval, ahead_max, spent: (0..keys).map(|_| AtomicU64::new(0)).collect() }
    }

    /// What a key has spent; `None` where there is no limit.
    pub(crate) fn spent(&self, key: usize) -> Option<Spent> {
        self.spent.get(key).map(|spent| Spent(spent.load(Ordering::Relaxed)))
    }

    pub(crate) fn restore(&self, key: usize, before: Spent) {
        if let Some(spent) = self.spent.get(key) {
            spent.store(before.0, Ordering::Relaxed);
        }
    }

    /// Refuses a key that has spent its rate, and says when to retry; takes nothing.
    pub(crate) fn check(&self, key: Option<usize>, since_start: Duration) -> Result<(), Problem> {
        let Some(spent) = key.and_then(|key| self.spent.get(key)) else { return Ok(()) };
        self.after(spent.load(Ordering::Relaxed), nanos(since_start)).map(drop)
    }

    pub(crate) fn take(&self, key: Option<usize>, since_start: Duration) -> Result<(), Problem> {
        let Some(spent) = key.and_then(|key| self.spent.get(key)) else { return Ok(()) };
        let mut before = spent.load(Ordering::Relaxed);
        loop {
            let after = self.after(before, nanos(since_start))?;
            match spent.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => before = other,
            }
        }
    }

    fn after(&self, before: u64, now: u64) -> Result<u64, Problem> {
        let after = before.max(now).saturating_add(self.interval);
        let ahead = after - now;
        if ahead <= self.ahead_max {
            return Ok(after);
        }
        let wait = Duration::from_nanos(ahead - self.ahead_max);
        Err(Problem::busy(Kind::TooOften, "this key has sent too many requests: wait and try again", wait))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_taken_and_then_the_rate_holds() {
        let rates = Rates::new(2, Some(60));
        let second = Duration::from_secs(1);
        assert!((0..100).all(|_| rates.check(Some(0), second).is_ok()), "a check takes nothing");
        let taken = (0..100).take_while(|_| rates.take(Some(0), second).is_ok()).count();
        assert_eq!(taken, 10);
        let refused = rates.take(Some(0), second).unwrap_err();
        assert_eq!((refused.kind, refused.retry_after), (Kind::TooOften, Some(second)));
        assert_eq!(rates.check(Some(0), second).unwrap_err().retry_after, Some(second));
        assert!(rates.take(Some(0), second * 2).is_ok());
        assert!(rates.take(Some(0), second * 2).is_err());
        assert!(rates.take(Some(1), second).is_ok(), "one key does not spend another's share");
    }

    #[test]
    fn a_reload_gave_every_key_a_fresh_burst() {
        let before = Rates::new(2, Some(60));
        while before.take(Some(1), Duration::ZERO).is_ok() {}
        let after = Rates::new(1, Some(60));
        after.restore(0, before.spent(1).unwrap());
        assert!(after.take(Some(0), Duration::ZERO).is_err());
        assert!(Rates::new(1, None).spent(0).is_none(), "where there is no limit, nothing is spent");
    }

    #[test]
    fn without_a_limit_or_a_key_nothing_is_refused() {
        assert!((0..1000).all(|_| Rates::new(1, None).take(Some(0), Duration::ZERO).is_ok()));
        let rates = Rates::new(1, Some(1));
        assert!((0..1000).all(|_| rates.take(None, Duration::ZERO).is_ok()));
    }
}
