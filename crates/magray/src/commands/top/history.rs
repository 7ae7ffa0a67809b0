//! What `magray top` remembers of an engine: figures of the last minutes, and what happened between two looks.
//! Asks nothing: samples are handed to it.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{metrics::Metrics, source::Sample};
use crate::control::{DeviceReport, EngineReport};

/// Looks and what happened between them.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    samples: VecDeque<Sample>,
    pub(super) points: VecDeque<Point>,
    /// The newest first.
    pub(super) events: VecDeque<Happened>,
    /// Why the last look failed.
    pub(super) problem: Option<String>,
}

/// Figures between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Point {
    pub(super) requests_per_s: f64,
    pub(super) tokens_per_s: f64,
    pub(super) waiting: f64,
    /// By device, in the order of the report: the part of the time that it computed.
    pub(super) busy: Vec<f64>,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub(super) struct Happened {
    pub(super) at: Instant,
    pub(super) text: String,
    /// Whether something went wrong.
    pub(super) is_bad: bool,
}

/// Looks whose difference tells latencies and batch sizes.
const WINDOW: Duration = Duration::from_secs(10);
const POINTS_MAX: usize = 240;
const EVENTS_MAX: usize = 64;

impl History {
    pub(super) fn last(&self) -> Option<&Sample> {
        self.samples.back()
    }

    /// Counts of the last ten seconds; of all time where there was one look alone. `None`: there are none.
    pub(super) fn window(&self) -> Option<Metrics> {
        let (first, last) = (self.samples.front()?.metrics.as_ref()?, self.samples.back()?.metrics.as_ref()?);
        Some(if self.samples.len() > 1 { last.since(first) } else { last.clone() })
    }

    pub(super) fn add(&mut self, sample: Sample) {
        self.problem = None;
        match self.samples.back() {
            // Another engine has the address: its counts begin anew.
            Some(before)
                if before.engine.pid != sample.engine.pid || sample.engine.uptime_s < before.engine.uptime_s =>
            {
                self.happened(sample.at, format!("another engine answers: pid {}", sample.engine.pid), true);
                self.samples.clear();
                self.points.clear();
            }
            Some(before) => {
                let (point, events) = (point(before, &sample), events(before, &sample));
                if self.points.len() == POINTS_MAX {
                    self.points.pop_front();
                }
                self.points.push_back(point);
                events.into_iter().for_each(|(text, is_bad)| self.happened(sample.at, text, is_bad));
            }
            None => {
                for device in &sample.engine.devices {
                    if let (Some(error), Some(at)) = (&device.last_error, &device.last_error_at) {
                        self.happened(sample.at, format!("{}: {error} (at {at})", device.name), true);
                    }
                }
            }
        }
        let at = sample.at;
        self.samples.push_back(sample);
        while self.samples.len() > 2 && at.saturating_duration_since(self.samples[1].at) >= WINDOW {
            self.samples.pop_front();
        }
    }

    /// What is shown stays; the reason is shown with it.
    pub(super) fn fail(&mut self, reason: String) {
        self.problem = Some(reason);
    }

    pub(super) fn happened(&mut self, at: Instant, text: String, is_bad: bool) {
        self.events.push_front(Happened { at, text, is_bad });
        self.events.truncate(EVENTS_MAX);
    }
}

fn point(before: &Sample, now: &Sample) -> Point {
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64().max(1e-3);
    let counts = now.metrics.as_ref().zip(before.metrics.as_ref()).map(|(now, before)| now.since(before));
    let performance = &now.engine.performance;
    let busy = |device: &DeviceReport| {
        let earlier = of_name(&before.engine, &device.name).map_or(0.0, |earlier| earlier.busy_s);
        ((device.busy_s - earlier) / seconds).clamp(0.0, 1.0)
    };
    Point {
        requests_per_s: counts.as_ref().map_or(performance.requests_per_s, |counts| counts.requests / seconds),
        tokens_per_s: counts.as_ref().map_or(performance.tokens_per_s, |counts| counts.tokens / seconds),
        waiting: now.engine.waiting as f64,
        busy: now.engine.devices.iter().map(busy).collect(),
    }
}

fn of_name<'a>(engine: &'a EngineReport, name: &str) -> Option<&'a DeviceReport> {
    engine.devices.iter().find(|device| device.name == name)
}

/// What happened between two looks, and whether it was bad.
fn events(before: &Sample, now: &Sample) -> Vec<(String, bool)> {
    let mut events = Vec::new();
    let counts =
        now.metrics.as_ref().zip(before.metrics.as_ref()).map(|(now, before)| now.since(before)).unwrap_or_default();
    let mut replays = counts.replays as u64;
    for device in &now.engine.devices {
        let Some(earlier) = of_name(&before.engine, &device.name) else { continue };
        let has_failed = device.failures > earlier.failures || device.worker_restarts > earlier.worker_restarts;
        let has_lost_worker = earlier.worker_pid.is_some() && device.worker_pid != earlier.worker_pid;
        if has_failed || has_lost_worker && device.state != "resting" {
            let reason =
                device.last_error.as_deref().filter(|_| device.last_error_at != earlier.last_error_at || has_failed);
            let reason = reason.unwrap_or("its worker ended");
            // Told once: which device each of them was lost with is not known here.
            let again = match std::mem::take(&mut replays) {
                0 => String::new(),
                1 => "; 1 request was computed again".to_owned(),
                replays => format!("; {replays} requests were computed again"),
            };
            events.push((format!("{}: {reason}{again}", device.name), true));
        }
        let state = |device: &DeviceReport| match &device.reason {
            Some(reason) => format!("{} ({reason})", device.state),
            None => device.state.clone(),
        };
        if state(device) != state(earlier) {
            let is_bad = !matches!(device.state.as_str(), "in_rotation" | "resting");
            events.push((format!("{}: {} -> {}", device.name, state(earlier), state(device)), is_bad));
        }
    }
    if replays > 0 {
        events.push((format!("requests that were computed again after a failure: {replays}"), true));
    }
    for (reason, count) in &counts.fallbacks {
        events.push((format!("requests on the CPU in place of a GPU: {count} ({reason})"), false));
    }
    for (reason, count) in &counts.refusals {
        events.push((format!("requests that were refused: {count} ({reason})"), true));
    }
    for model in &now.engine.models {
        let Some(earlier) = before.engine.models.iter().find(|earlier| earlier.name == model.name) else {
            events.push((format!("'{}' has come", model.name), false));
            continue;
        };
        for at in &model.residency {
            let was = earlier.residency.iter().find(|earlier| earlier.device == at.device);
            if let Some(was) = was.filter(|was| was.place != at.place) {
                events.push((format!("'{}' on {}: {} -> {}", model.name, at.device, was.place, at.place), false));
            }
        }
    }
    for model in &before.engine.models {
        if now.engine.models.iter().all(|later| later.name != model.name) {
            events.push((format!("'{}' has gone", model.name), false));
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::{gpu::status::tests::engine, top::metrics::tests::PAGE};

    fn sample(at: Instant, change: impl FnOnce(&mut EngineReport), page: &str) -> Sample {
        let mut engine = engine();
        change(&mut engine);
        Sample { at, engine, metrics: Some(Metrics::read(page)) }
    }

    fn texts(history: &History) -> Vec<&str> {
        history.events.iter().map(|event| event.text.as_str()).collect()
    }

    #[test]
    fn a_worker_that_was_killed_is_told_with_its_requests() {
        let (start, mut history) = (Instant::now(), History::default());
        history.add(sample(start, |_| {}, PAGE));
        assert!(history.events.is_empty());
        let killed = |engine: &mut EngineReport| {
            let gpu = &mut engine.devices[1];
            gpu.failures += 1;
            gpu.worker_pid = None;
            gpu.last_error = Some("the worker was killed".to_owned());
            (gpu.state, gpu.reason) = ("recovering".to_owned(), Some("lost".to_owned()));
        };
        let page = PAGE.replace("replays_total 2", "replays_total 5").replace("\"lost\"} 0", "\"lost\"} 1");
        history.add(sample(start + Duration::from_secs(1), killed, &page));
        assert_eq!(
            texts(&history),
            [
                "requests on the CPU in place of a GPU: 1 (lost)",
                "cuda:0: in_rotation -> recovering (lost)",
                "cuda:0: the worker was killed; 3 requests were computed again",
            ]
        );
        let point = &history.points[0];
        assert_eq!((point.requests_per_s, point.waiting), (0.0, engine().waiting as f64));
    }

    #[test]
    fn models_that_move_come_and_go_are_told() {
        let (start, mut history) = (Instant::now(), History::default());
        history.add(sample(start, |_| {}, PAGE));
        let moved = |engine: &mut EngineReport| {
            engine.models.remove(1);
            engine.models[0].residency[1].place = "on_cpu".to_owned();
        };
        history.add(sample(start + Duration::from_secs(1), moved, PAGE));
        assert_eq!(texts(&history), ["'org/other' has gone", "'all-MiniLM-L6-v2' on cuda:0: on_gpu -> on_cpu"]);
    }

    #[test]
    fn an_engine_that_was_started_anew_has_no_negative_figures() {
        let (start, mut history) = (Instant::now(), History::default());
        for second in 0..300 {
            let up = |engine: &mut EngineReport| engine.uptime_s = 1000.0 + second as f64;
            history.add(sample(start + Duration::from_secs(second), up, PAGE));
        }
        assert_eq!((history.points.len(), history.samples.len()), (POINTS_MAX, 11));
        history.add(sample(start + Duration::from_secs(301), |engine| engine.uptime_s = 1.0, ""));
        assert_eq!((history.points.len(), texts(&history)[0]), (0, "another engine answers: pid 4711"));
        assert_eq!(history.window().unwrap().replays, 0.0);
    }
}
