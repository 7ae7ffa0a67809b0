//! The page of metrics of a server, as far as `magray top` shows it: counts since the start, from Prometheus' text format.
//! Reads what it knows and passes over the rest: servers of other versions have other metrics.

use std::collections::BTreeMap;

/// Counts since a server's start.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Metrics {
    pub(super) requests: f64,
    pub(super) tokens: f64,
    /// Requests that were started again after a failure.
    pub(super) replays: f64,
    /// Requests that the CPU computed in place of a GPU, by reason.
    pub(super) fallbacks: BTreeMap<String, f64>,
    /// Requests that were refused, by reason.
    pub(super) refusals: BTreeMap<String, f64>,
    pub(super) queue: Histogram,
    pub(super) compute: Histogram,
    pub(super) batch_texts: Histogram,
}

/// Values by their upper bounds, each bucket with all that is below it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram {
    /// Bounds and counts, the bounds rising; the last is infinite.
    buckets: Vec<(f64, f64)>,
    sum: f64,
}

impl Metrics {
    pub(super) fn read(page: &str) -> Self {
        let mut metrics = Self::default();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, labels, value)) = parts(line) else { continue };
            match name {
                "magray_requests_total" => metrics.requests += value,
                "magray_tokens_total" | "magray_generated_tokens_total" | "magray_prompt_tokens_total" => {
                    metrics.tokens += value;
                }
                "magray_replays_total" => metrics.replays += value,
                "magray_fallbacks_total" => add(&mut metrics.fallbacks, label(labels, "reason"), value),
                "magray_http_refusals_total" => add(&mut metrics.refusals, label(labels, "reason"), value),
                name => metrics.read_histogram(name, labels, value),
            }
        }
        metrics
    }

    fn read_histogram(&mut self, name: &str, labels: &str, value: f64) {
        let known = [
            ("magray_queue_seconds", &mut self.queue),
            ("magray_compute_seconds", &mut self.compute),
            ("magray_batch_texts", &mut self.batch_texts),
        ];
        for (own, histogram) in known {
            match name.strip_prefix(own) {
                Some("_bucket") => {
                    let bound = match label(labels, "le") {
                        Some("+Inf") => Some(f64::INFINITY),
                        bound => bound.and_then(|bound| bound.parse().ok()),
                    };
                    histogram.buckets.extend(bound.map(|bound: f64| (bound, value)));
                }
                Some("_sum") => histogram.sum = value,
                _ => {}
            }
        }
    }

    /// What was counted since then.
    pub(super) fn since(&self, before: &Self) -> Self {
        let less = |now: &BTreeMap<String, f64>, before: &BTreeMap<String, f64>| -> BTreeMap<String, f64> {
            let one =
                |(name, count): (&String, &f64)| (name.clone(), (count - before.get(name).unwrap_or(&0.0)).max(0.0));
            now.iter().map(one).filter(|(_, count)| *count > 0.0).collect()
        };
        Self {
            requests: (self.requests - before.requests).max(0.0),
            tokens: (self.tokens - before.tokens).max(0.0),
            replays: (self.replays - before.replays).max(0.0),
            fallbacks: less(&self.fallbacks, &before.fallbacks),
            refusals: less(&self.refusals, &before.refusals),
            queue: self.queue.since(&before.queue),
            compute: self.compute.since(&before.compute),
            batch_texts: self.batch_texts.since(&before.batch_texts),
        }
    }
}

impl Histogram {
    pub(super) fn count(&self) -> f64 {
        self.buckets.last().map_or(0.0, |(_, count)| *count)
    }

    pub(super) fn mean(&self) -> Option<f64> {
        (self.count() > 0.0).then(|| self.sum / self.count())
    }

    /// The value that this share (0 to 1) of all does not exceed, as exactly as the buckets tell; `None` where there is none.
    pub(super) fn at(&self, share: f64) -> Option<f64> {
        let wanted = share * self.count();
        if self.count() <= 0.0 {
            return None;
        }
        let (mut below, mut from) = (0.0, 0.0);
        for (bound, count) in &self.buckets {
            if *count >= wanted && *count > below {
                // Values beyond the last bound are at least that.
                let to = if bound.is_finite() { *bound } else { from };
                return Some(from + (to - from) * ((wanted - below) / (count - below)).clamp(0.0, 1.0));
            }
            (below, from) = (*count, if bound.is_finite() { *bound } else { from });
        }
        Some(from)
    }

    fn since(&self, before: &Self) -> Self {
        let earlier =
            |bound: f64| before.buckets.iter().find(|(known, _)| *known == bound).map_or(0.0, |(_, count)| *count);
        let buckets = self.buckets.iter().map(|(bound, count)| (*bound, (count - earlier(*bound)).max(0.0))).collect();
        Self { buckets, sum: (self.sum - before.sum).max(0.0) }
    }
}

/// Name, labels and value of a line.
fn parts(line: &str) -> Option<(&str, &str, f64)> {
    let (series, value) = line.trim().rsplit_once(' ')?;
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    Some((name, labels, value.parse().ok()?))
}

fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let after = labels.split_once(&format!("{name}=\""))?.1;
    after.split_once('"').map(|(value, _)| value)
}

fn add(counts: &mut BTreeMap<String, f64>, name: Option<&str>, value: f64) {
    if let Some(name) = name {
        *counts.entry(name.to_owned()).or_default() += value;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) const PAGE: &str = r#"# HELP magray_queue_seconds Time
# TYPE magray_queue_seconds histogram
magray_queue_seconds_bucket{le="0.001"} 60
magray_queue_seconds_bucket{le="0.01"} 90
magray_queue_seconds_bucket{le="0.1"} 100
magray_queue_seconds_bucket{le="+Inf"} 100
magray_queue_seconds_sum 0.5
magray_queue_seconds_count 100
magray_batch_texts_bucket{le="1"} 10
magray_batch_texts_bucket{le="+Inf"} 20
magray_batch_texts_sum 60
magray_requests_total{model="a \"b\""} 70
magray_requests_total{model="c"} 30
magray_tokens_total{model="c"} 1200
magray_fallbacks_total{reason="waking"} 3
magray_fallbacks_total{reason="lost"} 0
magray_replays_total 2
magray_http_refusals_total{reason="full"} 1
what is this
magray_device_up{device="cpu"} 1
"#;

    #[test]
    fn a_page_is_read_and_the_unknown_is_passed_over() {
        let metrics = Metrics::read(PAGE);
        assert_eq!((metrics.requests, metrics.tokens, metrics.replays), (100.0, 1200.0, 2.0));
        assert_eq!(metrics.fallbacks["waking"], 3.0);
        assert_eq!((metrics.queue.count(), metrics.queue.mean()), (100.0, Some(0.005)));
        assert_eq!(metrics.batch_texts.mean(), Some(3.0));
        assert_eq!(Metrics::read("").queue.at(0.5), None);
    }

    #[test]
    fn shares_lie_within_their_buckets() {
        let queue = Metrics::read(PAGE).queue;
        let near = |share: f64, expected: f64| {
            let found = queue.at(share).unwrap();
            assert!((found - expected).abs() < 1e-9, "{share}: {found}");
        };
        near(0.3, 0.0005);
        near(0.6, 0.001);
        near(0.75, 0.0055);
        near(1.0, 0.1);
    }

    #[test]
    fn what_came_since_is_the_difference_and_never_negative() {
        let before = Metrics::read(PAGE);
        let now =
            Metrics::read(&PAGE.replace("{le=\"+Inf\"} 100", "{le=\"+Inf\"} 104").replace("_total 2", "_total 5"));
        let since = now.since(&before);
        assert_eq!((since.queue.count(), since.replays, since.requests), (4.0, 3.0, 0.0));
        assert!(since.fallbacks.is_empty());
        let restarted = Metrics::read("magray_replays_total 1").since(&before);
        assert_eq!(restarted.replays, 0.0, "another server has its place");
    }
}
