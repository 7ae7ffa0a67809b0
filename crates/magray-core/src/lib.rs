//! Decides: what is computed together and where, who has memory, what follows from failures; also shapes, precisions and chunks.
//! Never does IO, reads no clock, starts no thread.
#![forbid(unsafe_code)]

mod activation;
mod block_format;
mod cpu_path;
mod device_choice;
mod device_name;
pub mod health;
pub mod ledger;
mod moment;
mod packing;
pub mod pool;
mod pooling;
mod precision;
pub mod schedule;
pub mod several_gpus;
mod shape;
mod split_mix;

pub use activation::{Activation, UnknownActivation};
pub use block_format::BlockFormat;
pub use cpu_path::{CpuPath, UnknownCpuPath};
pub use device_choice::{Candidate, Facts, Reason, Refusal, Rules, Scores, Verdict, choose_device, rule_out_gpu};
pub use device_name::{Backend, DeviceChoice, DeviceName, GpuSelector, OnnxProvider, UnknownDevice};
pub use packing::{ChunkLimits, Schedule, plan_chunks, plan_passes, plan_stream};
pub use pooling::{Pooling, UnknownPooling};
pub use precision::{Precision, PrecisionChoice, UnknownPrecision};
pub use shape::{EncoderShape, UnknownShape};
pub use split_mix::SplitMix64;
