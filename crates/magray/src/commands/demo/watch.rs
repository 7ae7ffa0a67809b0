//! Looks on while the load of a demonstration runs, and tells what happens as it happens.
//! Slows nothing down; where its reader has left, the load ends.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use magray_engine::engine::{Engine, Incident, Moment};
use magray_load::{Underway, ms};

use super::{
    story::{Count, Event, Look, Seen, Story},
    target::HttpTarget,
};
use crate::{exit::Failure, output};

/// Prints events, one after the other.
pub(super) struct Teller {
    is_json: bool,
    /// Set by a failure to print: nothing more is printed then.
    has_failed: Mutex<bool>,
}

impl Teller {
    pub(super) fn new(is_json: bool) -> Self {
        Self { is_json, has_failed: Mutex::new(false) }
    }

    pub(super) fn tell(&self, event: &Event) -> Result<(), Failure> {
        let mut has_failed = self.has_failed.lock().unwrap_or_else(PoisonError::into_inner);
        if *has_failed {
            return Ok(());
        }
        let text = match self.is_json {
            true => serde_json::to_string(event).unwrap_or_else(|error| unreachable!("plain data: {error}")),
            false => event.text(),
        };
        let told = output::print(&format!("{text}\n"));
        *has_failed = told.is_err();
        Ok(told?)
    }
}

pub(super) struct Watch<'a> {
    pub(super) target: &'a HttpTarget,
    pub(super) engine: &'a Engine,
    pub(super) teller: &'a Teller,
    pub(super) stop: &'a AtomicBool,
}

impl Watch<'_> {
    /// What dies is told within a second.
    const LOOK_EVERY: Duration = Duration::from_millis(100);
    const COUNT_EVERY: Duration = Duration::from_secs(5);

    /// Looks on until the last request was sent and answered.
    pub(super) fn run(&self, underway: &Underway<'_>, over: &Receiver<()>) -> Result<Story, Failure> {
        let mut story = Story::default();
        let origin = Instant::now().checked_sub(self.engine.status().uptime).unwrap_or(underway.start);
        let mut next_count = underway.start + Self::COUNT_EVERY;
        let mut told = Ok(());
        loop {
            let is_over = over.recv_timeout(Self::LOOK_EVERY) != Err(RecvTimeoutError::Timeout);
            let mut events = self.look(&mut story, underway, origin);
            if Instant::now() >= next_count && !is_over {
                next_count += Self::COUNT_EVERY;
                events.push(Event::Count(self.count(underway)));
            }
            for event in &events {
                if told.is_ok() {
                    told = self.teller.tell(event);
                }
            }
            if told.is_err() {
                self.stop.store(true, Ordering::Relaxed);
            }
            if is_over {
                return told.map(|()| story);
            }
        }
    }

    fn look(&self, story: &mut Story, underway: &Underway<'_>, origin: Instant) -> Vec<Event> {
        let devices: Vec<_> = self.engine.status().devices.into_iter().map(|device| device.name).collect();
        let seen = |incident: &Incident| Seen {
            device: devices[usize::from(incident.device.0)],
            code: incident.code,
            noticed: incident.noticed,
            served_again: incident.served_again,
        };
        let faults: Vec<Seen> = self.engine.incidents().iter().map(seen).collect();
        let refused = underway.tally().counts.refused.values().sum();
        story.look(&Look {
            now: Moment::START + origin.elapsed(),
            at_s: underway.start.elapsed().as_secs_f64(),
            origin,
            faults: &faults,
            replayed: &self.target.replayed(),
            refused,
        })
    }

    fn count(&self, underway: &Underway<'_>) -> Count {
        let sent = underway.sent();
        let mut tally = underway.tally();
        let recent = tally.take_recent();
        let devices: BTreeMap<String, u64> =
            tally.devices.iter().map(|(device, share)| (device.to_string(), share.requests)).collect();
        Count {
            at_s: underway.start.elapsed().as_secs_f64(),
            sent,
            answered: tally.counts.answered,
            under_way: sent.saturating_sub(tally.settled_count()),
            refused: tally.counts.refused.values().sum(),
            wrong: tally.counts.wrong,
            p50_ms: ms(recent.latency.at(0.5)),
            p99_ms: ms(recent.latency.at(0.99)),
            devices,
        }
    }
}
