//! The book of failures: when a device may be given up, and how fast it may be tried again.
//! Counts by itself; where the machine may count or not, it counts in the machine's favour.

use super::batches::Batches;
use super::rule::{Rule, Verdict, holds};
use super::workers::Workers;
use magray_core::schedule::{Change, DeviceId, Ending, Event, Failure, Moment, Recovery};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Ladder {
    records: Vec<Record>,
    recovery: Recovery,
    /// Devices that left at this step, and whether permanently.
    left: Vec<(DeviceId, bool)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// All failures that may count since the last reset, without forgetting.
    most: u32,
    /// Workers that ended before they computed anything, without those that may be forgotten.
    least: u32,
    last_failure: Moment,
    /// Whether the worker has finished anything since it was started.
    has_worked: bool,
    last_spawn: Option<Moment>,
    /// Something other than time allows a new worker at once.
    is_invited: bool,
}

impl Ladder {
    pub(crate) fn new(devices: usize, recovery: Recovery) -> Self {
        Self { records: vec![Record::default(); devices], recovery, left: Vec::new() }
    }

    /// Records a failure; called before the other books know of it. Failures of a worker that was to be ended anyway need not
    /// count.
    pub(crate) fn heard(&mut self, event: &Event, workers: &Workers, batches: &Batches, now: Moment) {
        let decay = self.recovery.decay;
        match event {
            Event::Finished { batch, .. } => {
                if let Some(batch) = batches.get(*batch) {
                    self.at(batch.device).has_worked = true;
                }
            }
            Event::Failed { batch, failure } => {
                let Some(device) = batches.get(*batch).map(|batch| batch.device) else { return };
                let record = self.at(device);
                match failure {
                    Failure::Transient | Failure::WrongAnswer | Failure::Sticky | Failure::Lost => record.most += 1,
                    Failure::OutOfMemory => {}
                }
            }
            Event::NotLoaded { device, failure, .. } => match failure {
                Failure::WrongAnswer | Failure::Sticky | Failure::Lost => self.at(*device).most += 1,
                Failure::Transient | Failure::OutOfMemory => {}
            },
            // A worker that rests has not failed.
            Event::Down { device, ending } if workers.is_resting(*device) && *ending != Ending::Lost => {
                self.at(*device).is_invited = true;
            }
            Event::Down { device, ending } if workers.has_worker(*device) => {
                let is_ordered = workers.kill_cause(*device).is_some();
                // That a device which is not there starts no worker says nothing new.
                let is_lost = workers.is_lost(*device);
                let record = self.at(*device);
                match ending {
                    Ending::NotStarted if !is_ordered && !is_lost => record.fails_certainly(now, decay),
                    Ending::Crashed | Ending::Killed if !record.has_worked && !is_ordered => {
                        record.fails_certainly(now, decay);
                    }
                    _ => record.most += 1,
                }
            }
            Event::Probed { device, passed } if workers.is_probing(*device) => {
                let retries_max = self.recovery.retries_max;
                let record = self.at(*device);
                record.has_worked |= *passed;
                record.most += u32::from(!passed);
                if *passed {
                    // It is trusted again, but not as far as to fail once more without leaving.
                    let remembered = record.remembered(now, decay);
                    // What was forgotten by then is not forgotten again.
                    record.last_failure = record.last_failure + decay * (record.least - remembered);
                    record.least = remembered.min(retries_max);
                }
            }
            Event::Reset { device } => {
                let record = self.at(*device);
                *record = Record { has_worked: record.has_worked, is_invited: true, ..Record::default() };
            }
            Event::Judged { device, .. } => self.at(*device).is_invited = true,
            _ => {}
        }
    }

    /// A worker is to be started. Too soon after too many failures is a loop.
    pub(crate) fn spawned(&mut self, device: DeviceId, now: Moment) -> Verdict {
        let Recovery { retries_max, probe_after, decay, .. } = self.recovery;
        let record = self.at(device);
        let count = record.remembered(now, decay);
        let is_too_soon = record.last_spawn.is_some_and(|last| now.since(last) < probe_after);
        let is_fresh_start = record.is_invited || record.has_worked;
        holds(is_fresh_start || count <= retries_max || !is_too_soon, Rule::CrashLoop, || {
            format!("device {} failed {count} times and gets a new worker without a pause", device.0)
        })?;
        record.last_spawn = Some(now);
        record.has_worked = false;
        record.is_invited = false;
        Ok(())
    }

    /// An alert says that a device left.
    pub(crate) fn alerted(&mut self, device: DeviceId, change: Change) {
        if let Change::Left { is_permanent, .. } = change {
            self.left.push((device, is_permanent));
        }
    }

    /// A device that left, for a while or permanently, had a reason or enough failures.
    pub(crate) fn settle(&mut self, workers: &Workers) -> Verdict {
        let Recovery { retries_max, temporary_max, .. } = self.recovery;
        for (device, is_permanent) in std::mem::take(&mut self.left) {
            let most = self.at(device).most;
            let is_earned = match is_permanent {
                true => most > temporary_max,
                false => most > retries_max || workers.has_reason_to_leave(device),
            };
            holds(is_earned, Rule::NotGivenUp, || {
                let how = if is_permanent { "for good" } else { "for a while" };
                format!("device {} left {how} after at most {most} failures", device.0)
            })?;
        }
        Ok(())
    }

    fn at(&mut self, device: DeviceId) -> &mut Record {
        &mut self.records[usize::from(device.0)]
    }
}

impl Record {
    fn fails_certainly(&mut self, now: Moment, decay: Duration) {
        self.most += 1;
        self.least = self.remembered(now, decay) + 1;
        self.last_failure = now;
    }

    fn remembered(&self, now: Moment, decay: Duration) -> u32 {
        let forgotten = now.since(self.last_failure).as_nanos() / decay.as_nanos().max(1);
        self.least.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX))
    }
}
