//! Requests to the hub: one agent, its timeouts, and what each failure means.
//! Never repeats a request by itself; `Attempts` counts for those who do.

use super::super::pull::{OnEvent, PullEvent};
use super::{HubError, HubOptions};
use std::io;
use std::time::Duration;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;
use ureq::http::header::{AUTHORIZATION, HeaderName, RANGE, RETRY_AFTER};
use ureq::{Agent, Body, Proxy, Timeout};

/// A listing of thousands of files has one or two MB.
const TEXT_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// A hub may ask for patience, but not for more than a user has.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// How often a request is repeated, and after what delay.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Repetitions after the first try.
    pub retries: u32,
    /// The delay before the first repetition; each further one doubles it.
    pub first_delay: Duration,
    /// How the delay is spent.
    pub sleep: fn(Duration),
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { retries: 4, first_delay: Duration::from_millis(500), sleep: std::thread::sleep }
    }
}

/// Why a request has no answer to work with.
pub(super) enum Trouble {
    /// No connection came about.
    Unreachable { reason: String },
    /// It may work in a moment; `wait` is what the hub asks for.
    Passing { reason: String, wait: Option<Duration> },
    /// The hub refuses, with the code it gives for programs.
    Status { status: u16, code: Option<String> },
}

/// The agent with what every request carries.
pub(super) struct Client {
    agent: Agent,
    authorization: Option<String>,
    retry: RetryPolicy,
}

impl Client {
    pub(super) fn new(options: &HubOptions, token: Option<String>) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_resolve(Some(options.connect_timeout))
            .timeout_connect(Some(options.connect_timeout))
            .timeout_per_read(Some(options.read_timeout))
            .timeout_per_write(Some(options.read_timeout))
            // Renamed repositories redirect within the hub and still want the token; the storage servers
            // that files redirect to must not see it.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .proxy(if options.proxy_from_env { Proxy::try_from_env() } else { None })
            .user_agent(concat!("magray/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Self { agent, authorization: token.map(|token| format!("Bearer {token}")), retry: options.retry }
    }

    /// Asks for an address, from this byte on.
    pub(super) fn get(&self, url: &str, from_byte: u64) -> Result<Response<Body>, Trouble> {
        let mut request = self.agent.get(url);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if from_byte > 0 {
            request = request.header(RANGE, format!("bytes={from_byte}-"));
        }
        let response = request.call().map_err(trouble)?;
        let status = response.status().as_u16();
        let header = |name: HeaderName| response.headers().get(name).and_then(|value| value.to_str().ok());
        match status {
            200 | 206 => Ok(response),
            408 | 429 | 500 | 502 | 503 | 504 => {
                let wait = header(RETRY_AFTER).and_then(|text| text.trim().parse().ok());
                let wait = wait.map(|seconds| Duration::from_secs(seconds).min(WAIT_MAX));
                Err(Trouble::Passing { reason: format!("the hub answered with status {status}"), wait })
            }
            _ => {
                let code = header(HeaderName::from_static("x-error-code")).map(str::to_owned);
                Err(Trouble::Status { status, code })
            }
        }
    }

    pub(super) fn get_text(&self, url: &str) -> Result<String, Trouble> {
        let mut response = self.get(url, 0)?;
        response.body_mut().with_config().limit(TEXT_BYTES_MAX).read_to_string().map_err(interrupted)
    }

    /// What a refusal means that is the same for listings and files.
    pub(super) fn refusal(&self, status: u16, repo: &str, url: &str) -> HubError {
        match status {
            401 | 403 => HubError::NeedsToken { repo: repo.to_owned(), token_sent: self.authorization.is_some() },
            _ => HubError::Unexpected { url: url.to_owned(), status },
        }
    }
}

/// Counts the tries for one thing, and waits between them.
pub(super) struct Attempts<'a> {
    retry: RetryPolicy,
    what: &'a str,
    failures: u32,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(client: &Client, what: &'a str) -> Self {
        Self { retry: client.retry, what, failures: 0 }
    }

    /// Waits for the next try, or says that there is none.
    pub(super) fn failed(
        &mut self,
        reason: String,
        wait: Option<Duration>,
        on_event: OnEvent<'_>,
    ) -> Result<(), HubError> {
        self.failures += 1;
        if self.failures > self.retry.retries {
            return Err(HubError::GaveUp { what: self.what.to_owned(), tries: self.failures, reason });
        }
        let doublings = (self.failures - 1).min(16);
        let delay = wait.unwrap_or(self.retry.first_delay.saturating_mul(1 << doublings)).min(WAIT_MAX);
        on_event(PullEvent::Retrying { what: self.what, retry: self.failures, delay, reason: &reason });
        (self.retry.sleep)(delay);
        Ok(())
    }

    /// Starts to count anew after real progress.
    pub(super) fn progressed(&mut self) {
        self.failures = 0;
    }
}

fn trouble(error: ureq::Error) -> Trouble {
    let reason = error.to_string();
    match error {
        ureq::Error::HostNotFound => Trouble::Unreachable { reason: "no such host name, or no network".to_owned() },
        ureq::Error::ConnectionFailed
        | ureq::Error::InvalidProxyUrl
        | ureq::Error::Tls(_)
        | ureq::Error::Rustls(_)
        | ureq::Error::BadUri(_)
        | ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect) => Trouble::Unreachable { reason },
        // A name that cannot be resolved has no kind of its own, so those that can pass are named instead.
        ureq::Error::Io(e) if !is_passing(&e) => Trouble::Unreachable { reason },
        _ => Trouble::Passing { reason, wait: None },
    }
}

/// Failures of a connection that was there.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, Interrupted, TimedOut, UnexpectedEof, WouldBlock,
    };
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | Interrupted | TimedOut | UnexpectedEof | WouldBlock
    )
}

/// An answer that broke off: the connection was there, so another try makes sense.
fn interrupted(error: ureq::Error) -> Trouble {
    Trouble::Passing { reason: error.to_string(), wait: None }
}
