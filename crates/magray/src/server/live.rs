//! What a reload can change: keys, their rates, allowed hosts, limits of a request.
//! Replaced as a whole, so that a request sees one version from its start to its end.

use std::{
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use http::HeaderMap;

use super::{
    errors::Problem,
    hosts::AllowedHosts,
    keys::{Access, Caller, Credential, Keys},
    rate::Rates,
    wrong_keys::{Network, WrongKeys},
};
use crate::config::{LiveSettings, RequestLimits};

pub(crate) struct Live {
    keys: Keys,
    /// By key: the network that it was last used from; 0: none yet.
    used_from: Vec<AtomicU64>,
    rates: Rates,
    hosts: AllowedHosts,
    limits: RequestLimits,
    high_priority_keys: Vec<String>,
}

impl Live {
    pub(super) fn new(settings: LiveSettings) -> Self {
        let keys = Keys::new(&settings.api_keys, &settings.admin_keys);
        Self {
            used_from: (0..keys.len()).map(|_| AtomicU64::new(0)).collect(),
            rates: Rates::new(keys.len(), settings.requests_per_minute, settings.tokens_per_minute),
            hosts: AllowedHosts::new(&settings.allowed_hosts),
            limits: settings.limits,
            high_priority_keys: settings.high_priority_keys,
            keys,
        }
    }

    /// The next version: keys and addresses that stay go on with what they have spent of their rate.
    pub(super) fn replacing(before: &Self, settings: LiveSettings, now: Duration) -> Self {
        let mut next = Self::new(settings);
        next.rates.resume(&before.rates, &next.keys.also_in(&before.keys), now);
        next
    }

    pub(super) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(super) fn rates(&self) -> &Rates {
        &self.rates
    }

    pub(super) fn hosts(&self) -> &AllowedHosts {
        &self.hosts
    }

    pub(crate) fn limits(&self) -> RequestLimits {
        self.limits
    }

    /// Whether a caller may ask for a high priority: without keys of users everyone, else administrators and the keys that
    /// the settings name.
    pub(super) fn may_be_urgent(&self, caller: &Caller) -> bool {
        let is_named = |name: &str| self.high_priority_keys.iter().any(|known| known == "*" || known == name);
        !self.keys.are_needed(Access::Compute)
            || self.keys.is_admin(caller)
            || caller.name.as_deref().is_some_and(is_named)
    }

    /// Whether a caller with these headers, at this address, has such access. `wrong_keys` comes with the time since the
    /// server started.
    pub(super) fn admit(
        &self,
        headers: &HeaderMap,
        access: Access,
        peer: IpAddr,
        wrong_keys: (&WrongKeys, Duration),
    ) -> Result<Caller, Problem> {
        let credential = self.keys.identify(headers);
        if self.keys.are_needed(access) {
            self.limit_guesses(&credential, peer, wrong_keys)?;
        }
        self.keys.admit(credential, access, peer.to_canonical().is_loopback())
    }

    /// Refuses all keys of an address that has sent too many wrong ones: if right ones were taken, guesses could go on until
    /// one is right. A key that was last used from the same address is taken, so that clients that share an address with one
    /// that has a wrong key are not refused for it.
    fn limit_guesses(
        &self,
        credential: &Credential,
        peer: IpAddr,
        (wrong_keys, now): (&WrongKeys, Duration),
    ) -> Result<(), Problem> {
        match credential {
            Credential::None => Ok(()),
            Credential::Unknown => {
                wrong_keys.check(peer, now)?;
                wrong_keys.add(peer, now);
                Ok(())
            }
            Credential::Known(caller) => {
                let Network(network) = Network::of(peer);
                let used_from = caller.key.and_then(|key| self.used_from.get(key));
                if used_from.is_some_and(|used_from| used_from.load(Ordering::Relaxed) == network) {
                    return Ok(());
                }
                wrong_keys.check(peer, now)?;
                if let Some(used_from) = used_from {
                    used_from.store(network, Ordering::Relaxed);
                }
                Ok(())
            }
        }
    }
}
