//! A loaded model for its callers: texts in, vectors or scores out.
//! Never downloads, never prints.

mod error;

pub use error::{EmbedError, LoadError};

use crate::cpu_executor::CpuExecutor;
use crate::executor::{Executor, OnCpu, Runner};
use crate::gpu::{GpuInfo, GpuOptions, Machine};
use crate::model::{Model, Synthetic, TensorSource};
use crate::packed::Tokens;
use crate::selection::{self, Outlook, Parts, Request, Selected};
use crate::spec::{Architecture, EmbedSpec, ModelSpec, Task};
use crate::tokenize::{Encoded, Tokenizer};
use crate::weights::Weights;
use magray_core::{
    Activation, CpuPath, DeviceChoice, DeviceName, EncoderShape, Pooling, Precision, PrecisionChoice, Reason,
};
use magray_device::cpu::Cpu;
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
    /// Where to compute.
    pub device: DeviceChoice,
    /// How GPUs may be used.
    pub gpu: GpuOptions,
}

/// A model ready to compute.
pub struct Encoder {
    spec: ModelSpec,
    /// None for a synthetic model, which takes token ids alone.
    tokenizer: Option<Tokenizer>,
    /// Kept for the CPU, which may have to stand in for a GPU.
    source: Box<dyn TensorSource + Send + Sync>,
    cpu: Arc<Cpu>,
    cpu_precision: Precision,
    runner: Runner,
    outlook: Outlook,
}

/// One vector a text, end to end, in the order of the texts.
#[derive(Clone, Debug)]
pub struct Embeddings {
    /// Length of a vector.
    pub dimensions: usize,
    /// The vectors.
    pub values: Vec<f32>,
    /// Tokens computed, special tokens included.
    pub tokens: usize,
    /// Indices of texts that were longer than the model reads and were cut.
    pub truncated: Vec<usize>,
    /// The device that computed them.
    pub device: DeviceName,
    /// The arithmetic they were computed in.
    pub precision: Precision,
    /// Why the CPU computed them although a GPU was to.
    pub fallback: Option<Reason>,
}

impl Embeddings {
    /// The vectors, one a text.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.dimensions.max(1))
    }
}

impl Encoder {
    /// Opens the model in this folder.
    pub fn open(dir: &Path, options: &EncoderOptions) -> Result<Self, LoadError> {
        let spec = ModelSpec::read(dir)?;
        let weights = Weights::open(&spec.encoder_folder)?;
        let cpu = Arc::new(Cpu::new(options.cpu_path, options.threads)?);
        // The tokenizer is read on one core while the others pack weights.
        let (tokenizer, selected) = std::thread::scope(|scope| {
            let tokenizer = scope.spawn(|| Tokenizer::for_model(&spec));
            let selected = select(&spec, &weights, &cpu, options);
            (tokenizer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), selected)
        });
        let Selected { runner, outlook } = selected?;
        let cpu_precision = cpu_precision(&cpu, options);
        Ok(Self { spec, tokenizer: Some(tokenizer?), source: Box::new(weights), cpu, cpu_precision, runner, outlook })
    }

    /// A BERT of this shape with random weights, for benchmarks. It takes token ids alone.
    pub fn synthetic(shape: EncoderShape, options: &EncoderOptions) -> Result<Self, LoadError> {
        let spec = synthetic_spec(shape);
        let cpu = Arc::new(Cpu::new(options.cpu_path, options.threads)?);
        let Selected { runner, outlook } = select(&spec, &Synthetic, &cpu, options)?;
        let cpu_precision = cpu_precision(&cpu, options);
        Ok(Self { spec, tokenizer: None, source: Box::new(Synthetic), cpu, cpu_precision, runner, outlook })
    }

    /// The device that would be chosen for the model in this folder (or for any, without one), and why. Loads nothing
    /// and measures nothing.
    pub fn outlook_for(dir: Option<&Path>, options: &EncoderOptions) -> Result<Outlook, LoadError> {
        let spec = dir.map(ModelSpec::read).transpose()?;
        let cpu = Cpu::new(options.cpu_path, options.threads)?;
        let request = Request { options, model: spec.as_ref(), cpu: &cpu };
        Ok(selection::weigh(&request, &Machine(&options.gpu)))
    }

    /// Length of a vector; for a classifier, the number of labels.
    pub fn dimensions(&self) -> usize {
        self.runner.executor().outputs()
    }

    /// The device that the next answer is to come from.
    pub fn device(&self) -> DeviceName {
        self.runner.executor().device()
    }

    /// The GPU in use.
    pub fn gpu(&self) -> Option<&GpuInfo> {
        match self.runner.executor() {
            Executor::Cuda(on) => Some(&on.gpu),
            Executor::Cpu(_) => None,
        }
    }

    /// Memory of the GPU that the model and its passes hold; 0 on the CPU.
    pub fn gpu_memory_used_bytes(&self) -> u64 {
        match self.runner.executor() {
            Executor::Cuda(on) => on.accelerator.memory_used_bytes(),
            Executor::Cpu(_) => 0,
        }
    }

    /// How the device was chosen when the model was loaded.
    pub fn outlook(&self) -> &Outlook {
        &self.outlook
    }

    /// The arithmetic that was settled on for the device in use.
    pub fn precision(&self) -> Precision {
        self.runner.executor().precision()
    }

    /// The path through the CPU code that was chosen.
    pub fn cpu_path(&self) -> CpuPath {
        self.cpu.path()
    }

    /// Threads of the CPU.
    pub fn threads(&self) -> usize {
        self.cpu.pool().threads()
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
        self.compute_encoded(&encoded, skip)
    }

    /// Embeds texts given as token ids, special tokens included.
    pub fn embed_ids(&mut self, texts: &[Vec<u32>]) -> Result<Embeddings, EmbedError> {
        let (vocab, max_tokens) = (self.spec.shape.vocab, self.spec.max_tokens);
        let mut tokens = Vec::with_capacity(texts.len());
        for (text, ids) in texts.iter().enumerate() {
            if ids.is_empty() || ids.len() > max_tokens {
                return Err(EmbedError::TokenCount { text, tokens: ids.len(), max_tokens });
            }
            if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocab) {
                return Err(EmbedError::UnknownId { text, id, vocab });
            }
            tokens.push(Tokens { ids, types: &[] });
        }
        self.compute(&tokens, 0)
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
        self.compute_encoded(&encoded, 0)
    }

    /// Scores texts with a classifier: one row of logits a text, one column a label.
    pub fn score<T: AsRef<str> + Sync>(&mut self, texts: &[T]) -> Result<Embeddings, EmbedError> {
        self.must_classify()?;
        let tokenizer = self.tokenizer.as_ref().ok_or(EmbedError::NoTokenizer)?;
        let encoded = tokenizer.encode_batch(texts, self.threads())?;
        self.compute_encoded(&encoded, 0)
    }

    fn must_classify(&self) -> Result<(), EmbedError> {
        match self.spec.task {
            Task::Classify(_) => Ok(()),
            Task::Embed(_) => Err(EmbedError::WrongTask { does: "embeds texts", wanted: "scores them" }),
        }
    }

    fn compute_encoded(&mut self, texts: &[Encoded], skip: usize) -> Result<Embeddings, EmbedError> {
        let tokens: Vec<_> = texts.iter().map(Tokens::from).collect();
        let truncated = texts.iter().enumerate().filter(|(_, text)| text.truncated).map(|(i, _)| i).collect();
        Ok(Embeddings { truncated, ..self.compute(&tokens, skip)? })
    }

    fn compute(&mut self, texts: &[Tokens<'_>], skip: usize) -> Result<Embeddings, EmbedError> {
        let dimensions = self.dimensions();
        let mut values = vec![0.0; texts.len() * dimensions];
        let (cpu, spec, source, precision) = (&self.cpu, &self.spec, &*self.source, self.cpu_precision);
        let ran = self.runner.run(texts, skip, &mut values, || pack_cpu(cpu, spec, source, precision))?;
        Ok(Embeddings {
            dimensions,
            values,
            tokens: texts.iter().map(|text| text.ids.len()).sum(),
            truncated: Vec::new(),
            device: ran.device,
            precision: ran.precision,
            fallback: ran.fallback,
        })
    }
}

/// Chooses a device of this machine and loads the model there.
fn select(
    spec: &ModelSpec,
    source: &dyn TensorSource,
    cpu: &Arc<Cpu>,
    options: &EncoderOptions,
) -> Result<Selected, LoadError> {
    let precision = cpu_precision(cpu, options);
    let pack = || pack_cpu(cpu, spec, source, precision);
    let request = Request { options, model: Some(spec), cpu };
    selection::select(&request, &Parts { spec, source, pack: &pack }, &Machine(&options.gpu))
}

fn cpu_precision(cpu: &Cpu, options: &EncoderOptions) -> Precision {
    options.precision.settle_cpu(cpu.has_fast_bf16())
}

/// Packs the model for the CPU.
pub(crate) fn pack_cpu(
    cpu: &Arc<Cpu>,
    spec: &ModelSpec,
    source: &dyn TensorSource,
    precision: Precision,
) -> Result<OnCpu, LoadError> {
    let model = Model::pack(&**cpu, spec, source, precision)?;
    Ok(OnCpu { executor: Box::new(CpuExecutor::new(Arc::clone(cpu), model)), precision })
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
