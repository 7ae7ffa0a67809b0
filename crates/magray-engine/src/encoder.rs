//! A loaded model for its callers: texts in, vectors or scores out.
//! Never downloads, never prints.

mod error;

pub use error::{EmbedError, LoadError};

use crate::executors::cpu::CpuExecutor;
use crate::gpu::{GpuInfo, GpuOptions, Machine};
use crate::model::{Model, Synthetic, TensorSource};
use crate::packed::Tokens;
use crate::reading::{Reader, Reading};
use crate::runner::{Executor, OnCpu, Runner};
use crate::selection::{self, Outlook, Parts, Request, Selected};
use crate::spec::{Architecture, EmbedSpec, ModelSpec, Task};
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
    reader: Reader,
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
        let (reader, selected) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| Reader::open(spec.clone()));
            let selected = select(&spec, &weights, &cpu, options);
            (reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), selected)
        });
        let Selected { runner, outlook } = selected?;
        let cpu_precision = cpu_precision(&cpu, options);
        Ok(Self { reader: reader?, source: Box::new(weights), cpu, cpu_precision, runner, outlook })
    }

    /// A BERT of this shape with random weights, for benchmarks. It takes token ids alone.
    pub fn synthetic(shape: EncoderShape, options: &EncoderOptions) -> Result<Self, LoadError> {
        let spec = synthetic_spec(shape);
        let cpu = Arc::new(Cpu::new(options.cpu_path, options.threads)?);
        let Selected { runner, outlook } = select(&spec, &Synthetic, &cpu, options)?;
        let cpu_precision = cpu_precision(&cpu, options);
        let reader = Reader::without_tokenizer(spec);
        Ok(Self { reader, source: Box::new(Synthetic), cpu, cpu_precision, runner, outlook })
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
        self.reader.spec.shape
    }

    /// The longest text the model reads, in tokens.
    pub fn max_tokens(&self) -> usize {
        self.reader.spec.max_tokens
    }

    /// What the model's files say of it.
    pub fn spec(&self) -> &ModelSpec {
        &self.reader.spec
    }

    /// Embeds texts, with the named prompt of the model before each; without a name, with its default prompt if any.
    pub fn embed<T: AsRef<str> + Sync>(&mut self, texts: &[T], prompt: Option<&str>) -> Result<Embeddings, EmbedError> {
        let reading = self.reader.texts(texts, prompt, self.threads())?;
        self.compute_reading(&reading)
    }

    /// Embeds texts given as token ids, special tokens included.
    pub fn embed_ids(&mut self, texts: &[Vec<u32>]) -> Result<Embeddings, EmbedError> {
        self.reader.check(texts.iter().map(Vec::as_slice))?;
        let tokens: Vec<_> = texts.iter().map(|ids| Tokens { ids, types: &[] }).collect();
        self.compute(&tokens, 0)
    }

    /// Scores pairs of texts with a classifier: one row of logits a pair, one column a label.
    pub fn score_pairs<A, B>(&mut self, pairs: &[(A, B)]) -> Result<Embeddings, EmbedError>
    where
        A: AsRef<str> + Sync,
        B: AsRef<str> + Sync,
    {
        let reading = self.reader.pairs(pairs, self.threads())?;
        self.compute_reading(&reading)
    }

    /// Scores texts with a classifier: one row of logits a text, one column a label.
    pub fn score<T: AsRef<str> + Sync>(&mut self, texts: &[T]) -> Result<Embeddings, EmbedError> {
        let reading = self.reader.scored(texts, self.threads())?;
        self.compute_reading(&reading)
    }

    fn compute_reading(&mut self, reading: &Reading) -> Result<Embeddings, EmbedError> {
        let tokens: Vec<_> = reading.texts.iter().map(Tokens::from).collect();
        let truncated = reading.texts.iter().enumerate().filter(|(_, text)| text.truncated).map(|(i, _)| i).collect();
        Ok(Embeddings { truncated, ..self.compute(&tokens, reading.skip)? })
    }

    fn compute(&mut self, texts: &[Tokens<'_>], skip: usize) -> Result<Embeddings, EmbedError> {
        let dimensions = self.dimensions();
        let mut values = vec![0.0; texts.len() * dimensions];
        let (cpu, spec, source, precision) = (&self.cpu, &self.reader.spec, &*self.source, self.cpu_precision);
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
