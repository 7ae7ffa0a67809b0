//! What the machine wants done. Its driver does exactly this, and reports what came of it as events.

use super::{BatchId, DeviceId, Fault, MemoryStep, MemoryUse, ModelId, RequestId, SpeedFigures, Step};
use crate::ledger::CollectionId;
use std::fmt;
use std::time::Duration;

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Compute these steps together. Answered by `Finished` or `Failed` of the batch, or by `Down` of the device.
    Start {
        /// Where.
        device: DeviceId,
        /// Its name; never used twice.
        batch: BatchId,
        /// All of one group; whole sequences or parts of some, never both.
        steps: Vec<Step>,
        /// Passes over parts of sequences at most: the device goes on by itself, and each pass gives a sequence a new token.
        passes: u32,
        /// How long it is predicted to take.
        expected: Duration,
        /// Whether more waits that the device could compute after it.
        is_followed: bool,
    },
    /// Hand new tokens of a sequence to its reader: those that its last step gave. Not answered.
    Deliver {
        /// Whose.
        request: RequestId,
        /// Which of its sequences.
        sequence: u32,
        /// New tokens of the sequence that were delivered before.
        from: u32,
        /// How many there are now.
        tokens: u32,
    },
    /// Let go of the state of a sequence that ended, was cancelled, or gives way to others; nothing of it runs. Not
    /// answered.
    Free {
        /// Where.
        device: DeviceId,
        /// Whose.
        request: RequestId,
        /// Which of its sequences.
        sequence: u32,
    },
    /// All sequences of a request are at their end: give the answer. No action but `Free` names this request again.
    Complete {
        /// Whose.
        request: RequestId,
        /// How it went.
        report: Report,
    },
    /// Answer a request with an error. No action but `Free` names this request again.
    Refuse {
        /// Whose.
        request: RequestId,
        /// Why.
        refused: Refused,
    },
    /// End a device's worker at once, by force. Answered by `Down`, with [`super::Ending::Ordered`].
    Kill {
        /// Whose.
        device: DeviceId,
        /// Why.
        cause: KillCause,
    },
    /// Start a worker for a device that has none. Answered by `Up` or `Down`.
    Spawn {
        /// Whose.
        device: DeviceId,
    },
    /// Free all memory of the device that can be freed. Not answered.
    Trim {
        /// Whose.
        device: DeviceId,
    },
    /// Put a model's weights on a device: from the host's memory where they are there, else from its files. Batches of
    /// other models go on meanwhile. Answered by `Loaded` or `NotLoaded`, or by `Down`.
    Load {
        /// Where.
        device: DeviceId,
        /// Which.
        model: ModelId,
    },
    /// Take a model's weights off a device and keep them in the host's memory. No batch of it is at the device. Answered
    /// by `Offloaded`, or by `Down`. For the CPU: let go of its form of the weights.
    Offload {
        /// Where from.
        device: DeviceId,
        /// Which.
        model: ModelId,
    },
    /// A collection may take so much more of a device's memory for its vectors. Not answered.
    GrantVectors {
        /// Whose.
        device: DeviceId,
        /// Which.
        collection: CollectionId,
        /// How much.
        bytes: u64,
    },
    /// A collection gets no more memory of a device for its vectors. Not answered.
    RefuseVectors {
        /// Whose.
        device: DeviceId,
        /// Which.
        collection: CollectionId,
        /// What is missing.
        missing: u64,
    },
    /// Take a collection's vectors off a device: others need the memory. Answered by `VectorsDropped`, or by `Down`.
    DropVectors {
        /// Where from.
        device: DeviceId,
        /// Which.
        collection: CollectionId,
    },
    /// Let go of a model's weights in the host's memory; no device has them, and none is told to load them before this is
    /// answered by `Forgotten`.
    Forget {
        /// Which.
        model: ModelId,
    },
    /// End a device's worker gently: it has neither batches nor weights, and no request needs it. Answered by `Down`,
    /// with [`super::Ending::Rested`].
    Rest {
        /// Whose.
        device: DeviceId,
    },
    /// Compute a known text, and nothing else, on a device that is out of rotation. Answered by `Probed`, or `Down`.
    Probe {
        /// Where.
        device: DeviceId,
    },
    /// Tell people that a device left the rotation or came back. Not answered.
    Alert {
        /// Which.
        device: DeviceId,
        /// What happened.
        change: Change,
    },
    /// Log what changed about a device that stays in rotation. Not answered.
    Notice {
        /// Which.
        device: DeviceId,
        /// What changed.
        notice: Notice,
    },
}

/// How a request was computed. Where its sequences went different ways, device, batch and fallback are those of the last.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The device.
    pub device: DeviceId,
    /// Sequences of the batch that ended it, others' included.
    pub batch_texts: u32,
    /// From its arrival to the start of the batch that answered it.
    pub queued: Duration,
    /// From the start of that batch to its end.
    pub computed: Duration,
    /// How often its sequences were started again after a failure.
    pub replays: u32,
    /// Why the CPU computed it although a GPU was there to be used.
    pub fallback: Option<Fallback>,
}

/// Why a GPU that should have computed a request did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fallback {
    /// Its memory was full.
    OutOfMemory,
    /// Its worker was being replaced, or had failed too often.
    Unhealthy,
    /// It was ruled out by its telemetry.
    Ruled(Fault),
    /// It returned wrong answers.
    WrongAnswers,
    /// It is not there any more.
    Lost,
    /// It has not started yet.
    Starting,
    /// It did not have the model's weights yet.
    Waking,
    /// The model's weights could not be put on it.
    NotLoaded,
}

impl Fallback {
    /// All that [`Fallback::code`] returns, for metrics.
    pub const CODES: [&'static str; 8] =
        ["out_of_memory", "unhealthy", "hot", "wrong_answers", "lost", "starting", "waking", "not_loaded"];

    /// A stable code for programs.
    pub fn code(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out_of_memory",
            Self::Unhealthy | Self::Ruled(Fault::Memory | Fault::NeedsReset | Fault::Xid(_)) => "unhealthy",
            Self::Ruled(Fault::Overheated) => "hot",
            Self::WrongAnswers => "wrong_answers",
            Self::Lost | Self::Ruled(Fault::Lost) => "lost",
            Self::Starting => "starting",
            Self::Waking => "waking",
            Self::NotLoaded => "not_loaded",
        }
    }
}

/// A phrase about the GPU: "it ...", "its ...".
impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory => f.write_str("its memory was full"),
            Self::Unhealthy => f.write_str("its worker failed"),
            Self::Ruled(Fault::Lost) | Self::Lost => f.write_str("it is not on the bus any more"),
            Self::Ruled(Fault::Xid(xid)) => write!(f, "the driver reported Xid {xid}, a fault of the hardware"),
            Self::Ruled(Fault::Memory) => f.write_str("it has memory errors that could not be corrected"),
            Self::Ruled(Fault::NeedsReset) => f.write_str("the driver asks for a reset of the GPU or of the machine"),
            Self::Ruled(Fault::Overheated) => f.write_str("it is hotter than it may be"),
            Self::WrongAnswers => f.write_str("it returned wrong answers"),
            Self::Starting => f.write_str("it has not started yet"),
            Self::Waking => f.write_str("it did not have the model's weights yet"),
            Self::NotLoaded => f.write_str("the model's weights could not be put on it"),
        }
    }
}

/// Why a request is answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refused {
    /// Too much is waiting. Taking it later may do.
    Full {
        /// When there should be room.
        retry_after: Duration,
    },
    /// It alone is more than is ever taken.
    TooLarge,
    /// Its deadline passed before it was computed.
    Expired,
    /// It ended two workers.
    Poison,
    /// It must be computed on a GPU, or on a certain device, that cannot be used.
    NoDevice(Fallback),
    /// Nothing is taken any more.
    Draining,
}

/// Why a worker is ended by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KillCause {
    /// A batch takes far longer than it should.
    Overdue,
    /// No heartbeat came.
    Silent,
    /// It can compute nothing any more.
    Sticky,
    /// Its device may not be used any more.
    RuledOut,
    /// It did not become ready.
    StartOverdue,
    /// Weights did not come to its device, or did not leave it, in time.
    LoadOverdue,
}

impl KillCause {
    /// A stable code for programs.
    pub fn code(self) -> &'static str {
        match self {
            Self::Overdue => "overdue",
            Self::Silent => "silent",
            Self::Sticky => "gpu_fault",
            Self::RuledOut => "ruled_out",
            Self::StartOverdue => "start_overdue",
            Self::LoadOverdue => "load_overdue",
        }
    }
}

/// What people are told of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// It is out of rotation.
    Left {
        /// Why.
        reason: Fallback,
        /// Whether it stays so until it is reset.
        is_permanent: bool,
    },
    /// It is used again.
    Returned,
}

/// What changed about a device that stays in rotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Notice {
    /// It computes far below its own best steady speed, and gets less work.
    Slowed(SpeedFigures),
    /// It is at its speed again, and has its full weight.
    Regained(SpeedFigures),
    /// Its memory is so full, or so empty again, that the next step is taken.
    Memory {
        /// Which.
        step: MemoryStep,
        /// Whether it is one more, or one less.
        is_rising: bool,
        /// How full it is.
        memory: MemoryUse,
    },
    /// It was slow and nothing could be measured since: it gets its full weight to be measured again.
    Untested,
}
