//! Limits how many wrong keys an address may try, and logs them.
//! Keeps no key, and a bounded number of addresses.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::errors::{Kind, Problem};

#[derive(Debug, Default)]
pub(crate) struct WrongKeys {
    table: Mutex<Table>,
    /// Whether the table holds anything: most servers never see a wrong key.
    has_any: AtomicBool,
}

#[derive(Debug, Default)]
struct Table {
    /// Until when each network has used up its tries, in time since the server started.
    spent: HashMap<Network, Duration>,
    unlogged: u64,
    logged: Option<Duration>,
}

/// The network of a client: an address of IPv4, or the /64 of one of IPv6, which one client has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Network(pub(crate) u64);

pub(crate) const TRIES_MAX: u32 = 20;
/// The time until one more try.
const TRY_EVERY: Duration = Duration::from_secs(3);
const NETWORKS_MAX: usize = 4096;
const LOG_EVERY: Duration = Duration::from_secs(10);

impl Network {
    pub(crate) fn of(address: IpAddr) -> Self {
        /// No address of IPv6 begins so: it is reserved for nothing (RFC 6666).
        const IPV4: u64 = 0x0100 << 48;
        Self(match address.to_canonical() {
            IpAddr::V4(address) => IPV4 | u64::from(address.to_bits()),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        })
    }
}

impl WrongKeys {
    /// Refuses a key without a look at it where its address has no try left.
    pub(crate) fn check(&self, address: IpAddr, now: Duration) -> Result<(), Problem> {
        if !self.has_any.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut table = self.lock();
        let Some(wait) = table.wait(Network::of(address), now) else { return Ok(()) };
        table.log(address, now);
        let message = "too many wrong keys came from this address: check the key, wait and try again";
        Err(Problem::busy(Kind::TooOften, message, wait))
    }

    pub(crate) fn add(&self, address: IpAddr, now: Duration) {
        let mut table = self.lock();
        let network = Network::of(address);
        if table.spent.len() >= NETWORKS_MAX && !table.spent.contains_key(&network) {
            table.evict(now);
        }
        let spent = table.spent.entry(network).or_default();
        *spent = (*spent).max(now) + TRY_EVERY;
        self.has_any.store(true, Ordering::Relaxed);
        table.log(address, now);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn wait(&self, network: Network, now: Duration) -> Option<Duration> {
        let ahead = self.spent.get(&network)?.saturating_sub(now);
        (ahead + TRY_EVERY).checked_sub(TRY_EVERY * TRIES_MAX).filter(|wait| !wait.is_zero())
    }

    /// Removes networks that have all their tries again, else the one that will have them first.
    fn evict(&mut self, now: Duration) {
        self.spent.retain(|_, spent| *spent > now);
        if self.spent.len() >= NETWORKS_MAX
            && let Some(first) = self.spent.iter().min_by_key(|(_, spent)| **spent).map(|(network, _)| *network)
        {
            self.spent.remove(&first);
        }
    }

    fn log(&mut self, address: IpAddr, now: Duration) {
        self.unlogged += 1;
        if self.logged.is_some_and(|logged| now < logged + LOG_EVERY) {
            return;
        }
        let is_limited = self.wait(Network::of(address), now).is_some();
        tracing::warn!(
            target: "magray::server",
            %address,
            wrong_keys = self.unlogged,
            is_limited,
            "wrong keys were sent, last from this address"
        );
        (self.unlogged, self.logged) = (0, Some(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000);

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn tries(wrong: &WrongKeys, from: &str, now: Duration) -> usize {
        let is_examined = |_: &u32| {
            let is_examined = wrong.check(address(from), now).is_ok();
            if is_examined {
                wrong.add(address(from), now);
            }
            is_examined
        };
        (0..1_000).take_while(is_examined).count()
    }

    #[test]
    fn an_address_has_its_tries_and_then_one_every_few_seconds() {
        let wrong = WrongKeys::default();
        assert_eq!(tries(&wrong, "192.0.2.1", NOW), TRIES_MAX as usize);
        let refused = wrong.check(address("192.0.2.1"), NOW).unwrap_err();
        assert_eq!((refused.kind, refused.retry_after), (Kind::TooOften, Some(TRY_EVERY)));
        assert_eq!(tries(&wrong, "192.0.2.2", NOW), TRIES_MAX as usize, "another address");
        assert_eq!(tries(&wrong, "192.0.2.1", NOW + TRY_EVERY), 1);
        assert_eq!(tries(&wrong, "192.0.2.1", NOW + 100 * TRY_EVERY), TRIES_MAX as usize);
    }

    #[test]
    fn a_client_of_ipv6_has_no_more_tries_than_one_of_ipv4() {
        let wrong = WrongKeys::default();
        assert_eq!(tries(&wrong, "2001:db8::1", NOW), TRIES_MAX as usize);
        assert_eq!(tries(&wrong, "2001:db8::ffff:2", NOW), 0, "the same /64");
        assert_eq!(tries(&wrong, "2001:db8:0:1::1", NOW), TRIES_MAX as usize);
        assert_eq!(tries(&wrong, "192.0.2.1", NOW), TRIES_MAX as usize);
        assert_eq!(tries(&wrong, "::ffff:192.0.2.1", NOW), 0);
    }

    #[test]
    fn addresses_are_forgotten_before_there_are_too_many() {
        let wrong = WrongKeys::default();
        tries(&wrong, "192.0.2.1", NOW);
        for number in 0..2 * NETWORKS_MAX as u32 {
            wrong.add(IpAddr::from((0x0a00_0000 + number).to_be_bytes()), NOW);
        }
        assert_eq!(wrong.lock().spent.len(), NETWORKS_MAX);
        assert_eq!(tries(&wrong, "192.0.2.1", NOW), 0, "the worst are kept");
    }
}
