//! An executor of ONNX Runtime: a session for each model that is loaded, by the first provider that proves to compute it. Where
//! the library cannot compute a model, the engine in the program does, if the CPU may. Keeps nothing of a model that has left.

mod cuda_libraries;
mod device;
mod groups;
mod library;
mod pooling;
mod proof;
mod rust_session;
mod session;

pub(crate) use device::provider_order;
pub use device::{GraphOptimization, OnnxDevice, OnnxOptions};
pub use library::Library;

use super::available_memory::{available_bytes, total_bytes};
use super::{Arrival, Executor, ExecutorModel, Failure, FailureKind, FilledImage, Label, Origin, Outcomes, Steps};
use crate::gpu::MemoryStats;
use crate::packed::Tokens;
use crate::roster::Roster;
use crate::spec::{InputMeaning, ModelSpec, OnnxSpec, Task};
use groups::{Group, Limits, divide, order};
use magray_core::{OnnxProvider, Pooling, Precision};
use rust_session::RustSession;
use session::{Opened, open, tensor};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tokens of a run, padding included.
const TOKENS_MAX: usize = 4_096;
/// Texts of a run.
const TEXTS_MAX: usize = 32;

/// ONNX Runtime, and the models that it may be told to load.
pub(crate) struct OnnxExecutor {
    /// Or why there is none.
    library: Result<Library, Failure>,
    device: OnnxDevice,
    models: Roster<Known>,
    peak: AtomicU64,
    /// What the GPU had free before the first model came to it: the library takes far more of it than the weights.
    free_before: AtomicU64,
}

struct Known {
    model: ExecutorModel,
    /// Empty where it is not loaded.
    loaded: Mutex<Option<Loaded>>,
    /// Bytes of its files, while it is loaded.
    bytes: AtomicU64,
    /// Whether it is loaded by a provider of NVIDIA's GPUs.
    is_on_gpu: AtomicBool,
}

/// A model with a session.
struct Loaded {
    spec: ModelSpec,
    onnx: OnnxSpec,
    session: Session,
    inputs: Inputs,
}

/// What computes a graph.
enum Session {
    Runtime(Opened),
    Rust(Box<RustSession>),
}

impl Session {
    fn provider(&self) -> OnnxProvider {
        match self {
            Self::Runtime(opened) => opened.provider,
            Self::Rust(_) => OnnxProvider::Rust,
        }
    }
}

/// The numbers of a run; their memory is used again.
#[derive(Default)]
struct Inputs {
    wide: [Vec<i64>; 4],
    narrow: [Vec<i32>; 4],
}

impl OnnxExecutor {
    /// Loads the library; no model. Without one, only the CPU can compute.
    pub(crate) fn open(device: &OnnxDevice, models: &[ExecutorModel]) -> Result<Self, Failure> {
        let library = Library::load(device.libraries());
        if let Err(failure) = &library
            && !device.may_use_cpu()
        {
            return Err(failure.clone());
        }
        let models = models.iter().cloned().map(Known::new).collect();
        Ok(Self { library, device: device.clone(), models, peak: AtomicU64::new(0), free_before: AtomicU64::new(0) })
    }

    fn is_on_gpu(&self) -> bool {
        self.models.iter().any(|known| known.is_on_gpu.load(Ordering::Acquire))
    }

    fn allocated(&self) -> u64 {
        self.models.iter().map(|known| known.bytes.load(Ordering::Acquire)).sum()
    }

    fn load_new(&self, model: &ExecutorModel) -> Result<Loaded, Failure> {
        let spec = model.source.spec().map_err(Failure::of_model)?;
        let Some(onnx) = spec.onnx.clone() else {
            return Err(Failure::new(FailureKind::Transient, "not_onnx", "the model is not in ONNX form"));
        };
        let session = self.open_session(&onnx)?;
        Ok(Loaded { spec, onnx, session, inputs: Inputs::default() })
    }

    fn open_session(&self, onnx: &OnnxSpec) -> Result<Session, Failure> {
        let opened = self.library.as_ref().map_err(Clone::clone).and_then(|library| open(library, &self.device, onnx));
        let failure = match opened {
            Ok(opened) => return Ok(Session::Runtime(opened)),
            Err(failure) => failure,
        };
        if !self.device.may_use_cpu() {
            return Err(failure);
        }
        match RustSession::open(onnx, self.device.threads()) {
            Ok(session) => {
                let (file, reason) = (onnx.file.display(), &failure.message);
                tracing::warn!(target: "magray::onnx", %file, reason, "computed by the engine in the program, not by ONNX Runtime");
                Ok(Session::Rust(Box::new(session)))
            }
            Err(reason) => {
                let message = format!("{}; nor does the engine in the program compute it: {reason}", failure.message);
                Err(Failure { message, ..failure })
            }
        }
    }
}

impl Known {
    fn new(model: ExecutorModel) -> Self {
        Self { model, loaded: Mutex::new(None), bytes: AtomicU64::new(0), is_on_gpu: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Loaded>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self) {
        self.is_on_gpu.store(false, Ordering::Release);
        let left = self.lock().take();
        drop(left);
        self.bytes.store(0, Ordering::Release);
    }
}

impl Executor for OnnxExecutor {
    fn label(&self) -> Label {
        let name = match &self.library {
            Ok(library) => format!("ONNX Runtime ({})", library.path.display()),
            Err(_) => "the program's own engine of ONNX graphs".to_owned(),
        };
        Label { name, uuid: "ONNX".to_owned() }
    }

    fn add(&self, model: ExecutorModel) -> Result<(), Failure> {
        self.models.push(Known::new(model)).map(drop).map_err(Failure::of_model)
    }

    fn load(&self, model: usize, _: Option<FilledImage>) -> Result<Arrival, Failure> {
        let known = &self.models[model];
        let mut place = known.lock();
        let origin = if place.is_some() { Origin::Device } else { Origin::Files };
        let loaded = match place.take() {
            Some(loaded) => loaded,
            None => {
                if self.device.may_use_gpu() && !self.is_on_gpu() {
                    let free = self.device.gpu_memory().map_or(0, |(free, _)| free);
                    self.free_before.store(free, Ordering::Release);
                }
                self.load_new(&known.model)?
            }
        };
        let (bytes, outputs) = (loaded.onnx.bytes, loaded.spec.outputs());
        let (precision, provider) = (loaded.precision(), loaded.session.provider());
        *place = Some(loaded);
        known.bytes.store(bytes, Ordering::Release);
        let is_on_gpu = matches!(provider, OnnxProvider::Cuda | OnnxProvider::TensorRt);
        known.is_on_gpu.store(is_on_gpu, Ordering::Release);
        self.peak.fetch_max(self.allocated(), Ordering::AcqRel);
        Ok(Arrival { provider: Some(provider), ..Arrival::new(precision, outputs, bytes, origin) })
    }

    fn offload(&self, model: usize) {
        self.models[model].leave();
    }

    fn release(&self, model: usize) {
        self.models[model].leave();
    }

    fn run(&self, model: usize, steps: Steps<'_>, outcomes: &mut Outcomes) -> Result<(), Failure> {
        let mut place = self.models[model].lock();
        let loaded = place.as_mut().ok_or_else(Failure::not_loaded)?;
        outcomes.new_tokens.clear();
        outcomes.waited = std::time::Duration::ZERO;
        match steps {
            Steps::Texts { texts, skip } => loaded.run(texts, skip, loaded.normalizes(), &mut outcomes.rows),
            Steps::Unscaled { texts, skip } => loaded.run(texts, skip, false, &mut outcomes.rows),
            Steps::EachToken(texts) => loaded.run_tokens(texts, &mut outcomes.rows),
            Steps::Parts(_) => Err(Failure::unsupported("tokens of sequences")),
        }
    }

    fn memory(&self) -> MemoryStats {
        // While a session is on a GPU, what counts is the memory of that. What others took meanwhile counts as taken here.
        let on_gpu = self.is_on_gpu().then(|| self.device.gpu_memory()).flatten();
        let taken = on_gpu.map_or(0, |(free, _)| self.free_before.load(Ordering::Acquire).saturating_sub(free));
        let allocated = self.allocated().max(taken);
        let (free, total) = on_gpu.unwrap_or_else(|| (available_bytes(), total_bytes()));
        let peak_allocated = self.peak.load(Ordering::Acquire).max(allocated);
        MemoryStats { allocated, reserved: allocated, peak_allocated, free, total, ..MemoryStats::default() }
    }
}

impl Loaded {
    /// What the graph's numbers are, as far as its output tells.
    fn precision(&self) -> Precision {
        match (self.onnx.output.is_half, self.onnx.is_quantised) {
            (true, _) => Precision::F16,
            (false, true) => Precision::Int8,
            (false, false) => Precision::F32,
        }
    }

    fn limits(&self) -> Limits {
        let texts_max = if self.onnx.runs_singly { 1 } else { TEXTS_MAX };
        let OnnxSpec { fixed_texts, fixed_tokens, .. } = self.onnx;
        Limits { tokens_max: TOKENS_MAX, texts_max, fixed_texts, fixed_tokens }
    }

    /// Whether rows are scaled to length 1.
    fn normalizes(&self) -> bool {
        matches!(&self.spec.task, Task::Embed(embed) if embed.normalize)
    }

    fn run(&mut self, texts: &[Tokens<'_>], skip: usize, normalizes: bool, rows: &mut Vec<f32>) -> Result<(), Failure> {
        let outputs = self.spec.outputs();
        rows.clear();
        rows.resize(texts.len() * outputs, 0.0);
        let ways = match &self.spec.task {
            Task::Embed(embed) => embed.pooling.clone(),
            Task::Classify(_) | Task::Generate(_) => vec![Pooling::Cls],
        };
        // A row that the graph has made of a whole text is taken as it is.
        let skip = if self.onnx.output.has_tokens { skip } else { 0 };
        self.for_groups(texts, |at, tokens, columns| {
            let row = &mut rows[at * outputs..][..outputs];
            pooling::pool(tokens, columns, skip, &ways, row);
            if normalizes {
                pooling::normalize(row);
            }
        })
    }

    fn run_tokens(&mut self, texts: &[Tokens<'_>], rows: &mut Vec<f32>) -> Result<(), Failure> {
        if !self.onnx.output.has_tokens {
            return Err(Failure::unsupported("rows of tokens: its graph gives one for each text"));
        }
        let hidden = self.spec.shape.hidden;
        let mut starts = Vec::with_capacity(texts.len());
        let mut tokens = 0;
        for text in texts {
            starts.push(tokens * hidden);
            tokens += text.ids.len();
        }
        rows.clear();
        rows.resize(tokens * hidden, 0.0);
        self.for_groups(texts, |at, tokens, _| rows[starts[at]..][..tokens.len()].copy_from_slice(tokens))
    }

    /// Runs all texts; `take` is told the place of each, with the rows of its tokens or its one row, and their columns.
    fn for_groups(&mut self, texts: &[Tokens<'_>], mut take: impl FnMut(usize, &[f32], usize)) -> Result<(), Failure> {
        let order = order(texts.iter().map(|text| text.ids.len()));
        for group in divide(&order, self.limits()) {
            let members = &order[group.places.clone()];
            self.inputs.fill(&self.onnx, &group, members.iter().map(|(at, _)| texts[*at]), self.spec.pad_id);
            self.run_group(&group, members, &mut take)?;
        }
        Ok(())
    }

    fn run_group(
        &mut self,
        group: &Group,
        members: &[(usize, usize)],
        take: &mut impl FnMut(usize, &[f32], usize),
    ) -> Result<(), Failure> {
        let Self { onnx, session, inputs, spec } = self;
        let shape = [group.rows, group.tokens];
        let own: Vec<f32>;
        let outputs;
        let (dims, numbers): (Vec<i64>, &[f32]) = match session {
            Session::Rust(session) => {
                let (dims, numbers) = session.run(inputs.narrowed(onnx), shape)?;
                own = numbers;
                (dims.into_iter().map(|size| size as i64).collect(), &own)
            }
            Session::Runtime(opened) => {
                let values = onnx.inputs.iter().enumerate().map(|(at, input)| {
                    let value = tensor(input.is_wide, shape, &inputs.wide[at], &inputs.narrow[at])?;
                    Ok((input.name.as_str(), value))
                });
                let values = values.collect::<ort::Result<Vec<_>>>().map_err(failed)?;
                outputs = opened.run(values, shape).map_err(failed)?;
                let value =
                    outputs.get(&onnx.output.name).ok_or_else(|| broken("the graph did not give its output"))?;
                if onnx.output.is_half {
                    let (dims, numbers) = value.try_extract_tensor::<half::f16>().map_err(failed)?;
                    own = numbers.iter().map(|number| number.to_f32()).collect();
                    (dims.to_vec(), &own)
                } else {
                    let (dims, numbers) = value.try_extract_tensor::<f32>().map_err(failed)?;
                    (dims.to_vec(), numbers)
                }
            }
        };
        let columns = if onnx.output.has_tokens { spec.shape.hidden } else { spec.outputs() };
        let [rows, tokens] = shape.map(|size| size as i64);
        let expected =
            if onnx.output.has_tokens { vec![rows, tokens, columns as i64] } else { vec![rows, columns as i64] };
        if dims != expected {
            return Err(broken(&format!("the graph gave an output of {dims:?}, not of {expected:?}")));
        }
        let stride = if onnx.output.has_tokens { group.tokens * columns } else { columns };
        for (row, (at, length)) in numbers.chunks_exact(stride.max(1)).zip(members) {
            let own = if onnx.output.has_tokens { length * columns } else { columns };
            take(*at, &row[..own], columns);
        }
        Ok(())
    }
}

impl Inputs {
    /// The numbers of each input in 32 bits.
    fn narrowed(&self, spec: &OnnxSpec) -> Vec<Vec<i32>> {
        let inputs = spec.inputs.iter().zip(self.wide.iter().zip(&self.narrow));
        let narrowed = inputs.map(|(input, (wide, narrow))| match input.is_wide {
            true => wide.iter().map(|number| *number as i32).collect(),
            false => narrow.clone(),
        });
        narrowed.collect()
    }

    /// Writes the texts of a run side by side, padded.
    fn fill<'a>(
        &mut self,
        spec: &OnnxSpec,
        group: &Group,
        texts: impl Iterator<Item = Tokens<'a>> + Clone,
        pad_id: u32,
    ) {
        let count = group.rows * group.tokens;
        for (at, input) in spec.inputs.iter().enumerate() {
            let padding = if input.meaning == InputMeaning::Ids { pad_id } else { 0 };
            let number = |text: Tokens<'_>, token: usize| match input.meaning {
                InputMeaning::Ids => text.ids[token],
                InputMeaning::Mask => 1,
                InputMeaning::Types => text.types.get(token).copied().unwrap_or(0),
                InputMeaning::Positions => token as u32,
            };
            let numbers = texts.clone().enumerate().flat_map(|(row, text)| {
                (0..text.ids.len()).map(move |token| (row * group.tokens + token, number(text, token)))
            });
            if input.is_wide {
                let to = &mut self.wide[at];
                to.clear();
                to.resize(count, i64::from(padding));
                numbers.for_each(|(at, number)| to[at] = i64::from(number));
            } else {
                let to = &mut self.narrow[at];
                to.clear();
                to.resize(count, padding.cast_signed());
                numbers.for_each(|(at, number)| to[at] = number.cast_signed());
            }
        }
    }
}

/// A run failed. ONNX Runtime tells little of why; that memory was short is in its words alone.
fn failed(error: ort::Error) -> Failure {
    let message = error.message();
    let is_memory = ["bad_alloc", "Failed to allocate", "out of memory", "CUDA failure 2"];
    match is_memory.iter().any(|words| message.contains(words)) {
        true => Failure::out_of_memory(message),
        false => Failure::new(FailureKind::Transient, "onnx_run", message),
    }
}

fn broken(message: &str) -> Failure {
    Failure::new(FailureKind::Transient, "onnx_output", message)
}

/// The executor as an engine or a worker opens it.
pub(crate) fn open_executor(device: &OnnxDevice, models: &[ExecutorModel]) -> Result<Arc<dyn Executor>, Failure> {
    Ok(Arc::new(OnnxExecutor::open(device, models)?))
}
