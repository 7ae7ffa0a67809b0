//! Who may ask through a browser: pages of this server, of this machine, and those that the settings name.
//! Turns away all other pages, also those that make their own name lead here; programs that are no browser do not notice.

use http::{HeaderMap, HeaderValue, Uri, header, uri::Authority};

use super::errors::{Kind, Problem};

/// The names and origins that may be used.
#[derive(Clone, Debug)]
pub(crate) struct Origins {
    /// Names of this machine; `None`: any.
    hosts: Option<Vec<String>>,
    /// Origins of pages elsewhere; `None`: any.
    pages: Option<Vec<String>>,
    /// Whether only programs of this machine reach the server.
    is_loopback: bool,
}

/// What means all of them.
const ANY: &str = "*";

impl Origins {
    /// By the address that is listened on, the names of this machine, and the pages that may ask.
    pub(crate) fn new(listens_on: &str, hosts: &[String], pages: &[String]) -> Self {
        let some = |names: &[String]| {
            let is_any = names.iter().any(|name| name == ANY);
            (!is_any).then(|| names.iter().map(|name| name.to_ascii_lowercase()).collect())
        };
        let is_loopback = listens_on.eq_ignore_ascii_case("localhost")
            || listens_on.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback());
        Self { hosts: some(hosts), pages: some(pages), is_loopback }
    }

    /// Refuses what a page of elsewhere asks. `is_open`: whoever reaches the server may ask, there is no key to tell
    /// people from pages.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap, is_open: bool) -> Result<(), Problem> {
        let host = uri.authority().cloned().or_else(|| headers.get(header::HOST).and_then(authority));
        if let Some(host) = &host
            && self.is_loopback
            && is_open
            && !self.is_own(host.host())
        {
            let message = format!("this server is not asked by the name '{}': see server.hosts", host.host());
            return Err(Problem::new(Kind::Forbidden, message));
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        if self.may_ask(origin, host.as_ref()) {
            return Ok(());
        }
        let message = "web pages of this origin may not ask: see server.cors_origins";
        Err(Problem::new(Kind::Forbidden, message))
    }

    fn may_ask(&self, origin: &HeaderValue, host: Option<&Authority>) -> bool {
        let Some(pages) = &self.pages else { return true };
        let Ok(origin) = origin.to_str() else { return false };
        if pages.iter().any(|page| page.eq_ignore_ascii_case(origin)) {
            return true;
        }
        let page = origin.split_once("://").and_then(|(_, page)| page.parse::<Authority>().ok());
        page.is_some_and(|page| {
            let is_same = host.is_some_and(|host| host.as_str().eq_ignore_ascii_case(page.as_str()));
            is_same || self.hosts.is_some() && self.is_own(page.host())
        })
    }

    fn is_own(&self, name: &str) -> bool {
        let name = name.trim_start_matches('[').trim_end_matches(']');
        self.hosts.as_ref().is_none_or(|hosts| hosts.iter().any(|host| host.eq_ignore_ascii_case(name)))
    }
}

fn authority(host: &HeaderValue) -> Option<Authority> {
    host.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: &str = "localhost,127.0.0.1,::1";

    /// Whether a request with this host and origin passes a server with these hosts and pages.
    #[track_caller]
    fn check(origins: &Origins, host: &str, origin: Option<&str>, expected: bool) {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        assert_eq!(origins.check(&Uri::from_static("/"), &headers, true).is_ok(), expected, "{host} {origin:?}");
    }

    fn origins(listens_on: &str, hosts: &str, pages: &str) -> Origins {
        let list =
            |texts: &str| texts.split(',').filter(|text| !text.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        Origins::new(listens_on, &list(hosts), &list(pages))
    }

    #[test]
    fn pages_of_elsewhere_may_not_ask() {
        let origins = origins("127.0.0.1", LOCAL, "");
        check(&origins, "127.0.0.1:7860", None, true);
        check(&origins, "LocalHost", None, true);
        check(&origins, "[::1]:7860", None, true);
        check(&origins, "127.0.0.1:7860", Some("http://127.0.0.1:7860"), true);
        check(&origins, "127.0.0.1:7860", Some("http://localhost:3000"), true);
        check(&origins, "127.0.0.1:7860", Some("http://[::1]:3000"), true);
        for origin in ["https://page.example", "null", "http://localhost.page.example", "http://127.0.0.1@page.example"]
        {
            check(&origins, "127.0.0.1:7860", Some(origin), false);
        }
        check(&origins, "page.example", None, false);
        check(&origins, "page.example", Some("http://page.example"), false);
    }

    #[test]
    fn pages_that_are_named_may_ask() {
        let named = origins("0.0.0.0", LOCAL, "https://page.example");
        check(&named, "gpu.example:7860", None, true);
        check(&named, "gpu.example:7860", Some("http://gpu.example:7860"), true);
        check(&named, "gpu.example:7860", Some("https://page.example"), true);
        check(&named, "gpu.example:7860", Some("https://other.example"), false);
        let all = origins("127.0.0.1", "*", "*");
        check(&all, "page.example", Some("https://page.example"), true);
        check(&origins("127.0.0.1", "*", ""), "127.0.0.1", Some("https://page.example"), false);
    }

    #[test]
    fn who_has_a_key_may_use_any_name() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("gpu.example"));
        let origins = origins("127.0.0.1", LOCAL, "");
        assert!(origins.check(&Uri::from_static("/"), &headers, false).is_ok());
        assert!(origins.check(&Uri::from_static("http://gpu.example/"), &HeaderMap::new(), true).is_err());
    }
}
