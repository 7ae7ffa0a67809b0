//! The rates of a caller: requests a minute, and tokens a minute; and the headers that tell clients of them.
//! Reads no settings and knows no route.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue};
use magray_engine::health::utc;

use super::{
    errors::{Kind, Problem},
    meter::{Counted, Meter, Standing, Use},
};

#[derive(Debug, Default)]
pub(crate) struct Rates {
    requests: Meter,
    tokens: Meter,
}

/// One part in this of a minute's requests may come at once.
const BURST_PART: u64 = 6;

impl Rates {
    /// A minute's tokens may be used at once: a single prompt may have thousands.
    pub(crate) fn new(keys: usize, requests_per_minute: Option<u64>, tokens_per_minute: Option<u64>) -> Self {
        Self {
            requests: Meter::new(keys, requests_per_minute, |rate| rate / BURST_PART),
            tokens: Meter::new(keys, tokens_per_minute, |rate| rate),
        }
    }

    /// Goes on with what was spent before; `same_keys` are the indices of keys now and before.
    pub(crate) fn resume(&mut self, before: &Self, same_keys: &[(usize, usize)], now: Duration) {
        self.requests.resume(&before.requests, same_keys, now);
        self.tokens.resume(&before.tokens, same_keys, now);
    }

    pub(crate) fn limits_tokens(&self) -> bool {
        self.tokens.has_limit()
    }

    /// Refuses a caller that has spent its requests, and says when to retry; takes nothing.
    pub(crate) fn check_request(&self, of: Counted, now: Duration) -> Result<(), Problem> {
        self.requests.check(Use { of, units: 1, now }).map_err(|wait| too_many("requests", of, wait))
    }

    pub(crate) fn take_request(&self, of: Counted, now: Duration) -> Result<(), Problem> {
        self.requests.take(Use { of, units: 1, now }).map_err(|wait| too_many("requests", of, wait))
    }

    /// Takes tokens, or says when to retry.
    pub(crate) fn take_tokens(&self, wanted: Use) -> Result<(), Problem> {
        self.tokens.take(wanted).map_err(|wait| too_many("tokens", wanted.of, wait))
    }

    /// Counts tokens that were used already.
    pub(crate) fn charge_tokens(&self, used: Use) {
        self.tokens.charge(used);
    }

    pub(crate) fn give_tokens_back(&self, unused: Use) {
        self.tokens.give_back(unused);
    }

    /// Tells a caller what it has left, by the names that OpenAI's clients know, or Anthropic's.
    pub(crate) fn tell(&self, of: Counted, now: Duration, is_anthropic: bool, headers: &mut HeaderMap) {
        for (what, meter) in [("requests", &self.requests), ("tokens", &self.tokens)] {
            let Some(standing) = meter.standing(of, now) else { continue };
            let Standing { limit, remaining, reset } = standing;
            let mut add = |name: String, value: String| {
                if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                    headers.insert(name, value);
                }
            };
            if is_anthropic {
                let name = |part: &str| format!("anthropic-ratelimit-{what}-{part}");
                add(name("limit"), limit.to_string());
                add(name("remaining"), remaining.to_string());
                add(name("reset"), utc(SystemTime::now() + reset));
            } else {
                let name = |part: &str| format!("x-ratelimit-{part}-{what}");
                add(name("limit"), limit.to_string());
                add(name("remaining"), remaining.to_string());
                add(name("reset"), shown(reset));
            }
        }
    }
}

fn too_many(what: &str, of: Counted, wait: Duration) -> Problem {
    let who = match of {
        Counted::Key(_) => "this key",
        Counted::Address(_) => "this address",
    };
    let did = if what == "tokens" { "used" } else { "sent" };
    Problem::busy(Kind::TooOften, format!("{who} has {did} too many {what}: wait and try again"), wait)
}

/// As OpenAI writes times: `6m0s`, `1.25s`, `120ms`.
fn shown(time: Duration) -> String {
    let millis = time.as_millis();
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    match (minutes, rest) {
        (0, rest) if rest < 1000 => format!("{rest}ms"),
        (0, rest) => format!("{}s", rest as f64 / 1e3),
        (minutes, rest) => format!("{minutes}m{}s", rest as f64 / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::wrong_keys::Network;

    #[test]
    fn refusals_say_what_was_too_much_and_headers_what_is_left() {
        let (rates, now) = (Rates::new(1, Some(12), Some(600)), Duration::from_secs(5));
        let of = Counted::Address(Network(1));
        rates.take_request(Counted::Key(0), now).unwrap();
        rates.take_tokens(Use { of: Counted::Key(0), units: 590, now }).unwrap();
        let refused = rates.take_tokens(Use { of: Counted::Key(0), units: 20, now }).unwrap_err();
        assert_eq!((refused.kind, refused.retry_after), (Kind::TooOften, Some(Duration::from_secs(1))));
        assert!(refused.message.contains("this key has used too many tokens"), "{refused}");
        (0..2).for_each(|_| rates.take_request(of, now).unwrap());
        assert!(rates.take_request(of, now).unwrap_err().message.contains("this address has sent too many requests"));
        let mut headers = HeaderMap::new();
        rates.tell(Counted::Key(0), now, false, &mut headers);
        let told = |name: &str| headers[name].to_str().unwrap().to_owned();
        assert_eq!(
            (told("x-ratelimit-limit-requests"), told("x-ratelimit-remaining-requests")),
            ("12".into(), "1".into())
        );
        assert_eq!(
            (told("x-ratelimit-limit-tokens"), told("x-ratelimit-remaining-tokens")),
            ("600".into(), "10".into())
        );
        assert_eq!(told("x-ratelimit-reset-tokens"), "59s");
        rates.tell(of, now, true, &mut headers);
        assert!(headers["anthropic-ratelimit-tokens-reset"].to_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn times_are_written_as_openai_writes_them() {
        let shown = |millis| shown(Duration::from_millis(millis));
        assert_eq!([shown(0), shown(120), shown(1250), shown(360_000)], ["0ms", "120ms", "1.25s", "6m0s"]);
    }
}
