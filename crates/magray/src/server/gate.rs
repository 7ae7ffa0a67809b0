//! Who may pass to a handler, and how often; and what is said to those who ask for what is not there.
//! Decides before a body is read; the handlers behind it need not ask again.

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};

use http::Method;

use super::{
    account::Account,
    body,
    errors::{Kind, Problem},
    keys::Access,
    state::App,
};

/// Lets those pass whose key allows it, as often as it allows.
pub(crate) async fn admit(State((app, access)): State<(App, Access)>, request: Request, next: Next) -> Response {
    let live = app.live();
    let admitted = live.keys.admit(request.headers(), access);
    let admitted = admitted.and_then(|caller| {
        Account::current().note_key(caller.name.as_ref());
        live.rates.take(caller.key, app.uptime())
    });
    // Only what computes is posted by users.
    let computes = access == Access::User && request.method() == Method::POST;
    let admitted = admitted.and_then(|()| if computes { app.admission().check_room(app.uptime()) } else { Ok(()) });
    match admitted {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            body::discard(request.into_body()).await;
            problem.into_response()
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
