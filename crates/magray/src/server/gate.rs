//! Who may pass to a handler, and how often; and what is said to those who ask for what is not there.
//! Decides before a body is read; the handlers behind it need not ask again.

use axum::{
    body::HttpBody,
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::Method;

use super::{
    account::Account,
    body,
    errors::{Kind, Problem},
    keys::Access,
    origin::Origins,
    state::App,
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
pub(crate) fn is_work(request: &Request) -> bool {
    let route = request.extensions().get::<MatchedPath>();
    request.method() == Method::POST && route.is_some_and(|route| WORK.contains(&route.as_str()))
}

/// Lets those pass whose key allows it, as often as it allows.
pub(crate) async fn admit(State((app, access)): State<(App, Access)>, request: Request, next: Next) -> Response {
    let live = app.live();
    let admitted = live.keys.admit(request.headers(), access);
    let admitted = admitted.and_then(|caller| {
        Account::current().note_key(caller.name.as_ref());
        live.rates.take(caller.key, app.uptime())
    });
    match admitted {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            body::discard(request).await;
            problem.into_response()
        }
    }
}

/// Who comes in at all: no pages of elsewhere, and no work while the queue has no room for it. What is refused here is not
/// taken through all that lies behind.
pub(crate) fn at_the_door(app: &App, origins: &Origins, request: &Request, account: &Account) -> Result<(), Problem> {
    let live = app.live();
    origins.check(request.uri(), request.headers(), live.keys.is_open())?;
    let bytes = request.body().size_hint().exact().unwrap_or(0);
    if !is_work(request) || bytes > live.limits.body_bytes_max as u64 {
        return Ok(());
    }
    // Who is refused for want of room has room kept for a moment. Nobody else has, and those behind say why.
    let Ok(caller) = live.keys.admit(request.headers(), Access::User) else { return Ok(()) };
    app.check_room(bytes).inspect_err(|_| account.note_key(caller.name.as_ref()))
}

/// A path that leads nowhere.
pub(crate) async fn no_route() -> Problem {
    Problem::new(Kind::NoRoute, "there is nothing here; /docs lists what there is")
}

/// A path that takes other methods.
pub(crate) async fn wrong_method() -> Problem {
    Problem::new(Kind::WrongMethod, "this path does not take this method; /docs tells which it takes")
}
