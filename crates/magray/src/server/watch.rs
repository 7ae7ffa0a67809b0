//! Watches every request from its head to its answer: its name, its time, its line in the log, its metrics and trace.
//! Misses none: also one whose client leaves before the answer is told of.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, Method};

use super::{
    account::{Account, Entries},
    body,
    delivery::{Held, counted},
    errors::{Kind, Problem, Shape},
    gate,
    guests::Guest,
    origin::Origins,
    request_id,
    state::App,
    traces::{Ended, Trace},
    visit,
};

/// Nobody reads this status: the client has left.
const CLIENT_LEFT: u16 = 499;

/// Watches a request.
pub(crate) async fn watch(
    State((app, origins)): State<(App, Arc<Origins>)>,
    mut request: Request,
    next: Next,
) -> Response {
    let shape = Shape::of(request.uri().path());
    let within = app.live().limits.answer_within;
    let guest = request.extensions().get::<Arc<Guest>>().cloned();
    let _busy = guest.as_ref().map(Guest::begin);
    let watched = Watched::begin(app.clone(), &request);
    if let Err(problem) = gate::at_the_door(&app, &origins, &request, &watched.account) {
        body::discard(request).await;
        return watched.refuse(&problem, shape).await;
    }
    let (account, is_post) = (watched.account.clone(), watched.method == Method::POST);
    // For those who go on in a task of their own.
    request.extensions_mut().insert(account.clone());
    let answering = tokio::time::timeout(within, account.kept_during(next.run(request)));
    let (answered, room) = visit::run(answering).await;
    let response = match answered {
        Ok(response) => response,
        Err(_) => {
            let message = "the request was not answered in time";
            Problem::busy(Kind::Expired, message, Duration::from_secs(1)).into_response()
        }
    };
    let response = watched.end(response, shape).await;
    if is_post { counted(response, Held { app: &app, room, guest }).await } else { response }
}

/// A request that is not answered yet. Dropped before it is, its client has left.
struct Watched {
    app: App,
    name: HeaderValue,
    route: Option<MatchedPath>,
    method: Method,
    started: Instant,
    account: Account,
    /// `None` where nobody collects traces.
    trace: Option<Trace>,
    is_ended: bool,
}

impl Watched {
    fn begin(app: App, request: &Request) -> Self {
        let started = Instant::now();
        let name = request_id::name(request.headers());
        let route = request.extensions().get::<MatchedPath>().cloned();
        let method = request.method().clone();
        let trace = app.traces().map(|traces| traces.begin(request.headers(), &method, route_word(route.as_ref())));
        let request_id = name.to_str().unwrap_or_default();
        // As severe as can be, so that it is there whatever is logged.
        let span = match trace.as_ref().map(Trace::id) {
            Some(trace_id) => tracing::error_span!(target: "magray::server", "request", request_id, %trace_id),
            None => tracing::error_span!(target: "magray::server", "request", request_id),
        };
        Self { app, name, route, method, started, account: Account::new(span), trace, is_ended: false }
    }

    /// The request was answered, or refused on its way.
    async fn end(self, mut response: Response, shape: Shape) -> Response {
        match response.extensions_mut().remove::<Problem>() {
            Some(problem) => self.refuse(&problem, shape).await,
            None => self.named(response, None),
        }
    }

    /// The request was refused.
    async fn refuse(self, problem: &Problem, shape: Shape) -> Response {
        self.app.metrics().refused(problem.kind);
        if problem.kind == Kind::Busy
            && let Some(wait) = self.app.refusals().wait()
        {
            tokio::time::sleep(wait).await;
        }
        self.named(problem.render(shape), Some(problem))
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
        let (took, route) = (self.started.elapsed(), route_word(self.route.as_ref()));
        self.app.metrics().answered(route, &self.method, status, took);
        let entries = self.account.entries();
        let _in_span = self.account.span().enter();
        let model = entries.passes.first().map(|pass| self.app.models().get(pass.model).name.as_str());
        let line = Line { method: &self.method, route, status, ms: took.as_micros() as f64 / 1e3, model, problem };
        line.log(&entries);
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

fn route_word(route: Option<&MatchedPath>) -> &str {
    route.map_or("none", MatchedPath::as_str)
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
    fn log(&self, entries: &Entries) {
        // One line for each request, whatever its level.
        macro_rules! log_at {
            ($level:ident) => {
                tracing::$level!(
                    target: "magray::access",
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
