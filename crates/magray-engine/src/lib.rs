//! Runs: model store, weights, tokenizer, model architectures, executors.
//! Never prints, knows no HTTP types.
#![forbid(unsafe_code)]

mod cpu_executor;
mod encoder;
mod model;
pub mod spec;
pub mod store;
pub mod tokenize;
pub mod weights;

pub use encoder::{EmbedError, Embeddings, Encoder, EncoderOptions, LoadError};
pub use magray_core::{CpuPath, EncoderShape, Precision, PrecisionChoice};
