//! What tests and demonstrations need and serving does not: simulated GPUs, faults by plan, the suite that executors pass.
//! Without the feature `testing` only the data is here that messages to workers may carry; a worker refuses it then.

#[cfg(feature = "testing")]
pub mod conformance;
#[cfg(feature = "testing")]
mod faults;
#[cfg(feature = "testing")]
mod simulated;
#[cfg(feature = "testing")]
mod telemetry;
#[cfg(feature = "testing")]
pub mod tiny_decoder;
#[cfg(feature = "testing")]
pub mod tiny_encoder;
#[cfg(feature = "testing")]
mod tiny_weights;

#[cfg(feature = "testing")]
pub use faults::{FaultOnDemand, FaultPlan, FaultPlanError, UnknownFault};
#[cfg(feature = "testing")]
pub(crate) use faults::{WorkerFaults, WorkerKiller};
#[cfg(feature = "testing")]
pub(crate) use simulated::{SimulatedDevice, SimulatedGroup};
#[cfg(feature = "testing")]
pub(crate) use telemetry::scripted_telemetry;

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a worker is told of a fault plan. Times and batches count from the start of the engine, so that a worker that takes
/// the place of another does not repeat what that one went through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultOrder {
    /// The plan for its device, as text.
    pub plan: String,
    /// Faults that were due before this time have happened to the worker before: the time of its end, or zero.
    pub from: Duration,
    /// The time now.
    pub now: Duration,
    /// Batches that the device was given before.
    pub batches: u64,
}

/// What a simulated GPU is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimulatedGpu {
    /// Its number, for its name.
    pub index: usize,
    /// Its memory. Weights and activations take of it what they would take of a real one's.
    pub memory_bytes: u64,
    /// What every batch takes at least.
    pub batch_us: u64,
    /// What every token adds to that. Where the CPU is slower, a batch takes as long as the CPU needs.
    pub token_ns: u64,
    /// What weights take to come from files, for each MiB.
    pub load_us_per_mib: u64,
    /// What weights take to come from the host's memory, for each MiB.
    pub wake_us_per_mib: u64,
    /// What weights take to leave, for each MiB.
    pub offload_us_per_mib: u64,
    /// What it takes to keep weights in the host's memory too, for each MiB.
    pub fill_us_per_mib: u64,
    /// Memory for the keys and values of sequences; none: it generates nothing.
    pub kv_bytes: u64,
}

impl Default for SimulatedGpu {
    fn default() -> Self {
        Self {
            index: 0,
            memory_bytes: 8 << 30,
            batch_us: 0,
            token_ns: 0,
            load_us_per_mib: 0,
            wake_us_per_mib: 0,
            offload_us_per_mib: 0,
            fill_us_per_mib: 0,
            kv_bytes: 0,
        }
    }
}
