//! How encoders are loaded: options, models of random weights.
//! Computes nothing.

mod error;

pub use error::{EmbedError, LoadError};

use crate::gpu::GpuOptions;
use crate::spec::{Architecture, EmbedSpec, ModelSpec, Task};
use magray_core::{Activation, CpuPath, DeviceChoice, EncoderShape, Pooling, PrecisionChoice};
use std::path::PathBuf;

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
    /// How GPUs may be used.
    pub gpu: GpuOptions,
}

/// What a model of random weights says of itself.
pub(crate) fn synthetic_spec(shape: EncoderShape) -> ModelSpec {
    ModelSpec {
        encoder_folder: PathBuf::new(),
        architecture: Architecture::Bert,
        shape,
        activation: Activation::Gelu,
        norm_eps: 1e-12,
        pad_id: 0,
        type_vocab: 2,
        relative_attention_buckets: 0,
        max_tokens: shape.positions,
        lowercase: false,
        task: Task::Embed(EmbedSpec {
            pooling: vec![Pooling::Mean],
            dense: Vec::new(),
            normalize: true,
            include_prompt: true,
            assumed: false,
        }),
        prompts: Default::default(),
        default_prompt: None,
    }
}
