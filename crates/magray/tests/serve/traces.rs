//! Traces: a collector on loopback is told of every request, and one that is not there costs requests nothing.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use prost::Message;
use rustix::process::Signal;

use crate::{
    http::LONG,
    rig::{Setup, said_soon},
};

/// A collector that hands on all spans that it is sent.
struct Collector {
    address: String,
    exports: Receiver<ExportTraceServiceRequest>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (sender, exports) = channel();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let sender = sender.clone();
                thread::spawn(move || take(stream, &sender));
            }
        });
        Self { address, exports }
    }

    /// Waits for this many spans.
    #[track_caller]
    fn spans(&self, count: usize) -> Vec<Span> {
        let mut spans = Vec::new();
        while spans.len() < count {
            let export = self.exports.recv_timeout(LONG).expect("the collector is told");
            spans.extend(export.resource_spans.into_iter().flat_map(|of| of.scope_spans).flat_map(|of| of.spans));
        }
        spans
    }
}

/// Takes exports from a connection until it closes.
fn take(stream: TcpStream, sender: &Sender<ExportTraceServiceRequest>) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        assert!(first.starts_with("POST /v1/traces "), "{first}");
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        // The test that has seen enough drops its receiver.
        let _ = sender.send(ExportTraceServiceRequest::decode(&body[..]).unwrap());
        let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        reader.get_mut().write_all(answer).unwrap();
    }
}

/// An attribute as text.
fn attribute(span: &Span, key: &str) -> Option<String> {
    let KeyValue { value, .. } = span.attributes.iter().find(|attribute| attribute.key == key)?;
    match value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("{key} is {other:?}"),
    }
}

#[test]
fn a_request_becomes_a_span_of_its_clients_trace_with_its_parts_below_it() {
    let collector = Collector::start();
    let server = Setup::embedder().env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.address).start();
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let request = server.request("POST", "/embed").header("traceparent", &format!("00-{trace}-{parent}-01"));
    request.header("x-request-id", "mine").body(r#"{"inputs":["river","cat"]}"#).send().ok();
    let spans = collector.spans(4);
    let named = |name: &str| spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("{spans:?}"));
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let whole = named("POST /embed");
    assert_eq!((hex(&whole.trace_id), hex(&whole.parent_span_id)), (trace.to_owned(), parent.to_owned()));
    for (key, value) in [
        ("http.response.status_code", "200"),
        ("http.route", "/embed"),
        ("magray.request_id", "mine"),
        ("magray.model", "bert"),
        ("magray.texts", "2"),
        ("magray.device", "cpu"),
    ] {
        assert_eq!(attribute(whole, key).as_deref(), Some(value), "{key}");
    }
    for name in ["tokenise", "queue", "compute"] {
        let part = named(name);
        assert_eq!(part.parent_span_id, whole.span_id, "{name}");
        assert!(whole.start_time_unix_nano <= part.start_time_unix_nano, "{name}");
        assert!(part.start_time_unix_nano <= part.end_time_unix_nano, "{name}");
        assert!(part.end_time_unix_nano <= whole.end_time_unix_nano, "{name}");
    }
}

#[test]
fn what_a_client_does_not_want_traced_is_not() {
    let collector = Collector::start();
    let server = Setup::embedder().env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.address).start();
    let unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    server.request("GET", "/v1/models").header("traceparent", unsampled).send().ok();
    server.get("/nowhere");
    let spans = collector.spans(1);
    assert_eq!((spans.len(), spans[0].name.as_str()), (1, "GET none"));
    assert_eq!(attribute(&spans[0], "error.type").as_deref(), Some("not_found"));
}

#[test]
fn traces_that_wait_are_exported_when_the_server_ends() {
    let collector = Collector::start();
    let endpoint = format!("[server.tracing]\notlp_endpoint = \"{}\"\n", collector.address);
    let mut server = Setup::embedder().settings(&endpoint).start();
    for _ in 0..10 {
        server.get("/v1/models").ok();
    }
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert_eq!(collector.spans(10).len(), 10);
}

#[test]
fn a_missing_collector_is_logged_once_and_fails_no_request() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Setup::embedder().env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://127.0.0.1:{port}")).start();
    server.post("/embed", r#"{"inputs":"river"}"#).ok();
    const SAID: &str = "the collector refuses traces";
    assert!(said_soon(&server, SAID), "{}", server.said());
    // More than waits for the collector.
    for _ in 0..3 {
        for _ in 0..20 {
            server.get("/v1/models").ok();
        }
    }
    let mut server = server;
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert_eq!(server.said().matches(SAID).count(), 1, "{}", server.said());
}

#[test]
fn an_endpoint_that_is_no_address_is_refused_at_the_start() {
    let (code, said) = Setup::embedder().env("OTEL_EXPORTER_OTLP_ENDPOINT", "nowhere").refused();
    assert!(code != 0 && said.contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{code} {said}");
}
