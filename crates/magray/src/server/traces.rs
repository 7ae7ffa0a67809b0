//! Exports a trace of each request to an OpenTelemetry collector, by OTLP over HTTP.
//! Never fails or delays a request: what the collector does not take is dropped, and the log says so once.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use opentelemetry::{
    Context, Key, KeyValue, TraceId,
    propagation::TextMapPropagator,
    trace::{Span, SpanKind, Status, TraceContextExt, Tracer, TracerProvider},
};
use opentelemetry_http::{HeaderExtractor, HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider},
};

use super::request_record::{Pass, Recorded};

pub(crate) struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

pub(crate) struct Trace {
    tracer: SdkTracer,
    context: Context,
    started: Instant,
    started_at: SystemTime,
}

pub(crate) struct Ended<'a> {
    pub(crate) status: u16,
    /// Why it was refused, as [`super::errors::Kind::code`].
    pub(crate) error: Option<&'static str>,
    pub(crate) request_id: &'a str,
    pub(crate) model: Option<&'a str>,
    pub(crate) recorded: &'a Recorded,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot export traces to '{endpoint}': {reason}; change server.tracing.otlp_endpoint")]
pub(crate) struct TracesError {
    endpoint: String,
    reason: String,
}

/// Spans that wait to be exported; a request has four. More are dropped.
const QUEUE_MAX: usize = 4096;
const BATCH_MAX: usize = 512;
const EXPORT_EVERY: Duration = Duration::from_secs(2);
const EXPORT_MAX: Duration = Duration::from_secs(5);
const FLUSH_MAX: Duration = Duration::from_secs(3);
/// What a collector answers is a few bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

impl Traces {
    /// The collector need not be there yet.
    pub(crate) fn start(endpoint: &str) -> Result<Self, TracesError> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(TraceClient::new())
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(traces_address(endpoint))
            .with_timeout(EXPORT_MAX)
            .build()
            .map_err(|error| TracesError { endpoint: endpoint.to_owned(), reason: error.to_string() })?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE_MAX)
            .with_max_export_batch_size(BATCH_MAX)
            .with_scheduled_delay(EXPORT_EVERY)
            .build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BatchSpanProcessor::builder(exporter).with_batch_config(batches).build())
            .with_resource(resource())
            .build();
        let tracer = provider.tracer("magray");
        Ok(Self { provider, tracer, propagator: TraceContextPropagator::new() })
    }

    /// A request came. Where its client has a trace, it becomes part of that.
    pub(crate) fn begin(&self, headers: &HeaderMap, method: &Method, route: &str) -> Trace {
        let parent = self.propagator.extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let started_at = SystemTime::now();
        let span = self
            .tracer
            .span_builder(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_start_time(started_at)
            .with_attributes([
                KeyValue::new("http.request.method", method.to_string()),
                KeyValue::new("http.route", route.to_owned()),
            ])
            .start_with_context(&self.tracer, &parent);
        Trace { tracer: self.tracer.clone(), context: parent.with_span(span), started: Instant::now(), started_at }
    }

    pub(crate) fn finish(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(FLUSH_MAX) {
            tracing::warn!(target: "magray::server", %error, "the last traces were not exported");
        }
    }
}

/// Describes this server. OpenTelemetry's environment variables may rename it, and add to it.
fn resource() -> Resource {
    let builder = || Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    let described = builder().build();
    let name = described.get_ref(&Key::from_static_str("service.name")).map(|name| name.as_str());
    if name.is_some_and(|name| !name.starts_with("unknown_service")) {
        return described;
    }
    builder().with_service_name("magray").build()
}

/// The address for traces: OpenTelemetry's variable has the base of it.
fn traces_address(endpoint: &str) -> String {
    const PATH: &str = "/v1/traces";
    let endpoint = endpoint.trim_end_matches('/');
    if endpoint.ends_with(PATH) { endpoint.to_owned() } else { format!("{endpoint}{PATH}") }
}

impl Trace {
    pub(crate) fn id(&self) -> TraceId {
        self.context.span().span_context().trace_id()
    }

    pub(crate) fn end(self, ended: Ended<'_>) {
        let span = self.context.span();
        if span.is_recording() {
            let Recorded { key, texts, tokens, passes, .. } = ended.recorded;
            for pass in passes {
                self.add_pass(pass);
            }
            span.set_attribute(KeyValue::new("http.response.status_code", i64::from(ended.status)));
            span.set_attribute(KeyValue::new("magray.request_id", ended.request_id.to_owned()));
            let attributes = [
                ("magray.model", ended.model.map(str::to_owned)),
                ("magray.key", key.as_deref().map(str::to_owned)),
                ("magray.device", passes.last().map(|pass| pass.device.to_string())),
                ("error.type", ended.error.map(str::to_owned)),
            ];
            for (name, text) in attributes.into_iter().filter_map(|(name, text)| Some((name, text?))) {
                span.set_attribute(KeyValue::new(name, text));
            }
            if !passes.is_empty() {
                span.set_attribute(KeyValue::new("magray.texts", *texts as i64));
                span.set_attribute(KeyValue::new("magray.tokens", *tokens as i64));
            }
            if ended.status >= 500 {
                span.set_status(Status::error(ended.error.unwrap_or_default()));
            }
        }
        span.end();
    }

    fn add_pass(&self, pass: &Pass) {
        let computing_since = earlier(pass.answered, pass.computed);
        let parts = [
            ("tokenise", earlier(pass.read, pass.reading), pass.read),
            ("queue", earlier(computing_since, pass.queued), computing_since),
            ("compute", computing_since, pass.answered),
        ];
        for (name, from, to) in parts {
            let mut attributes = vec![KeyValue::new("magray.texts", pass.texts as i64)];
            if name == "compute" {
                attributes.push(KeyValue::new("magray.device", pass.device.to_string()));
                attributes.push(KeyValue::new("magray.batch_texts", i64::from(pass.batch_texts)));
                attributes.extend(pass.fallback.map(|reason| KeyValue::new("magray.fallback", reason)));
            }
            let mut span = self
                .tracer
                .span_builder(name)
                .with_start_time(self.clock(from))
                .with_attributes(attributes)
                .start_with_context(&self.tracer, &self.context);
            span.end_with_timestamp(self.clock(to));
        }
    }

    /// An instant as wall-clock time, unaffected by changes of the clock since the request began.
    fn clock(&self, moment: Instant) -> SystemTime {
        self.started_at + moment.saturating_duration_since(self.started)
    }
}

fn earlier(moment: Instant, by: Duration) -> Instant {
    moment.checked_sub(by).unwrap_or(moment)
}

/// Sends traces to the collector. Blocks, on the exporter's own thread.
#[derive(Debug)]
struct TraceClient {
    agent: ureq::Agent,
    /// Whether the log says that the collector refuses them.
    is_refused: AtomicBool,
}

impl TraceClient {
    fn new() -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(EXPORT_MAX)).http_status_as_error(false);
        Self { agent: config.build().into(), is_refused: AtomicBool::new(false) }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let answer = self.agent.run(request.map(|bytes| bytes.to_vec()))?;
        let (head, mut body) = answer.into_parts();
        let body = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }

    /// Logs when the collector begins and ends to refuse traces; not each refusal.
    fn log_change(&self, trouble: Option<&str>) {
        let was_refused = self.is_refused.swap(trouble.is_some(), Ordering::Relaxed);
        match trouble {
            Some(error) if !was_refused => {
                tracing::warn!(target: "magray::server", error, "the collector refuses traces: they are dropped");
            }
            None if was_refused => tracing::info!(target: "magray::server", "the collector takes traces again"),
            _ => {}
        }
    }
}

#[async_trait::async_trait]
impl HttpClient for TraceClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.send(request);
        let trouble = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answers {}", answer.status())),
            Err(error) => Some(error.to_string()),
        };
        self.log_change(trouble.as_deref());
        Ok(answer?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_the_base_or_the_whole_address() {
        let whole = "http://localhost:4318/v1/traces";
        assert_eq!(traces_address("http://localhost:4318"), whole);
        assert_eq!(traces_address("http://localhost:4318/"), whole);
        assert_eq!(traces_address(whole), whole);
        assert_eq!(traces_address("https://host/otlp"), "https://host/otlp/v1/traces");
    }
}
