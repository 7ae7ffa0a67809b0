//! Checks a request before its body is read: host, origin, key, rate, and for work its priority and whether the queue has
//! room.
//! Looks at no body and calls no handler, so that a refusal is cheap.

use std::net::IpAddr;

use axum::body::HttpBody;
use http::Request;
use magray_engine::engine::CallerId;

use super::{
    app::App,
    errors::{Kind, Problem},
    hosts::OwnNames,
    keys::{Access, Caller, Credential},
    live::Live,
    meter::Counted,
    origin::Origins,
    request_record::RequestRecord,
    token_account::TokenAccount,
    wrong_keys::Network,
};
use crate::config::ServerSettings;

/// The names and origins that requests are checked against, beside what a reload can change.
pub(crate) struct Checks {
    own_names: OwnNames,
    origins: Origins,
}

pub(crate) struct RequestContext<'a> {
    pub(crate) access: Access,
    /// The other end of its connection, whatever its headers say.
    pub(crate) peer: IpAddr,
    pub(crate) record: &'a RequestRecord,
}

/// How urgent a request is that computes.
pub(super) const PRIORITY_HEADER: &str = "x-magray-priority";

impl Checks {
    pub(super) fn new(settings: &ServerSettings) -> Self {
        Self { own_names: OwnNames::new(&settings.host), origins: Origins::new(&settings.cors_origins) }
    }

    /// Refuses a request that may not be answered. The queue comes last: it keeps room for a while for a request that it
    /// refuses, so only one that would be answered otherwise may ask it; and what it refuses does not count for the caller's rate.
    pub(super) fn check<B: HttpBody>(
        &self,
        app: &App,
        from: &RequestContext<'_>,
        request: &Request<B>,
    ) -> Result<(), Problem> {
        let live = app.live();
        self.own_names.check(request, live.hosts())?;
        self.origins.check(request, live.hosts())?;
        if from.access == Access::Open {
            return Ok(());
        }
        let admitted = app.admit(&live, request.headers(), from.access, from.peer);
        if let Err(Problem { kind: Kind::Forbidden, .. }) = &admitted
            && let Credential::Known(caller) = live.keys().identify(request.headers())
        {
            from.set_caller(&live, &caller);
        }
        let caller = admitted?;
        from.set_caller(&live, &caller);
        if from.access == Access::Compute
            && let Some(word) = request.headers().get(PRIORITY_HEADER)
        {
            from.record.set_priority(word.to_str().unwrap_or_default().parse()?)?;
        }
        let bytes = request.body().size_hint().exact().unwrap_or(0);
        let since_start = app.uptime();
        let counted = caller.key.map_or_else(|| Counted::Address(Network::of(from.peer)), Counted::Key);
        let account = TokenAccount::open(&live, counted, since_start);
        from.record.set_counted(counted, account.clone());
        // A body that is too large is refused where it is read.
        if from.access == Access::Compute && bytes <= live.limits().body_bytes_max as u64 {
            live.rates().check_request(counted, since_start)?;
            if let Some(account) = account {
                account.take(app.admission().tokens_of(bytes))?;
            }
            app.check_queue(bytes, from.record.asker())?;
        }
        live.rates().take_request(counted, since_start)
    }
}

impl RequestContext<'_> {
    fn set_caller(&self, live: &Live, caller: &Caller) {
        self.record.set_caller(
            queue_caller(caller, self.peer),
            caller.name.clone(),
            caller.name.is_some() && !live.may_be_urgent(caller),
        );
    }
}

/// Who shares the queue with others: a key, whatever the number of its connections and addresses; without one, an address,
/// of IPv6 its network.
fn queue_caller(caller: &Caller, peer: IpAddr) -> CallerId {
    // No network begins so.
    const KEYS: u64 = 1 << 63;
    CallerId(match caller.key {
        Some(key) => KEYS | key as u64,
        None => Network::of(peer).0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_caller_from_everywhere_and_an_address_is_one_without_a_key() {
        let of = |key, peer: &str| queue_caller(&Caller { key, name: None }, peer.parse().unwrap());
        assert_eq!(of(Some(1), "10.0.0.1"), of(Some(1), "10.0.0.2"));
        assert_ne!(of(Some(1), "10.0.0.1"), of(Some(0), "10.0.0.1"));
        assert_ne!(of(None, "10.0.0.1"), of(None, "10.0.0.2"));
        assert_eq!(of(None, "10.0.0.1"), of(None, "::ffff:10.0.0.1"));
        assert_eq!(of(None, "2001:db8::1"), of(None, "2001:db8::2"), "one network");
    }
}
