//! How the dispatcher reaches an executor: in this process (`in_process.rs`) or in a worker (`in_worker.rs`).
//! Decides nothing: it does what it is told and reports what came of it.

use super::work::{Output, Work};
use crate::decoder::{SPECULATE_MAX, Sampling};
use crate::executors::{NewTokens, RankSums, SequenceStep};
use crate::gpu::MemoryStats;
use crate::packed::Tokens;
use crate::worker::{self, VectorOrder, VectorReply};
use magray_core::ledger::CollectionId;
use magray_core::schedule::{BatchId, KillCause, RequestId};
use magray_core::{DeviceName, Precision};
use magray_device::SharedMemory;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The dispatcher's end of an executor, wherever that runs. No method waits for the device; what comes of it is reported to the dispatcher.
pub(super) trait ExecutorHandle: Send + Sync {
    /// What the device is called.
    fn name(&self) -> DeviceName;

    /// What the device is called in an answer of this model.
    fn name_for(&self, _model: usize) -> DeviceName {
        self.name()
    }

    /// Where the ranks of a group add up their parts of this model's sums, if it is one and has told.
    fn sums(&self, _model: usize) -> Option<RankSums> {
        None
    }

    /// How many GPUs it is: what one of them has alone counts as often.
    fn gpus(&self) -> usize {
        1
    }

    /// The arithmetic it has for a model.
    fn precision(&self, model: usize) -> Precision;

    /// Does as it is told.
    fn take(&self, order: Order);

    /// Frees cached memory of a GPU after what it has is done; the bytes that came back are received then. `None`: nothing is
    /// cached.
    fn clear_cache(&self) -> Option<Receiver<u64>> {
        None
    }

    /// Lets a worker do something with vectors; what comes of it is received, or nothing where the worker ends. `None`: there
    /// is no such worker.
    fn order_vectors(&self, _order: OrderVectors<'_>) -> Option<Receiver<VectorReply>> {
        None
    }

    /// Ends a worker that can do nothing any more; another takes its place.
    fn replace_worker(&self, _worker: u64) {}

    /// Ends for good when what it has is done.
    fn stop(&self);

    /// Ends for good, at once.
    fn kill(&self) {}

    /// Ends the worker as another program would.
    #[cfg(feature = "testing")]
    fn strike(&self) {}

    /// Lets a fault happen with the next batch, by its word in a fault plan; `false` where no worker is there that takes it.
    #[cfg(feature = "testing")]
    fn order_fault(&self, _word: &str) -> bool {
        false
    }

    /// Waits until its threads have ended, after `stop` or `kill`; `false` if they have not by then.
    fn join(&self, deadline: Instant) -> bool;

    /// How it is.
    fn status(&self) -> ExecutorStatus;
}

/// How an executor is.
#[derive(Clone, Debug, Default)]
pub(super) struct ExecutorStatus {
    /// The worker's process.
    pub(super) pid: Option<u32>,
    /// The device's memory, as the worker told it last.
    pub(super) memory: Option<MemoryStats>,
    /// The most of it that models and passes had, of all workers.
    pub(super) memory_peak: u64,
    /// What went wrong last.
    pub(super) last_error: Option<LastError>,
    /// Whether that says anything of the device, as against this program, its files or its neighbours.
    pub(super) blames_device: bool,
}

/// What went wrong last with a device.
#[derive(Clone, Debug)]
pub struct LastError {
    /// In words.
    pub message: String,
    /// When.
    pub at: SystemTime,
}

impl LastError {
    pub(super) fn now(message: String) -> Self {
        Self { message, at: SystemTime::now() }
    }

    /// When, in seconds since 1970.
    pub fn unix_s(&self) -> u64 {
        self.at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

/// What an executor is told.
pub(super) struct Order {
    /// The worker that is meant, counted from 1; one that has been replaced takes no orders. The CPU has none: 0.
    pub(super) worker: u64,
    pub(super) what: What,
}

/// What is to be done.
pub(super) enum What {
    /// Compute a batch.
    Start(Batch),
    /// Compute steps of sequences.
    Turn(Turn),
    /// Let go of the state of a sequence.
    Free { sequence: u64 },
    /// Start this worker.
    Spawn,
    /// End it at once.
    Kill(KillCause),
    /// Free memory of the device.
    Trim,
    /// Compute only the known text.
    Probe,
    /// Bring a model's weights to the device.
    Load(usize),
    /// Take a model's weights off the device.
    Offload(usize),
    /// Let go of a model's weights in the host's memory.
    Forget(usize),
    /// Let go of the vectors of a collection.
    DropVectors(CollectionId),
    /// End this worker gently.
    Rest,
}

/// What is to be done with the vectors of a collection, by one worker and no later one.
pub(super) struct OrderVectors<'a> {
    pub(super) worker: u64,
    pub(super) collection: CollectionId,
    pub(super) order: VectorOrder,
    /// Goes along with the first order.
    pub(super) memory: Option<&'a SharedMemory>,
}

/// How a model's weights came to a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loaded {
    /// What they take of its memory.
    pub(super) bytes: u64,
    /// From the order on.
    pub(super) took: Duration,
    /// Whether they came from memory and not from files.
    pub(super) from_host: bool,
}

/// Steps of sequences to compute together.
pub(super) struct Turn {
    pub(super) id: BatchId,
    pub(super) model: usize,
    pub(super) steps: Vec<TurnStep>,
}

/// The most that a worker may say of a sequence that cannot go on.
const PROBLEM_BYTES_MAX: usize = 4096;

/// A step of a sequence.
pub(super) struct TurnStep {
    pub(super) request: RequestId,
    /// Where it begins in its sequence.
    pub(super) from: u32,
    pub(super) ids: Vec<u32>,
    pub(super) new_tokens_max: u32,
    /// Passes that give them, at most.
    pub(super) passes_max: u32,
    /// Whether more may follow in a later step.
    pub(super) goes_on: bool,
    /// How they are chosen, where the sequence begins.
    pub(super) sampling: Option<Arc<Sampling>>,
    /// Whether they come with log probabilities, and with how many of the likeliest.
    pub(super) logprobs: Option<u8>,
}

impl TurnStep {
    pub(super) fn tokens(&self) -> Tokens<'_> {
        Tokens { ids: &self.ids, types: &[] }
    }

    /// As executors take it.
    pub(super) fn as_step(&self) -> SequenceStep<'_> {
        let worker::TurnStep { sequence, from, new_tokens_max, passes_max, goes_on } = self.head();
        let sampling = self.sampling.as_deref();
        SequenceStep { sequence, from, ids: &self.ids, new_tokens_max, passes_max, goes_on, sampling }
    }

    /// What a worker is told of it beside its tokens. Each request has one sequence.
    pub(super) fn head(&self) -> worker::TurnStep {
        let Self { request, from, new_tokens_max, passes_max, goes_on, .. } = *self;
        worker::TurnStep { sequence: request.0, from, new_tokens_max, passes_max, goes_on }
    }

    /// What a worker is told before, where its sequence begins.
    pub(super) fn beginning(&self) -> Option<(u64, &Sampling)> {
        Some((self.request.0, self.sampling.as_deref()?))
    }

    /// Whether this can have come of it. A worker may send anything.
    pub(super) fn may_give(&self, new: &NewTokens) -> bool {
        let count = new.tokens.len();
        count <= self.new_tokens_max as usize
            && new.accepted <= new.proposed
            && new.accepted as usize <= count
            && new.proposed <= self.new_tokens_max * u32::from(SPECULATE_MAX)
            && new.problem.as_ref().is_none_or(|problem| problem.len() <= PROBLEM_BYTES_MAX && new.is_end)
            && match self.logprobs {
                Some(top) => new.logprobs.len() == count && new.logprobs.iter().all(|one| one.is_plausible(top)),
                None => new.logprobs.is_empty(),
            }
    }
}

/// Texts to compute together.
pub(super) struct Batch {
    pub(super) id: BatchId,
    pub(super) model: usize,
    pub(super) skip: usize,
    pub(super) output: Output,
    pub(super) parts: Vec<Part>,
    /// Whether more waits that could be computed after it.
    pub(super) is_followed: bool,
}

/// Some neighbouring texts of a request.
pub(super) struct Part {
    pub(super) request: RequestId,
    pub(super) work: Arc<Work>,
    pub(super) texts: Range<usize>,
    /// The place of the first of them in the batch.
    pub(super) first: usize,
}

impl Batch {
    /// The texts, in the order of their rows.
    pub(super) fn texts(&self) -> impl Iterator<Item = Tokens<'_>> {
        self.parts.iter().flat_map(|part| part.work.texts[part.texts.clone()].iter().map(Tokens::from))
    }

    /// One of the texts, by its place in the batch.
    pub(super) fn text(&self, at: usize) -> Tokens<'_> {
        let Part { work, texts, first, .. } = &self.parts[self.parts.partition_point(|part| part.first <= at) - 1];
        Tokens::from(&work.texts[texts.start + at - first])
    }

    /// Rows of its answer.
    pub(super) fn rows(&self) -> usize {
        self.parts.iter().map(Part::rows).sum()
    }

    /// How many texts there are.
    pub(super) fn texts_count(&self) -> usize {
        self.parts.last().map_or(0, |part| part.first + part.texts.len())
    }
}

impl Part {
    /// Rows of the answer that belong to it.
    pub(super) fn rows(&self) -> usize {
        self.work.rows(self.texts.clone())
    }
}

/// Waits for a thread until the deadline; it is taken when it has ended.
pub(super) fn join_until(thread: &mut Option<JoinHandle<()>>, deadline: Instant) -> bool {
    while thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
        if Instant::now() >= deadline {
            return false;
        }
        // Nothing else tells that a thread has ended.
        std::thread::sleep(Duration::from_millis(2));
    }
    if let Some(thread) = thread.take() {
        // A panic was logged where it happened.
        let _ = thread.join();
    }
    true
}
