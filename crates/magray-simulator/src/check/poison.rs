//! The book of suspects: requests that were being computed when a worker was lost.
//! Judges by what the machine was told; that a request truly is poison is the world's secret.

use super::batches::{Batch, Batches};
use super::requests::{Fate, Ledger};
use super::rule::{Rule, Verdict, holds};
use super::workers::Workers;
use magray_core::schedule::{DeviceId, Ending, Event, Failure, KillCause, Moment, Refused, RequestId, Step};
use std::collections::BTreeMap;

/// How often the CPU tries a request that it cannot compute.
const CPU_FAILURES_MAX: u32 = 2;

/// How strongly a loss points at a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blame {
    /// A worker was lost, and the request was at the head of its queue.
    Certain,
    /// A worker was lost, and the machine may see another reason.
    Possible,
    /// The CPU could not compute it.
    Cpu,
}

#[derive(Debug)]
pub(crate) struct Suspects {
    records: BTreeMap<RequestId, Record>,
    kills_max: u32,
    /// Reached the limit at this step.
    condemned: Vec<RequestId>,
}

/// The losses of one request.
#[derive(Clone, Debug, Default)]
struct Record {
    /// Lost workers that may count against it.
    most: u32,
    /// Lost workers that must count against it, by the text that was there.
    least: BTreeMap<u32, u32>,
    on_cpu: u32,
    /// Whether it was once computed alone.
    was_alone: bool,
    /// Since when it may be a suspect.
    since: Option<Moment>,
    /// Since when it certainly is one.
    certain_since: Option<Moment>,
    cpu_since: Option<Moment>,
}

impl Record {
    /// Lost workers that must count against it: those with the same text.
    fn least(&self) -> u32 {
        self.least.values().copied().max().unwrap_or(0)
    }
}

impl Suspects {
    pub(crate) fn new(kills_max: u32) -> Self {
        Self { records: BTreeMap::new(), kills_max, condemned: Vec::new() }
    }

    /// Records the loss of a worker; called before the other books know of it.
    pub(crate) fn heard(&mut self, event: &Event, workers: &Workers, batches: &Batches, now: Moment) {
        match event {
            Event::Failed { batch, failure: Failure::Sticky } => {
                let Some(entry) = batches.get(*batch) else { return };
                // Once the worker is broken, what else it fails is not to blame.
                let is_first = !workers.is_being_ended(entry.device);
                let is_oldest = batches.on(entry.device).next().is_some_and(|(oldest, _)| oldest == *batch);
                self.blame(entry, if is_first && is_oldest { Blame::Certain } else { Blame::Possible }, now);
            }
            Event::Failed { batch, failure: Failure::Transient } => {
                if let Some(batch) = batches.get(*batch).filter(|batch| batches.is_cpu(batch.device)) {
                    self.blame(batch, Blame::Cpu, now);
                }
            }
            Event::Finished { batch, .. } => {
                if let Some(batch) = batches.get(*batch) {
                    self.acquit(&batch.steps);
                }
            }
            Event::Down { device, ending: Ending::Crashed } if workers.has_worker(*device) => {
                let is_certain = !workers.is_being_ended(*device);
                if let Some(batch) = batches.oldest(*device) {
                    self.blame(batch, if is_certain { Blame::Certain } else { Blame::Possible }, now);
                }
            }
            _ => {}
        }
    }

    /// A worker is to be ended because a batch took too long: blames that batch.
    pub(crate) fn killed(&mut self, device: DeviceId, cause: KillCause, batches: &Batches, now: Moment) {
        if cause == KillCause::Overdue
            && let Some(batch) = batches.oldest(device)
        {
            // The machine may count it now or when the worker is gone.
            self.blame(batch, Blame::Possible, now);
        }
    }

    /// A batch that started before its request was suspected adds nothing: otherwise the loss of all workers at once would make
    /// every large request a poison.
    fn blame(&mut self, batch: &Batch, blame: Blame, now: Moment) {
        let is_alone = batch.steps.iter().all(|step| step.request == batch.steps[0].request);
        for request in distinct(&batch.steps) {
            let record = self.records.entry(request).or_default();
            let is_new = |since: &mut Option<Moment>| match *since {
                Some(since) => is_alone && batch.started >= since,
                None => {
                    *since = Some(now);
                    true
                }
            };
            let is_against = is_new(if blame == Blame::Cpu { &mut record.cpu_since } else { &mut record.since });
            record.most += u32::from(is_against && blame != Blame::Cpu);
            record.on_cpu += u32::from(is_against && blame == Blame::Cpu);
            record.was_alone |= is_against && is_alone;
            if blame == Blame::Certain && is_new(&mut record.certain_since) {
                for text in
                    batch.steps.iter().filter(|step| step.request == request).flat_map(|step| step.sequences.clone())
                {
                    *record.least.entry(text).or_default() += 1;
                }
                if is_alone && record.least() >= self.kills_max {
                    self.condemned.push(request);
                }
            }
        }
    }

    /// A suspect shares its batch with no other request.
    pub(crate) fn may_share(&self, steps: &[Step], ledger: &Ledger) -> Verdict {
        let suspect = steps.iter().find(|step| {
            let record = self.records.get(&step.request);
            record.is_some_and(|record| !record.least.is_empty()) && ledger.is_live(step.request)
        });
        let Some(suspect) = suspect else { return Ok(()) };
        holds(steps.iter().all(|step| step.request == suspect.request), Rule::SuspectsAlone, || {
            format!("request {} was there when a worker was lost, and is computed with others", suspect.request.0)
        })
    }

    pub(crate) fn may_refuse(&self, request: RequestId, refused: Refused) -> Verdict {
        if refused != Refused::Poison {
            return Ok(());
        }
        let record = self.records.get(&request).cloned().unwrap_or_default();
        let was_enough = record.most >= self.kills_max || record.on_cpu >= CPU_FAILURES_MAX.min(self.kills_max);
        // Where one worker is enough, it may be one that was lost before with a batch that was its own by chance.
        let is_earned = was_enough && (record.was_alone || self.kills_max == 1);
        holds(is_earned, Rule::Innocent, || {
            format!("request {} is refused as poison after {record:?}, of {} workers", request.0, self.kills_max)
        })
    }

    /// An answered request is no suspect any more.
    pub(crate) fn forget(&mut self, request: RequestId) {
        self.records.remove(&request);
    }

    /// A text of a suspect was computed: it may still be one or not.
    fn acquit(&mut self, steps: &[Step]) {
        for request in distinct(steps) {
            if let Some(record) = self.records.get_mut(&request) {
                record.least.clear();
                record.certain_since = None;
            }
        }
    }

    pub(crate) fn settle(&mut self, ledger: &Ledger) -> Verdict {
        for request in std::mem::take(&mut self.condemned) {
            let fate = ledger.entry(request)?.fate;
            holds(fate != Fate::Live, Rule::PoisonStopped, || {
                format!("request {} ended {} workers, the last one alone, and is kept", request.0, self.kills_max)
            })?;
        }
        for (request, record) in &self.records {
            holds(record.least() <= self.kills_max || !ledger.is_live(*request), Rule::PoisonStopped, || {
                format!("request {} ended {} workers and is kept", request.0, record.least())
            })?;
        }
        Ok(())
    }
}

fn distinct(steps: &[Step]) -> Vec<RequestId> {
    let mut requests: Vec<RequestId> = steps.iter().map(|step| step.request).collect();
    requests.sort_unstable();
    requests.dedup();
    requests
}
