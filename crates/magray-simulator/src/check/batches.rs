//! The book of batches: what is in them, where they run, and what became of their texts.
//! Judges their bounds; whether a device may be used is another book's.

use super::requests::{Last, Ledger};
use super::rule::{Broken, Rule, Verdict, holds};
use super::workers::Workers;
use magray_core::schedule::{
    BatchId, Batching, DeviceId, DeviceKind, DeviceSpec, DeviceState, Failure, Group, KillCause, Location, ModelId,
    ModelView, Moment, Residency, Sizing, Span, Step, View,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Successful batches after which a device whose memory was full gets larger ones again.
const CAP_LASTS: u32 = 8;

#[derive(Debug)]
pub(crate) struct Batches {
    running: BTreeMap<BatchId, Batch>,
    used: BTreeSet<BatchId>,
    specs: Vec<DeviceSpec>,
    caps: Vec<Cap>,
    batching: Batching,
    /// By model: whether a GPU in rotation had it after the previous step.
    on_gpus: Vec<bool>,
    is_crowded: bool,
    /// Batches of this step.
    fresh: Vec<BatchId>,
    /// Which groups each device has computed.
    measured: BTreeSet<(DeviceId, Group)>,
}

/// The limit of a device whose memory was full.
#[derive(Clone, Copy, Debug)]
struct Cap {
    tokens: u64,
    good: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) device: DeviceId,
    pub(crate) steps: Vec<Step>,
    pub(crate) group: Group,
    pub(crate) tokens: u64,
    pub(crate) texts: u32,
    /// Passes over its steps at most.
    pub(crate) passes: u32,
    pub(crate) started: Moment,
    /// Its worker is being ended for a reason that allows giving the batch up at once.
    pub(crate) is_doubtful: bool,
    gpu_in_rotation: Option<bool>,
}

#[derive(Clone, Copy)]
pub(crate) struct New<'a> {
    pub(crate) device: DeviceId,
    pub(crate) batch: BatchId,
    pub(crate) steps: &'a [Step],
    pub(crate) passes: u32,
    /// How long the machine expects it to take.
    pub(crate) expected: Duration,
}

impl Batches {
    pub(crate) fn new(specs: Vec<DeviceSpec>, batching: Batching) -> Self {
        Self {
            running: BTreeMap::new(),
            used: BTreeSet::new(),
            caps: vec![Cap { tokens: u64::MAX, good: 0 }; specs.len()],
            specs,
            batching,
            on_gpus: Vec::new(),
            is_crowded: false,
            fresh: Vec::new(),
            measured: BTreeSet::new(),
        }
    }

    pub(crate) fn get(&self, batch: BatchId) -> Option<&Batch> {
        self.running.get(&batch)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// The batches of a device, the oldest first.
    pub(crate) fn on(&self, device: DeviceId) -> impl Iterator<Item = (BatchId, &Batch)> {
        self.running.iter().filter(move |(_, batch)| batch.device == device).map(|(id, batch)| (*id, batch))
    }

    /// The batch that the device has had longest.
    pub(crate) fn oldest(&self, device: DeviceId) -> Option<&Batch> {
        self.on(device).next().map(|(_, batch)| batch)
    }

    pub(crate) fn is_cpu(&self, device: DeviceId) -> bool {
        self.specs[usize::from(device.0)].location == Location::InProcess
    }

    /// Whether a device computes a group for the first time, which takes an unknown time.
    pub(crate) fn is_trying(&self, device: DeviceId, group: Group) -> bool {
        !self.measured.contains(&(device, group)) && self.on(device).any(|(_, batch)| batch.group == group)
    }

    pub(crate) fn start(&mut self, new: New<'_>, ledger: &mut Ledger, now: Moment) -> Verdict {
        let New { device, batch, steps, passes, expected } = new;
        holds(self.used.insert(batch), Rule::TextsOnce, || format!("the name of batch {} is used twice", batch.0))?;
        let mut entry = Batch {
            device,
            steps: steps.to_vec(),
            group: Group { model: ModelId(0), key: 0 },
            tokens: 0,
            texts: 0,
            started: now,
            passes,
            is_doubtful: false,
            gpu_in_rotation: None,
        };
        holds(!steps.is_empty(), Rule::BatchBounds, || format!("batch {} is empty", batch.0))?;
        for (at, step) in steps.iter().enumerate() {
            let group = self.start_step(step, batch, ledger, &mut entry)?;
            let is_alike = (step.span == Span::Whole) == (steps[0].span == Span::Whole);
            holds(at == 0 || group == entry.group && is_alike, Rule::BatchBounds, || {
                format!("batch {} has texts of {group:?} and {:?}", batch.0, entry.group)
            })?;
            entry.group = group;
        }
        self.judge_bounds(batch, &entry)?;
        self.judge_time(batch, &entry, expected)?;
        self.running.insert(batch, entry);
        self.fresh.push(batch);
        let slots = self.specs[usize::from(device.0)].slots;
        holds(self.on(device).count() <= slots, Rule::Slots, || {
            format!("device {} has more batches than its {slots} slots", device.0)
        })
    }

    fn start_step(&self, step: &Step, batch: BatchId, ledger: &mut Ledger, into: &mut Batch) -> Result<Group, Broken> {
        let at = usize::from(into.device.0);
        let entry = ledger.entry(step.request)?;
        holds(ledger.is_live(step.request), Rule::AnsweredOnce, || {
            format!("request {} is started in batch {} after its end", step.request.0, batch.0)
        })?;
        holds(entry.may_use(at, self.specs[at].kind), Rule::Allowed, || {
            format!("request {} may be computed on {:?}, not on device {at}", step.request.0, entry.request.allowed)
        })?;
        let is_inside = step.sequences.start < step.sequences.end && step.sequences.end as usize <= entry.texts.len();
        holds(is_inside, Rule::TextsOnce, || format!("{step:?} of batch {} is no step", batch.0))?;
        let entry = ledger.entry_mut(step.request).expect("it was there above");
        for text in step.sequences.start as usize..step.sequences.end as usize {
            let is_doubtful = match entry.texts[text] {
                super::requests::Text::Running(before) => self.running.get(&before).is_some_and(|b| b.is_doubtful),
                _ => false,
            };
            entry.start(text, batch, is_doubtful)?;
            into.tokens += match &step.span {
                Span::Whole => u64::from(entry.request.sequences[text].tokens),
                Span::Part { tokens, .. } => tokens.len() as u64,
            };
        }
        let is_alike = entry.is_generated() == (step.span != Span::Whole);
        holds(is_alike, Rule::Steps, || format!("{step:?} of batch {} is not a step of its sequence", batch.0))?;
        entry.running += 1;
        entry.started = Some(into.started);
        into.texts += step.sequences.end - step.sequences.start;
        Ok(entry.request.group)
    }

    fn judge_bounds(&self, id: BatchId, batch: &Batch) -> Verdict {
        holds(batch.texts <= self.batching.texts_max, Rule::BatchBounds, || {
            format!("batch {} has {} texts, more than {}", id.0, batch.texts, self.batching.texts_max)
        })?;
        let at = usize::from(batch.device.0);
        let most = u64::from(self.specs[at].batch_tokens_max);
        holds(batch.texts == 1 || batch.tokens <= most, Rule::BatchBounds, || {
            format!("batch {} has {} texts of {} tokens, more than {most}", id.0, batch.texts, batch.tokens)
        })?;
        let cap = self.caps[at].tokens;
        holds(batch.texts == 1 || batch.tokens <= cap, Rule::MemoryCap, || {
            format!("batch {} has {} tokens, and device {at} had no memory for twice {cap}", id.0, batch.tokens)
        })
    }

    fn judge_time(&self, id: BatchId, batch: &Batch, expected: Duration) -> Verdict {
        let spec = &self.specs[usize::from(batch.device.0)];
        let is_bounded = spec.kind == DeviceKind::Cpu && batch.texts > 1 && self.batching.sizing == Sizing::Adaptive;
        let is_turn = batch.steps.iter().any(|step| step.span != Span::Whole);
        let Some(slices) = self.batching.slices.filter(|_| is_bounded && !is_turn) else { return Ok(()) };
        // Where fewer texts would leave cores idle it may take longer.
        let most = slices.cpu * if spec.is_reserved { 4 } else { 2 } + Duration::from_micros(1);
        holds(expected <= most, Rule::BatchTime, || {
            format!("batch {} of {} texts is expected to take {expected:?}, and may take {most:?}", id.0, batch.texts)
        })
    }

    pub(crate) fn finish(&mut self, batch: BatchId, ledger: &mut Ledger, _now: Moment) {
        let Some(done) = self.running.remove(&batch) else { return };
        let at = usize::from(done.device.0);
        self.measured.insert((done.device, done.group));
        if self.caps[at].tokens != u64::MAX {
            self.caps[at].good += 1;
            if self.caps[at].good >= CAP_LASTS {
                self.caps[at] = Cap { tokens: u64::MAX, good: 0 };
            }
        }
        let last = Last {
            device: done.device,
            texts: done.texts,
            started: done.started,
            is_cpu: self.specs[at].location == Location::InProcess,
            gpu_in_rotation: done.gpu_in_rotation,
            gpu_exists: self.specs.iter().any(|spec| spec.location == Location::Worker),
            is_crowded: self.is_crowded,
        };
        for step in &done.steps {
            let entry = ledger.entry_mut(step.request).expect("steps are of known requests");
            for text in step.sequences.clone() {
                match step.span {
                    Span::Whole => entry.finish(text as usize, batch, done.is_doubtful),
                    Span::Part { .. } => entry.finish_step(text as usize, batch),
                }
            }
            entry.note_last(last);
            ledger.step_ended(step.request);
        }
    }

    pub(crate) fn fail(&mut self, batch: BatchId, failure: Failure, ledger: &mut Ledger) {
        let Some(failed) = self.running.remove(&batch) else { return };
        if failure == Failure::OutOfMemory && !failed.is_doubtful {
            let cap = &mut self.caps[usize::from(failed.device.0)];
            // A batch that was placed before the last one failed says nothing new where it was smaller.
            *cap = Cap { tokens: cap.tokens.min((failed.tokens / 2).max(1)), good: 0 };
        }
        self.put_back(batch, &failed, Some(failure), ledger);
    }

    pub(crate) fn lose(&mut self, device: DeviceId, ledger: &mut Ledger) {
        let lost: Vec<BatchId> = self.on(device).map(|(id, _)| id).collect();
        for id in lost {
            let batch = self.running.remove(&id).expect("it was there above");
            self.put_back(id, &batch, None, ledger);
        }
    }

    /// The machine may give up the batches of a worker that it ends for such a reason, or wait for its end.
    pub(crate) fn doubt(&mut self, device: DeviceId, cause: KillCause, ledger: &mut Ledger) {
        let is_doubtful = matches!(cause, KillCause::Sticky | KillCause::RuledOut);
        for batch in self.running.values_mut().filter(|batch| batch.device == device) {
            batch.is_doubtful = is_doubtful;
            for step in &batch.steps {
                ledger.entry_mut(step.request).expect("steps are of known requests").note_kill(is_doubtful);
            }
        }
    }

    fn put_back(&self, id: BatchId, batch: &Batch, failure: Option<Failure>, ledger: &mut Ledger) {
        let is_gpu = self.specs[usize::from(batch.device.0)].location == Location::Worker;
        for step in &batch.steps {
            let entry = ledger.entry_mut(step.request).expect("steps are of known requests");
            for text in step.sequences.clone() {
                entry.put_back(text as usize, id);
            }
            entry.note_failure(failure, is_gpu);
            ledger.step_ended(step.request);
        }
    }

    pub(crate) fn settle(&mut self, view: &View, workers: &Workers) -> Verdict {
        for (at, device) in view.devices.iter().enumerate() {
            let id = DeviceId(at as u16);
            let ours = self.on(id).count();
            let is_so = device.batches == ours || (workers.is_being_ended(id) && device.batches <= ours);
            holds(is_so, Rule::HonestView, || {
                format!("the view has {} batches on device {at}, and there are {ours}", device.batches)
            })?;
        }
        Ok(())
    }

    /// Notes for the batches of this step whether they were placed while a GPU in rotation had their model.
    pub(crate) fn note_rotation(&mut self, view: &View, is_crowded: bool) {
        let has_gpu = |model: &ModelView| {
            let mut there = view.devices.iter().zip(&model.residency);
            there.any(|(device, residency)| {
                let is_used = device.location == Location::Worker && device.state == DeviceState::InRotation;
                is_used && *residency == Residency::OnDevice
            })
        };
        let after: Vec<bool> = view.models.iter().map(has_gpu).collect();
        for id in std::mem::take(&mut self.fresh) {
            if let Some(batch) = self.running.get_mut(&id) {
                let at = batch.group.model.0 as usize;
                let before = self.on_gpus.get(at).copied().unwrap_or(false);
                batch.gpu_in_rotation = (after[at] == before).then_some(before);
            }
        }
        self.on_gpus = after;
        self.is_crowded = is_crowded;
    }
}
