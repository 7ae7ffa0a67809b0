//! Which names a request may have in `Host`: the server's own names and addresses, and those of `server.allowed_hosts`.
//! Refuses all others, so that a web page cannot reach the server by a name of its own that it points here (DNS rebinding).

use std::net::IpAddr;

use http::{HeaderValue, Request, Version, header, uri::Authority};

use super::errors::{Kind, Problem};

/// Names and addresses that are the server's own, whatever the settings allow besides.
#[derive(Clone, Debug)]
pub(crate) struct OwnNames {
    /// Lower case: `localhost`, the machine's host name, and the name that the server listens on.
    names: Vec<String>,
    /// The address that is listened on; `None`: an address that was given as a name.
    address: Option<IpAddr>,
}

/// The setting `server.allowed_hosts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllowedHosts {
    /// Lower case: host names, addresses, `*.domain`, or `*`.
    patterns: Vec<String>,
}

const ANY: &str = "*";
const LOCALHOST: &str = "localhost";

impl OwnNames {
    pub(crate) fn new(listens_on: &str) -> Self {
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self::with_machine(listens_on, &machine)
    }

    fn with_machine(listens_on: &str, machine: &str) -> Self {
        let address: Option<IpAddr> = bare(listens_on).parse().ok();
        let names = [LOCALHOST, machine, if address.is_some() { "" } else { listens_on }];
        let names = names.into_iter().filter(|name| !name.is_empty()).map(lower_case).collect();
        Self { names, address: address.map(|address| address.to_canonical()) }
    }

    pub(crate) fn check<B>(&self, request: &Request<B>, allowed: &AllowedHosts) -> Result<(), Problem> {
        let mut is_named = false;
        let headers = request.headers().get_all(header::HOST).into_iter();
        // A target with a name of its own overrides the header; proxies differ there, so both must be allowed.
        for host in request.uri().authority().cloned().map(Ok).into_iter().chain(headers.map(authority)) {
            let host = host?;
            if !self.has(host.host()) && !allowed.has(host.host()) {
                let message = format!(
                    "this server does not answer to the name '{}': use its address, or add the name to \
                     server.allowed_hosts",
                    host.host()
                );
                return Err(Problem::new(Kind::Forbidden, message));
            }
            is_named = true;
        }
        // No browser speaks HTTP/1.0, where the header did not exist yet; some health probes do.
        if is_named || request.version() <= Version::HTTP_10 {
            return Ok(());
        }
        Err(Problem::new(Kind::Malformed, "the request has no Host header"))
    }

    /// Whether it is one of the machine's own. An address cannot be rebound: a client that sends one has connected to it, or
    /// to a port that is forwarded from it. So a server that listens on all addresses answers to any.
    fn has(&self, host: &str) -> bool {
        match bare(host).parse::<IpAddr>().map(|address| address.to_canonical()) {
            Ok(address) => {
                address.is_loopback() || self.address.is_some_and(|own| own.is_unspecified() || own == address)
            }
            Err(_) => self.names.contains(&lower_case(host)),
        }
    }
}

impl AllowedHosts {
    pub(crate) fn new(patterns: &[String]) -> Self {
        Self { patterns: patterns.iter().map(|pattern| lower_case(bare(pattern))).collect() }
    }

    fn has(&self, host: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern == ANY) || self.names(host)
    }

    /// Whether a host is allowed by its name, and not only because all are.
    pub(crate) fn names(&self, host: &str) -> bool {
        let host = lower_case(bare(host));
        self.patterns.iter().any(|pattern| match pattern.strip_prefix(ANY) {
            // `*.domain`: every name below the domain, and not the domain itself.
            Some(domain) if !domain.is_empty() => host.len() > domain.len() && host.ends_with(domain),
            _ => *pattern == host,
        })
    }
}

/// Whether a host is this machine as only the machine itself can call it.
pub(crate) fn is_loopback(host: &str) -> bool {
    let address = bare(host).parse::<IpAddr>().map(|address| address.to_canonical());
    address.map_or_else(|_| lower_case(host) == LOCALHOST, |address| address.is_loopback())
}

fn authority(host: &HeaderValue) -> Result<Authority, Problem> {
    let read = host.to_str().ok().filter(|host| !host.contains('@')).and_then(|host| host.parse().ok());
    read.ok_or_else(|| Problem::new(Kind::Malformed, "the Host header is no name and no address"))
}

fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// A name as names are compared: the dot at the end only says that it is complete.
fn lower_case(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(listens_on: &str, allowed: &[&str], host: Option<&str>, expected: Result<(), Kind>) {
        let allowed = AllowedHosts::new(&allowed.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let mut request = Request::builder().uri("/");
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let own = OwnNames::with_machine(listens_on, "Gpu1");
        let found = own.check(&request.body(()).unwrap(), &allowed).map_err(|problem| problem.kind);
        assert_eq!(found, expected, "{listens_on} {host:?}");
    }

    const FOREIGN: Result<(), Kind> = Err(Kind::Forbidden);

    #[test]
    fn a_name_that_is_rebound_is_refused_on_every_listener() {
        for listens_on in ["127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "192.0.2.7", "gpu1.example"] {
            for host in
                ["evil.example", "evil.example:7860", "localhost.evil.example", "127.0.0.1.evil.example", "gpu2"]
            {
                check(listens_on, &[], Some(host), FOREIGN);
            }
            for host in ["localhost", "LocalHost.:7860", "127.0.0.1", "127.1.2.3:80", "[::1]:7860", "gpu1", "GPU1:7860"]
            {
                check(listens_on, &[], Some(host), Ok(()));
            }
        }
        check("gpu1.example", &[], Some("gpu1.example"), Ok(()));
    }

    #[test]
    fn addresses_are_those_that_are_listened_on() {
        for listens_on in ["0.0.0.0", "::"] {
            // The address of a pod, by which Kubernetes probes it, and one that is forwarded from another machine.
            for host in ["10.1.2.3:7860", "203.0.113.9", "[2001:db8::1]:7860"] {
                check(listens_on, &[], Some(host), Ok(()));
            }
        }
        check("192.0.2.7", &[], Some("192.0.2.7:7860"), Ok(()));
        check("192.0.2.7", &[], Some("[::ffff:192.0.2.7]"), Ok(()));
        check("192.0.2.7", &[], Some("192.0.2.8"), FOREIGN);
        check("127.0.0.1", &[], Some("192.0.2.7"), FOREIGN);
    }

    #[test]
    fn names_that_are_allowed_are_answered() {
        check("127.0.0.1", &["embed.example"], Some("Embed.Example:443"), Ok(()));
        check("127.0.0.1", &["embed.example"], Some("other.example"), FOREIGN);
        check("127.0.0.1", &["*.example.com"], Some("a.b.example.com"), Ok(()));
        for host in ["example.com", ".example.com", "evilexample.com", "a.example.com.evil.example"] {
            check("127.0.0.1", &["*.example.com"], Some(host), FOREIGN);
        }
        check("127.0.0.1", &["*"], Some("evil.example"), Ok(()));
        check("127.0.0.1", &["192.0.2.9", "[2001:db8::1]"], Some("[2001:db8::1]:80"), Ok(()));
    }

    #[test]
    fn a_request_without_a_name_is_no_request() {
        for host in [None, Some("a b"), Some("user@localhost")] {
            check("127.0.0.1", &[], host, Err(Kind::Malformed));
        }
        let own = OwnNames::with_machine("127.0.0.1", "gpu1");
        let allowed = AllowedHosts::default();
        let mut old = Request::new(());
        *old.version_mut() = Version::HTTP_10;
        assert!(own.check(&old, &allowed).is_ok());
        // The target and the header must both be own names.
        for (target, host) in [("http://evil.example/", "localhost"), ("http://localhost/", "evil.example")] {
            let request = Request::builder().uri(target).header("host", host).body(()).unwrap();
            assert!(own.check(&request, &allowed).is_err(), "{target} {host}");
        }
        let request = Request::builder().uri("http://localhost:7860/").version(Version::HTTP_2).body(()).unwrap();
        assert!(own.check(&request, &allowed).is_ok());
    }
}
