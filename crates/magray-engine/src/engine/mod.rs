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
//! Dropping a future cancels its work. To read texts and to compute them are two steps where a program wants to
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

mod assembly;
mod background;
mod calibrate;
mod calls;
mod canary;
mod choice;
mod devices;
mod dispatcher;
mod division;
mod executor_handle;
#[cfg(feature = "testing")]
mod fault_injection;
mod gpu_reports;
mod grouping;
mod health_check;
mod host_memory;
pub(crate) mod images;
mod in_process;
mod in_worker;
mod incident;
mod later_models;
mod model_moves;
mod models;
mod moves;
mod notices;
mod options;
mod pending_answer;
mod profiling;
mod ranking;
mod sandbox_check;
mod sequence_view;
mod status;
mod text_cache;
mod throughput;
mod token_stream;
mod vector_host;
mod work;

pub use background::Background;
pub use calls::TokenVectors;
pub use choice::Outlook;
pub use executor_handle::LastError;
#[cfg(feature = "testing")]
pub use fault_injection::InjectError;
pub use health_check::Health;
pub use incident::{Incident, LostRequests};
pub use model_moves::{ModelMove, MoveEnd, MoveKind};
pub use moves::{Move, Moved};
pub use options::{EngineModel, EngineOptions, Gpus};
pub use pending_answer::PendingAnswer;
pub use ranking::{Ranked, RankingWork, ScoredBy};
pub use sandbox_check::{SandboxCheck, check_sandbox};
pub use sequence_view::{SequenceView, Stage};
pub use status::{CpuStatus, DeviceStatus, ModelStatus, Status};
pub use text_cache::{Asked, CacheUse, TextCache};
pub use throughput::{Recent, SecondFigures};
pub use token_stream::{Prompt, Speculation, Token, TokenStream};
pub use work::{Answer, EngineError, Output, Work};

pub use crate::executors::ModelSource;
pub use crate::gpu::MemoryStats;
pub use crate::worker::{Attempt, Outcome, Sandbox};
pub use magray_core::schedule::{
    Allowed, Batching, CallerId, Coming, DeviceState, DeviceView, Generation, Keeping, Limits, ModelPlan, ModelView,
    Moment, MoveReason, Options, Placement, Priority, Recovery, RequestId, Residency, Sizing, Sketch, Slices,
    SpeedWatch, UnknownPriority,
};
pub use magray_core::several_gpus::Strategy;

use crate::decoder::ChatTemplates;
use crate::encoder::{EmbedError, LoadError};
use crate::profile::Profile;
use crate::reading::Reader;
use crate::roster::Roster;
use crate::tokenize::{Encoded, Tokenizer, Vocabulary};
use assembly::Assembly;
use canary::Canary;
use choice::Choices;
pub(crate) use devices::onnx_device;
use dispatcher::Dispatcher;
use health_check::PassRecord;
use later_models::LaterModels;
use magray_core::schedule::DeviceId;
use magray_core::{DeviceName, Refusal, Verdict};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

/// A queue with devices behind it. Clones are the same engine; the last one that goes ends it.
#[derive(Clone)]
pub struct Engine(Arc<Running>);

struct Running {
    assembly: Assembly,
    readers: Roster<Reader>,
    canaries: Arc<Roster<Canary>>,
    later: LaterModels,
    /// Threads that read texts.
    background: background::Threads,
    /// Callers that await moves.
    transfers: Arc<AtomicUsize>,
    /// What is known of the last passes.
    passes: Arc<PassRecord>,
    /// By model: which devices are used for it, and why.
    choices: Choices,
    /// Tokens that a reader may leave unread before its sequence pauses.
    unread_max: u32,
    /// Tokens that are proposed for a pass where a prompt does not say.
    speculate: u8,
}

impl Engine {
    /// Texts of up to this many bytes are read by the thread that asks: to hand over less takes longer than to read it.
    pub const INLINE_BYTES_MAX: usize = 8 << 10;
    /// How long requests may take to end when the engine is shut down.
    const DRAIN_MAX: Duration = Duration::from_secs(30);

    /// Starts the workers, and loads the models that are to be preloaded for the CPU. It answers at once; GPUs join when
    /// they are ready. The other models are loaded by their first request.
    pub fn start(options: EngineOptions) -> Result<Self, LoadError> {
        let engine = Self(Arc::new(assembly::start(&options)?));
        calibrate::calibrate_in_background(&engine)?;
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
        let hidden = || self.0.readers[work.model].spec.shape.hidden;
        let is_native = self.0.readers[work.model].spec.onnx.is_none();
        if work.output == Output::Tokens && is_native && !self.0.later.takes_token_rows(hidden()) {
            work.allowed = Allowed::Cpu;
        } else if work.allowed == Allowed::Any {
            work.allowed = self.0.choices.allowed(work.model);
        }
        let (passes, running, model) = (Arc::clone(&self.0.passes), Arc::downgrade(&self.0), work.model);
        let on_answer = move |answer: Result<Answer, EngineError>| {
            // It came between the look whether its model is there and the end of that.
            let is_gone = || running.upgrade().is_some_and(|running| running.later.is_gone(model));
            on_answer(match answer {
                Err(EngineError::NoDevice { .. }) if is_gone() => Err(EngineError::NoModel(model)),
                answer => {
                    if let Ok(answer) = &answer {
                        passes.note(answer);
                    }
                    answer
                }
            });
        };
        Some(self.dispatcher().submit(work, Box::new(on_answer)))
    }

    /// Whether work of about this many tokens would be taken now, and how long all that is there should take: a server asks
    /// before it reads a request. Work that may be computed anywhere goes where all models may.
    pub fn would_take(&self, sketch: Sketch) -> Result<Duration, EngineError> {
        let allowed = match sketch.allowed {
            Allowed::Any => self.0.choices.allowed_for_all().unwrap_or(Allowed::Any),
            allowed => allowed,
        };
        let would = self.dispatcher().would_take(&Sketch { allowed, ..sketch });
        would.map_err(|refused| EngineError::from_refused(refused, || None))
    }

    /// Whether texts of this many tokens would be taken of anyone: far from every bound.
    pub fn has_free(&self, tokens: u64) -> bool {
        self.dispatcher().has_free(tokens)
    }

    /// Cancels work: `on_answer` is not called, unless that is just happening.
    pub fn cancel(&self, id: RequestId) {
        self.dispatcher().cancel(id);
    }

    /// Computes and waits for the answer, for programs without a runtime. Others await [`Engine::ask`].
    ///
    /// ```
    /// use magray_engine::engine::{Engine, EngineOptions, ModelSource, Priority, Work};
    ///
    /// // A model of random weights, which reads only token ids.
    /// let engine = Engine::start(EngineOptions::on_cpu(vec![ModelSource::Synthetic("tiny".parse()?).into()]))?;
    /// let work = Work { priority: Priority::High, ..Work::from_ids(0, vec![vec![5, 6, 7], vec![8, 9]]) };
    /// let answer = engine.process(work)?;
    /// assert_eq!((answer.rows().len(), answer.tokens), (2, 5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn process(&self, work: Work) -> Result<Answer, EngineError> {
        let (sender, receiver) = sync_channel(1);
        self.submit(work, move |answer| {
            // The receiver is there until the answer comes.
            let _ = sender.send(answer);
        });
        receiver.recv().unwrap_or(Err(EngineError::Draining))
    }

    /// Takes work; the answer is awaited.
    pub fn ask(&self, work: Work) -> PendingAnswer {
        PendingAnswer::of(self, work)
    }

    /// A text as the tokens of a model, to go on from.
    pub fn read_prompt(&self, model: usize, text: &str) -> Result<Vec<u32>, EngineError> {
        Ok(self.reader(model)?.prompt(text, Tokenizer::encode)?)
    }

    /// A text that a chat template made, as the tokens of a model. Special tokens are those that the template wrote: none
    /// are added, so that none is there twice.
    pub fn read_rendered(&self, model: usize, text: &str) -> Result<Vec<u32>, EngineError> {
        Ok(self.reader(model)?.prompt(text, Tokenizer::encode_bare)?)
    }

    /// Refuses a prompt that leaves no room in the model's context for this number of new tokens.
    pub fn check_context(&self, model: usize, prompt: usize, new_tokens_max: u32) -> Result<(), EngineError> {
        token_stream::check_context(self.reader(model)?.spec.max_tokens, prompt, new_tokens_max)
    }

    /// A model's chat templates; `None` for one that has none.
    pub fn chat_templates(&self, model: usize) -> Option<&ChatTemplates> {
        self.0.readers.get(model)?.chat.as_ref()
    }

    /// The bytes of a model's tokens; `None` for one that generates none.
    pub fn vocabulary(&self, model: usize) -> Option<&Vocabulary> {
        self.0.readers.get(model)?.vocabulary.as_ref()
    }

    /// Goes on from a prompt: language models do, and simulated GPUs in place of them.
    pub fn generate(&self, prompt: Prompt) -> Result<TokenStream, EngineError> {
        TokenStream::begin(self, prompt)
    }

    /// Does something that takes a core for a while, such as reading texts of this many bytes, on one of few threads beside
    /// those that compute; while it reads many, others that read few pass it. For a server that reads requests of its own
    /// form; [`Engine::embed`] and its like need no such thing.
    pub fn background<T: Send + 'static>(
        &self,
        bytes: usize,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Background<T> {
        self.0.background.run(bytes, job)
    }

    /// Proves that requests can be computed now: by a real pass of every model that is on a device, or of the first where
    /// none is. The result holds until a device changes or waiting work is not done, so that asking often costs little
    /// and keeps no idle model in memory. An engine that has too much to do is well as long as it computes.
    ///
    /// ```
    /// # use magray_engine::engine::{Engine, EngineOptions, ModelSource};
    /// # let engine = Engine::start(EngineOptions::on_cpu(vec![ModelSource::Synthetic("tiny".parse()?).into()]))?;
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let health = engine.health().await?;
    /// println!("{} computed {:?} ago", health.device, health.since);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn health(&self) -> Result<Health, EngineError> {
        health_check::check(self).await
    }

    /// How the device of a model was chosen; `None` where there is no such model.
    pub fn outlook(&self, model: usize) -> Option<Outlook> {
        self.0.choices.outlook(model)
    }

    /// Measures a model on both devices where its GPU was never measured, keeps the figures for later processes, and
    /// computes the model only on the CPU where the GPU is slower than the settings ask for. Waits until that is done.
    pub fn calibrate(&self, model: usize) -> Result<Outlook, EngineError> {
        calibrate::calibrate(self, model)
    }

    /// Waits until a GPU that is to be used has started or failed to, measures it if it never was, and says which device is
    /// used for a model and why. For a program that computes and ends; a server takes requests meanwhile.
    pub fn settle(&self, model: usize, within: Duration) -> Result<Verdict, Refusal> {
        calibrate::settle(self, model, within)
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
        self.0.assembly.status(self.0.choices.packer(), &self.0.later)
    }

    /// What went wrong with devices, the oldest first; the last 256 are kept.
    pub fn incidents(&self) -> Vec<Incident> {
        self.dispatcher().incidents()
    }

    /// When models came to devices and left them, the oldest first; the last 256 are kept.
    pub fn model_moves(&self) -> Vec<ModelMove> {
        self.dispatcher().model_moves()
    }

    /// What was computed in each second of the last minute, and how many requests the CPU computed in place of a GPU since the
    /// start, by the code of the reason.
    pub fn pace(&self) -> (Vec<SecondFigures>, Vec<(&'static str, u64)>) {
        self.dispatcher().pace()
    }

    /// Returns a device to service whose failures sent it out of rotation; `false` if the engine has no such device.
    pub fn reset(&self, device: DeviceName) -> bool {
        let executors = self.dispatcher().executors();
        let at = executors.iter().position(|executor| executor.name() == device);
        if let Some(at) = at {
            let id = DeviceId(at as u16);
            if let Some(gpu) = devices::gpu_of_device(id) {
                self.0.assembly.gpu_reports.reset(gpu);
            }
            self.dispatcher().reset(id);
        }
        at.is_some()
    }

    /// Frees what the memory pools of the GPUs hold and do not use; by GPU, the bytes that came back, or `None` where that takes
    /// longer than `most`. Models stay, and the next pass takes what it needs again.
    pub fn clear_cache(&self, most: Duration) -> Vec<(DeviceName, Option<u64>)> {
        let deadline = Instant::now() + most;
        let gpus = self.dispatcher().executors().iter().filter(|executor| executor.name() != DeviceName::Cpu);
        // All of them begin before one is waited for.
        let begun: Vec<_> = gpus.map(|gpu| (gpu.name(), gpu.clear_cache())).collect();
        let freed = |begun: Option<Receiver<u64>>| match begun {
            Some(freed) => freed.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok(),
            None => Some(0),
        };
        begun.into_iter().map(|(name, begun)| (name, freed(begun))).collect()
    }

    /// Takes no work any more, answers what it has, and ends all workers. Other clones get refusals from then on.
    pub fn shut_down(self) {
        self.dispatcher().drain(Self::DRAIN_MAX);
        self.0.assembly.end();
    }

    /// Where it is noted what is done and how long it takes.
    pub fn profile(&self) -> Option<&Arc<Profile>> {
        self.dispatcher().profiling().profile()
    }

    fn dispatcher(&self) -> &Dispatcher {
        &self.0.assembly.dispatcher
    }

    fn check(&self, work: &Work) -> Result<(), EngineError> {
        let reader = self.reader(work.model)?;
        if work.texts.is_empty() {
            return Err(EngineError::NoText);
        }
        reader.check(work.texts.iter().map(|text| text.ids.as_slice()))?;
        if !self.0.canaries[work.model].may_skip(work.skip) {
            return Err(EngineError::NoPrompt(work.skip));
        }
        if let (Output::Tokens, Some(onnx)) = (work.output, &reader.spec.onnx)
            && !(onnx.output.has_tokens && self.0.later.takes_token_rows(reader.spec.shape.hidden))
        {
            let wanted = "is small enough for rows of tokens, or native";
            return Err(EmbedError::WrongTask { does: "gives no rows of tokens", wanted }.into());
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
