//! Why a model cannot be loaded, and why texts cannot be computed.
//! Words only: who calls decides what follows.

use crate::decoder::{ConstraintError, OpenError, SamplingError};
use crate::executors::Failure;
use crate::gpu::GpuError;
use crate::model::PackError;
use crate::roster::RosterFull;
use crate::spec::SpecError;
use crate::tokenize::TokenizeError;
use crate::weights::WeightsError;
use magray_core::several_gpus::Refused;
use magray_core::{DeviceName, Refusal};
use magray_device::cpu::CpuError;
use std::convert::Infallible;

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The folder's description is missing or wrong.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The folder's weights are missing or wrong.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The folder's tokenizer is missing or wrong.
    #[error(transparent)]
    Tokenizer(#[from] TokenizeError),
    /// The CPU cannot be used as asked.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// The device that was asked for cannot be used.
    #[error(transparent)]
    Device(#[from] Refusal),
    /// The executor did not load it.
    #[error(transparent)]
    Executor(#[from] Failure),
    /// Too many models have come.
    #[error(transparent)]
    Full(#[from] RosterFull),
    /// The workers that run were not made for such a model.
    #[error(
        "it has texts of {tokens} tokens and answers of {outputs} numbers, more than the GPU workers that run have room for: restart magray with it"
    )]
    TooLarge {
        /// Tokens of its longest text.
        tokens: usize,
        /// Numbers of an answer.
        outputs: usize,
    },
    /// A fault is planned that cannot happen with it.
    #[cfg(feature = "testing")]
    #[error(transparent)]
    Faults(#[from] crate::testing::FaultPlanError),
    /// Keys and values of 8 bits on a GPU.
    #[error(
        "this version keeps keys and values in 8 bits on the CPU only: set chat.kv_bits to 16, or compute the model on the CPU (embed.device = \"cpu\", or gpu.model_assignments)"
    )]
    KvBits,
    /// A language model that is to have no layer on a GPU is assigned to one.
    #[error(
        "it is assigned to {0}, and chat.gpu_layers is 0, which keeps language models off GPUs: change one of both"
    )]
    GpuLayers(DeviceName),
    /// Several GPUs cannot compute it as the settings say.
    #[error("several GPUs cannot compute {model} as the settings say: {refused}")]
    SeveralGpus {
        /// The model.
        model: String,
        /// Why.
        refused: Refused,
    },
    /// No device has the memory for it.
    #[error("there is no place for {model}: {refused}")]
    NoPlace {
        /// The model.
        model: String,
        /// Why.
        refused: Refused,
    },
    /// ONNX Runtime is not used by this engine.
    #[error(
        "it is in ONNX form, and this magray was started without such a model: name it when magray starts (--model)"
    )]
    NoOnnx,
    /// The system gives no thread.
    #[error("the system refused a thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl From<PackError<Infallible>> for LoadError {
    fn from(error: PackError<Infallible>) -> Self {
        let PackError::Weights(error) = error;
        Self::Weights(error)
    }
}

impl From<OpenError> for LoadError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Spec(error) => Self::Spec(error),
            OpenError::Weights(error) => Self::Weights(error),
            OpenError::Tokenizer(error) => Self::Tokenizer(error),
        }
    }
}

/// Why texts could not be computed.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The model has no prompt of this name.
    #[error("the model has no prompt named '{asked}'; {}", list_prompts(known))]
    UnknownPrompt {
        /// The name that was asked for.
        asked: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The tokenizer refused a text.
    #[error(transparent)]
    Tokenize(#[from] TokenizeError),
    /// A synthetic model has no tokenizer.
    #[error("a synthetic model has no tokenizer: it takes token ids, for benchmarks")]
    NoTokenizer,
    /// A token id that the model does not have.
    #[error("text {text} has the token id {id}, but the model knows {vocab} ids")]
    UnknownId {
        /// Index of the text.
        text: usize,
        /// The id.
        id: u32,
        /// Rows of the model's table.
        vocab: usize,
    },
    /// More or fewer tokens than the model reads.
    #[error("text {text} has {tokens} tokens; the model reads 1 to {max_tokens}")]
    TokenCount {
        /// Index of the text.
        text: usize,
        /// Its tokens.
        tokens: usize,
        /// The most the model reads.
        max_tokens: usize,
    },
    /// More tokens than a sequence may have.
    #[error(
        "the prompt has {prompt} tokens and {new} new ones were asked for; the model takes {max_tokens} in all: ask for fewer, or shorten the prompt"
    )]
    Context {
        /// Tokens of the prompt.
        prompt: usize,
        /// New tokens that were asked for.
        new: u32,
        /// The most of both.
        max_tokens: usize,
    },
    /// A prompt of more tokens than a sequence may have.
    #[error("the prompt is longer than the {max_tokens} tokens that the model takes: shorten it")]
    LongPrompt {
        /// The most tokens.
        max_tokens: usize,
    },
    /// Tokens cannot be chosen like this.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// Output cannot be constrained like this.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// An answer cannot go on under its constraint.
    #[error("the answer cannot go on under its constraint: {0}")]
    Constrained(String),
    /// The model does something else.
    #[error("this model {does}; use one that {wanted}")]
    WrongTask {
        /// What it does.
        does: &'static str,
        /// What was asked of it.
        wanted: &'static str,
    },
    /// The executor failed.
    #[error(transparent)]
    Executor(#[from] Failure),
    /// The GPU failed.
    #[error("the GPU failed: {0}")]
    Gpu(#[source] GpuError),
}

fn list_prompts(known: &[String]) -> String {
    if known.is_empty() { "it has none".to_owned() } else { format!("it has: {}", known.join(", ")) }
}
