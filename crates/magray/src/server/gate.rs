//! What happens to every request around its handler: its name, its key, its time, its place in log and metrics.
//! Decides who may pass; the handlers behind it need not ask again.

use std::time::Instant;

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};

use http::Method;

use super::{
    body,
    errors::{Kind, Problem, Shape},
    keys::Access,
    request_id,
    state::App,
};

/// Lets those pass whose key allows it, as often as it allows.
pub(crate) async fn admit(State((app, access)): State<(App, Access)>, request: Request, next: Next) -> Response {
    let live = app.live();
    let admitted = live.keys.admit(request.headers(), access);
    let admitted = admitted.and_then(|caller| live.rates.take(caller.key, app.uptime()));
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

/// Watches a request from its head to its answer.
pub(crate) async fn watch(State(app): State<App>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let name = request_id::name(request.headers());
    let shape = Shape::of(request.uri().path());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let within = app.live().limits.answer_within;
    let mut response = match tokio::time::timeout(within, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::new(Kind::Expired, "the request was not answered in time").into_response(),
    };
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    let took = started.elapsed();
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        app.metrics().refused(problem.kind);
        let id = name.to_str().unwrap_or_default();
        let (code, message) = (problem.kind.code(), problem.message.as_str());
        match problem.kind {
            Kind::Internal => tracing::error!(target: "magray::server", id, route, code, message, "request failed"),
            _ => tracing::info!(target: "magray::server", id, route, code, message, "request refused"),
        }
        response = problem.render(shape);
    }
    let status = response.status();
    app.metrics().answered(route, &method, status, took);
    tracing::debug!(
        target: "magray::server",
        id = name.to_str().unwrap_or_default(),
        %method,
        route,
        status = status.as_u16(),
        ms = took.as_secs_f64() * 1e3,
        "request"
    );
    response.headers_mut().insert(request_id::HEADER, name);
    response
}

/// A path that leads nowhere.
pub(crate) async fn no_route() -> Problem {
    Problem::new(Kind::NoRoute, "there is nothing here; /docs lists what there is")
}

/// A path that takes other methods.
pub(crate) async fn wrong_method() -> Problem {
    Problem::new(Kind::WrongMethod, "this path does not take this method; /docs tells which it takes")
}
