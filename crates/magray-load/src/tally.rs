//! The checker: what came of every request, counted so that a lost, doubled or wrong answer cannot hide.
//! Holds one bit a request and no list of times.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use magray_core::DeviceName;

use crate::{
    latency::Latencies,
    pool::Pool,
    target::{Arrived, Outcome, Request, Vectors},
};

/// The refusal of a request that ends workers; no other request may get it.
const POISON: &str = "poison";

#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// The first request is due from here on.
    pub(crate) start: Instant,
    /// Requests that are due earlier than this after the start warm up and are measured in nothing.
    pub(crate) warmup: Duration,
    /// Duration of the measurement after that.
    pub(crate) measured: Duration,
    /// Refusals that are no fault.
    pub(crate) expected: Vec<&'static str>,
}

/// What came of every request.
#[derive(Debug)]
pub struct Tally {
    rules: Rules,
    /// A bit a request: whether it was answered.
    settled: Vec<u64>,
    settled_count: u64,
    /// How many of what.
    pub counts: Counts,
    /// Of requests that were measured and answered with vectors.
    pub latency: Latencies,
    /// Of the same, time in the queue, where it was told.
    pub queued: Latencies,
    /// Of the same, time of computing, where it was told.
    pub computed: Latencies,
    /// Since they were last taken.
    recent: Recent,
    /// By device.
    pub devices: Vec<(DeviceName, Share)>,
    /// Answers of the CPU in place of a GPU, by reason.
    pub fallbacks: BTreeMap<&'static str, u64>,
    /// Latencies by the time at which requests were due.
    pub timeline: Timeline,
    /// Descriptions of the first wrong answers.
    pub complaints: Vec<String>,
}

/// Totals leave out what warmed up; what must not be at all counts there too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Answered with vectors, right or not.
    pub answered: u64,
    /// By refusal code.
    pub refused: BTreeMap<&'static str, u64>,
    /// Texts started again after a failure, summed over the answers.
    pub replays: u64,
    /// Of all: refusals that nothing explains.
    pub unexpected: u64,
    /// Of all: answers beyond the first.
    pub doubled: u64,
    /// Of all: answers with a wrong vector.
    pub wrong: u64,
    /// Answers that came within the measured time, and what they hold.
    pub in_time: InTime,
}

/// What answers hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InTime {
    /// Requests.
    pub requests: u64,
    /// Texts of them.
    pub texts: u64,
    /// Tokens of them.
    pub tokens: u64,
}

/// What a device answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Requests.
    pub requests: u64,
    /// Texts of them.
    pub texts: u64,
}

/// Answers since they were last taken.
#[derive(Debug)]
pub struct Recent {
    /// From the moment a request was due to its answer.
    pub latency: Latencies,
    /// Refusals.
    pub refused: u64,
}

impl Tally {
    const COMPLAINTS_MAX: usize = 5;

    pub(crate) fn new(rules: Rules) -> Self {
        let timeline = Timeline::new(rules.warmup + rules.measured);
        Self {
            rules,
            settled: Vec::new(),
            settled_count: 0,
            counts: Counts::default(),
            latency: Latencies::new(),
            queued: Latencies::new(),
            computed: Latencies::new(),
            recent: Recent::new(),
            devices: Vec::new(),
            fallbacks: BTreeMap::new(),
            timeline,
            complaints: Vec::new(),
        }
    }

    /// Counts an answer. Returns whether it is the first to its request.
    pub(crate) fn count(&mut self, arrived: &Arrived, pool: &Pool) -> bool {
        if !self.settle(&arrived.request) {
            self.counts.doubled += 1;
            self.complain(&arrived.request, "was answered again");
            return false;
        }
        self.settled_count += 1;
        match &arrived.outcome {
            Outcome::Vectors(vectors) => self.count_vectors(arrived, vectors, pool),
            Outcome::Refused { code, message } => self.count_refused(&arrived.request, code, message),
        }
        true
    }

    /// Whether a request has no answer yet.
    pub(crate) fn is_open(&self, request: &Request) -> bool {
        let (word, bit) = place_of(request);
        self.settled.get(word).is_none_or(|bits| bits & bit == 0)
    }

    /// Requests that were answered, with vectors or with an error.
    pub fn settled_count(&self) -> u64 {
        self.settled_count
    }

    /// What came since this was last asked.
    pub fn take_recent(&mut self) -> Recent {
        std::mem::replace(&mut self.recent, Recent::new())
    }

    fn count_vectors(&mut self, arrived: &Arrived, vectors: &Vectors, pool: &Pool) {
        let request = &arrived.request;
        // Poison that the CPU answered has a vector that no text of the pool has.
        let checked = match request.is_poison {
            true => Ok(()),
            false => pool.check(request.texts, &vectors.values, vectors.precision),
        };
        if let Err(wrong) = checked {
            self.counts.wrong += 1;
            self.complain(request, &format!("was answered wrongly by {}: {wrong}", vectors.device));
        }
        let latency = arrived.at.saturating_duration_since(request.due);
        let texts = request.texts.count as u64;
        let is_warm = self.is_warm(request);
        self.counts.answered += u64::from(is_warm);
        self.counts.replays += if is_warm { u64::from(vectors.replays) } else { 0 };
        self.recent.latency.record(latency);
        self.timeline.record(self.since_start(request.due), latency);
        if self.is_measured(arrived.at) {
            let in_time = &mut self.counts.in_time;
            in_time.requests += 1;
            in_time.texts += texts;
            in_time.tokens += pool.tokens(request.texts) as u64;
        }
        if let Some(reason) = vectors.fallback.filter(|_| is_warm) {
            *self.fallbacks.entry(reason).or_default() += 1;
        }
        if self.is_measured(request.due) {
            self.latency.record(latency);
            self.queued.record(vectors.queued);
            self.computed.record(vectors.computed);
            let share = self.share_of(vectors.device);
            share.requests += 1;
            share.texts += texts;
        }
    }

    fn share_of(&mut self, device: DeviceName) -> &mut Share {
        // There are few devices, and looking them up one by one needs no memory of its own.
        let known = self.devices.iter().position(|(name, _)| *name == device);
        let index = known.unwrap_or_else(|| {
            self.devices.push((device, Share::default()));
            self.devices.len() - 1
        });
        &mut self.devices[index].1
    }

    fn count_refused(&mut self, request: &Request, code: &'static str, message: &str) {
        if self.is_warm(request) {
            *self.counts.refused.entry(code).or_default() += 1;
        }
        self.recent.refused += 1;
        let is_expected = match code {
            POISON => request.is_poison,
            _ => self.rules.expected.contains(&code),
        };
        if !is_expected {
            self.counts.unexpected += 1;
            self.complain(request, &format!("was refused ({code}): {message}"));
        }
    }

    /// Marks a request as answered; false where it was already.
    fn settle(&mut self, request: &Request) -> bool {
        let is_first = self.is_open(request);
        let (word, bit) = place_of(request);
        if word >= self.settled.len() {
            self.settled.resize(word + 1, 0);
        }
        self.settled[word] |= bit;
        is_first
    }

    fn complain(&mut self, request: &Request, of: &str) {
        if self.complaints.len() < Self::COMPLAINTS_MAX {
            let at = self.since_start(request.due).as_secs_f64();
            self.complaints.push(format!("request {} (due at {at:.3} s) {of}", request.number));
        }
    }

    fn since_start(&self, moment: Instant) -> Duration {
        moment.saturating_duration_since(self.rules.start)
    }

    /// Whether a request counts: it came after the warm-up.
    fn is_warm(&self, request: &Request) -> bool {
        self.since_start(request.due) >= self.rules.warmup
    }

    fn is_measured(&self, moment: Instant) -> bool {
        let since = self.since_start(moment);
        (self.rules.warmup..self.rules.warmup + self.rules.measured).contains(&since)
    }
}

/// The index of a request's 64-bit word, and its bit there.
fn place_of(request: &Request) -> (usize, u64) {
    ((request.number / 64) as usize, 1 << (request.number % 64))
}

impl Recent {
    fn new() -> Self {
        Self { latency: Latencies::new(), refused: 0 }
    }
}

/// The longest latency of the requests that were due in each hundredth of a second.
#[derive(Debug)]
pub struct Timeline {
    longest: Vec<Duration>,
}

impl Timeline {
    const STEP: Duration = Duration::from_millis(10);

    /// A load without end would fill the memory.
    const KEPT: Duration = Duration::from_secs(2 * 3600);

    fn new(length: Duration) -> Self {
        Self { longest: vec![Duration::ZERO; Self::step_of(length.min(Self::KEPT)) + 1] }
    }

    /// Counts an answer. Times beyond two hours are not kept.
    pub fn record(&mut self, due: Duration, latency: Duration) {
        if due > Self::KEPT + Self::STEP {
            return;
        }
        // A client of a closed loop may send a little later than the end; that counts for the last step.
        let step = Self::step_of(due).min(self.longest.len() - 1);
        self.longest[step] = self.longest[step].max(latency);
    }

    /// By fault, in the order in which they were noticed: the longest latency of the requests that it met; `None` where none was
    /// answered. A request belongs to the last fault before its answer, if it was open then or due within `window` after it;
    /// faults of one step share theirs.
    pub fn longest_by_fault(&self, noticed: &[Duration], window: Duration) -> Vec<Option<Duration>> {
        let mut by_fault = vec![None; noticed.len()];
        for (step, longest) in self.longest.iter().enumerate().filter(|(_, longest)| !longest.is_zero()) {
            let due = Self::STEP * step as u32;
            let met = noticed.partition_point(|noticed| *noticed <= due + Self::STEP + *longest);
            let Some(&last) = noticed[..met].last().filter(|last| **last + window >= due) else { continue };
            let are_together = |at: &usize| Self::step_of(noticed[*at]) == Self::step_of(last);
            for at in (0..met).rev().take_while(are_together) {
                by_fault[at] = by_fault[at].max(Some(*longest));
            }
        }
        by_fault
    }

    fn step_of(at: Duration) -> usize {
        (at.as_millis() / Self::STEP.as_millis()) as usize
    }
}
