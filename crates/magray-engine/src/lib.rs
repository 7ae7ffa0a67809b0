//! Runs: model store, weights, tokenizer, model architectures, executors.
//! Never prints, knows no HTTP types.
//!
//! Programs use it by [`engine::Engine`]: models behind a queue on the CPU and on GPUs.
#![forbid(unsafe_code)]

#[cfg(not(unix))]
compile_error!("magray needs a Unix system: an engine talks to its GPU workers through Unix sockets");

mod bounded_file;
mod calibration;
pub mod decoder;
mod encoder;
pub mod engine;
mod executor_device;
pub mod executors;
pub mod gpu;
mod graph_file;
pub mod health;
mod model;
mod onnx_graph;
mod packed;
mod pause;
pub mod profile;
mod reading;
mod roster;
mod single_device;
pub mod spec;
pub mod store;
pub mod synthetic;
pub mod testing;
mod time_shares;
pub mod tokenize;
pub mod vectors;
pub mod weights;
mod worker;

pub use encoder::{EmbedError, EncoderOptions, LoadError};
pub use executor_device::ExecutorDevice;
pub use magray_core::{
    Backend, CpuPath, DeviceChoice, DeviceName, EncoderShape, GpuSelector, OnnxProvider, Precision, PrecisionChoice,
    Reason, Refusal, Rules, Scores, Verdict,
};
pub use magray_device::cpu::{Wide, register_latency_thread, widened};
pub use roster::{Roster, RosterFull};
pub use single_device::SingleDevice;
pub use worker::{ServeError, serve};

/// What the tests of other crates need of the inside; no promise is made about it.
#[doc(hidden)]
pub mod internals {
    pub use crate::ExecutorDevice;
    pub use crate::engine::images::{Handed, Holder, Images};
    pub use crate::executors::{CudaDevice, ExecutorModel, Failure, FailureKind, ModelSource, NewTokens, Origin};
    pub use crate::packed::Tokens;
    pub use crate::testing::{FaultOrder, SimulatedGpu};
    pub use crate::worker::*;
}
