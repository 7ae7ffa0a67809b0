//! Runs: model store, weights, tokenizer, model architectures, executors.
//! Never prints, knows no HTTP types.
#![forbid(unsafe_code)]

mod calibration;
mod cpu_executor;
mod cuda_executor;
mod encoder;
mod executor;
pub mod gpu;
pub mod health;
mod model;
mod packed;
mod reading;
mod selection;
pub mod spec;
pub mod store;
pub mod tokenize;
pub mod weights;

pub use encoder::{EmbedError, Embeddings, Encoder, EncoderOptions, LoadError};
pub use magray_core::{
    Backend, CpuPath, DeviceChoice, DeviceName, EncoderShape, GpuSelector, Precision, PrecisionChoice, Reason, Refusal,
    Rules, Scores, Verdict,
};
pub use selection::Outlook;
