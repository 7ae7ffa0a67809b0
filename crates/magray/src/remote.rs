//! A server that runs, as the place where a command computes: its address, its key, and what is tried again.
//! Follows no redirect, so the key reaches no other host.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use http::{HeaderMap, Method, Request, StatusCode, header::RETRY_AFTER};
use magray_engine::engine::Priority;
use serde::Deserialize;
use ureq::{Agent, Proxy};

/// A request is long where a server computes on a CPU, and waits in its queue before.
const ANSWER_MAX: Duration = Duration::from_secs(600);
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// An answer is larger by no useful request: 2,048 vectors of 16,384 numbers in base64.
const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// How often a request is tried that the server did not take or that was cut off.
const ATTEMPTS_MAX: u32 = 12;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Texts of a request. Answers come one after the other, so that progress shows.
pub(crate) const PORTION_TEXTS: usize = 64;
/// A server takes bodies of some megabytes; a text of this size goes alone.
const PORTION_BYTES: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoteError {
    #[error("no answer from {url}: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("{url} refused it ({status}): {message}")]
    Refused { url: String, status: u16, message: String },
    #[error("{url} gave an answer that is none: {reason}")]
    Unexpected { url: String, reason: String },
}

/// What decides how a server is asked.
#[derive(Clone, Debug)]
pub(crate) struct RemoteOptions {
    pub(crate) url: String,
    pub(crate) key: Option<String>,
    /// `None`: the server's own default.
    pub(crate) model: Option<String>,
    pub(crate) priority: Option<Priority>,
}

#[derive(Clone)]
pub(crate) struct Remote(Arc<Inner>);

struct Inner {
    agent: Agent,
    options: RemoteOptions,
    /// A server that never answered is reported at once and not waited for.
    has_answered: AtomicBool,
}

/// An answer, and what its headers say of it.
pub(crate) struct Reply {
    pub(crate) body: Vec<u8>,
    pub(crate) device: String,
    pub(crate) fallback: Option<String>,
    /// Texts that were longer than the model reads and were cut.
    pub(crate) truncated: u64,
}

/// What became of one attempt.
enum Attempt {
    Done(Reply),
    Again { error: RemoteError, pause: Option<Duration> },
    Failed(RemoteError),
}

impl Remote {
    pub(crate) fn new(options: RemoteOptions) -> Self {
        let url = options.url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_global(Some(ANSWER_MAX));
        let host = url.split_once("://").map_or(url.as_str(), |(_, host)| host);
        let is_here = ["localhost", "127.", "[::1]"].iter().any(|here| host.starts_with(here));
        // A proxy could not reach this machine's own addresses.
        let config = config.proxy(if is_here { None } else { Proxy::try_from_env() });
        let options = RemoteOptions { url, ..options };
        Self(Arc::new(Inner { agent: config.build().into(), options, has_answered: AtomicBool::new(false) }))
    }

    pub(crate) fn url(&self) -> &str {
        &self.0.options.url
    }

    pub(crate) fn model(&self) -> Option<&str> {
        self.0.options.model.as_deref()
    }

    /// Posts JSON and waits for the answer, as often and as long as the server asks to.
    pub(crate) fn post(&self, path: &str, body: &serde_json::Value) -> Result<Reply, RemoteError> {
        self.send(&Method::POST, path, Some(body))
    }

    /// The same by another method, with or without a body.
    pub(crate) fn send(
        &self,
        method: &Method,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> Result<Reply, RemoteError> {
        let body = body.map(ToString::to_string);
        let mut attempts = 0;
        loop {
            attempts += 1;
            let (error, pause) = match self.attempt(method, path, body.as_deref()) {
                Attempt::Done(reply) => return Ok(reply),
                Attempt::Failed(error) => return Err(error),
                Attempt::Again { error, pause } => (error, pause),
            };
            if attempts == ATTEMPTS_MAX {
                return Err(error);
            }
            let pause = pause.unwrap_or(FIRST_PAUSE * 2_u32.pow(attempts.min(8) - 1));
            tracing::debug!(%error, pause_ms = pause.as_millis() as u64, "trying again");
            thread::sleep(pause.min(PAUSE_MAX));
        }
    }

    /// Asks once: what a screen shows is asked for again anyway.
    pub(crate) fn once(
        &self,
        method: &Method,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> Result<Reply, RemoteError> {
        match self.attempt(method, path, body.map(ToString::to_string).as_deref()) {
            Attempt::Done(reply) => Ok(reply),
            Attempt::Again { error, .. } | Attempt::Failed(error) => Err(error),
        }
    }

    pub(crate) fn unexpected(&self, reason: impl ToString) -> RemoteError {
        RemoteError::Unexpected { url: self.url().to_owned(), reason: reason.to_string() }
    }

    fn attempt(&self, method: &Method, path: &str, body: Option<&str>) -> Attempt {
        let Inner { agent, options, has_answered } = &*self.0;
        let mut request = Request::builder().method(method).uri(format!("{}{path}", options.url));
        if let Some(key) = &options.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        if let Some(priority) = options.priority {
            request = request.header("x-magray-priority", priority.code());
        }
        let sent = match body {
            Some(body) => {
                request.header("content-type", "application/json").body(body).map(|request| agent.run(request))
            }
            None => request.body(()).map(|request| agent.run(request)),
        };
        let answer = sent.unwrap_or_else(|error| Err(error.into())).and_then(|mut answer| {
            let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
            Ok((answer.status(), answer.headers().clone(), body))
        });
        let unreachable = |reason: String| RemoteError::Unreachable { url: options.url.clone(), reason };
        let (status, headers, body) = match answer {
            Ok(answer) => answer,
            Err(error @ (ureq::Error::BadUri(_) | ureq::Error::HostNotFound | ureq::Error::Rustls(_))) => {
                return Attempt::Failed(unreachable(error.to_string()));
            }
            Err(error) => {
                let error = unreachable(error.to_string());
                return match has_answered.load(Ordering::Relaxed) {
                    true => Attempt::Again { error, pause: None },
                    false => Attempt::Failed(error),
                };
            }
        };
        has_answered.store(true, Ordering::Relaxed);
        if status.is_success() {
            return Attempt::Done(Reply::new(body, &headers));
        }
        let (url, message) = (options.url.clone(), message_of(&body));
        let error = RemoteError::Refused { url, status: status.as_u16(), message };
        match status {
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Attempt::Again { error, pause: pause_of(&headers) },
            _ => Attempt::Failed(error),
        }
    }
}

impl Reply {
    fn new(body: Vec<u8>, headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Self {
            body,
            device: text("x-magray-device").unwrap_or_else(|| "server".to_owned()),
            fallback: text("x-magray-fallback"),
            truncated: text("x-magray-truncated").and_then(|count| count.parse().ok()).unwrap_or(0),
        }
    }
}

/// Texts in portions that a server takes, in their order.
pub(crate) fn portions<T: AsRef<str>>(mut texts: &[T]) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |text: &&T| {
            bytes += text.as_ref().len();
            bytes <= PORTION_BYTES
        };
        let count = texts.iter().take(PORTION_TEXTS).take_while(fits).count();
        let (some, rest) = texts.split_at(count.max(1).min(texts.len()));
        texts = rest;
        (!some.is_empty()).then_some(some)
    })
}

/// How long the server wants to be left alone.
fn pause_of(headers: &HeaderMap) -> Option<Duration> {
    let number = |value: &http::HeaderValue| value.to_str().ok()?.trim().parse().ok();
    let exact = headers.get("retry-after-ms").and_then(number).map(Duration::from_millis);
    exact.or_else(|| headers.get(RETRY_AFTER).and_then(number).map(Duration::from_secs))
}

/// What the server says in one of the shapes that errors have, or the start of what it says.
fn message_of(body: &[u8]) -> String {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Shape {
        OpenAi { error: Inner },
        Plain { error: String },
        Qdrant { status: Status },
    }
    #[derive(Deserialize)]
    struct Status {
        error: String,
    }
    #[derive(Deserialize)]
    struct Inner {
        message: String,
    }
    match serde_json::from_slice(body) {
        Ok(Shape::OpenAi { error }) => error.message,
        Ok(Shape::Plain { error } | Shape::Qdrant { status: Status { error } }) => error,
        Err(_) => String::from_utf8_lossy(body).chars().take(200).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exact_pause_counts_more_than_the_rounded_one() {
        let mut headers = HeaderMap::new();
        assert_eq!(pause_of(&headers), None);
        headers.insert(RETRY_AFTER, http::HeaderValue::from_static("3"));
        assert_eq!(pause_of(&headers), Some(Duration::from_secs(3)));
        headers.insert("retry-after-ms", http::HeaderValue::from_static("2100"));
        assert_eq!(pause_of(&headers), Some(Duration::from_millis(2100)));
    }

    #[test]
    fn messages_are_found_in_every_shape() {
        assert_eq!(message_of(br#"{"error": {"message": "no", "type": "x"}}"#), "no");
        assert_eq!(message_of(br#"{"error": "no", "error_type": "x"}"#), "no");
        assert_eq!(message_of(br#"{"status": {"error": "no"}, "time": 0.0}"#), "no");
        assert_eq!(message_of(b"<html>"), "<html>");
    }

    #[test]
    fn portions_hold_every_text_once_and_in_order() {
        let texts: Vec<String> = (0..150).map(|at| "x".repeat(if at == 70 { PORTION_BYTES + 1 } else { at })).collect();
        let sizes: Vec<usize> = portions(&texts).map(<[String]>::len).collect();
        assert_eq!(sizes, [64, 6, 1, 64, 15]);
        assert_eq!(portions(&texts).flatten().collect::<Vec<_>>(), texts.iter().collect::<Vec<_>>());
        assert_eq!(portions::<String>(&[]).count(), 0);
    }
}
