//! One request of the book: how it and each of its texts stand, and what it was computed by.
//! Knows no other request.

use crate::check::rule::{Broken, Rule, Verdict, holds};
use crate::load::Poison;
use magray_core::schedule::{
    Allowed, BatchId, DeviceId, DeviceKind, DeviceState, Failure, Fallback, Moment, Refused, Report, Request, Sequence,
    View,
};

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    pub(crate) poison: Option<Poison>,
    pub(crate) arrived: Moment,
    pub(crate) tokens: u64,
    pub(crate) fate: Fate,
    pub(crate) texts: Vec<Text>,
    /// By device, whether it can keep the state of its sequences.
    pub(crate) has_space: Vec<bool>,
    /// Texts that are neither done nor in a batch.
    pub(crate) waiting: usize,
    /// Its steps in running batches.
    pub(crate) running: usize,
    /// Its texts failed on a GPU.
    pub(crate) failed_on_gpu: bool,
    /// It was in a batch whose device ran out of memory.
    pub(crate) out_of_memory: bool,
    /// Failures that leave the worker alive.
    pub(crate) transients: u32,
    /// Whether it was in a batch that may or may not count, because its worker was being ended.
    pub(super) is_doubtful: bool,
    /// Whether a worker was ended while it was computed there.
    pub(super) is_shaken: bool,
    pub(super) restarted: bool,
    pub(super) stranded_since: Option<Moment>,
    pub(super) last: Option<Last>,
    /// When a text of it was started last.
    pub(crate) started: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Expected,
    Live,
    Cancelled,
    Answered,
    Refused(Refused),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Text {
    Waiting,
    Running(BatchId),
    Done,
    /// Computed by a worker that was being ended: the machine may count it or compute it again.
    PerhapsDone,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Last {
    pub(crate) device: DeviceId,
    pub(crate) texts: u32,
    pub(crate) started: Moment,
    pub(crate) is_cpu: bool,
    /// Whether a GPU was in rotation when it was placed; `None`: that changed at the same step.
    pub(crate) gpu_in_rotation: Option<bool>,
    pub(crate) gpu_exists: bool,
    /// Whether a GPU that had the weights may have been about to lose them.
    pub(crate) is_crowded: bool,
}

impl Entry {
    /// Whether the request may be computed on the device at this place.
    pub(crate) fn may_use(&self, at: usize, kind: DeviceKind) -> bool {
        let is_allowed = match self.request.allowed {
            Allowed::Any => true,
            Allowed::Gpu => kind == DeviceKind::Gpu,
            Allowed::Cpu => kind == DeviceKind::Cpu,
            Allowed::Only(device) => usize::from(device.0) == at,
            Allowed::Rather(device) => usize::from(device.0) == at || kind == DeviceKind::Cpu,
        };
        is_allowed && self.has_space.get(at).is_some_and(|has_space| *has_space)
    }

    /// Since when it waits: since it came, or since a part of it was started.
    pub(crate) fn waits_since(&self) -> Moment {
        self.started.unwrap_or(self.arrived)
    }

    /// Its tokens that are not computed.
    pub(crate) fn left(&self) -> u64 {
        let open = self.texts.iter().zip(&self.request.sequences).filter(|(text, _)| **text != Text::Done);
        open.map(|(_, sequence)| u64::from(sequence.tokens)).sum()
    }

    /// Whether its sequences have many steps.
    pub(crate) fn is_generated(&self) -> bool {
        self.request.sequences.iter().any(Sequence::is_generated)
    }

    /// A step of a sequence of many is computed.
    pub(crate) fn finish_step(&mut self, text: usize, batch: BatchId) {
        if self.texts[text] == Text::Running(batch) {
            self.texts[text] = Text::Waiting;
            self.waiting += 1;
        }
    }

    /// A sequence of many steps has all its tokens.
    pub(crate) fn end_sequence(&mut self, text: usize) {
        self.waiting -= usize::from(self.texts[text] == Text::Waiting);
        self.texts[text] = Text::Done;
    }

    /// How the devices are that may compute it.
    pub(super) fn states(&self, view: &View) -> impl Iterator<Item = DeviceState> {
        let mine = view.devices.iter().enumerate().filter(|(at, device)| self.may_use(*at, device.kind));
        mine.map(|(_, device)| device.state)
    }

    pub(crate) fn start(&mut self, text: usize, batch: BatchId, is_doubtful: bool) -> Verdict {
        let id = self.request.id.0;
        match self.texts[text] {
            Text::Waiting => self.waiting -= 1,
            Text::PerhapsDone => {}
            Text::Running(_) if is_doubtful => {}
            before => {
                let message = format!("text {text} of request {id} is started in batch {}: it was {before:?}", batch.0);
                return Err(Broken { rule: Rule::TextsOnce, message });
            }
        }
        self.texts[text] = Text::Running(batch);
        Ok(())
    }

    pub(crate) fn finish(&mut self, text: usize, batch: BatchId, is_doubtful: bool) {
        if self.texts[text] == Text::Running(batch) {
            self.texts[text] = if is_doubtful { Text::PerhapsDone } else { Text::Done };
        }
    }

    pub(crate) fn put_back(&mut self, text: usize, batch: BatchId) {
        if self.texts[text] == Text::Running(batch) {
            self.texts[text] = Text::Waiting;
            self.waiting += 1;
            self.restarted = true;
        }
    }

    pub(crate) fn note_failure(&mut self, failure: Option<Failure>, is_gpu: bool) {
        self.failed_on_gpu |= is_gpu;
        self.out_of_memory |= failure == Some(Failure::OutOfMemory);
        self.transients += u32::from(failure == Some(Failure::Transient));
    }

    pub(crate) fn note_last(&mut self, last: Last) {
        self.last = Some(last);
    }

    /// A worker that computes it is being ended.
    pub(crate) fn note_kill(&mut self, is_doubtful: bool) {
        self.is_shaken = true;
        self.is_doubtful |= is_doubtful;
    }

    /// Whether no fault has touched it: only then is its treatment determined.
    pub(crate) fn is_untouched(&self) -> bool {
        !self.restarted && !self.is_shaken
    }

    pub(super) fn judge_report(&self, report: &Report, now: Moment) -> Verdict {
        let Some(last) = self.last.filter(|_| !self.is_doubtful) else { return Ok(()) };
        let is_so = report.device == last.device
            && report.batch_texts == last.texts
            && report.queued == last.started.since(self.arrived)
            && report.computed == now.since(last.started)
            && (report.replays > 0) == self.restarted;
        let needs_gpu = self.request.allowed.has_fallback() && last.is_cpu && last.gpu_exists;
        let is_fallback_honest = match (report.fallback, last.gpu_in_rotation) {
            (Some(Fallback::Waking | Fallback::NotLoaded | Fallback::OutOfMemory), Some(true)) if last.is_crowded => {
                needs_gpu
            }
            (Some(_), Some(true)) => needs_gpu && self.failed_on_gpu,
            (Some(_), _) => needs_gpu,
            (None, Some(false)) => !needs_gpu,
            (None, _) => !needs_gpu || !self.failed_on_gpu || self.texts.len() > 1,
        };
        holds(is_so && is_fallback_honest, Rule::HonestReport, || {
            format!(
                "request {} is completed with {report:?}; its last batch was {last:?}, it arrived {:?}, was it started \
                 again: {}, did a GPU fail it: {}",
                self.request.id.0, self.arrived, self.restarted, self.failed_on_gpu
            )
        })
    }
}
