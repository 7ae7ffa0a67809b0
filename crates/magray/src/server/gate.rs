//! Who may pass to a handler, and how often; and what is said to those who ask for what is not there.
//! Decides before a body is read and a handler is looked for; those need not ask again.

use std::{net::IpAddr, sync::atomic::Ordering};

use axum::body::HttpBody;
use http::{HeaderMap, Method, Request};

use super::{
    account::Account,
    errors::{Kind, Problem},
    keys::{Access, Caller, Given},
    site::{Route, Site},
    state::{App, Live},
    wrong_keys::Network,
};

/// What makes the devices work. A full queue shuts these doors and no others: whoever looks, or takes models off a GPU,
/// is the more welcome then.
const WORK: [&str; 12] = [
    "/",
    "/api/embed",
    "/api/embeddings",
    "/embed",
    "/embed_all",
    "/predict",
    "/rerank",
    "/similarity",
    "/v1/embeddings",
    "/v1/rerank",
    "/v2/embed",
    "/v2/rerank",
];

/// Whether a request makes the devices work.
pub(crate) fn is_work<B>(request: &Request<B>) -> bool {
    request.method() == Method::POST && WORK.contains(&request.uri().path())
}

/// Who comes in: those who call the server by a name of its own, no pages of elsewhere, those whose key allows it, as often as
/// it allows, and no work while the queue has no room for it. A request that finds no room is none that its key has asked; and
/// room is kept for a moment for whoever found none, so that only those are asked about it who may come in otherwise.
pub(crate) fn at_the_door<B: HttpBody>(site: &Site, asking: &Asking<'_>, request: &Request<B>) -> Result<(), Problem> {
    let live = site.app.live();
    site.own_names.check(request, &live.hosts)?;
    site.origins.check(request, &live.hosts)?;
    let Some(access) = asking.route.access else { return Ok(()) };
    let caller = site.app.admit(&live, request.headers(), access, asking.peer)?;
    if caller.name.is_some() {
        asking.account.note_key(caller.name.as_ref());
    }
    let bytes = request.body().size_hint().exact().unwrap_or(0);
    let since_start = site.app.uptime();
    // A body that is too large hears so from whoever reads it.
    if is_work(request) && bytes <= live.limits.body_bytes_max as u64 {
        live.rates.check(caller.key, since_start)?;
        site.app.check_room(bytes)?;
    }
    live.rates.take(caller.key, since_start)
}

/// What is known of a request beside what it says.
pub(crate) struct Asking<'a> {
    pub(crate) route: &'a Route,
    pub(crate) account: &'a Account,
    pub(crate) peer: Peer,
}

/// Where a request came from: the other end of its connection, whatever its headers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer(pub(crate) IpAddr);

impl App {
    /// Whether a request may do what needs such access.
    pub(crate) fn admit(
        &self,
        live: &Live,
        headers: &HeaderMap,
        access: Access,
        Peer(peer): Peer,
    ) -> Result<Caller, Problem> {
        let given = live.keys.identify(headers);
        if live.keys.are_needed(access) {
            self.limit_guesses(live, &given, peer)?;
        }
        live.keys.admit(given, access, peer.to_canonical().is_loopback())
    }

    /// Refuses all keys of an address that has sent too many wrong ones: if right ones were taken, guesses could go on until
    /// one is right. A key that was last used from the same address is taken, so that those who share an address with a
    /// client that has a wrong key do not suffer for it.
    fn limit_guesses(&self, live: &Live, given: &Given, peer: IpAddr) -> Result<(), Problem> {
        match given {
            Given::Nothing => Ok(()),
            Given::Unknown => {
                self.wrong_keys().check(peer, self.uptime())?;
                self.wrong_keys().note(peer, self.uptime());
                Ok(())
            }
            Given::Known(caller) => {
                let Network(network) = Network::of(peer);
                let used_from = caller.key.and_then(|key| live.used_from.get(key));
                if used_from.is_some_and(|used_from| used_from.load(Ordering::Relaxed) == network) {
                    return Ok(());
                }
                self.wrong_keys().check(peer, self.uptime())?;
                if let Some(used_from) = used_from {
                    used_from.store(network, Ordering::Relaxed);
                }
                Ok(())
            }
        }
    }
}

/// A path that leads nowhere.
pub(crate) async fn no_route() -> Problem {
    Problem::new(Kind::NoRoute, "there is nothing here; /docs lists what there is")
}

/// A path that takes other methods.
pub(crate) async fn wrong_method() -> Problem {
    Problem::new(Kind::WrongMethod, "this path does not take this method; /docs tells which it takes")
}
