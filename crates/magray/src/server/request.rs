//! Answers a request, from its head to its answer: id, checks, handler, time limit, log line, metrics and trace.
//! Records every request, also one whose client leaves before the answer.

use std::{
    convert::Infallible,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    body::{Body, HttpBody},
    response::{IntoResponse, Response},
};
use http::{HeaderValue, Method, Request, Version, header};
use hyper::body::Incoming;
use magray_engine::{engine::Priority, profile::Entry};
use tower::Service;
use tower_http::cors::CorsLayer;
use tracing::Span;

use super::{
    app::App,
    body,
    checks::{Checks, RequestContext},
    codings::pack_answer,
    connections::Connection,
    errors::{Kind, Problem},
    held_answer::hold_until_taken,
    keys::Access,
    origin::cors,
    request_id,
    request_record::{Recorded, RequestRecord},
    reservation,
    router::{Endpoint, Router},
    routes::Api,
    scope::RequestScope,
    traces::{Ended, Trace},
    unread_bytes::CountedBody,
};
use crate::config::ServerSettings;

/// The status in log and metrics of a request whose client has left.
const CLIENT_LEFT: u16 = 499;

pub(crate) struct HttpService {
    app: App,
    checks: Checks,
    router: Router,
    /// Which web pages may read answers; `None`: those of no other origin.
    cors: Option<CorsLayer>,
}

impl HttpService {
    pub(super) fn new(app: App, settings: &ServerSettings) -> Self {
        let (checks, router) = (Checks::new(settings), Router::new(&app));
        Self { app, checks, router, cors: cors(&settings.cors_origins) }
    }

    pub(super) fn app(&self) -> &App {
        &self.app
    }

    pub(super) fn cors(&self) -> Option<CorsLayer> {
        self.cors.clone()
    }

    pub(super) async fn answer(
        self: Arc<Self>,
        connection: Arc<Connection>,
        peer: IpAddr,
        request: Request<Incoming>,
    ) -> Result<Response, Infallible> {
        let (app, is_http1) = (self.app.clone(), request.version() < Version::HTTP_2);
        let mut response = self.answer_one(connection, peer, request).await;
        // Its client's next request goes to another server, or is among the last of this one.
        if is_http1 && app.is_draining() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }

    async fn answer_one(
        self: Arc<Self>,
        connection: Arc<Connection>,
        peer: IpAddr,
        request: Request<Incoming>,
    ) -> Response {
        let _active = connection.begin_request();
        let request = request.map(|incoming| CountedBody { incoming, unread: Arc::clone(connection.unread()) });
        let begun = Begun::new(&self, peer, &request);
        let access = begun.endpoint.access(request.method());
        let mut request = request.map(Body::new);
        let generates = begun.endpoint.is_generating();
        let context = RequestContext { access, generates, peer, record: &begun.record };
        let checked = match self.checks.check(&self.app, &context, &request) {
            Ok(()) => self.checks.check_room(&self.app, &context, &mut request).await,
            refused => refused,
        };
        if let Err(problem) = checked {
            body::discard(request).await;
            return begun.refuse(&problem, &connection).await;
        }
        // Boxed, so that a connection that is idle or refused does not hold the memory of handlers.
        Box::pin(handle(begun, request, (access, peer), connection)).await
    }
}

async fn handle(
    mut begun: Begun,
    mut request: Request<Body>,
    (access, peer): (Access, IpAddr),
    connection: Arc<Connection>,
) -> Response {
    let app = begun.app.clone();
    let record = begun.record_with_id();
    let accepted = request.headers().get(header::ACCEPT_ENCODING).cloned();
    request.extensions_mut().insert(RequestScope {
        access,
        peer,
        record: record.clone(),
        connection: Arc::clone(&connection),
    });
    let mut handlers = begun.endpoint.handlers();
    let within = begun.endpoint.answer_within(app.limits().answer_within).unwrap_or(Duration::MAX);
    let handling = tokio::time::timeout(within, record.scope(handlers.call(request)));
    let (handled, reserved) = reservation::run(handling).await;
    let response = match handled {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_) => {
            let message = "the request was not answered in time";
            Problem::busy(Kind::Expired, message, Duration::from_secs(1)).into_response()
        }
    };
    let response = begun.end(response, &connection).await;
    let response = pack_answer(response, accepted, app.writers()).await;
    hold_until_taken(response, &app, &connection, reserved).await
}

/// A request that is not answered yet. If it is dropped before that, its client has left.
struct Begun {
    app: App,
    endpoint: Arc<Endpoint>,
    id: HeaderValue,
    peer: IpAddr,
    method: Method,
    started: Instant,
    record: RequestRecord,
    trace: Option<Trace>,
    is_ended: bool,
}

impl Begun {
    fn new(service: &HttpService, peer: IpAddr, request: &Request<CountedBody>) -> Self {
        let started = Instant::now();
        let app = service.app.clone();
        let endpoint = Arc::clone(service.router.find(request.uri().path()));
        let method = request.method().clone();
        let trace = app.traces().map(|traces| traces.begin(request.headers(), &method, endpoint.name()));
        let (id, record) = (request_id::of(request.headers()), RequestRecord::new(Span::none()));
        Self { app, endpoint, id, peer, method, started, record, trace, is_ended: false }
    }

    fn record_with_id(&mut self) -> RequestRecord {
        self.record = self.record.within(self.span());
        self.record.clone()
    }

    /// The span of its lines in the log. Made when it is needed first: few lines tell of requests that are refused.
    fn span(&self) -> Span {
        if !self.record.span().is_none() {
            return self.record.span().clone();
        }
        let request_id = self.id();
        // The highest level, so that it is there whatever is logged.
        match self.trace.as_ref().map(Trace::id) {
            Some(trace_id) => tracing::error_span!(target: "magray::server", "request", request_id, %trace_id),
            None => tracing::error_span!(target: "magray::server", "request", request_id),
        }
    }

    fn id(&self) -> &str {
        self.id.to_str().unwrap_or_default()
    }

    async fn end(self, mut response: Response, connection: &Connection) -> Response {
        let Some(problem) = response.extensions_mut().remove::<Problem>() else { return self.finish(response, None) };
        let mut refused = self.refuse(&problem, connection).await;
        if let Some(methods) = response.headers_mut().remove(header::ALLOW) {
            refused.headers_mut().insert(header::ALLOW, methods);
        }
        refused
    }

    async fn refuse(self, problem: &Problem, connection: &Connection) -> Response {
        self.app.metrics().refused(problem.kind);
        self.app.refusals().add(problem, self.app.uptime());
        if problem.kind == Kind::Busy {
            connection.space_refusals().await;
        }
        let mut response = problem.render(self.endpoint.api().shape());
        if self.method == Method::HEAD {
            let body = std::mem::take(response.body_mut());
            let bytes = body.size_hint().exact().map(HeaderValue::from);
            response.headers_mut().extend(bytes.map(|bytes| (header::CONTENT_LENGTH, bytes)));
        }
        self.finish(response, Some(problem))
    }

    fn finish(mut self, mut response: Response, problem: Option<&Problem>) -> Response {
        self.is_ended = true;
        self.record_end(response.status().as_u16(), problem);
        let headers = response.headers_mut();
        headers.insert(request_id::HEADER, self.id.clone());
        if let Some(counted) = self.record.recorded().counted {
            let is_anthropic = self.endpoint.api() == Api::Anthropic;
            self.app.live().rates().tell(counted, self.app.uptime(), is_anthropic, headers);
        }
        response
    }

    fn record_end(&mut self, status: u16, problem: Option<&Problem>) {
        let took = self.started.elapsed();
        let app = &self.app;
        app.metrics().answered(self.endpoint.counters(), &self.method, status, took);
        let recorded = self.record.recorded();
        if let Some(profile) = app.engine().profile() {
            let read = recorded.passes.iter().map(|pass| pass.reading).sum();
            let route = format!("{} {}", self.method, self.endpoint.name());
            profile.note(Entry::Http { route, status, took, read });
        }
        let model = recorded.passes.first().map(|pass| app.models().get(pass.model).name.as_str());
        let line = LogLine {
            address: self.peer.to_canonical(),
            method: &self.method,
            endpoint: &self.endpoint,
            status,
            ms: took.as_micros() as f64 / 1e3,
            model,
            problem,
        };
        line.write(&recorded, || self.span());
        if let Some(trace) = self.trace.take() {
            let error = problem.map(|problem| problem.kind.code());
            trace.end(Ended { status, error, request_id: self.id(), model, recorded: &recorded });
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.is_ended {
            self.record_end(CLIENT_LEFT, None);
        }
    }
}

struct LogLine<'a> {
    address: IpAddr,
    method: &'a Method,
    endpoint: &'a Endpoint,
    status: u16,
    ms: f64,
    model: Option<&'a str>,
    problem: Option<&'a Problem>,
}

impl LogLine<'_> {
    fn write(&self, recorded: &Recorded, span: impl Fn() -> Span) {
        macro_rules! log_at {
            ($level:ident) => {
                tracing::$level!(
                    target: "magray::access",
                    parent: &span(),
                    address = %self.address,
                    method = %self.method,
                    route = self.endpoint.name(),
                    status = self.status,
                    ms = self.ms,
                    model = self.model,
                    texts = (!recorded.passes.is_empty()).then_some(recorded.texts),
                    tokens = (!recorded.passes.is_empty()).then_some(recorded.tokens),
                    device = recorded.passes.last().map(|pass| tracing::field::display(pass.device)),
                    fallback = recorded.passes.iter().find_map(|pass| pass.fallback),
                    key = recorded.key.as_deref(),
                    priority = (recorded.asker.priority != Priority::Normal).then_some(recorded.asker.priority.code()),
                    code = self.problem.map(|problem| problem.kind.code()),
                    reason = self.problem.map(|problem| problem.message.as_str()),
                    "request"
                )
            };
        }
        // Health checks that succeed come every few seconds.
        let is_routine = self.status == 200
            && (self.endpoint.api() == Api::Health || self.endpoint.name().starts_with("/v2/health/"));
        match self.problem.map(|problem| problem.kind) {
            Some(Kind::Internal) => log_at!(error),
            None if is_routine => log_at!(debug),
            _ => log_at!(info),
        }
    }
}
