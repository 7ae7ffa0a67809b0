//! What a case came to, for people and for programs.
//! Only counts what was counted: nothing here is estimated.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use magray_engine::DeviceName;
use serde::Serialize;

use magray_load::{Fault, Latencies, Outcomes, ms, short};

use super::watch::{Seen, WorkerSeen};
use crate::terminal::aligned;

/// Requests that were open at a fault, or sent within this time after it, and answered before the next one tell what it cost.
const AFTER_FAULT: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Case {
    pub(super) model: String,
    /// Requests a second that were to be sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rate: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) clients: Option<usize>,
    pub(super) batching: String,
    pub(super) placement: String,
    pub(super) texts: usize,
    pub(super) seed: u64,
    pub(super) checked: bool,
    pub(super) seconds: f64,
}

/// A case and what it came to; the names are those of `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) case: Case,
    /// This process: it must be one and the same from the first request to the last.
    pub(super) pid: u32,
    /// Requests that were checked and are in none of the totals.
    pub(super) warmed_up: u64,
    pub(super) sent: u64,
    pub(super) unsent: u64,
    pub(super) answered: u64,
    pub(super) refused: BTreeMap<&'static str, u64>,
    pub(super) unexpected: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) wrong: u64,
    pub(super) replays: u64,
    pub(super) fallbacks: BTreeMap<&'static str, u64>,
    pub(super) requests_per_s: f64,
    pub(super) texts_per_s: f64,
    pub(super) tokens_per_s: f64,
    pub(super) latency_ms: Latency,
    pub(super) queue_ms: Part,
    pub(super) compute_ms: Part,
    pub(super) batch_texts_mean: f64,
    /// The 99th percentile of how late requests were sent, by no fault of the engine.
    pub(super) late_p99_ms: f64,
    pub(super) devices: Vec<DeviceShare>,
    pub(super) workers: Vec<Worker>,
    pub(super) incidents: Vec<Incident>,
    pub(super) complaints: Vec<String>,
}

/// From the moment a request was due to its answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Latency {
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Part {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) mean: f64,
}

/// What a device did of the measured requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct DeviceShare {
    pub(super) device: String,
    pub(super) requests: u64,
    /// Part of all texts, 0 to 1.
    pub(super) share: f64,
    /// Part of the measured time that it computed.
    pub(super) busy: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Worker {
    pub(super) device: String,
    pub(super) pid: u32,
    pub(super) since_s: f64,
}

/// A failure of a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Incident {
    pub(super) device: String,
    pub(super) kind: &'static str,
    /// Since the first request; before it where this is below 0.
    pub(super) at_s: f64,
    /// Until the device served again; `None`: it has not.
    pub(super) back_after_s: Option<f64>,
    /// The longest latency of requests that were open then, or due within 3 s, and answered before the next failure.
    pub(super) longest_ms: Option<f64>,
}

impl Report {
    pub(super) fn new(case: Case, outcomes: &Outcomes, seen: &Seen, faults: &[Fault]) -> Self {
        let tally = &outcomes.tally;
        let counts = &tally.counts;
        let per_second = |amount: u64| amount as f64 / case.seconds;
        let (requests_per_s, texts_per_s, tokens_per_s) =
            (per_second(counts.in_time.requests), per_second(counts.in_time.texts), per_second(counts.in_time.tokens));
        Self {
            pid: std::process::id(),
            warmed_up: outcomes.warmed_up,
            sent: outcomes.sent,
            unsent: outcomes.unsent,
            answered: counts.answered,
            refused: counts.refused.clone(),
            unexpected: counts.unexpected,
            lost: outcomes.lost,
            doubled: counts.doubled,
            wrong: counts.wrong,
            replays: counts.replays,
            fallbacks: tally.fallbacks.clone(),
            requests_per_s,
            texts_per_s,
            tokens_per_s,
            latency_ms: Latency::of(&tally.latency),
            queue_ms: Part::of(&tally.queued),
            compute_ms: Part::of(&tally.computed),
            batch_texts_mean: seen.batch_mean(),
            late_p99_ms: ms(outcomes.lateness.at(0.99)),
            devices: shares(outcomes, seen, case.seconds),
            workers: seen.workers.iter().map(Worker::of).collect(),
            incidents: incidents(faults, outcomes),
            complaints: tally.complaints.clone(),
            case,
        }
    }

    /// What went wrong, for people; `None`: nothing.
    pub(super) fn fault(&self) -> Option<String> {
        let counts = [
            (self.lost, "lost"),
            (self.doubled, "answered twice"),
            (self.wrong, "answered wrongly"),
            (self.unexpected, "refused without reason"),
        ];
        let found: Vec<String> =
            counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
        let all = self.warmed_up + self.sent;
        (!found.is_empty()).then(|| format!("{}: of {all} requests, {}", self.case, found.join(", ")))
    }
}

/// All cases as one table, with longer notes below it.
pub(super) fn table(reports: &[Report]) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let head = [
        "load",
        "batching",
        "placement",
        "req/s",
        "texts/s",
        "tokens/s",
        "p50 ms",
        "p90",
        "p99",
        "p99.9",
        "max",
        "queue p50",
        "queue mean",
        "compute p50",
        "batch",
        "refused",
        "late p99",
    ];
    let rows: Vec<Vec<String>> =
        std::iter::once(head.map(str::to_owned).to_vec()).chain(reports.iter().map(cells)).collect();
    let Case { model, texts, seed, seconds, .. } = &first.case;
    let mut text = format!(
        "{model}, texts of a request: {texts}, {seconds} s a case, seed {seed}, pid {}\n\n{}",
        first.pid,
        aligned(&rows)
    );
    for report in reports {
        text.push('\n');
        text.push_str(&details(report));
    }
    text
}

fn cells(report: &Report) -> Vec<String> {
    let latency = &report.latency_ms;
    vec![
        report.case.load(),
        report.case.batching.clone(),
        report.case.placement.clone(),
        format!("{:.1}", report.requests_per_s),
        format!("{:.1}", report.texts_per_s),
        format!("{:.0}", report.tokens_per_s),
        short(latency.p50),
        short(latency.p90),
        short(latency.p99),
        short(latency.p999),
        short(latency.max),
        short(report.queue_ms.p50),
        short(report.queue_ms.mean),
        short(report.compute_ms.p50),
        format!("{:.1}", report.batch_texts_mean),
        report.refused.values().sum::<u64>().to_string(),
        short(report.late_p99_ms),
    ]
}

fn details(report: &Report) -> String {
    let Report { case, sent, answered, lost, doubled, wrong, replays, .. } = report;
    let wrong = if case.checked { format!("wrong {wrong}") } else { "not checked".to_owned() };
    let mut lines = vec![
        format!("{case}:"),
        format!(
            "  sent {sent}, answered {answered}, lost {lost}, answered twice {doubled}, {wrong}, replays {replays}"
        ),
    ];
    if report.warmed_up > 0 {
        lines.push(format!("  warmed up with {} requests more, which were checked alone", report.warmed_up));
    }
    if report.unsent > 0 {
        lines.push(format!("  unsent {}: this machine could not send them in time", report.unsent));
    }
    let listed = |counts: &BTreeMap<&str, u64>| {
        counts.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
    };
    if !report.refused.is_empty() {
        lines.push(format!("  refused: {} (without reason: {})", listed(&report.refused), report.unexpected));
    }
    if !report.fallbacks.is_empty() {
        lines.push(format!("  on the CPU in place of a GPU: {}", listed(&report.fallbacks)));
    }
    lines.extend(report.devices.iter().map(|device| {
        let DeviceShare { device, requests, share, busy } = device;
        format!(
            "  {device}: {requests} requests, {:.1} % of the texts, computed {:.1} % of the time",
            share * 100.0,
            busy * 100.0
        )
    }));
    lines.extend(worker_lines(&report.workers));
    lines.extend(report.incidents.iter().map(Incident::line));
    lines.extend(report.complaints.iter().map(|complaint| format!("  {complaint}")));
    lines.join("\n") + "\n"
}

/// One line a device: its workers, one after the other.
fn worker_lines(workers: &[Worker]) -> Vec<String> {
    let mut by_device: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for Worker { device, pid, since_s } in workers {
        by_device.entry(device).or_default().push(format!("{pid} from {since_s:.1} s"));
    }
    by_device
        .iter()
        .map(|(device, pids)| format!("  {device}: restarts {}, pids: {}", pids.len() - 1, pids.join(", ")))
        .collect()
}

impl Case {
    fn load(&self) -> String {
        match (self.rate, self.clients) {
            (Some(rate), _) => format!("{rate}/s"),
            (None, clients) => format!("clients: {}", clients.unwrap_or(0)),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {}", self.load(), self.batching, self.placement)
    }
}

impl Latency {
    fn of(times: &Latencies) -> Self {
        let at = |share| ms(times.at(share));
        let (mean, max) = (ms(times.mean()), ms(times.max()));
        Self { mean, p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max }
    }
}

impl Part {
    fn of(times: &Latencies) -> Self {
        Self { p50: ms(times.at(0.5)), p99: ms(times.at(0.99)), mean: ms(times.mean()) }
    }
}

impl Worker {
    fn of(seen: &WorkerSeen) -> Self {
        Self { device: seen.device.to_string(), pid: seen.pid, since_s: seen.since.as_secs_f64() }
    }
}

/// The failures in their order, each with what it cost by itself.
fn incidents(faults: &[Fault], outcomes: &Outcomes) -> Vec<Incident> {
    let mut faults: Vec<&Fault> = faults.iter().collect();
    faults.sort_by_key(|fault| fault.noticed);
    let since_start = |fault: &&Fault| fault.noticed.saturating_duration_since(outcomes.start);
    let noticed: Vec<Duration> = faults.iter().map(since_start).collect();
    let longest = outcomes.tally.timeline.longest_by_fault(&noticed, AFTER_FAULT);
    let incident = |(fault, longest): (&Fault, Option<Duration>)| Incident {
        device: fault.device.to_string(),
        kind: fault.code,
        at_s: seconds_between(outcomes.start, fault.noticed),
        back_after_s: fault.back.map(|back| seconds_between(fault.noticed, back)),
        longest_ms: longest.map(ms),
    };
    faults.into_iter().zip(longest).map(incident).collect()
}

impl Incident {
    fn line(&self) -> String {
        let Self { device, kind, at_s, back_after_s, longest_ms } = self;
        let back = match back_after_s {
            Some(after) => format!("served again after {after:.3} s"),
            None => "has not served again".to_owned(),
        };
        let longest = longest_ms.map(|ms| format!(", longest latency {} ms", short(ms))).unwrap_or_default();
        format!("  {device}: {kind} at {at_s:.3} s, {back}{longest}")
    }
}

fn shares(outcomes: &Outcomes, seen: &Seen, seconds: f64) -> Vec<DeviceShare> {
    let devices = &outcomes.tally.devices;
    let texts: u64 = devices.iter().map(|(_, share)| share.texts).sum();
    let busy_of = |name: DeviceName| {
        let done = seen.done.iter().find(|(device, _)| *device == name);
        done.map_or(0.0, |(_, done)| done.busy.as_secs_f64() / seconds)
    };
    let mut shares: Vec<DeviceShare> = devices
        .iter()
        .map(|(device, share)| DeviceShare {
            device: device.to_string(),
            requests: share.requests,
            share: share.texts as f64 / texts.max(1) as f64,
            busy: busy_of(*device),
        })
        .collect();
    shares.sort_by(|one, other| one.device.cmp(&other.device));
    shares
}

/// Seconds from one moment to another, below 0 where that is the earlier one.
fn seconds_between(from: Instant, to: Instant) -> f64 {
    match to.checked_duration_since(from) {
        Some(after) => after.as_secs_f64(),
        None => -from.duration_since(to).as_secs_f64(),
    }
}
