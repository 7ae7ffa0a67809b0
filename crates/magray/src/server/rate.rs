//! Limits the requests of each key, and without a key of each address, by a generic cell rate algorithm.
//! Remembers a bounded number of addresses: those with the most time left to wait.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    errors::{Kind, Problem},
    wrong_keys::Network,
};

#[derive(Debug, Default)]
pub(crate) struct Rates {
    /// The time that one request takes of a rate, in nanoseconds; 0: no limit.
    interval: u64,
    /// How far a key or an address may be ahead of its rate.
    ahead_max: u64,
    /// By key: until when it has spent its requests, in nanoseconds since the server started.
    of_keys: Vec<AtomicU64>,
    /// The same of the addresses of callers without a key.
    of_addresses: Mutex<HashMap<Network, u64>>,
}

/// What a request counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Key(usize),
    Address(Network),
}

/// One part in this of a minute's requests may come at once.
const BURST_PART: u64 = 6;
const ADDRESSES_MAX: usize = 4096;

impl Rates {
    pub(crate) fn new(keys: usize, requests_per_minute: Option<u64>) -> Self {
        let Some(rate) = requests_per_minute.filter(|rate| *rate > 0) else { return Self::default() };
        let interval = Duration::from_secs(60).as_nanos() as u64 / rate;
        let ahead_max = interval * (rate / BURST_PART).max(1);
        let of_keys = (0..keys).map(|_| AtomicU64::new(0)).collect();
        Self { interval, ahead_max, of_keys, of_addresses: Mutex::default() }
    }

    /// Goes on with what was spent before; `same_keys` are the indices of keys now and before.
    pub(crate) fn resume(&self, before: &Self, same_keys: &[(usize, usize)]) {
        for (now, before) in
            same_keys.iter().filter_map(|(now, at)| Some((self.of_keys.get(*now)?, before.of_keys.get(*at)?)))
        {
            now.store(before.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.addresses().clone_from(&before.addresses());
    }

    /// Refuses a caller that has spent its rate, and says when to retry; takes nothing.
    pub(crate) fn check(&self, caller: Counted, since_start: Duration) -> Result<(), Problem> {
        if self.interval == 0 {
            return Ok(());
        }
        let before = match caller {
            Counted::Key(key) => self.of_keys.get(key).map_or(0, |spent| spent.load(Ordering::Relaxed)),
            Counted::Address(network) => self.addresses().get(&network).copied().unwrap_or(0),
        };
        self.after(caller, before, nanos(since_start)).map(drop)
    }

    pub(crate) fn take(&self, caller: Counted, since_start: Duration) -> Result<(), Problem> {
        let now = nanos(since_start);
        match caller {
            _ if self.interval == 0 => Ok(()),
            Counted::Key(key) => {
                let Some(spent) = self.of_keys.get(key) else { return Ok(()) };
                let mut before = spent.load(Ordering::Relaxed);
                loop {
                    let after = self.after(caller, before, now)?;
                    match spent.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
                        Ok(_) => return Ok(()),
                        Err(other) => before = other,
                    }
                }
            }
            Counted::Address(network) => {
                let mut addresses = self.addresses();
                let after = self.after(caller, addresses.get(&network).copied().unwrap_or(0), now)?;
                if addresses.len() >= ADDRESSES_MAX && !addresses.contains_key(&network) {
                    evict(&mut addresses, now);
                }
                addresses.insert(network, after);
                Ok(())
            }
        }
    }

    fn addresses(&self) -> MutexGuard<'_, HashMap<Network, u64>> {
        self.of_addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn after(&self, caller: Counted, before: u64, now: u64) -> Result<u64, Problem> {
        let after = before.max(now).saturating_add(self.interval);
        let ahead = after - now;
        if ahead <= self.ahead_max {
            return Ok(after);
        }
        let message = match caller {
            Counted::Key(_) => "this key has sent too many requests: wait and try again",
            Counted::Address(_) => "this address has sent too many requests: wait and try again",
        };
        Err(Problem::busy(Kind::TooOften, message, Duration::from_nanos(ahead - self.ahead_max)))
    }
}

/// Removes addresses that may send as if they never had, else the one that may do so first.
fn evict(addresses: &mut HashMap<Network, u64>, now: u64) {
    addresses.retain(|_, spent| *spent > now);
    if addresses.len() >= ADDRESSES_MAX
        && let Some(first) = addresses.iter().min_by_key(|(_, spent)| **spent).map(|(network, _)| *network)
    {
        addresses.remove(&first);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Counted::*, *};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_is_taken_and_then_the_rate_holds() {
        for [one, other] in [[Key(0), Key(1)], [1, 2].map(Network).map(Address)] {
            let rates = Rates::new(2, Some(60));
            assert!((0..100).all(|_| rates.check(one, SECOND).is_ok()), "a check takes nothing");
            let taken = (0..100).take_while(|_| rates.take(one, SECOND).is_ok()).count();
            assert_eq!(taken, 10);
            let refused = rates.take(one, SECOND).unwrap_err();
            assert_eq!((refused.kind, refused.retry_after), (Kind::TooOften, Some(SECOND)));
            assert_eq!(rates.check(one, SECOND).unwrap_err().retry_after, Some(SECOND));
            assert!(rates.take(one, SECOND * 2).is_ok());
            assert!(rates.take(one, SECOND * 2).is_err());
            assert!(rates.take(other, SECOND).is_ok(), "one does not spend another's share");
        }
    }

    #[test]
    fn a_reload_gave_every_caller_a_fresh_burst() {
        let before = Rates::new(2, Some(60));
        let address = Address(Network(7));
        while before.take(Key(1), Duration::ZERO).is_ok() || before.take(address, Duration::ZERO).is_ok() {}
        let after = Rates::new(1, Some(60));
        after.resume(&before, &[(0, 1)]);
        assert!(after.take(Key(0), Duration::ZERO).is_err() && after.take(address, Duration::ZERO).is_err());
    }

    #[test]
    fn addresses_are_forgotten_before_there_are_too_many() {
        let rates = Rates::new(0, Some(60));
        let full = Address(Network(u64::MAX));
        while rates.take(full, SECOND).is_ok() {}
        (0..2 * ADDRESSES_MAX as u64).for_each(|number| rates.take(Address(Network(number)), SECOND).unwrap());
        assert_eq!(rates.addresses().len(), ADDRESSES_MAX);
        assert!(rates.take(full, SECOND).is_err(), "those that wait longest are kept");
    }

    #[test]
    fn without_a_limit_nothing_is_refused() {
        let rates = Rates::new(1, None);
        assert!((0..1000).all(|_| rates.take(Key(0), Duration::ZERO).is_ok()));
        assert!((0..1000).all(|_| rates.take(Address(Network(1)), Duration::ZERO).is_ok()));
        assert!(rates.addresses().is_empty());
    }
}
