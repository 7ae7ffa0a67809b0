//! The batches of a worker: computed side by side where the executor can do that, and answered as they are done.
//! Reads no messages, and holds no more batches than there are slots.

use super::channel::SharedOutgoing;
use super::message::{Batch, FromWorker, ToSupervisor, TurnStep};
use super::serve_error::ServeError;
use super::slots::{Slots, Staged};
use super::wire::Garbled;
use crate::decoder::Sampling;
use crate::executors::{Executor, Failure, Outcomes, Output, SequenceStep, Steps, UnderWay};
use crate::time_shares::TimeShares;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Answers batches.
pub(super) struct Batches {
    executor: Arc<dyn Executor>,
    models: usize,
    slots: Slots,
    outgoing: SharedOutgoing,
    staged: Staged,
    outcomes: Outcomes,
    /// How the tokens of sequences are chosen that begin with the next turn.
    beginning: HashMap<u64, Sampling>,
    /// The oldest first.
    under_way: VecDeque<Begun>,
    /// How the time is divided among those under way.
    times: TimeShares,
    /// Batches that were computed.
    done: u64,
}

/// A worker computes this many batches one by one before it computes some side by side. What ended the worker before it is
/// tried again in the first of them, and whichever ends this one is known then.
const ONE_BY_ONE: u64 = 64;

/// Tokens of a GPU that cost about as much as a batch does beside them: its kernels are started and end one after the other.
const TOKENS_OF_A_BATCH: u64 = 2_048;

/// A batch that is being computed.
struct Begun {
    batch: Batch,
    /// Names it among those that share the time.
    share: u64,
    texts: UnderWay,
}

impl Batches {
    pub(super) fn new(executor: Arc<dyn Executor>, models: usize, slots: Slots, outgoing: SharedOutgoing) -> Self {
        Self {
            executor,
            models,
            slots,
            outgoing,
            staged: Staged::default(),
            outcomes: Outcomes::default(),
            beginning: HashMap::new(),
            under_way: VecDeque::new(),
            times: TimeShares::new(TOKENS_OF_A_BATCH),
            done: 0,
        }
    }

    /// The executor knows one model more.
    pub(super) fn add_model(&mut self) {
        self.models += 1;
    }

    pub(super) fn executor(&self) -> &dyn Executor {
        &*self.executor
    }

    pub(super) fn are_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// The executor with nothing under way.
    pub(super) fn settled(&mut self) -> Result<&Arc<dyn Executor>, ServeError> {
        while !self.under_way.is_empty() {
            self.finish(0)?;
        }
        Ok(&self.executor)
    }

    /// Frees what can be freed, after the batches under way, and tells how much that was.
    pub(super) fn trim(&mut self) -> Result<(), ServeError> {
        let executor = self.settled()?;
        let before = executor.memory().pool.reserved;
        executor.trim();
        let memory = executor.memory();
        self.tell(FromWorker::Trimmed { freed: before.saturating_sub(memory.pool.reserved), memory })
    }

    /// Answers a batch that is done, if one is. Without cores to spare it waits for the oldest.
    pub(super) fn collect(&mut self, may_spin: bool) -> Result<(), ServeError> {
        let done = self.under_way.iter().position(|begun| self.executor.is_done(&begun.texts));
        match done.or((!may_spin).then_some(0)) {
            Some(at) => self.finish(at),
            None => {
                std::hint::spin_loop();
                Ok(())
            }
        }
    }

    /// Begins a batch beside those under way, or computes it after them.
    pub(super) fn take(&mut self, batch: Batch) -> Result<(), ServeError> {
        self.stage(&batch)?;
        let at = Instant::now();
        let began = match self.done >= ONE_BY_ONE && batch.output == Output::Texts {
            true => self.executor.begin(batch.model as usize, &self.staged.texts(), batch.skip as usize),
            false => Ok(None),
        };
        match began {
            Ok(Some(texts)) => {
                let share = self.times.begin(u64::from(batch.extent.tokens), at);
                self.under_way.push_back(Begun { batch, share, texts });
                Ok(())
            }
            Ok(None) => {
                self.settled()?;
                let computed = self.compute(&batch, &[]);
                self.answer(&batch, computed)
            }
            Err(failure) => self.answer(&batch, Err(failure)),
        }
    }

    /// A sequence begins with the next turn.
    pub(super) fn begin_sequence(&mut self, sequence: u64, sampling: Sampling) {
        self.beginning.insert(sequence, sampling);
    }

    /// Lets go of a sequence.
    pub(super) fn free(&mut self, sequence: u64) {
        self.beginning.remove(&sequence);
        self.executor.free(sequence);
    }

    /// Computes steps of sequences and says what came of them.
    pub(super) fn take_turn(&mut self, batch: Batch, steps: &[TurnStep]) -> Result<(), ServeError> {
        self.settled()?;
        self.stage(&batch)?;
        if steps.len() != batch.extent.texts as usize {
            return Err(Garbled("steps without their tokens").into());
        }
        let (name, slot) = (batch.batch, batch.slot as usize);
        let event = match self.compute(&batch, steps) {
            Ok(compute) => {
                let new = std::mem::take(&mut self.outcomes.new_tokens);
                FromWorker::Turned { batch: name, slot, compute, new }
            }
            Err(problem) => FromWorker::Failed { batch: name, slot, problem },
        };
        self.tell(event)
    }

    fn stage(&mut self, batch: &Batch) -> Result<(), ServeError> {
        if batch.model as usize >= self.models {
            return Err(Garbled("a batch for a model that is not there").into());
        }
        Ok(self.slots.stage(batch.slot, batch.extent, &mut self.staged)?)
    }

    /// Waits for one of the batches under way and answers it.
    fn finish(&mut self, at: usize) -> Result<(), ServeError> {
        let Some(Begun { batch, share, texts }) = self.under_way.remove(at) else { return Ok(()) };
        let finished = self.executor.finish(texts, &mut self.outcomes);
        let compute = self.times.end(share, Instant::now());
        self.answer(&batch, finished.map(|()| compute))
    }

    fn answer(&mut self, batch: &Batch, computed: Result<Duration, Failure>) -> Result<(), ServeError> {
        self.done += 1;
        let (name, slot) = (batch.batch, batch.slot as usize);
        self.tell(match computed {
            Ok(compute) => {
                self.slots.put_rows(slot, &self.outcomes.rows);
                FromWorker::Finished { batch: name, slot, compute }
            }
            Err(problem) => FromWorker::Failed { batch: name, slot, problem },
        })
    }

    fn tell(&self, event: FromWorker) -> Result<(), ServeError> {
        Ok(self.outgoing.send(&ToSupervisor::Event(event))?)
    }

    /// Computes the staged batch, or steps where there are some; says how long that took.
    fn compute(&mut self, batch: &Batch, steps: &[TurnStep]) -> Result<Duration, Failure> {
        let Self { executor, staged, outcomes, beginning, .. } = self;
        let began = Instant::now();
        let mut told = |step: &TurnStep| beginning.remove(&step.sequence).filter(|_| step.from == 0);
        let samplings: Vec<Option<Sampling>> = steps.iter().map(&mut told).collect();
        let (texts, skip) = (staged.texts(), batch.skip as usize);
        let with_tokens = steps.iter().zip(&samplings).zip(&texts).map(|((step, sampling), text)| {
            let TurnStep { sequence, from, new_tokens_max, passes_max, goes_on } = *step;
            let sampling = sampling.as_ref();
            SequenceStep { sequence, from, ids: text.ids, new_tokens_max, passes_max, goes_on, sampling }
        });
        let parts: Vec<SequenceStep<'_>> = with_tokens.collect();
        let steps = match parts.is_empty() {
            true => Steps::of(&texts, skip, batch.output),
            false => Steps::Parts(&parts),
        };
        executor.run(batch.model as usize, steps, outcomes)?;
        Ok(began.elapsed().saturating_sub(outcomes.waited))
    }
}
