//! The messages between supervisor and worker.
//! Sends and receives nothing.

use crate::decoder::Sampling;
use crate::executors::{Failure, NewTokens, Origin, Output, RankSums};
use crate::gpu::{MemoryAccounts, MemoryStats};
use magray_core::{OnnxProvider, Precision};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a supervisor says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum ToWorker<'a> {
    /// Open this device and know these models: a [`super::WorkerSpec`].
    Open(&'a [u8]),
    /// Say which GPUs there are, with the driver in these folders (a list of paths), and end.
    Survey(&'a [u8]),
    /// Try what the sandbox must refuse, on these [`super::sandbox::Targets`], say what came of it, and end.
    Attempt(&'a [u8]),
    /// Here is the memory for batches and answers; its handle comes along.
    Memory(Layout),
    /// Compute what lies in a slot.
    Batch(Batch),
    /// A sequence begins with the next turn: how its tokens are chosen. A message of its own, since constraints are long.
    Begin { sequence: u64, sampling: Sampling },
    /// Compute steps of sequences, whose tokens lie in a slot.
    Turn { batch: Batch, steps: Vec<TurnStep> },
    /// Let go of the state of a sequence.
    Free { sequence: u64 },
    /// There is one model more, an [`crate::executors::ExecutorModel`], at the next place of the list.
    Know(&'a [u8]),
    /// Put a model's weights on the device. Where there is an image, its handle comes along.
    Load { model: u32, image: Image },
    /// Take a model's weights off the device.
    Offload { model: u32 },
    /// Let go of a model altogether.
    Forget { model: u32 },
    /// Do something with vectors; memory for them comes along where they begin. Answered by [`FromWorker::Vectors`].
    Vectors { call: u64, vectors: u32, order: VectorOrder },
    /// Free what can be freed.
    Trim,
    /// Let this fault happen with the next batch, by its word in a fault plan; for tests.
    Fault(&'a str),
    /// Answer what came before, then end.
    Stop,
}

/// What a worker says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum ToSupervisor<'a> {
    /// It has started.
    Hello {
        /// Its process.
        pid: u32,
    },
    /// The device is open: its memory, and a [`super::spec::ReadyMessage`].
    Ready { memory: MemoryStats, message: &'a [u8] },
    /// The GPUs that there are: [`super::survey::Findings`].
    Surveyed(&'a [u8]),
    /// What came of the attempts: a list of [`super::Attempt`].
    Attempted(&'a [u8]),
    /// The device is not open, and it ends.
    NotReady(Failure),
    /// What happens after the opening.
    Event(FromWorker),
}

/// What a worker says once it is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromWorker {
    /// The answers of a batch lie in its slot.
    Finished {
        /// Which.
        batch: u64,
        /// Where.
        slot: usize,
        /// How long the device computed.
        compute: Duration,
    },
    /// Steps of sequences were computed.
    Turned {
        /// Which batch.
        batch: u64,
        /// Where it lay.
        slot: usize,
        /// How long the device computed.
        compute: Duration,
        /// What came of each step.
        new: Vec<NewTokens>,
    },
    /// A batch has no answers.
    Failed {
        /// Which.
        batch: u64,
        /// Where it lay.
        slot: usize,
        /// What went wrong.
        problem: Failure,
    },
    /// A model's weights are on the device.
    Loaded {
        /// Which.
        model: usize,
        /// How, and how they are there.
        arrived: Arrived,
    },
    /// They are not, and what was taken for them is free again.
    NotLoaded {
        /// Which.
        model: usize,
        /// What went wrong.
        problem: Failure,
    },
    /// A model's weights are not on the device any more.
    Offloaded {
        /// Which.
        model: usize,
        /// How long that took.
        took: Duration,
        /// The device's memory now.
        memory: MemoryStats,
    },
    /// An image holds all of a model's weights: other workers may have it.
    ImageFilled {
        /// Of which model.
        model: usize,
        /// Which image.
        image: u64,
        /// How much of it is in use.
        bytes: u64,
    },
    /// An image does not hold them, and never will.
    ImageSpoilt {
        /// Of which model.
        model: usize,
        /// Which image.
        image: u64,
        /// What went wrong.
        problem: Failure,
    },
    /// What came of an order for vectors.
    Vectors {
        /// Which order.
        call: u64,
        /// Which vectors.
        vectors: u32,
        /// What came of it.
        reply: VectorReply,
    },
    /// What could be freed is free.
    Trimmed {
        /// Bytes of the device's memory that came back.
        freed: u64,
        /// The device's memory now.
        memory: MemoryStats,
    },
    /// The process lives; whether it computes is another matter.
    Heartbeat {
        /// The device's memory.
        memory: MemoryStats,
        /// By account; not told while weights arrive or leave.
        accounts: Option<MemoryAccounts>,
    },
}

/// What is to be done with vectors. Vectors, offsets and bits lie in the memory that came with the first order, as
/// [`super::VectorWindow`] says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum VectorOrder {
    /// Take memory of the device for them.
    Hold(HeldShape),
    /// Put this many that lie in the memory.
    Put(u32),
    /// Keep their signs, turned about this centre.
    KeepSigns(Vec<f32>),
    /// Find the best for a query.
    Search(VectorSearch),
    /// Let go of them.
    Drop,
}

/// How many vectors of what length are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldShape {
    /// Numbers of a vector.
    pub dims: u32,
    /// Vectors that there is room for.
    pub room: u32,
}

/// What to look for among vectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VectorSearch {
    /// The query.
    pub query: Vec<f32>,
    /// How many vectors are looked at.
    pub rows: u32,
    /// How many are wanted.
    pub most: u32,
    /// Whether only those may be found whose bits are set in the memory.
    pub is_filtered: bool,
    /// Never miss one of the best.
    pub is_exact: bool,
}

/// What came of an order for vectors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VectorReply {
    /// It is done.
    Done,
    /// The slots of the best, and the bits of their scores.
    Found(Vec<(u32, u32)>),
    /// They are not there any more.
    Dropped,
    /// It was not done.
    Failed(Failure),
}

/// How a model's weights came to a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrived {
    /// The arithmetic it has there.
    pub precision: Precision,
    /// Numbers in a text's answer.
    pub outputs: usize,
    /// What the weights take of the device's memory.
    pub bytes: u64,
    /// How long it took the worker, without the wait for its turn.
    pub took: Duration,
    /// Where they came from.
    pub origin: Origin,
    /// The device's memory now.
    pub memory: MemoryStats,
    /// The provider of ONNX Runtime that computes it.
    pub provider: Option<OnnxProvider>,
    /// Where the ranks of a group add up their parts of sums.
    pub sums: Option<RankSums>,
}

/// What a worker gets along with the order to load a model: memory that outlives it, for the weights as they lie on the
/// device. The number names the memory in what the worker says of it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Image {
    None,
    /// Nothing is in it yet; `bytes_max` fit.
    Empty {
        image: u64,
        bytes_max: u64,
    },
    /// The weights are in it.
    Filled {
        image: u64,
        bytes: u64,
    },
}

/// How the shared memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Layout {
    pub(super) slots: u32,
    pub(super) tokens_max: u32,
    pub(super) texts_max: u32,
    /// Numbers in the longest answer of a text.
    pub(super) outputs_max: u32,
    /// Numbers in the largest answer that has a row for each token.
    pub(super) token_numbers_max: u32,
}

/// A batch that lies in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Batch {
    pub(super) batch: u64,
    pub(super) slot: u32,
    pub(super) model: u32,
    /// Leading tokens of each text that are not pooled.
    pub(super) skip: u32,
    /// What is wanted of the texts.
    pub(super) output: Output,
    pub(super) extent: Extent,
}

/// How much of a slot is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Extent {
    pub(super) texts: u32,
    pub(super) tokens: u32,
    pub(super) has_types: bool,
}

/// A step of a sequence, without its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnStep {
    /// The sequence, by a name of the caller's.
    pub sequence: u64,
    /// Where the step begins: the worker has the state of the tokens before.
    pub from: u32,
    /// New tokens at most.
    pub new_tokens_max: u32,
    /// Passes that give them, at most.
    pub passes_max: u32,
    /// Whether the sequence may have more behind them.
    pub goes_on: bool,
}

#[cfg(test)]
mod tests;
