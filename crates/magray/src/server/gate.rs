//! What happens to every request around its handler: its name, its key, its time, its place in log and metrics.
//! Decides who may pass; the handlers behind it need not ask again.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{Extensions, Method};
use http_body_util::BodyExt;

use super::{
    admission::Place,
    body,
    errors::{Kind, Problem, Shape},
    guests::{Delivery, Guest},
    keys::Access,
    origin::Origins,
    request_id,
    state::App,
    visit,
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
/// A refusal for want of room is held back so long: a client that asks again at once would otherwise take the cores that
/// the others' work is computed on.
const HELD_BACK: Duration = Duration::from_millis(2);
/// Smaller answers are not counted.
const LARGE_ANSWER: u64 = 16 << 10;
/// An answer must be taken as fast as this, after the time that every answer has.
const BYTES_PER_S_LEAST: u64 = 128 << 10;

/// Whether a request of a route makes the devices work.
pub(crate) fn is_work(of: &Extensions) -> bool {
    of.get::<MatchedPath>().is_some_and(|route| WORK.contains(&route.as_str()))
}

/// Lets those pass whose key allows it, as often as it allows.
pub(crate) async fn admit(State((app, access)): State<(App, Access)>, request: Request, next: Next) -> Response {
    let live = app.live();
    let admitted = live.keys.admit(request.headers(), access);
    let admitted = admitted.and_then(|caller| live.rates.take(caller.key, app.uptime()));
    pass(admitted, request, next).await
}

/// Lets those pass who are no page of elsewhere.
pub(crate) async fn keep_pages_out(
    State((app, origins)): State<(App, Arc<Origins>)>,
    request: Request,
    next: Next,
) -> Response {
    let checked = origins.check(request.uri(), request.headers(), app.live().keys.is_open());
    pass(checked, request, next).await
}

async fn pass(may: Result<(), Problem>, request: Request, next: Next) -> Response {
    match may {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            let (parts, body) = request.into_parts();
            body::discard(&parts.headers, body).await;
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
    let guest = request.extensions().get::<Arc<Guest>>().cloned();
    let _busy = guest.as_ref().map(Guest::begin);
    let method = request.method().clone();
    let limits = app.live().limits;
    let (answered, room) = visit::run(tokio::time::timeout(limits.answer_within, next.run(request))).await;
    let mut response = match answered {
        Ok(response) => response,
        Err(_) => {
            let message = "the request was not answered in time";
            Problem::busy(Kind::Expired, message, Duration::from_secs(1)).into_response()
        }
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
        if problem.kind == Kind::Busy {
            tokio::time::sleep(HELD_BACK).await;
        }
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
    match response.body().size_hint().exact().filter(|bytes| *bytes > LARGE_ANSWER && method == Method::POST) {
        None => response,
        Some(bytes) => {
            let mut room = room.unwrap_or_else(|| app.admission().hold_anyway(0));
            room.resize(bytes);
            let within = limits.body_within + Duration::from_secs(bytes / BYTES_PER_S_LEAST);
            count(response, room, guest.map(|guest| guest.give(within))).await
        }
    }
}

/// An answer that takes room, and its client's time, for as long as it is in memory.
struct Counted {
    bytes: Bytes,
    _room: Place,
    _delivery: Option<Delivery>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

async fn count(response: Response, room: Place, delivery: Option<Delivery>) -> Response {
    let (parts, body) = response.into_parts();
    // It is in one piece: nothing is waited for or copied.
    match body.collect().await {
        Ok(whole) => {
            let counted = Counted { bytes: whole.to_bytes(), _room: room, _delivery: delivery };
            Response::from_parts(parts, Body::from(Bytes::from_owner(counted)))
        }
        Err(_) => Problem::new(Kind::Internal, "the answer could not be written").into_response(),
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
