//! Who may pass to a handler, and how often; and what is said to those who ask for what is not there.
//! Decides before a body is read and a handler is looked for; those need not ask again.

use axum::body::HttpBody;
use http::{Method, Request};

use super::{
    account::Account,
    errors::{Kind, Problem},
    site::{Route, Site},
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

/// Who comes in: no pages of elsewhere, those whose key allows it, as often as it allows, and no work while the queue has
/// no room for it. A request that finds no room is none that its key has asked; and room is kept for a moment for whoever
/// found none, so that only those are asked about it who may come in otherwise.
pub(crate) fn at_the_door<B: HttpBody>(
    site: &Site,
    route: &Route,
    request: &Request<B>,
    account: &Account,
) -> Result<(), Problem> {
    let live = site.app.live();
    site.origins.check(request.uri(), request.headers(), live.keys.is_open())?;
    let Some(access) = route.access else { return Ok(()) };
    let caller = live.keys.admit(request.headers(), access)?;
    if caller.name.is_some() {
        account.note_key(caller.name.as_ref());
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

/// A path that leads nowhere.
pub(crate) async fn no_route() -> Problem {
    Problem::new(Kind::NoRoute, "there is nothing here; /docs lists what there is")
}

/// A path that takes other methods.
pub(crate) async fn wrong_method() -> Problem {
    Problem::new(Kind::WrongMethod, "this path does not take this method; /docs tells which it takes")
}
