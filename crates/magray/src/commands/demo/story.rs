//! What a demonstration tells: faults, what became of their requests, counts and a summary, for people and as JSON.
//! Reads no clock and prints nothing.

use std::{
    collections::{BTreeMap, HashSet},
    time::{Duration, Instant},
};

use magray_engine::{
    DeviceName,
    engine::{Engine, Moment},
};
use magray_load::{Outcomes, ms, short};
use serde::Serialize;

use super::{model::DemoModel, simulated, target::Replayed};

/// A line of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Event {
    Started(Started),
    /// Something went wrong with a device.
    Fault {
        at_s: f64,
        device: String,
        fault: &'static str,
    },
    /// What became of the requests that it met, and of the device.
    Aftermath(Aftermath),
    Count(Count),
    Summary(Box<Summary>),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Started {
    pub(super) page: String,
    pub(super) model: String,
    /// Whether the model was made on the spot.
    pub(super) made: bool,
    pub(super) devices: Vec<String>,
    pub(super) rate: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Aftermath {
    pub(super) at_s: f64,
    pub(super) device: String,
    pub(super) fault: &'static str,
    /// Requests that were computed again and answered, by the device that did.
    pub(super) computed_again: BTreeMap<String, u64>,
    /// Requests that were answered with an error.
    pub(super) refused: u64,
    /// The longest time to the answer of one of them.
    pub(super) slowest_ms: Option<f64>,
    /// Until the device served again; null: it has not yet.
    pub(super) back_after_s: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Count {
    pub(super) at_s: f64,
    pub(super) sent: u64,
    pub(super) answered: u64,
    pub(super) under_way: u64,
    pub(super) refused: u64,
    pub(super) wrong: u64,
    /// Of the last seconds.
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) devices: BTreeMap<String, u64>,
}

/// What it all came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) seconds: f64,
    pub(super) sent: u64,
    pub(super) answered: u64,
    pub(super) lost: u64,
    pub(super) refused: u64,
    pub(super) wrong: u64,
    pub(super) answered_twice: u64,
    pub(super) computed_again: u64,
    pub(super) faults: BTreeMap<&'static str, u64>,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
    /// Requests by the device that answered.
    pub(super) devices: BTreeMap<String, u64>,
    /// The first answers that were not right, in words.
    pub(super) complaints: Vec<String>,
}

impl Event {
    pub(super) fn started(page: &str, model: &DemoModel, engine: &Engine, rate: f64) -> Self {
        Self::Started(Started {
            page: page.to_owned(),
            model: model.name.clone(),
            made: model.is_made(),
            devices: simulated(engine),
            rate,
        })
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Started(started) => started.text(),
            Self::Fault { at_s, device, fault } => format!("{at_s:>7.1} s  {device}: {}", in_words(fault)),
            Self::Aftermath(aftermath) => aftermath.text(),
            Self::Count(count) => count.text(),
            Self::Summary(summary) => summary.text(),
        }
    }
}

impl Started {
    fn text(&self) -> String {
        let Self { page, model, devices, rate, .. } = self;
        let made = match self.made {
            true => {
                "\n  its weights are random and its vectors mean nothing: `magray pull all-MiniLM-L6-v2` gets a real one"
            }
            false => "",
        };
        format!(
            "page   {page}\nmodel  {model}{made}\nload   {rate} requests a second through HTTP, every answer compared with the right \
             vector\nGPUs   {} (simulated) and the CPU; `magray top` in another terminal shows them, Ctrl-C ends this\n",
            devices.join(", ")
        )
    }
}

impl Aftermath {
    fn text(&self) -> String {
        let Self { at_s, device, refused, .. } = self;
        let total: u64 = self.computed_again.values().sum();
        let slowest =
            self.slowest_ms.map_or_else(String::new, |ms| format!(", the slowest answered after {} ms", short(ms)));
        let requests = match total {
            0 => "no request was lost with it".to_owned(),
            _ => format!("{} computed again ({}){slowest}", requests(total), listed(&self.computed_again)),
        };
        let refused = if *refused > 0 { format!(", {} refused", refused) } else { String::new() };
        let back = match self.back_after_s {
            Some(seconds) => format!("it serves again after {seconds:.2} s"),
            None => "it is not back yet".to_owned(),
        };
        format!("{at_s:>7.1} s  {device}: {requests}{refused}; {back}")
    }
}

impl Count {
    fn text(&self) -> String {
        let Self { at_s, sent, answered, under_way, refused, wrong, p50_ms, p99_ms, devices } = self;
        format!(
            "{at_s:>7.1} s  sent {sent}, answered {answered}, under way {under_way}, refused {refused}, wrong {wrong}; p50 {} ms, p99 \
             {} ms; {}",
            short(*p50_ms),
            short(*p99_ms),
            listed(devices)
        )
    }
}

impl Summary {
    pub(super) fn of(outcomes: &Outcomes, story: &Story, seconds: f64) -> Self {
        let (tally, counts) = (&outcomes.tally, &outcomes.tally.counts);
        Self {
            seconds,
            sent: outcomes.sent,
            answered: counts.answered,
            lost: outcomes.lost,
            refused: counts.refused.values().sum(),
            wrong: counts.wrong,
            answered_twice: counts.doubled,
            computed_again: counts.replays,
            faults: story.faults.clone(),
            p50_ms: ms(tally.latency.at(0.5)),
            p99_ms: ms(tally.latency.at(0.99)),
            max_ms: ms(tally.latency.max()),
            devices: tally.devices.iter().map(|(device, share)| (device.to_string(), share.requests)).collect(),
            complaints: tally.complaints.clone(),
        }
    }

    /// What must not be; `None`: nothing.
    pub(super) fn fault(&self) -> Option<String> {
        let counts = [
            (self.lost, "lost"),
            (self.wrong, "answered wrongly"),
            (self.answered_twice, "answered twice"),
            (self.refused, "refused"),
        ];
        let found: Vec<String> =
            counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
        let first = self.complaints.first().map_or_else(String::new, |first| format!(": {first}"));
        (!found.is_empty()).then(|| format!("of {}, {}{first}", requests(self.sent), found.join(", ")))
    }

    fn text(&self) -> String {
        let Self { seconds, sent, answered, lost, refused, wrong, computed_again, .. } = self;
        let faults = match self.faults.is_empty() {
            true => "none".to_owned(),
            false => self.faults.iter().map(|(fault, count)| format!("{fault} {count}")).collect::<Vec<_>>().join(", "),
        };
        format!(
            "\nsent {sent}, answered {answered}, lost {lost}, refused {refused}, wrong {wrong}, in {seconds:.1} s\ncomputed again after a \
             failure: {computed_again}\nfaults: {faults}\nanswered by: {}\nlatency: p50 {} ms, p99 {} ms, longest {} ms\n",
            listed(&self.devices),
            short(self.p50_ms),
            short(self.p99_ms),
            short(self.max_ms)
        )
    }
}

/// Which faults were told, and what of them is still to be told.
#[derive(Debug, Default)]
pub(super) struct Story {
    known: HashSet<(DeviceName, Moment)>,
    open: Vec<OpenFault>,
    /// How often each came.
    pub(super) faults: BTreeMap<&'static str, u64>,
}

/// A fault of a device, by the time of the engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) device: DeviceName,
    pub(super) code: &'static str,
    pub(super) noticed: Moment,
    pub(super) served_again: Option<Moment>,
}

#[derive(Clone, Copy, Debug)]
struct OpenFault {
    seen: Seen,
    /// Refusals before it.
    refused: u64,
}

/// What is known at a moment.
pub(super) struct Look<'a> {
    /// Since the start of the engine.
    pub(super) now: Moment,
    pub(super) at_s: f64,
    /// When the engine started.
    pub(super) origin: Instant,
    /// The last faults, the oldest first.
    pub(super) faults: &'a [Seen],
    pub(super) replayed: &'a [Replayed],
    /// Refusals so far.
    pub(super) refused: u64,
}

impl Story {
    /// Answers that were computed again come a little later than the device is back.
    const SETTLED_AFTER: Duration = Duration::from_millis(400);
    /// A device that is not back by then is told of nevertheless.
    const WAIT_MAX: Duration = Duration::from_secs(5);

    /// What is new.
    pub(super) fn look(&mut self, look: &Look<'_>) -> Vec<Event> {
        let mut events = Vec::new();
        self.known.retain(|known| look.faults.iter().any(|seen| (seen.device, seen.noticed) == *known));
        for seen in look.faults {
            if self.known.insert((seen.device, seen.noticed)) {
                *self.faults.entry(seen.code).or_default() += 1;
                events.push(Event::Fault { at_s: look.at_s, device: seen.device.to_string(), fault: seen.code });
                self.open.push(OpenFault { seen: *seen, refused: look.refused });
            }
        }
        let is_over = |fault: &OpenFault| {
            let back = look.current(&fault.seen).served_again;
            let settled = back.is_some_and(|back| look.now >= back + Self::SETTLED_AFTER);
            settled && look.now >= fault.seen.noticed + Self::SETTLED_AFTER
                || look.now >= fault.seen.noticed + Self::WAIT_MAX
        };
        let (over, open): (Vec<_>, Vec<_>) = std::mem::take(&mut self.open).into_iter().partition(is_over);
        self.open = open;
        events.extend(over.iter().map(|fault| Event::Aftermath(look.aftermath(fault))));
        events
    }
}

impl Look<'_> {
    /// A fault as it is known now.
    fn current(&self, fault: &Seen) -> Seen {
        let is_same = |seen: &&Seen| (seen.device, seen.noticed) == (fault.device, fault.noticed);
        self.faults.iter().find(is_same).copied().unwrap_or(*fault)
    }

    /// What became of the requests that a fault met: answers that were computed again after it, and before the next fault.
    fn aftermath(&self, OpenFault { seen, refused }: &OpenFault) -> Aftermath {
        let at = |moment: Moment| self.origin + Duration::from_nanos(moment.as_nanos());
        let next = self.faults.iter().map(|other| other.noticed).filter(|other| *other > seen.noticed).min();
        let (from, to) = (at(seen.noticed), next.map(at));
        let is_of_it = |answer: &&Replayed| answer.at >= from && to.is_none_or(|to| answer.at < to);
        let mut computed_again: BTreeMap<String, u64> = BTreeMap::new();
        let mut slowest = None;
        for answer in self.replayed.iter().filter(is_of_it) {
            *computed_again.entry(answer.device.to_string()).or_default() += 1;
            slowest = slowest.max(Some(answer.latency));
        }
        let back = self.current(seen).served_again.map(|back| back.since(seen.noticed).as_secs_f64());
        Aftermath {
            at_s: self.at_s,
            device: seen.device.to_string(),
            fault: seen.code,
            computed_again,
            refused: self.refused - refused,
            slowest_ms: slowest.map(ms),
            back_after_s: back,
        }
    }
}

fn in_words(code: &'static str) -> &'static str {
    match code {
        "killed" => "its worker was killed",
        "crashed" => "its worker crashed",
        "overdue" => "a batch did not end in time: its worker is replaced",
        "silent" => "its worker sent no heartbeat: it is replaced",
        "out_of_memory" => "its memory was full",
        "transient" => "the driver refused a call",
        "gpu_fault" => "a batch wrote to an unmapped address: its worker is replaced",
        "wrong_answers" => "its answers were wrong, and none of them was sent",
        "ruled_out" => "its telemetry rules it out",
        "not_started" => "its new worker did not start",
        other => other,
    }
}

fn requests(count: u64) -> String {
    format!("{count} request{}", if count == 1 { "" } else { "s" })
}

fn listed(counts: &BTreeMap<String, u64>) -> String {
    match counts.is_empty() {
        true => "none".to_owned(),
        false => counts.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests;
