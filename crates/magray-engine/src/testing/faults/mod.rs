//! Faults on purpose, to see that nothing is lost: what goes wrong, where, and when.
//! Off unless a plan is given; breaks nothing itself.

mod executor;
mod killer;
mod kind;
mod on_demand;
mod plan;
mod script;

pub(crate) use executor::WorkerFaults;
pub(crate) use killer::WorkerKiller;
pub(super) use kind::{FaultKind, Place};
pub use on_demand::{FaultOnDemand, UnknownFault};
pub use plan::{FaultPlan, FaultPlanError};
pub(super) use script::{Clock, Script};
