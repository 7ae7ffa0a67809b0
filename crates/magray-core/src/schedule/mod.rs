//! Decides which steps of sequences are computed together, where, and what follows from a failure: one machine, driven by events.
//! Reads no clock, does no IO, holds no tokens: its driver does what its actions say.

mod action;
mod admission;
mod batcher;
mod blame;
mod context;
mod cost;
mod device;
mod device_memory;
mod device_set;
mod devices;
mod event;
mod eviction;
mod failure_count;
mod fair;
mod health;
mod jobs;
mod kv_space;
mod load_time;
mod loading;
mod machine;
mod memory_step;
mod options;
mod outlook;
mod phase;
mod placement;
mod priority;
mod promises;
mod queue;
mod requests;
mod residency;
mod resident;
mod run;
mod sabotage;
mod sequence;
mod speed;
mod stream_rate;
#[cfg(test)]
mod tests;
mod view;

pub use crate::ledger::ModelId;
pub use crate::moment::Moment;
pub use action::{Action, Change, Fallback, KillCause, Notice, Refused, Report};
pub use event::{
    Allowed, Coming, Condition, Ending, Event, Failure, Fault, MemoryUse, Request, ResidencyRequest, Sketch,
};
pub use machine::Machine;
pub use memory_step::MemoryStep;
pub use options::{
    Batching, DeviceKind, DeviceSpec, Generation, Keeping, Limits, Location, ModelPlan, Options, PartInWorkers,
    Placement, Recovery, Sizing, Slices, SpeedWatch,
};
pub use priority::{Priority, UnknownPriority};
#[cfg(feature = "sabotage")]
pub use sabotage::Sabotage;
pub use sequence::{Outcome, Sequence, Span, Step};
pub use speed::SpeedFigures;
pub use view::{DeviceState, DeviceView, ModelView, MoveReason, Residency, View};

/// Tokens of a page of keys and values, on every device: whole pages are shared.
pub const PAGE_TOKENS: usize = 32;

/// Names a request; the caller chooses it and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a caller: who shares the devices with others. By default all requests are of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallerId(pub u64);

/// Names a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// A device's index in the list that the machine was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

/// Requests of one group may share a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// The model.
    pub model: ModelId,
    /// Batch-compatibility key: what the number means is the caller's.
    pub key: u32,
}
