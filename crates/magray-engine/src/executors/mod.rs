//! What computes: the contract of all executors, and those that are built in.
//! Knows no queue: where an executor runs, in this process or in a worker, is for the engine to say.

mod allocated;
pub(crate) mod available_memory;
pub(crate) mod cpu;
mod cpu_stream;
pub(crate) mod cuda;
pub(crate) mod cuda_group;
mod cuda_weights;
pub(crate) mod decoder_model;
mod drafts;
mod failure;
mod feed;
pub(crate) mod group;
mod guides;
pub(crate) mod held_weights;
pub(crate) mod image_parts;
pub(crate) mod native;
pub(crate) mod onnx;
mod outcome;
mod pages;
mod sequences;
mod spec;
mod split;
mod vectors;

pub use failure::{Failure, FailureKind};
pub use feed::{Bell, Feed, Job};
pub use group::GroupLayout;
pub use magray_device::cuda::InjectedFault;
pub use onnx::{GraphOptimization, Library, OnnxDevice, OnnxOptions};
pub use outcome::{NewTokens, Origin, Output, RankSums};
pub use spec::{BackendChoice, CudaDevice, ExecutorModel, ModelSource};
pub use split::{GpuLayers, LayerSplit, LayersOnGpu};
pub use vectors::HeldVectors;

use crate::decoder::Sampling;
use crate::gpu::MemoryStats;
use crate::packed::Tokens;
use magray_core::{OnnxProvider, Precision};
use magray_device::SharedMemory;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Computes batches of models on its devices: one, or a group that fails as one.
///
/// It knows the models that it was opened with and those that were added, by their places in that list. Its methods are called from several threads:
/// one computes, others bring models and take them away; orders for one model come one after the other. A failure leaves it
/// as usable as its kind says: after [`FailureKind::Sticky`] and [`FailureKind::Lost`] it is closed and another is opened.
/// [`crate::testing::conformance::Suite`] says what else must hold.
pub trait Executor: Send + Sync {
    /// What its devices are called.
    fn label(&self) -> Label;

    /// Knows one model more, at the next place of its list.
    fn add(&self, _model: ExecutorModel) -> Result<(), Failure> {
        Err(Failure::unsupported("models that come later"))
    }

    /// Brings a model's weights to the devices, where they are not there: from an image that is at hand, or from its files.
    fn load(&self, model: usize, image: Option<FilledImage>) -> Result<Arrival, Failure>;

    /// Takes a model's weights off the devices. What makes the next load fast may be kept elsewhere.
    fn offload(&self, model: usize);

    /// Lets go of all that it has of a model.
    fn release(&self, model: usize);

    /// Computes steps of a model that is loaded. Where it fails, nothing of the outcomes counts.
    fn run(&self, model: usize, steps: Steps<'_>, outcomes: &mut Outcomes) -> Result<(), Failure>;

    /// The devices' memory. Waits for nothing.
    fn memory(&self) -> MemoryStats;

    /// Begins to compute whole texts of a model that is loaded, beside those that were begun before, and returns at once.
    /// `None`: it cannot, now or ever; [`Executor::run`] can when nothing is under way.
    fn begin(&self, _model: usize, _texts: &[Tokens<'_>], _skip: usize) -> Result<Option<UnderWay>, Failure> {
        Ok(None)
    }

    /// Whether texts that were begun are computed, or failed.
    fn is_done(&self, _under_way: &UnderWay) -> bool {
        true
    }

    /// Waits for texts that were begun and takes their rows.
    fn finish(&self, _under_way: UnderWay, _outcomes: &mut Outcomes) -> Result<(), Failure> {
        Err(Failure::unsupported("texts under way"))
    }

    /// Computes jobs of whole texts until no more are at hand. One that can begin the next job before the last is done does
    /// so here.
    fn run_all(&self, model: usize, feed: &dyn Feed) {
        run_one_by_one(feed, |texts, skip, outcomes| self.run(model, Steps::Texts { texts, skip }, outcomes));
    }

    /// Lets go of the state of a sequence, whichever model has it.
    fn free(&self, _sequence: u64) {}

    /// Fills an image of a model's weights beside other work, and tells once how that went.
    fn keep_image(&self, _model: usize, _image: SharedMemory, on_filled: OnFilled) {
        on_filled(Err(Failure::unsupported("images of weights")));
    }

    /// Takes memory for vectors of this length, all of them zero.
    fn hold_vectors(&self, _dims: usize, _room: usize) -> Result<Box<dyn HeldVectors>, Failure> {
        Err(Failure::unsupported("room for vectors"))
    }

    /// A batch is about to come.
    fn rouse(&self) {}

    /// Frees memory that batches have taken; the next ones take what they need.
    fn trim(&self) {}

    /// About a second has passed: what no batch of late needed may be given back.
    fn tend(&self) {}

    /// Fails on purpose, for tests: of a group the device of this number, counted round them.
    fn inject(&self, _model: usize, _fault: InjectedFault, _rank: usize) -> Result<(), Failure> {
        Ok(())
    }
}

/// Opens an executor, in the process where it is to run.
pub trait OpenExecutor: fmt::Debug + Send + Sync {
    /// Opens it for these models; none is loaded.
    fn open(&self, models: &[ExecutorModel]) -> Result<Arc<dyn Executor>, Failure>;
}

/// What an executor's devices are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// What is sold under this name.
    pub name: String,
    /// Names it for ever.
    pub uuid: String,
}

/// Texts that an executor has begun to compute.
#[derive(Debug)]
pub struct UnderWay {
    /// Their model.
    pub model: usize,
    /// How the executor finds them among those of the model.
    pub key: usize,
}

/// Steps to compute together.
#[derive(Clone, Copy, Debug)]
pub enum Steps<'a> {
    /// Whole texts, a row for each.
    Texts {
        /// The texts.
        texts: &'a [Tokens<'a>],
        /// Leading tokens of each that are not pooled.
        skip: usize,
    },
    /// As `Texts`, with rows that are not scaled to length 1.
    Unscaled {
        /// The texts.
        texts: &'a [Tokens<'a>],
        /// Leading tokens of each that are not pooled.
        skip: usize,
    },
    /// Whole texts, a row for each token.
    EachToken(&'a [Tokens<'a>]),
    /// Parts of sequences whose state is kept, new tokens for each.
    Parts(&'a [SequenceStep<'a>]),
}

impl<'a> Steps<'a> {
    /// Whole texts, of which this is wanted.
    pub fn of(texts: &'a [Tokens<'a>], skip: usize, output: Output) -> Self {
        match output {
            Output::Texts => Self::Texts { texts, skip },
            Output::Unscaled => Self::Unscaled { texts, skip },
            Output::Tokens => Self::EachToken(texts),
        }
    }
}

/// A step of a sequence whose state is kept.
#[derive(Clone, Copy, Debug)]
pub struct SequenceStep<'a> {
    /// Whose.
    pub sequence: u64,
    /// Where it begins: the tokens before it are known from earlier steps.
    pub from: u32,
    /// Its tokens.
    pub ids: &'a [u32],
    /// New tokens at most; none after a chunk that is not the last of its prompt.
    pub new_tokens_max: u32,
    /// Passes that give them, at most.
    pub passes_max: u32,
    /// Whether its sequence may have more tokens behind them. Where passes follow each other by themselves, the next one may be begun before
    /// the next step comes; it counts only if that goes on from here.
    pub goes_on: bool,
    /// How they are chosen; told where a sequence begins.
    pub sampling: Option<&'a Sampling>,
}

/// What came of steps. Its memory is used again.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// Rows end to end, in the order of the texts.
    pub rows: Vec<f32>,
    /// New tokens, in the order of the steps.
    pub new_tokens: Vec<NewTokens>,
    /// How long the steps waited for arriving weights, which belongs to the load.
    pub waited: Duration,
}

/// Weights in shared memory, as a device takes them.
#[derive(Debug)]
pub struct FilledImage {
    /// Where.
    pub memory: SharedMemory,
    /// How much of it is in use.
    pub bytes: u64,
}

/// A model whose weights are on the devices.
pub struct Arrival {
    /// The arithmetic it has there.
    pub precision: Precision,
    /// Numbers in a text's answer.
    pub outputs: usize,
    /// What the weights take of the devices' memory.
    pub bytes: u64,
    /// Where they came from.
    pub origin: Origin,
    /// Where weights are still arriving: waits for them. Batches may be computed meanwhile.
    pub arriving: Option<Arriving>,
    /// What was wrong with the image that was at hand.
    pub image_failure: Option<Failure>,
    /// The provider of ONNX Runtime that computes it.
    pub provider: Option<OnnxProvider>,
    /// Where the ranks of a group add up their parts of sums.
    pub sums: Option<RankSums>,
}

impl Arrival {
    /// Weights that are all there.
    pub fn new(precision: Precision, outputs: usize, bytes: u64, origin: Origin) -> Self {
        Self { precision, outputs, bytes, origin, arriving: None, image_failure: None, provider: None, sums: None }
    }
}

/// Waits until arriving weights are there.
pub type Arriving = Box<dyn FnOnce() -> Result<(), Failure> + Send>;

/// Told once when an image of weights is whole, with its bytes, or why it never will be. Called from any thread.
pub type OnFilled = Box<dyn FnOnce(Result<u64, Failure>) + Send>;

/// Computes a feed's jobs one after the other. A panic loses the job that it happens in.
pub(crate) fn run_one_by_one(
    feed: &dyn Feed,
    mut run: impl FnMut(&[Tokens<'_>], usize, &mut Outcomes) -> Result<(), Failure>,
) {
    while let Some(job) = feed.next(false) {
        let texts: Vec<Tokens<'_>> = (0..job.count()).map(|at| job.text(at)).collect();
        let mut outcomes = Outcomes::default();
        let ran = catching(|| run(&texts, job.skip(), &mut outcomes));
        job.done(ran.map(|()| outcomes.rows));
    }
}

/// Makes a failure of a panic.
pub(crate) fn catching<T>(act: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| Err(Failure::panicked(&*panic)))
}
