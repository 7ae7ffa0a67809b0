//! What happens to the machine: requests that come, batches that end, devices that change.
//! Carries no tokens and no vectors: the machine decides by counts.

use super::{BatchId, CallerId, DeviceId, Group, ModelId, ModelPlan, Moment, Outcome, Priority, RequestId, Sequence};
use crate::ledger::{CollectionId, MemoryReport};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A caller wants sequences computed.
    Submitted(Request),
    /// The caller of this request waits no more. A batch under way is not stopped; its answer is dropped.
    Cancelled(RequestId),
    /// A batch was computed and its answers were found right.
    Finished {
        /// Which.
        batch: BatchId,
        /// How long the device computed, without the way there and back.
        compute: Duration,
        /// What came of each step, in their order. May be empty where all gave rows.
        outcomes: Vec<Outcome>,
    },
    /// The reader of a sequence has taken some of the tokens that were delivered.
    Read {
        /// Whose.
        request: RequestId,
        /// Which of its sequences.
        sequence: u32,
        /// How many.
        tokens: u32,
    },
    /// A batch was not computed.
    Failed {
        /// Which.
        batch: BatchId,
        /// What went wrong, sorted by what to do about it.
        failure: Failure,
    },
    /// Part of a device has nothing to do while the rest ends its last batch: it could begin with another.
    Spare {
        /// Which.
        device: DeviceId,
    },
    /// A device's worker is ready for batches.
    Up {
        /// Whose.
        device: DeviceId,
    },
    /// A device's worker is gone, and with it every batch it had. Also sent for a worker that could not start.
    Down {
        /// Whose.
        device: DeviceId,
        /// How it ended.
        ending: Ending,
    },
    /// A device's worker says that it lives.
    Heartbeat {
        /// Whose.
        device: DeviceId,
    },
    /// How a device is, judged from its telemetry.
    Judged {
        /// Which.
        device: DeviceId,
        /// What was found.
        condition: Condition,
    },
    /// The answer to [`super::Action::Probe`]: a known text was computed by the device.
    Probed {
        /// Which.
        device: DeviceId,
        /// Whether the answer came and was right.
        passed: bool,
    },
    /// An operator says that the device is in order again: its failures are forgotten.
    Reset {
        /// Which.
        device: DeviceId,
    },
    /// An earlier process gave this device up: it is out until it is reset, and no alert is sent again.
    GivenUp {
        /// Which.
        device: DeviceId,
    },
    /// A model's weights are on a device: batches of it may start there.
    Loaded {
        /// Where.
        device: DeviceId,
        /// Which.
        model: ModelId,
        /// What they take of the device's memory.
        bytes: u64,
        /// How long it took, from the order on.
        took: Duration,
        /// Whether they came from memory, the host's or the device's own, and not from files.
        from_host: bool,
    },
    /// A model's weights are not on a device although that was ordered; what was taken for them is free again.
    NotLoaded {
        /// Where.
        device: DeviceId,
        /// Which.
        model: ModelId,
        /// What went wrong. `OutOfMemory` says nothing against the model, `Transient` says nothing against the device.
        failure: Failure,
    },
    /// A model's weights have left a device.
    Offloaded {
        /// Where from.
        device: DeviceId,
        /// Which.
        model: ModelId,
    },
    /// The form of a model's weights that GPUs load is in the host's memory, or is there no more.
    Imaged {
        /// Which.
        model: ModelId,
        /// Whether it is there.
        is_there: bool,
    },
    /// The answer to [`super::Action::Forget`]: nothing of a model's weights is in the host's memory.
    Forgotten {
        /// Which.
        model: ModelId,
    },
    /// A worker reports its device's memory. One that ends takes this with it: what the device was made with counts until
    /// the next one reports, best before it is up.
    Memory {
        /// Whose.
        device: DeviceId,
        /// What it has measured.
        report: MemoryReport,
    },
    /// How full the memory of a whole device is, by its telemetry.
    MemoryUse {
        /// Whose.
        device: DeviceId,
        /// How full.
        memory: MemoryUse,
    },
    /// A collection wants memory of a device for its vectors. Answered by [`super::Action::GrantVectors`] or
    /// [`super::Action::RefuseVectors`]; a worker that rests is woken, so that it can be asked again.
    VectorsAsked {
        /// Whose.
        device: DeviceId,
        /// Which.
        collection: CollectionId,
        /// How much more than it has.
        bytes: u64,
    },
    /// The vectors of a collection were searched: others give way before them.
    VectorsUsed {
        /// Where they are.
        device: DeviceId,
        /// Which.
        collection: CollectionId,
    },
    /// The vectors of a collection have left a device, ordered or not.
    VectorsDropped {
        /// Where from.
        device: DeviceId,
        /// Which.
        collection: CollectionId,
    },
    /// There is one model more; its number is the next one.
    ModelAdded {
        /// How it comes and goes.
        plan: ModelPlan,
    },
    /// A model is no more: nothing of it is taken, what waits for it is refused, and it leaves all memory as soon as no batch
    /// of it runs. Its number is not used again.
    ModelRemoved {
        /// Which.
        model: ModelId,
    },
    /// A model is asked to come, go or stay.
    ResidencyRequested {
        /// Which.
        model: ModelId,
        /// What is wanted.
        request: ResidencyRequest,
    },
    /// No request is taken any more; those that were are still answered.
    Draining,
    /// Nothing but time has passed.
    Tick,
}

/// What is asked of a model. None of it is done under a running batch, and none makes a request fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidencyRequest {
    /// Off the GPUs, into the memory of the host.
    Offload,
    /// Out of all memory. A worker whose device has no weights left goes too.
    Release,
    /// Onto a GPU before a request needs it, as if a request of this priority waited for it.
    Preheat(Priority),
    /// Off the GPUs when it was not used for this long; `None`: never by itself.
    IdleTimeout(Option<Duration>),
    /// Off the GPUs whenever nothing of it waits or runs.
    OffloadAfterUse(bool),
    /// Not to be pushed out by other models, nor by idleness.
    Pin(bool),
    /// How much it counts when models compete for memory.
    Priority(Priority),
}

/// Sequences of one caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its name; never used twice.
    pub id: RequestId,
    /// What it may share a batch with.
    pub group: Group,
    /// At least one; all of one step, or all of many.
    pub sequences: Vec<Sequence>,
    /// Who waits for it: devices are shared between callers, whatever the number of their requests.
    pub caller: CallerId,
    /// How urgent it is.
    pub priority: Priority,
    /// When its answer is worth nothing any more.
    pub deadline: Option<Moment>,
    /// Where it may be computed.
    pub allowed: Allowed,
}

/// What is known of a request before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sketch {
    /// Who asks.
    pub caller: CallerId,
    /// About how many tokens it has.
    pub tokens: u64,
    /// About how many new tokens it asks for; 0 if nothing is generated.
    pub new_tokens: u64,
    /// As how many requests it is submitted: 1, or the answers of a prompt that has several.
    pub jobs: u32,
    /// What tells it from other requests of its caller, and is the same when it comes again.
    pub mark: Option<u64>,
    /// It has arrived whole, and is submitted next if it is taken.
    pub is_here: bool,
    /// Other requests that were told so before and are not submitted yet.
    pub coming: Coming,
    /// How urgent it is.
    pub priority: Priority,
    /// Where it may be computed.
    pub allowed: Allowed,
}

/// Requests that would be taken and are not submitted yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coming {
    /// How many.
    pub requests: u64,
    /// Their tokens.
    pub tokens: u64,
    /// New tokens that they ask for.
    pub new_tokens: u64,
}

/// Where a request may be computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allowed {
    /// Wherever it is done first. An answer of the CPU is a fallback where a GPU was there to be used and could not be.
    #[default]
    Any,
    /// On a GPU or not at all.
    Gpu,
    /// On the CPU alone.
    Cpu,
    /// On this device or not at all.
    Only(DeviceId),
    /// On this device; on the CPU where it cannot be. An answer of the CPU is a fallback.
    Rather(DeviceId),
}

impl Allowed {
    /// Whether the CPU stands in for GPUs.
    pub fn has_fallback(self) -> bool {
        matches!(self, Self::Any | Self::Rather(_))
    }
}

/// Why a batch was not computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Failure {
    /// The device's memory is full: less at a time may do. Not the device's fault.
    OutOfMemory,
    /// Something went wrong and the worker still works.
    Transient,
    /// The worker can compute nothing any more; a new one can.
    Sticky,
    /// The answers are wrong: the known text among them came back different.
    WrongAnswer,
    /// The device is gone for every process.
    Lost,
}

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// By itself: what it computed may be the cause.
    Crashed,
    /// Another process ended it: what it computed is not to blame.
    Killed,
    /// It was ended by [`super::Action::Kill`].
    Ordered,
    /// It was ended by [`super::Action::Rest`].
    Rested,
    /// It never became ready.
    NotStarted,
    /// Its device is not there.
    Lost,
}

/// Memory of a device that all processes use, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryUse {
    /// In use.
    pub used: u64,
    /// All; 0 where that is not known.
    pub total: u64,
}

impl MemoryUse {
    /// The part in use, if it is known.
    #[expect(clippy::cast_precision_loss, reason = "bytes of a memory are far below what f64 holds exactly")]
    pub fn share(self) -> Option<f64> {
        (self.total > 0).then(|| self.used as f64 / self.total as f64)
    }
}

/// What telemetry says of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Condition {
    /// Nothing.
    Fine,
    /// It is slowed down by heat or power: it gets less work.
    Hot {
        /// The part of its speed that it is trusted with, above 0 and below 1.
        weight: f64,
    },
    /// It must not be used.
    Bad(Fault),
}

/// Why telemetry rules a device out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// It is not on the bus any more.
    Lost,
    /// The driver reported this number, and it is one of the hardware's.
    Xid(u32),
    /// Memory errors that could not be corrected.
    Memory,
    /// The driver asks for a reset or a reboot.
    NeedsReset,
    /// It is hotter than it may be.
    Overheated,
}

/// A model whose weights came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) model: ModelId,
    pub(super) bytes: u64,
    pub(super) took: Duration,
    pub(super) from_host: bool,
}

/// Memory that a collection's vectors ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    pub(super) device: DeviceId,
    pub(super) collection: CollectionId,
    pub(super) bytes: u64,
}
