//! Which web pages may use the server: its own, those of this machine, and those that the settings name.
//! Refuses all others; programs that send no `Origin` are not affected. Names of the server are checked by `hosts`.

use http::{HeaderName, HeaderValue, Method, Request, header, uri::Authority};
use tower_http::cors::{AllowHeaders, Any, CorsLayer};

use super::{
    errors::{Kind, Problem},
    hosts::{AllowedHosts, is_loopback},
};

/// The origins that are allowed; `None`: any.
#[derive(Clone, Debug)]
pub(crate) struct Origins(Option<Vec<String>>);

const ANY: &str = "*";

impl Origins {
    pub(crate) fn new(pages: &[String]) -> Self {
        let is_any = pages.iter().any(|page| page == ANY);
        Self((!is_any).then(|| pages.to_vec()))
    }

    /// Refuses a request of another origin's page. Its `Host` was checked before.
    pub(crate) fn check<B>(&self, request: &Request<B>, allowed: &AllowedHosts) -> Result<(), Problem> {
        let (Some(pages), Some(origin)) = (&self.0, request.headers().get(header::ORIGIN)) else { return Ok(()) };
        if may_ask(pages, origin, request, allowed) {
            return Ok(());
        }
        let message = "web pages of this origin may not ask: see server.cors_origins";
        Err(Problem::new(Kind::Forbidden, message))
    }
}

fn may_ask<B>(pages: &[String], origin: &HeaderValue, request: &Request<B>, allowed: &AllowedHosts) -> bool {
    let Ok(origin) = origin.to_str() else { return false };
    if pages.iter().any(|page| page.eq_ignore_ascii_case(origin)) {
        return true;
    }
    let Some(page) = origin.split_once("://").and_then(|(_, page)| page.parse::<Authority>().ok()) else {
        return false;
    };
    let header = || request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().authority().map(Authority::as_str).or_else(header);
    let is_same = host.is_some_and(|host| host.eq_ignore_ascii_case(page.as_str()));
    is_same || is_loopback(page.host()) || allowed.names(page.host())
}

/// The headers for pages that may read answers; `None`: no other origin may.
pub(super) fn cors(origins: &[String]) -> Option<CorsLayer> {
    let layer = match origins {
        [] => return None,
        [all] if all == ANY => CorsLayer::new().allow_origin(Any),
        some => {
            // The settings have been checked.
            let known: Vec<HeaderValue> = some.iter().filter_map(|origin| origin.parse().ok()).collect();
            CorsLayer::new().allow_origin(known)
        }
    };
    // Clients send headers of their own, which a server cannot know.
    let layer = layer.allow_methods([Method::GET, Method::POST]).allow_headers(AllowHeaders::mirror_request());
    Some(layer.expose_headers(EXPOSED))
}

const EXPOSED: [HeaderName; 8] = [
    header::RETRY_AFTER,
    HeaderName::from_static("retry-after-ms"),
    HeaderName::from_static("server-timing"),
    HeaderName::from_static("x-magray-device"),
    HeaderName::from_static("x-magray-fallback"),
    HeaderName::from_static("x-magray-replays"),
    HeaderName::from_static("x-magray-truncated"),
    HeaderName::from_static("x-request-id"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn list(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[track_caller]
    fn check(pages: &[&str], hosts: &[&str], (host, origin): (&str, &str), expected: bool) {
        let request = Request::builder().uri("/").header("host", host).header("origin", origin).body(()).unwrap();
        let found = Origins::new(&list(pages)).check(&request, &AllowedHosts::new(&list(hosts)));
        assert_eq!(found.is_ok(), expected, "{host} {origin}");
    }

    #[test]
    fn pages_of_elsewhere_may_not_ask() {
        let host = "127.0.0.1:7860";
        for origin in ["http://127.0.0.1:7860", "http://localhost:3000", "http://[::1]:3000"] {
            check(&[], &[], (host, origin), true);
        }
        for origin in [
            "https://page.example",
            "null",
            "http://localhost.page.example",
            "http://127.0.0.1@page.example",
            // An address is a page of elsewhere too.
            "http://203.0.113.9",
        ] {
            check(&[], &[], (host, origin), false);
            check(&[], &["*"], (host, origin), false);
        }
        assert!(Origins::new(&[]).check(&Request::new(()), &AllowedHosts::default()).is_ok(), "no browser");
    }

    #[test]
    fn pages_that_are_named_may_ask() {
        let pages = ["https://page.example"];
        check(&pages, &[], ("gpu.example:7860", "http://gpu.example:7860"), true);
        check(&pages, &[], ("gpu.example:7860", "https://page.example"), true);
        check(&pages, &[], ("gpu.example:7860", "https://other.example"), false);
        check(&["*"], &[], ("localhost", "https://page.example"), true);
        check(&[], &["*.gpu.example"], ("localhost", "https://a.gpu.example"), true);
    }
}
