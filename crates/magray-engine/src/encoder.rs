//! How encoders are loaded: the options, and why one cannot be loaded.
//! Computes nothing.

mod error;

pub use error::{EmbedError, LoadError};

use crate::executors::{GpuLayers, OnnxOptions};
use crate::gpu::GpuOptions;
use magray_core::{CpuPath, DeviceChoice, PrecisionChoice};
use magray_device::KvFormat;

/// How a model is loaded.
#[derive(Clone, Debug, Default)]
pub struct EncoderOptions {
    /// The arithmetic.
    pub precision: PrecisionChoice,
    /// Threads of the CPU pool; `None`: one a core.
    pub threads: Option<usize>,
    /// Forces a CPU path; `None`: the best of the machine. An unavailable one is an error.
    pub cpu_path: Option<CpuPath>,
    /// Where to compute.
    pub device: DeviceChoice,
    /// How the keys and values of a language model's sequences are kept.
    pub kv: KvFormat,
    /// How many of a language model's layers are on a GPU.
    pub gpu_layers: GpuLayers,
    /// How GPUs may be used.
    pub gpu: GpuOptions,
    /// How ONNX Runtime is used.
    pub onnx: OnnxOptions,
}
