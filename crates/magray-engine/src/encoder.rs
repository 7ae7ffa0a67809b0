//! A loaded model for its callers: texts in, vectors or scores out.
//! Never downloads, never prints.

use crate::cpu_executor::CpuExecutor;
use crate::model::{Model, PackError, Synthetic};
use crate::spec::{Architecture, EmbedSpec, ModelSpec, SpecError, Task};
use crate::tokenize::{Encoded, TokenizeError, Tokenizer};
use crate::weights::{Weights, WeightsError};
use magray_core::{Activation, CpuPath, EncoderShape, Pooling, Precision, PrecisionChoice};
use magray_device::cpu::{Cpu, CpuError};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a model is loaded.
#[derive(Clone, Debug, Default)]
pub struct EncoderOptions {
    /// The arithmetic.
    pub precision: PrecisionChoice,
    /// Threads of the CPU pool; `None`: one a core.
    pub threads: Option<usize>,
    /// Forces a CPU path; `None`: the best of the machine. An unavailable one is an error.
    pub cpu_path: Option<CpuPath>,
}

/// A model ready to compute.
pub struct Encoder {
    spec: ModelSpec,
    /// None for a synthetic model, which takes token ids alone.
    tokenizer: Option<Tokenizer>,
    executor: CpuExecutor,
    precision: Precision,
}

/// One vector a text, end to end, in the order of the texts.
#[derive(Clone, Debug, Default)]
pub struct Embeddings {
    /// Length of a vector.
    pub dimensions: usize,
    /// The vectors.
    pub values: Vec<f32>,
    /// Tokens computed, special tokens included.
    pub tokens: usize,
    /// Indices of texts that were longer than the model reads and were cut.
    pub truncated: Vec<usize>,
}

impl Embeddings {
    /// The vectors, one a text.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.dimensions.max(1))
    }
}

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
}

impl From<PackError<Infallible>> for LoadError {
    fn from(error: PackError<Infallible>) -> Self {
        let PackError::Weights(error) = error;
        Self::Weights(error)
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
    /// The model does something else.
    #[error("this model {does}; use one that {wanted}")]
    WrongTask {
        /// What it does.
        does: &'static str,
        /// What was asked of it.
        wanted: &'static str,
    },
}

fn list_prompts(known: &[String]) -> String {
    if known.is_empty() { "it has none".to_owned() } else { format!("it has: {}", known.join(", ")) }
}

impl Encoder {
    /// Opens the model in this folder.
    pub fn open(dir: &Path, options: &EncoderOptions) -> Result<Self, LoadError> {
        let spec = ModelSpec::read(dir)?;
        let weights = Weights::open(&spec.encoder_folder)?;
        let cpu = Arc::new(Cpu::new(options.cpu_path, options.threads)?);
        let precision = options.precision.settle_cpu(cpu.has_fast_bf16());
        // The tokenizer is read on one core while the others pack weights.
        let (tokenizer, model) = std::thread::scope(|scope| {
            let tokenizer = scope.spawn(|| Tokenizer::for_model(&spec));
            let model = Model::pack(&*cpu, &spec, &weights, precision);
            (tokenizer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), model)
        });
        let executor = CpuExecutor::new(cpu, model?);
        Ok(Self { tokenizer: Some(tokenizer?), executor, precision, spec })
    }

    /// A BERT of this shape with random weights, for benchmarks. It takes token ids alone.
    pub fn synthetic(shape: EncoderShape, options: &EncoderOptions) -> Result<Self, LoadError> {
        let cpu = Arc::new(Cpu::new(options.cpu_path, options.threads)?);
        let precision = options.precision.settle_cpu(cpu.has_fast_bf16());
        let spec = synthetic_spec(shape);
        let model = Model::pack(&*cpu, &spec, &Synthetic, precision)?;
        Ok(Self { tokenizer: None, executor: CpuExecutor::new(cpu, model), precision, spec })
    }

    /// Length of a vector; for a classifier, the number of labels.
    pub fn dimensions(&self) -> usize {
        self.executor.outputs()
    }

    /// The arithmetic that was settled on.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The path through the CPU code that was chosen.
    pub fn cpu_path(&self) -> CpuPath {
        self.executor.cpu().path()
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.executor.cpu().pool().threads()
    }

    /// The encoder's sizes.
    pub fn shape(&self) -> EncoderShape {
        self.spec.shape
    }

    /// The longest text the model reads, in tokens.
    pub fn max_tokens(&self) -> usize {
        self.spec.max_tokens
    }

    /// What the model's files say of it.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Embeds texts, with the named prompt of the model before each; without a name, with its default prompt if any.
    pub fn embed<T: AsRef<str> + Sync>(&mut self, texts: &[T], prompt: Option<&str>) -> Result<Embeddings, EmbedError> {
        let Task::Embed(task) = &self.spec.task else {
            return Err(EmbedError::WrongTask { does: "scores texts", wanted: "embeds them" });
        };
        let tokenizer = self.tokenizer.as_ref().ok_or(EmbedError::NoTokenizer)?;
        let (encoded, skip) = match find_prompt(&self.spec, prompt)? {
            None => (tokenizer.encode_batch(texts, self.threads())?, 0),
            Some(prompt) => {
                let skip = if task.include_prompt { 0 } else { tokenizer.prompt_tokens(prompt)? };
                let texts: Vec<String> = texts.iter().map(|text| format!("{prompt}{}", text.as_ref())).collect();
                (tokenizer.encode_batch(&texts, self.threads())?, skip)
            }
        };
        Ok(self.compute(&encoded, skip))
    }

    /// Embeds texts given as token ids, special tokens included.
    pub fn embed_ids(&mut self, texts: &[Vec<u32>]) -> Result<Embeddings, EmbedError> {
        let (vocab, max_tokens) = (self.spec.shape.vocab, self.spec.max_tokens);
        let mut encoded = Vec::with_capacity(texts.len());
        for (text, ids) in texts.iter().enumerate() {
            if ids.is_empty() || ids.len() > max_tokens {
                return Err(EmbedError::TokenCount { text, tokens: ids.len(), max_tokens });
            }
            if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocab) {
                return Err(EmbedError::UnknownId { text, id, vocab });
            }
            encoded.push(Encoded { ids: ids.clone(), type_ids: vec![0; ids.len()], truncated: false });
        }
        Ok(self.compute(&encoded, 0))
    }

    /// Scores pairs of texts with a classifier: one row of logits a pair, one column a label.
    pub fn score_pairs<A, B>(&mut self, pairs: &[(A, B)]) -> Result<Embeddings, EmbedError>
    where
        A: AsRef<str> + Sync,
        B: AsRef<str> + Sync,
    {
        self.must_classify()?;
        let tokenizer = self.tokenizer.as_ref().ok_or(EmbedError::NoTokenizer)?;
        let encoded = tokenizer.encode_pairs(pairs, self.threads())?;
        Ok(self.compute(&encoded, 0))
    }

    /// Scores texts with a classifier: one row of logits a text, one column a label.
    pub fn score<T: AsRef<str> + Sync>(&mut self, texts: &[T]) -> Result<Embeddings, EmbedError> {
        self.must_classify()?;
        let tokenizer = self.tokenizer.as_ref().ok_or(EmbedError::NoTokenizer)?;
        let encoded = tokenizer.encode_batch(texts, self.threads())?;
        Ok(self.compute(&encoded, 0))
    }

    fn must_classify(&self) -> Result<(), EmbedError> {
        match self.spec.task {
            Task::Classify(_) => Ok(()),
            Task::Embed(_) => Err(EmbedError::WrongTask { does: "embeds texts", wanted: "scores them" }),
        }
    }

    fn compute(&mut self, texts: &[Encoded], skip: usize) -> Embeddings {
        let dimensions = self.executor.outputs();
        let mut values = vec![0.0; texts.len() * dimensions];
        self.executor.run(texts, skip, &mut values);
        let truncated = texts.iter().enumerate().filter(|(_, text)| text.truncated).map(|(i, _)| i).collect();
        Embeddings { dimensions, values, tokens: texts.iter().map(|text| text.ids.len()).sum(), truncated }
    }
}

/// The text of the prompt to use.
fn find_prompt<'a>(spec: &'a ModelSpec, asked: Option<&str>) -> Result<Option<&'a str>, EmbedError> {
    let Some(name) = asked.or(spec.default_prompt.as_deref()) else { return Ok(None) };
    match spec.prompts.get(name) {
        Some(prompt) if prompt.is_empty() => Ok(None),
        Some(prompt) => Ok(Some(prompt)),
        None => {
            Err(EmbedError::UnknownPrompt { asked: name.to_owned(), known: spec.prompts.keys().cloned().collect() })
        }
    }
}

fn synthetic_spec(shape: EncoderShape) -> ModelSpec {
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
