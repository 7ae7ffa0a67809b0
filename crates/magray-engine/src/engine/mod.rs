//! The engine: models behind a queue, computed by the CPU and by GPUs that may fail without losing a request.
//! Never loads CUDA into this process: a GPU is used by a worker process, which can die and be replaced.
//!
//! A Rust program starts an engine, hands it texts and awaits what comes of them, in any runtime:
//!
//! ```
//! use magray_engine::engine::{Engine, EngineOptions, ModelSource};
//!
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/bert");
//! # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! # runtime.block_on(async {
//! let engine = Engine::start(EngineOptions::on_cpu(vec![ModelSource::Folder(folder.into()).into()]))?;
//! let answer = engine.embed(0, vec!["a river", "a cat"], None).await?;
//! println!("{} numbers a text, computed on {}", answer.dimensions, answer.device);
//! let compared = engine.similarity(0, "a river", vec!["a stream", "a cat"]).await?;
//! println!("{:?}", compared.scores);
//! # assert_eq!((answer.rows().len(), compared.scores.len()), (2, 2));
//! engine.shut_down();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Whoever stops waiting takes the work back. To read texts and to compute them are two steps where a program wants to
//! say more of its work, or to bound both:
//!
//! ```
//! # use magray_engine::engine::{Engine, EngineOptions, ModelSource, Priority, Work};
//! # use std::time::Duration;
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/bert");
//! # let engine = Engine::start(EngineOptions::on_cpu(vec![ModelSource::Folder(folder.into()).into()]))?;
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let work = engine.read(0, &["a river"], None)?;
//! let work = Work { deadline: Some(Duration::from_secs(60)), priority: Priority::High, ..work };
//! let answer = engine.ask(work).await?;
//! assert_eq!(answer.values.len(), answer.dimensions);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Models come when they are needed and go when they are not. Both can be done by hand, and no request fails by it:
//!
//! ```
//! # use magray_engine::engine::{Engine, EngineOptions, ModelSource, Residency};
//! # use std::time::Duration;
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/bert");
//! # let engine = Engine::start(EngineOptions::on_cpu(vec![ModelSource::Folder(folder.into()).into()]))?;
//! let most = Duration::from_secs(60);
//! engine.preheat(0, most)?;
//! engine.set_idle_timeout(0, Some(Duration::from_secs(300)))?;
//! engine.offload(0, most)?;
//! let moved = engine.release(0, most)?;
//! assert!(moved.residency.iter().all(|(_, residency)| *residency == Residency::Unloaded));
//! // The next request loads it again.
//! engine.process(engine.read(0, &["a river"], None)?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod asking;
mod assembly;
mod background;
mod calibrate;
mod calls;
mod canary;
mod choice;
mod devices;
mod dispatcher;
mod executor_handle;
pub(crate) mod images;
mod in_process;
mod in_worker;
mod incident;
mod model_queries;
mod models;
mod moves;
mod news;
mod pace;
mod proof;
mod ranking;
mod sandbox_check;
mod status;
mod token_stream;
mod work;

pub use asking::Asking;
pub use background::Background;
pub use calls::TokenVectors;
pub use choice::Outlook;
pub use incident::Incident;
pub use moves::{Move, Moved};
pub use pace::Recent;
pub use proof::Health;
pub use ranking::{Ranked, RankingWork, ScoredBy};
pub use sandbox_check::{SandboxCheck, check_sandbox};
pub use status::{CpuStatus, DeviceStatus, ModelStatus, Status};
pub use token_stream::{Prompt, TokenStream};
pub use work::{Answer, EngineError, Output, Work};

pub use crate::executors::ModelSource;
pub use crate::gpu::MemoryStats;
pub use crate::worker::{Attempt, Outcome, Sandbox};
pub use magray_core::schedule::{
    Allowed, Batching, DeviceState, DeviceView, Generation, Keeping, Limits, ModelPlan, ModelView, Moment, Options,
    Placement, Priority, Recovery, RequestId, Residency, Sizing, Sketch,
};

use crate::encoder::{EncoderOptions, LoadError};
use crate::executors::OpenExecutor;
use crate::health::AlertOptions;
use crate::reading::Reader;
#[cfg(feature = "testing")]
use crate::testing::{FaultPlan, SimulatedGpu};
use crate::tokenize::Encoded;
use assembly::Assembly;
use canary::Canary;
use choice::Choices;
use dispatcher::Dispatcher;
use magray_core::schedule::DeviceId;
use magray_core::{DeviceChoice, DeviceName};
use proof::Proof;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// How an engine is started.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Where and how models are computed.
    pub encoder: EncoderOptions,
    /// The models, named by their place in this list.
    pub models: Vec<EngineModel>,
    /// Which GPUs are used.
    pub gpus: Gpus,
    /// Bounds, batches, placement, recovery.
    pub schedule: Options,
    /// What computes in this process; `None`: the CPU.
    pub in_process: Option<Arc<dyn OpenExecutor>>,
    /// The program whose command `worker` is a GPU worker: this one.
    pub worker_exe: PathBuf,
    /// Workers that behave like GPUs and compute on the CPU, for tests.
    #[cfg(feature = "testing")]
    pub simulated_gpus: Vec<SimulatedGpu>,
    /// Faults to happen, for tests.
    #[cfg(feature = "testing")]
    pub faults: Option<FaultPlan>,
    /// Who is told when a device leaves or returns.
    pub alerts: AlertOptions,
    /// From one look at the GPUs to the next; `None`: nobody looks.
    pub monitor_interval: Option<Duration>,
}

impl EngineOptions {
    /// These models on the GPUs of this machine, and on the CPU where there is none or it fails; all else as it is by
    /// default. A GPU is used through a process of `worker_exe`: `magray`, or any program whose command `worker` calls
    /// [`crate::serve`].
    pub fn with_gpus(models: Vec<EngineModel>, worker_exe: PathBuf) -> Self {
        let on_cpu = Self::on_cpu(models);
        let encoder = EncoderOptions { device: DeviceChoice::Auto, ..on_cpu.encoder };
        Self { encoder, worker_exe, gpus: Gpus::All, monitor_interval: Some(Duration::from_millis(500)), ..on_cpu }
    }

    /// These models on the CPU alone, all else as it is by default.
    pub fn on_cpu(models: Vec<EngineModel>) -> Self {
        Self {
            encoder: EncoderOptions { device: DeviceChoice::Cpu, ..EncoderOptions::default() },
            models,
            gpus: Gpus::One,
            schedule: Options::default(),
            in_process: None,
            worker_exe: PathBuf::new(),
            #[cfg(feature = "testing")]
            simulated_gpus: Vec::new(),
            #[cfg(feature = "testing")]
            faults: None,
            alerts: AlertOptions::default(),
            monitor_interval: None,
        }
    }
}

/// Which GPUs are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Gpus {
    /// The one that the settings name.
    #[default]
    One,
    /// All that may be seen.
    All,
    /// Those of these numbers.
    These(Vec<usize>),
}

/// A model of an engine.
#[derive(Clone, Debug)]
pub struct EngineModel {
    /// Where it comes from.
    pub source: ModelSource,
    /// The device that it is assigned to by hand; `None`: wherever it is done first.
    pub assigned: Option<DeviceName>,
    /// What people call it.
    pub name: String,
    /// How it comes and goes. Its size is filled in when its files are read.
    pub plan: ModelPlan,
}

impl From<ModelSource> for EngineModel {
    fn from(source: ModelSource) -> Self {
        let name = match &source {
            ModelSource::Folder(folder) => {
                folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned()
            }
            ModelSource::Synthetic(shape) => format!("synthetic:{}x{}", shape.layers, shape.hidden),
        };
        Self { source, assigned: None, name, plan: ModelPlan::default() }
    }
}

/// A queue with devices behind it. Clones are the same engine; the last one that goes ends it.
#[derive(Clone)]
pub struct Engine(Arc<Running>);

struct Running {
    assembly: Assembly,
    readers: Vec<Reader>,
    canaries: Arc<[Canary]>,
    /// Threads that read texts.
    background: background::Threads,
    /// Callers that await moves.
    transfers: Arc<AtomicUsize>,
    /// What is known of the last passes.
    proof: Arc<Proof>,
    /// By model: which devices are used for it, and why.
    choices: Choices,
    /// By model: what people call it.
    names: Vec<String>,
    /// Whether a device keeps the state of sequences.
    generates: bool,
    /// Tokens that a reader may leave unread before its sequence pauses.
    unread_max: u32,
}

impl Engine {
    /// How long requests may take to end when the engine is shut down.
    const DRAIN_MAX: Duration = Duration::from_secs(30);

    /// Starts the workers, and loads the models that are to be preloaded for the CPU. It answers at once; GPUs join when
    /// they are ready. The other models are loaded when somebody asks for them.
    pub fn start(options: EngineOptions) -> Result<Self, LoadError> {
        let engine = Self(Arc::new(assembly::start(&options)?));
        engine.calibrate_in_background()?;
        Ok(engine)
    }

    /// Waits until every GPU is used or given up; `false` if that takes longer than `most`.
    pub fn wait_until_settled(&self, most: Duration) -> bool {
        self.dispatcher().wait_until_settled(most)
    }

    /// Waits until every GPU has started or failed to, and models that are preloaded are where they should be; `false` if
    /// that takes longer than `most`. A GPU that failed is tried again, and used when it works.
    pub fn wait_until_started(&self, most: Duration) -> bool {
        self.dispatcher().wait_until_started(most)
    }

    /// Takes work; `on_answer` is called exactly once, by a thread of the engine or, if the work is refused at once, by
    /// this one. It must not wait for anything: a thread that waits hears no heartbeats.
    pub fn submit(
        &self,
        mut work: Work,
        on_answer: impl FnOnce(Result<Answer, EngineError>) + Send + 'static,
    ) -> Option<RequestId> {
        if let Err(error) = self.check(&work) {
            on_answer(Err(error));
            return None;
        }
        if work.output == Output::Tokens {
            // GPU workers have one row a text on their wire.
            work.allowed = Allowed::Cpu;
        } else if work.allowed == Allowed::Any {
            work.allowed = self.0.choices.allowed(work.model);
        }
        let proof = Arc::clone(&self.0.proof);
        let on_answer = move |answer: Result<Answer, EngineError>| {
            if let Ok(answer) = &answer {
                proof.passed(answer);
            }
            on_answer(answer);
        };
        Some(self.dispatcher().submit(work, Box::new(on_answer)))
    }

    /// Whether work of about so many tokens would be taken now: a server asks before it reads a request. Work that may be
    /// computed anywhere goes where all models may.
    pub fn would_take(&self, sketch: Sketch) -> Result<(), EngineError> {
        let allowed = match sketch.allowed {
            Allowed::Any => self.0.choices.allowed_for_all().unwrap_or(Allowed::Any),
            allowed => allowed,
        };
        let would = self.dispatcher().would_take(&Sketch { allowed, ..sketch });
        would.map_err(|refused| EngineError::from_refused(refused, || None))
    }

    /// Nobody waits for this work any more: `on_answer` is not called, unless that is just happening.
    pub fn cancel(&self, id: RequestId) {
        self.dispatcher().cancel(id);
    }

    /// Computes and waits for the answer, for programs without a runtime. Others await [`Engine::ask`].
    ///
    /// ```
    /// use magray_engine::engine::{Engine, EngineOptions, ModelSource, Priority, Work};
    ///
    /// // A model of random weights, which reads token ids alone.
    /// let engine = Engine::start(EngineOptions::on_cpu(vec![ModelSource::Synthetic("tiny".parse()?).into()]))?;
    /// let work = Work { priority: Priority::High, ..Work::from_ids(0, vec![vec![5, 6, 7], vec![8, 9]]) };
    /// let answer = engine.process(work)?;
    /// assert_eq!((answer.rows().len(), answer.tokens), (2, 5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn process(&self, work: Work) -> Result<Answer, EngineError> {
        let (sender, receiver) = sync_channel(1);
        self.submit(work, move |answer| {
            // Nobody hangs up before the answer.
            let _ = sender.send(answer);
        });
        receiver.recv().unwrap_or(Err(EngineError::Draining))
    }

    /// How everything is: the devices with their memory and health, the models with where they are, the queue.
    ///
    /// ```
    /// # use magray_engine::engine::{DeviceState, Engine, EngineOptions, ModelSource};
    /// # let engine = Engine::start(EngineOptions::on_cpu(vec![ModelSource::Synthetic("tiny".parse()?).into()]))?;
    /// let status = engine.status();
    /// for device in &status.devices {
    ///     println!("{}: {:?}, {} texts", device.name, device.schedule.state, device.schedule.texts_finished);
    /// }
    /// for model in &status.models {
    ///     println!("{}: {:?}, unused for {:?}", model.name, model.view.residency, model.view.idle);
    /// }
    /// assert_eq!(status.devices[0].schedule.state, DeviceState::InRotation);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn status(&self) -> Status {
        self.0.assembly.status(&self.0.names, self.0.choices.packer().status())
    }

    /// What went wrong with devices, the oldest first; the last 256 are kept.
    pub fn incidents(&self) -> Vec<Incident> {
        self.dispatcher().incidents()
    }

    /// Returns a device to service whose failures sent it out of rotation; `false` if the engine has no such device.
    pub fn reset(&self, device: DeviceName) -> bool {
        let executors = self.dispatcher().executors();
        let at = executors.iter().position(|executor| executor.name() == device);
        if let Some(at) = at {
            let id = DeviceId(at as u16);
            if let Some(gpu) = devices::gpu_of_device(id) {
                self.0.assembly.news.reset(gpu);
            }
            self.dispatcher().reset(id);
        }
        at.is_some()
    }

    /// Takes no work any more, answers what it has, and ends all workers. Other clones get refusals from then on.
    pub fn shut_down(self) {
        self.dispatcher().drain(Self::DRAIN_MAX);
        self.0.assembly.end();
    }

    fn dispatcher(&self) -> &Dispatcher {
        &self.0.assembly.dispatcher
    }

    fn check(&self, work: &Work) -> Result<(), EngineError> {
        let reader = self.0.readers.get(work.model).ok_or(EngineError::NoModel(work.model))?;
        if work.texts.is_empty() {
            return Err(EngineError::NoText);
        }
        reader.check(work.texts.iter().map(|text| text.ids.as_slice()))?;
        if !self.0.canaries[work.model].may_skip(work.skip) {
            return Err(EngineError::NoPrompt(work.skip));
        }
        let known = reader.spec.type_vocab.max(1);
        let do_fit = |text: &Encoded| {
            text.type_ids.is_empty()
                || (text.type_ids.len() == text.ids.len() && text.type_ids.iter().all(|kind| (*kind as usize) < known))
        };
        match work.texts.iter().position(|text| !do_fit(text)) {
            Some(text) => Err(EngineError::TokenKinds { text, known }),
            None => Ok(()),
        }
    }
}
