//! Checks a request before its body is read: host, origin, key, rate, and for work its priority and whether the queue has
//! room.
//! Reads no body but to know a request again, and calls no handler, so that a refusal is cheap.

use std::net::IpAddr;

use axum::body::{Body, HttpBody};
use http::Request;
use magray_engine::engine::CallerId;

use super::{
    app::App,
    body,
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
    /// Whether it is answered by what is generated.
    pub(crate) generates: bool,
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

    /// Refuses a request that may not be answered, whether or not there is room for it.
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
        let since_start = app.uptime();
        let counted = caller.key.map_or_else(|| Counted::Address(Network::of(from.peer)), Counted::Key);
        let account = TokenAccount::open(&live, counted, since_start);
        from.record.set_counted(counted, account.clone());
        if let Some(bytes) = from.bytes_computed(&live, request) {
            live.rates().check_request(counted, since_start)?;
            if let Some(account) = account {
                account.take(app.admission().tokens_of(bytes, from.generates))?;
            }
            from.record.set_mark(from.generates, None);
        }
        Ok(())
    }

    /// Refuses a request that the queue has no room for. This comes last: room is kept for a while for a request that is refused
    /// here, so only one that would be answered otherwise may ask; and what is refused does not count for the caller's rate.
    pub(super) async fn check_room(
        &self,
        app: &App,
        from: &RequestContext<'_>,
        request: &mut Request<Body>,
    ) -> Result<(), Problem> {
        let live = app.live();
        if let Some(bytes) = from.bytes_computed(&live, request) {
            if !app.is_queue_free(bytes, from.record.asker()) {
                from.record.set_mark(from.generates, body::mark(app, request).await?);
            }
            app.check_queue(bytes, from.record.asker())?;
        }
        match from.record.recorded().counted {
            Some(counted) => live.rates().take_request(counted, app.uptime()),
            None => Ok(()),
        }
    }
}

impl RequestContext<'_> {
    /// The bytes of its body, if it computes. One that is too large is refused where it is read.
    fn bytes_computed<B: HttpBody>(&self, live: &Live, request: &Request<B>) -> Option<u64> {
        let bytes = request.body().size_hint().exact().unwrap_or(0);
        (self.access == Access::Compute && bytes <= live.limits().body_bytes_max as u64).then_some(bytes)
    }

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
