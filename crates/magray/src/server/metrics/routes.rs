//! The counters of one route, each looked up once, because they are used in every request.
//! Knows no requests, only their status and time.

use std::{
    sync::{OnceLock, PoisonError, RwLock},
    time::Duration,
};

use http::Method;
use metrics::{Counter, Histogram, Label, counter, histogram};

use super::Metrics;

/// The counters of a route; there are none before its first answer.
pub(crate) struct RouteCounters {
    name: String,
    seconds: OnceLock<Histogram>,
    answers: RwLock<Vec<Answers>>,
}

struct Answers {
    method: &'static str,
    status: u16,
    count: Counter,
}

impl RouteCounters {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), seconds: OnceLock::new(), answers: RwLock::default() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn count(&self, method: &'static str, status: u16, new: impl FnOnce() -> Counter) {
        let is_same = |answers: &&Answers| answers.method == method && answers.status == status;
        let known = self.answers.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(answers) = known.iter().find(is_same) {
            return answers.count.increment(1);
        }
        drop(known);
        // Two threads that are first at once get the same counter.
        let count = new();
        count.increment(1);
        let mut known = self.answers.write().unwrap_or_else(PoisonError::into_inner);
        if !known.iter().any(|answers| is_same(&answers)) {
            known.push(Answers { method, status, count });
        }
    }
}

impl Metrics {
    pub(crate) fn answered(&self, route: &RouteCounters, method: &Method, status: u16, took: Duration) {
        let method = method_label(method);
        let name = || route.name.clone();
        route.count(method, status, || {
            let labels = vec![
                Label::new("route", name()),
                Label::new("method", method),
                Label::new("status", status.to_string()),
            ];
            self.with(|| counter!("magray_http_requests_total", labels))
        });
        let seconds = || self.with(|| histogram!("magray_http_request_seconds", "route" => name()));
        route.seconds.get_or_init(seconds).record(took);
    }
}

/// A method is the client's own text; all but these have one label.
fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "PATCH" => "PATCH",
        _ => "other",
    }
}
