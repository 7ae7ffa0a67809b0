//! Requests to the hub: one agent, its timeouts, where redirects may lead, and what each failure means.
//! Never repeats a request by itself, never sends the token anywhere but to the hub itself by https.

use super::super::pull_error::{HubError, TokenUse};
use super::super::pull_event::{OnEvent, PullEvent};
use super::HubOptions;
use std::io;
use std::time::Duration;
use ureq::http::header::{AUTHORIZATION, HeaderName, LOCATION, RANGE, RETRY_AFTER};
use ureq::http::{Response, Uri};
use ureq::{Agent, Body, Proxy, Timeout};

/// A listing of thousands of files has one or two MB.
const TEXT_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// A hub may ask for patience, but not for more than a user has.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A file of the hub is one or two redirects away.
const REDIRECTS_MAX: usize = 10;

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
    /// The hub sends the reader to an address that is not followed.
    Redirect { to: String, reason: &'static str },
}

/// The agent with what requests carry.
pub(super) struct Client {
    agent: Agent,
    token: Option<BoundToken>,
    token_use: TokenUse,
    retry: RetryPolicy,
}

/// A token and the only origin that may see it.
struct BoundToken {
    authorization: String,
    origin: SecureOrigin,
}

/// A host and port that are spoken to by https.
#[derive(Debug, PartialEq, Eq)]
struct SecureOrigin {
    host: String,
    port: u16,
}

impl SecureOrigin {
    /// The origin of an address; `None` for one that is not https.
    fn of(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("https"))?;
        Some(Self { host: host.to_ascii_lowercase(), port: uri.port_u16().unwrap_or(443) })
    }
}

impl Client {
    pub(super) fn new(options: &HubOptions, token: Option<String>) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_resolve(Some(options.connect_timeout))
            .timeout_connect(Some(options.connect_timeout))
            .timeout_per_read(Some(options.read_timeout))
            .timeout_per_write(Some(options.read_timeout))
            // Followed here: the agent would send the token to another port of the same host, and from https to http.
            .max_redirects(0)
            .proxy(if options.proxy_from_env { Proxy::try_from_env() } else { None })
            .user_agent(concat!("magray/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let bind = |(token, origin)| BoundToken { authorization: format!("Bearer {token}"), origin };
        let token_use = match (&token, SecureOrigin::of(&options.endpoint)) {
            (None, _) => TokenUse::Absent,
            (Some(_), None) => TokenUse::Withheld,
            (Some(_), Some(_)) => TokenUse::Sent,
        };
        let token = token.zip(SecureOrigin::of(&options.endpoint)).map(bind);
        Self { agent, token, token_use, retry: options.retry }
    }

    /// Asks for an address, from this byte on, and follows where it leads.
    pub(super) fn get(&self, url: &str, from_byte: u64) -> Result<Response<Body>, Trouble> {
        let mut url = url.to_owned();
        for _ in 0..=REDIRECTS_MAX {
            let response = self.ask(&url, from_byte)?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return judge(response);
            }
            url = next_address(&url, &response)?;
        }
        Err(Trouble::Redirect { to: url, reason: "the hub redirects again and again" })
    }

    fn ask(&self, url: &str, from_byte: u64) -> Result<Response<Body>, Trouble> {
        let mut request = self.agent.get(url);
        if let Some(authorization) = self.authorization_for(url) {
            request = request.header(AUTHORIZATION, authorization);
        }
        if from_byte > 0 {
            request = request.header(RANGE, format!("bytes={from_byte}-"));
        }
        request.call().map_err(trouble)
    }

    /// The token's header for a request to this address: the storage servers that files redirect to must not see it.
    fn authorization_for(&self, url: &str) -> Option<&str> {
        let token = self.token.as_ref()?;
        (SecureOrigin::of(url).as_ref() == Some(&token.origin)).then_some(token.authorization.as_str())
    }

    pub(super) fn get_text(&self, url: &str) -> Result<String, Trouble> {
        let mut response = self.get(url, 0)?;
        response.body_mut().with_config().limit(TEXT_BYTES_MAX).read_to_string().map_err(interrupted)
    }

    /// What a refusal means that is the same for listings and files.
    pub(super) fn refusal(&self, status: u16, repo: &str, url: &str) -> HubError {
        match status {
            401 | 403 => HubError::NeedsToken { repo: repo.to_owned(), token: self.token_use },
            _ => HubError::Unexpected { url: url.to_owned(), status },
        }
    }
}

/// What an answer that is no redirect means.
fn judge(response: Response<Body>) -> Result<Response<Body>, Trouble> {
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

/// Where a redirect leads: a whole address, or a path on the same host.
fn next_address(from: &str, response: &Response<Body>) -> Result<String, Trouble> {
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let refuse = |reason| Err(Trouble::Redirect { to: location.to_owned(), reason });
    let (scheme, rest) = from.split_once("://").unwrap_or_default();
    let next = if location.starts_with("https://") || location.starts_with("http://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        format!("{scheme}://{host}{location}")
    } else {
        return refuse("it is no address");
    };
    match scheme == "https" && next.starts_with("http://") {
        true => refuse("it leads from https to http"),
        false => Ok(next),
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

#[cfg(test)]
mod tests {
    use super::super::Token;
    use super::*;

    fn client(endpoint: &str) -> Client {
        let token = Token::new("hf_secret");
        let options = HubOptions { endpoint: endpoint.to_owned(), proxy_from_env: false, ..HubOptions::default() };
        Client::new(&options, Some(token.0))
    }

    #[test]
    fn the_token_goes_to_the_hubs_own_host_and_port_by_https_alone() {
        let hub = client("https://huggingface.co");
        for url in ["https://huggingface.co/a/b", "https://huggingface.co:443/x?y=z", "https://HuggingFace.co/"] {
            assert_eq!(hub.authorization_for(url), Some("Bearer hf_secret"), "{url}");
        }
        for url in [
            "http://huggingface.co/a/b",
            "http://huggingface.co:443/a/b",
            "https://huggingface.co:8443/a/b",
            "https://cdn-lfs.huggingface.co/a/b",
            "https://huggingface.co.example/a/b",
            "https://huggingface.co@example.org/a/b",
            "https://example.org/huggingface.co",
            "https://127.0.0.1/",
            "nonsense",
        ] {
            assert_eq!(hub.authorization_for(url), None, "{url}");
        }
        let mirror = client("https://mirror.example:8443/hub");
        assert!(mirror.authorization_for("https://mirror.example:8443/hub/a").is_some());
        assert_eq!(mirror.authorization_for("https://mirror.example/hub/a"), None);
        assert_eq!(mirror.authorization_for("https://huggingface.co/a"), None);
        for plain in ["http://huggingface.co", "http://127.0.0.1:80", "http://localhost"] {
            assert_eq!(client(plain).authorization_for(&format!("{plain}/a")), None, "{plain}");
        }
    }

    #[test]
    fn redirects_lead_to_addresses_and_paths_and_never_from_https_to_http() {
        let next = |from: &str, location: &str| {
            let answer = Response::builder().status(302).header(LOCATION, location);
            next_address(from, &answer.body(Body::builder().data("")).unwrap()).ok()
        };
        let hub = "https://hub.example:8443/a/b?c=d";
        assert_eq!(next(hub, "https://cdn.example/x").as_deref(), Some("https://cdn.example/x"));
        assert_eq!(next(hub, "//cdn.example/x").as_deref(), Some("https://cdn.example/x"));
        assert_eq!(next(hub, "/x?y").as_deref(), Some("https://hub.example:8443/x?y"));
        for refused in ["http://hub.example:8443/x", "http://cdn.example/x", "", "x", "ftp://x/y", "file:///etc/passwd"]
        {
            assert_eq!(next(hub, refused), None, "{refused}");
        }
        assert_eq!(next("http://a", "/x").as_deref(), Some("http://a/x"));
    }
}
