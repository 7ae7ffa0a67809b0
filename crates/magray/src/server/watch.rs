//! Watches every request from its head to its answer: its name, its time, its line in the log, its metrics and trace.
//! Misses none: also one whose client leaves before the answer is told of.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    body::{Body, HttpBody},
    response::{IntoResponse, Response},
};
use http::{HeaderValue, Method, Request, header};
use hyper::body::Incoming;
use tower::Service;
use tracing::Span;

use super::{
    account::{Account, Entries},
    body,
    connections::Connection,
    delivery::{Held, counted},
    errors::{Kind, Problem, Shape},
    gate::{self, Asking, Peer},
    request_id, reservation,
    site::{Route, Site},
    traces::{Ended, Trace},
    unread::Arriving,
};

/// Nobody reads this status: the client has left.
const CLIENT_LEFT: u16 = 499;

/// A connection, and what it is shown.
pub(crate) struct Visitor {
    pub(crate) site: Arc<Site>,
    pub(crate) connection: Arc<Connection>,
    pub(crate) peer: Peer,
}

/// Watches a request. What is refused at the door is taken through nothing that lies behind it.
pub(crate) async fn watch(visitor: Arc<Visitor>, request: Request<Incoming>) -> Result<Response, Infallible> {
    let Visitor { site, connection, peer } = &*visitor;
    let _busy = connection.begin();
    let mut request = request.map(|incoming| Arriving { incoming, connection: Arc::clone(connection) });
    let shape = Shape::of(request.uri().path());
    let watched = Watched::begin(Arc::clone(site), &request);
    let asking = Asking { route: &watched.route, account: &watched.account, peer: *peer };
    if let Err(problem) = gate::at_the_door(site, &asking, &request) {
        body::discard(request).await;
        return Ok(watched.refuse(&problem, shape, connection).await);
    }
    // For those who ask for more than the door did.
    request.extensions_mut().insert(*peer);
    // A connection has room for what is here, also while it is idle.
    Ok(Box::pin(answer(watched, request, shape, Arc::clone(connection))).await)
}

async fn answer(
    mut watched: Watched,
    request: Request<Arriving>,
    shape: Shape,
    connection: Arc<Connection>,
) -> Response {
    let app = watched.site.app.clone();
    let within = app.live().limits.answer_within;
    let is_post = watched.method == Method::POST;
    let account = watched.named_account();
    let mut request = request.map(Body::new);
    // For those who go on in a task of their own.
    request.extensions_mut().insert(account.clone());
    let mut handlers = watched.site.handlers(&watched.route);
    let answering = tokio::time::timeout(within, account.kept_during(handlers.call(request)));
    let (answered, room) = reservation::run(answering).await;
    let response = match answered {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_) => {
            let message = "the request was not answered in time";
            Problem::busy(Kind::Expired, message, Duration::from_secs(1)).into_response()
        }
    };
    let response = watched.end(response, shape, &connection).await;
    if is_post { counted(response, Held { app: &app, room, connection }).await } else { response }
}

/// A request that is not answered yet. Dropped before it is, its client has left.
struct Watched {
    site: Arc<Site>,
    route: Arc<Route>,
    name: HeaderValue,
    method: Method,
    started: Instant,
    account: Account,
    /// `None` where nobody collects traces.
    trace: Option<Trace>,
    is_ended: bool,
}

impl Watched {
    fn begin(site: Arc<Site>, request: &Request<Arriving>) -> Self {
        let started = Instant::now();
        let name = request_id::name(request.headers());
        let route = Arc::clone(site.route(request.uri().path()));
        let method = request.method().clone();
        let trace = site.app.traces().map(|traces| traces.begin(request.headers(), &method, route.name()));
        Self { site, route, name, method, started, account: Account::new(Span::none()), trace, is_ended: false }
    }

    /// Its account, whose lines in the log carry its name from here on.
    fn named_account(&mut self) -> Account {
        self.account = self.account.within(self.span());
        self.account.clone()
    }

    /// What its lines in the log stand in. Made when it is needed first: few lines tell of requests that are refused.
    fn span(&self) -> Span {
        if !self.account.span().is_none() {
            return self.account.span().clone();
        }
        let request_id = self.name.to_str().unwrap_or_default();
        // As severe as can be, so that it is there whatever is logged.
        match self.trace.as_ref().map(Trace::id) {
            Some(trace_id) => tracing::error_span!(target: "magray::server", "request", request_id, %trace_id),
            None => tracing::error_span!(target: "magray::server", "request", request_id),
        }
    }

    /// The request was answered, or refused on its way.
    async fn end(self, mut response: Response, shape: Shape, connection: &Connection) -> Response {
        let Some(problem) = response.extensions_mut().remove::<Problem>() else { return self.named(response, None) };
        let mut refused = self.refuse(&problem, shape, connection).await;
        if let Some(methods) = response.headers_mut().remove(header::ALLOW) {
            refused.headers_mut().insert(header::ALLOW, methods);
        }
        refused
    }

    /// The request was refused.
    async fn refuse(self, problem: &Problem, shape: Shape, connection: &Connection) -> Response {
        let app = &self.site.app;
        app.metrics().refused(problem.kind);
        if problem.kind == Kind::Busy {
            connection.turn_away().await;
        }
        let mut response = problem.render(shape);
        if self.method == Method::HEAD {
            let body = std::mem::take(response.body_mut());
            let bytes = body.size_hint().exact().map(HeaderValue::from);
            response.headers_mut().extend(bytes.map(|bytes| (header::CONTENT_LENGTH, bytes)));
        }
        self.named(response, Some(problem))
    }

    /// The answer under the request's name.
    fn named(mut self, mut response: Response, problem: Option<&Problem>) -> Response {
        self.is_ended = true;
        self.tell(response.status().as_u16(), problem);
        response.headers_mut().insert(request_id::HEADER, self.name.clone());
        response
    }

    /// Tells metrics, log and trace of it.
    fn tell(&mut self, status: u16, problem: Option<&Problem>) {
        let took = self.started.elapsed();
        let app = &self.site.app;
        app.metrics().answered(&self.route.counters, &self.method, status, took);
        let entries = self.account.entries();
        let model = entries.passes.first().map(|pass| app.models().get(pass.model).name.as_str());
        let line = Line {
            method: &self.method,
            route: self.route.name(),
            status,
            ms: took.as_micros() as f64 / 1e3,
            model,
            problem,
        };
        line.log(&entries, || self.span());
        if let Some(trace) = self.trace.take() {
            let request_id = self.name.to_str().unwrap_or_default();
            let error = problem.map(|problem| problem.kind.code());
            trace.end(Ended { status, error, request_id, model, entries: &entries });
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !self.is_ended {
            self.tell(CLIENT_LEFT, None);
        }
    }
}

/// A request's line in the log.
struct Line<'a> {
    method: &'a Method,
    route: &'a str,
    status: u16,
    ms: f64,
    model: Option<&'a str>,
    problem: Option<&'a Problem>,
}

impl Line<'_> {
    fn log(&self, entries: &Entries, span: impl Fn() -> Span) {
        // One line for each request, whatever its level.
        macro_rules! log_at {
            ($level:ident) => {
                tracing::$level!(
                    target: "magray::access",
                    parent: &span(),
                    method = %self.method,
                    route = self.route,
                    status = self.status,
                    ms = self.ms,
                    model = self.model,
                    texts = (!entries.passes.is_empty()).then_some(entries.texts),
                    tokens = (!entries.passes.is_empty()).then_some(entries.tokens),
                    device = entries.passes.last().map(|pass| tracing::field::display(pass.device)),
                    fallback = entries.passes.iter().find_map(|pass| pass.fallback),
                    key = entries.key.as_deref(),
                    code = self.problem.map(|problem| problem.kind.code()),
                    reason = self.problem.map(|problem| problem.message.as_str()),
                    "request"
                )
            };
        }
        // Programs look every few seconds whether a server is well; that is no news while it is.
        let is_routine = self.status == 200 && is_routine(self.route);
        match self.problem.map(|problem| problem.kind) {
            Some(Kind::Internal) => log_at!(error),
            None if is_routine => log_at!(debug),
            _ => log_at!(info),
        }
    }
}

fn is_routine(route: &str) -> bool {
    matches!(route, "/health" | "/health/live" | "/ping" | "/metrics")
}
