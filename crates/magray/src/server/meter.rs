//! Meters what callers use of a rate, by a generic cell rate algorithm: for each key, and without a key for each address.
//! Refuses nothing itself. Remembers a bounded number of addresses: those with the most time left to wait.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::wrong_keys::Network;

#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// The time that one unit takes of the rate, in nanoseconds; 0: no limit.
    interval: u64,
    /// Units that may be used at once.
    burst: u64,
    /// By key: until when it has spent its units, in nanoseconds since the server started.
    of_keys: Vec<Arc<AtomicU64>>,
    /// The same of the addresses of callers without a key.
    of_addresses: Arc<Mutex<HashMap<Network, u64>>>,
}

/// What a request counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Key(usize),
    Address(Network),
}

/// Units of a caller, at a time since the server started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) of: Counted,
    pub(crate) units: u64,
    pub(crate) now: Duration,
}

/// What a caller has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// In a minute.
    pub(crate) limit: u64,
    /// What may be used now.
    pub(crate) remaining: u64,
    /// Until all of it may be used again.
    pub(crate) reset: Duration,
}

const ADDRESSES_MAX: usize = 4096;
const MINUTE: Duration = Duration::from_secs(60);

impl Meter {
    /// A rate, of which `burst` units may be used at once.
    pub(crate) fn new(keys: usize, per_minute: Option<u64>, burst: impl Fn(u64) -> u64) -> Self {
        let Some(rate) = per_minute.filter(|rate| *rate > 0) else { return Self::default() };
        let of_keys = (0..keys).map(|_| Arc::default()).collect();
        Self { interval: nanos(MINUTE) / rate, burst: burst(rate).max(1), of_keys, of_addresses: Arc::default() }
    }

    /// Goes on with what was spent before; `same_keys` are the indices of keys now and before. At the same rate what was begun
    /// before goes on counting here.
    pub(crate) fn resume(&mut self, before: &Self, same_keys: &[(usize, usize)], now: Duration) {
        let (is_same, interval, now) = (self.interval == before.interval, self.interval, nanos(now));
        // As many units are owed as before.
        let scaled = |spent: u64| {
            let units = spent.saturating_sub(now) / before.interval.max(1);
            now.saturating_add(interval.saturating_mul(units))
        };
        for (key, at) in same_keys {
            let Some(spent) = before.of_keys.get(*at).filter(|_| *key < self.of_keys.len()) else { continue };
            self.of_keys[*key] = match is_same {
                true => Arc::clone(spent),
                false => Arc::new(AtomicU64::new(scaled(spent.load(Ordering::Relaxed)))),
            };
        }
        self.of_addresses = match is_same {
            true => Arc::clone(&before.of_addresses),
            false => {
                let of_addresses =
                    before.addresses().iter().map(|(network, spent)| (*network, scaled(*spent))).collect();
                Arc::new(Mutex::new(of_addresses))
            }
        };
    }

    pub(crate) fn has_limit(&self) -> bool {
        self.interval > 0
    }

    /// Whether units may be used now, or in which time; takes nothing.
    pub(crate) fn check(&self, wanted: Use) -> Result<(), Duration> {
        if !self.has_limit() {
            return Ok(());
        }
        self.after(self.spent(wanted.of), wanted).map(drop)
    }

    /// Takes units, or tells in which time there will be as many. More than are ever there at once are taken when all are.
    pub(crate) fn take(&self, wanted: Use) -> Result<(), Duration> {
        self.change(wanted, |spent| self.after(spent, wanted))
    }

    /// Counts units that were used already: a caller may owe some.
    pub(crate) fn charge(&self, used: Use) {
        let now = nanos(used.now);
        let charged = |spent: u64| Ok(spent.max(now).saturating_add(self.time_of(used.units)));
        // It is never refused.
        let _ = self.change(used, charged);
    }

    /// Gives back units that were taken and not used.
    pub(crate) fn give_back(&self, unused: Use) {
        let _ = self.change(unused, |spent| Ok(spent.saturating_sub(self.time_of(unused.units))));
    }

    /// `None` where there is no limit.
    pub(crate) fn standing(&self, of: Counted, now: Duration) -> Option<Standing> {
        if !self.has_limit() {
            return None;
        }
        let ahead = self.spent(of).saturating_sub(nanos(now));
        let remaining = self.time_of(self.burst).saturating_sub(ahead) / self.interval;
        Some(Standing { limit: nanos(MINUTE) / self.interval, remaining, reset: Duration::from_nanos(ahead) })
    }

    fn time_of(&self, units: u64) -> u64 {
        self.interval.saturating_mul(units)
    }

    fn spent(&self, of: Counted) -> u64 {
        match of {
            Counted::Key(key) => self.of_keys.get(key).map_or(0, |spent| spent.load(Ordering::Relaxed)),
            Counted::Address(network) => self.addresses().get(&network).copied().unwrap_or(0),
        }
    }

    fn after(&self, spent: u64, wanted: Use) -> Result<u64, Duration> {
        let (now, units) = (nanos(wanted.now), wanted.units.min(self.burst));
        let ahead = spent.max(now).saturating_add(self.time_of(units)) - now;
        let most = self.time_of(self.burst);
        if ahead > most {
            return Err(Duration::from_nanos(ahead - most));
        }
        Ok(spent.max(now).saturating_add(self.time_of(wanted.units)))
    }

    fn change(&self, by: Use, after: impl Fn(u64) -> Result<u64, Duration>) -> Result<(), Duration> {
        match by.of {
            _ if !self.has_limit() => Ok(()),
            Counted::Key(key) => {
                let Some(spent) = self.of_keys.get(key) else { return Ok(()) };
                let mut before = spent.load(Ordering::Relaxed);
                loop {
                    match spent.compare_exchange_weak(before, after(before)?, Ordering::Relaxed, Ordering::Relaxed) {
                        Ok(_) => return Ok(()),
                        Err(other) => before = other,
                    }
                }
            }
            Counted::Address(network) => {
                let mut addresses = self.addresses();
                let after = after(addresses.get(&network).copied().unwrap_or(0))?;
                if addresses.len() >= ADDRESSES_MAX && !addresses.contains_key(&network) {
                    evict(&mut addresses, nanos(by.now));
                }
                addresses.insert(network, after);
                Ok(())
            }
        }
    }

    fn addresses(&self) -> MutexGuard<'_, HashMap<Network, u64>> {
        self.of_addresses.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn one(of: Counted, now: Duration) -> Use {
        Use { of, units: 1, now }
    }

    /// 60 a minute, of which 10 may be used at once.
    fn meter(keys: usize) -> Meter {
        Meter::new(keys, Some(60), |rate| rate / 6)
    }

    #[test]
    fn a_burst_is_taken_and_then_the_rate_holds() {
        for [caller, other] in [[Key(0), Key(1)], [1, 2].map(Network).map(Address)] {
            let meter = meter(2);
            assert!((0..100).all(|_| meter.check(one(caller, SECOND)).is_ok()), "a check takes nothing");
            let taken = (0..100).take_while(|_| meter.take(one(caller, SECOND)).is_ok()).count();
            assert_eq!(taken, 10);
            assert_eq!(meter.take(one(caller, SECOND)), Err(SECOND));
            assert_eq!(meter.check(one(caller, SECOND)), Err(SECOND));
            assert!(meter.take(one(caller, SECOND * 2)).is_ok());
            assert!(meter.take(one(caller, SECOND * 2)).is_err());
            assert!(meter.take(one(other, SECOND)).is_ok(), "one does not spend another's share");
        }
    }

    #[test]
    fn what_is_owed_is_waited_for_and_what_is_given_back_is_not() {
        for caller in [Key(0), Address(Network(1))] {
            let (meter, of) = (meter(1), |units| Use { of: caller, units, now: SECOND });
            meter.take(of(4)).unwrap();
            assert_eq!(meter.standing(caller, SECOND), Some(Standing { limit: 60, remaining: 6, reset: SECOND * 4 }));
            meter.charge(of(16));
            assert_eq!(meter.standing(caller, SECOND), Some(Standing { limit: 60, remaining: 0, reset: SECOND * 20 }));
            assert_eq!(meter.check(of(3)), Err(SECOND * 13));
            meter.give_back(of(20));
            meter.take(of(1_000)).expect("more than there is ever is taken when all is there");
            assert_eq!(meter.check(of(1)), Err(SECOND * 991));
        }
    }

    #[test]
    fn a_reload_gave_every_caller_a_fresh_burst() {
        let before = meter(2);
        let address = Address(Network(7));
        while before.take(one(Key(1), Duration::ZERO)).is_ok() || before.take(one(address, Duration::ZERO)).is_ok() {}
        let mut after = meter(1);
        after.resume(&before, &[(0, 1)], Duration::ZERO);
        assert!(after.take(one(Key(0), Duration::ZERO)).is_err() && after.take(one(address, Duration::ZERO)).is_err());
        // What a request that began before uses counts after it.
        before.charge(Use { of: Key(1), units: 100, now: Duration::ZERO });
        assert_eq!(after.take(one(Key(0), Duration::ZERO)), Err(SECOND * 101));
    }

    #[test]
    fn a_higher_rate_left_callers_waiting_as_long_as_the_lower_one() {
        for of in [Key(0), Address(Network(7))] {
            let before = meter(1);
            before.charge(Use { of, units: 60, now: SECOND });
            let mut after = Meter::new(1, Some(600), |rate| rate / 60);
            after.resume(&before, &[(0, 0)], SECOND);
            assert_eq!(after.check(one(of, SECOND)), Err(SECOND / 10 * 51));
        }
    }

    #[test]
    fn addresses_are_forgotten_before_there_are_too_many() {
        let meter = meter(0);
        let full = Address(Network(u64::MAX));
        while meter.take(one(full, SECOND)).is_ok() {}
        (0..2 * ADDRESSES_MAX as u64).for_each(|number| meter.take(one(Address(Network(number)), SECOND)).unwrap());
        assert_eq!(meter.addresses().len(), ADDRESSES_MAX);
        assert!(meter.take(one(full, SECOND)).is_err(), "those that wait longest are kept");
    }

    #[test]
    fn without_a_limit_nothing_is_refused() {
        let meter = Meter::new(1, None, |rate| rate);
        assert!((0..1000).all(|_| meter.take(one(Key(0), Duration::ZERO)).is_ok()));
        assert!((0..1000).all(|_| meter.take(one(Address(Network(1)), Duration::ZERO)).is_ok()));
        assert!(meter.addresses().is_empty() && meter.standing(Key(0), SECOND).is_none());
    }
}
