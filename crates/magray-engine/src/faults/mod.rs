//! Faults on purpose, to see that nothing is lost: what goes wrong, where, and when.
//! Off unless a plan is given; breaks nothing itself.

mod kind;
mod plan;
mod script;

pub use kind::{FaultKind, Place};
pub use plan::{FaultPlan, FaultPlanError};
pub use script::{Clock, Script};

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a worker is told of the plan. Times and batches count from the start of the engine, so that a worker that takes
/// the place of another does not repeat what that one went through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultOrder {
    /// The plan for its device: [`FaultPlan::of_device`] as text.
    pub plan: String,
    /// Faults that were due before this time have happened to the worker before: the time of its end, or zero.
    pub from: Duration,
    /// The time now.
    pub now: Duration,
    /// Batches that the device was given before.
    pub batches: u64,
}
