//! Decides which texts are computed together, where, and what follows from a failure: one machine, driven by events.
//! Reads no clock, does no IO, holds no texts: whoever drives it does what its actions say.

mod action;
mod admission;
mod batcher;
mod cost;
mod device;
mod device_set;
mod event;
mod eviction;
mod jobs;
mod keeping;
mod ladder;
mod load_time;
mod loading;
mod machine;
mod moment;
mod options;
mod placement;
mod queue;
mod recovery;
mod replay;
mod residency;
mod sabotage;
#[cfg(test)]
mod tests;
mod view;
mod waiting;
mod weights;
mod wishes;

pub use action::{Action, Change, Fallback, KillCause, Piece, Refused, Report};
pub use event::{Allowed, Condition, Ending, Event, Failure, Fault, Priority, Request, Sketch, Wish};
pub use machine::Machine;
pub use moment::Moment;
pub use options::{Batching, DeviceKind, DeviceSpec, Keeping, Limits, ModelPlan, Options, Placement, Recovery, Sizing};
#[cfg(feature = "sabotage")]
pub use sabotage::Sabotage;
pub use view::{DeviceState, DeviceView, ModelView, Residency, View};

/// Names a request; the caller chooses it and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// A device's place in the list that the machine was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

/// A model's place in the list that the machine was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub u32);

/// Requests of one group may share a batch: the same model, used in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// The model.
    pub model: ModelId,
    /// Tells ways apart in which it is used; what the number means is the caller's.
    pub way: u32,
}
