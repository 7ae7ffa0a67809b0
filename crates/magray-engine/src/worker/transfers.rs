//! Brings models to the device and takes them off it, as ordered, and tells the supervisor what came of it.
//! Works beside the thread that computes; says nothing twice, and only the next order waits for it.

use super::channel::SharedOutgoing;
use super::holdings::Holdings;
use super::jobs::{Job, Jobs, TransferThread};
use super::message::{Arrived, FromWorker, Image, ToSupervisor};
use super::spec::WorkerSpec;
use super::wire::Garbled;
use crate::executors::{Arrival, Arriving, Executor, Failure, FailureKind, FilledImage, Origin};
use crate::gpu::SandboxMode;
use magray_device::SharedMemory;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The orders of models that come and go. When it is dropped, moves that have begun are waited for and the others dropped.
pub(super) struct Transfers {
    jobs: Jobs<Move>,
    models: usize,
}

/// What is to be done with a model.
enum Move {
    Load(Image, Option<OwnedFd>),
    Offload,
    Forget,
}

/// What the threads share.
struct Crew {
    executor: Arc<dyn Executor>,
    holdings: Arc<Holdings>,
    /// Numbers in the longest answer of a text.
    outputs_max: usize,
    is_confined: bool,
    outgoing: SharedOutgoing,
    /// Bytes a second at which weights last came from the host's memory; 0: not measured yet.
    speed: AtomicU64,
}

/// Weights that come within this time are said to be there when they have set out: layers wait for theirs, and the first
/// batch is answered sooner. A batch that waited much longer would be taken for one that hangs.
const EAGER_MAX: Duration = Duration::from_millis(500);

impl Transfers {
    pub(super) fn start(
        executor: Arc<dyn Executor>,
        spec: &WorkerSpec,
        holdings: Arc<Holdings>,
        outgoing: SharedOutgoing,
    ) -> io::Result<Self> {
        let (models, outputs_max) = (spec.models.len(), spec.outputs_max);
        let is_confined = spec.sandbox != SandboxMode::Off;
        let speed = AtomicU64::new(0);
        let crew = Crew { executor, holdings, outputs_max, is_confined, outgoing, speed };
        let jobs = Jobs::start(move |model, what| {
            // The thread that computes would end the process by a panic; so does this one.
            if catch_unwind(AssertUnwindSafe(|| crew.work(model, what))).is_err() {
                std::process::abort();
            }
        })?;
        Ok(Self { jobs, models })
    }

    /// The executor knows one model more.
    pub(super) fn add_model(&mut self) {
        self.models += 1;
    }

    /// Orders a model's weights onto the device; the image's handle came along if there is one.
    pub(super) fn load(&self, model: u32, image: Image, fd: Option<OwnedFd>) -> Result<(), Garbled> {
        self.push(model, TransferThread::In, Move::Load(image, fd))
    }

    pub(super) fn offload(&self, model: u32) -> Result<(), Garbled> {
        self.push(model, TransferThread::Out, Move::Offload)
    }

    pub(super) fn forget(&self, model: u32) -> Result<(), Garbled> {
        self.push(model, TransferThread::Out, Move::Forget)
    }

    fn push(&self, model: u32, thread: TransferThread, what: Move) -> Result<(), Garbled> {
        let model = model as usize;
        if model >= self.models {
            return Err(Garbled("an order for a model that is not there"));
        }
        self.jobs.push(Job { model, thread, what })
    }
}

impl Crew {
    fn work(&self, model: usize, what: Move) {
        match what {
            Move::Load(image, fd) => self.load(model, image, fd),
            Move::Offload => self.offload(model),
            Move::Forget => {
                let _change = self.holdings.change(model);
                self.executor.release(model);
            }
        }
    }

    fn load(&self, model: usize, image: Image, fd: Option<OwnedFd>) {
        let began = Instant::now();
        let mut change = self.holdings.change(model);
        let came = self.bring(model, image, fd);
        let bytes = came.as_ref().map_or(0, |came| came.bytes);
        let came = came.and_then(|mut came| match came.arriving.take() {
            Some(arriving) => self.arrive(model, came, began, arriving).inspect_err(|failure| {
                if let Image::Filled { image, .. } = image {
                    // Whatever is wrong with it: the next load reads the files.
                    spoilt(&self.outgoing, model, image, failure.clone());
                }
            }),
            None => Ok(Some(came)),
        });
        if came.is_ok() {
            change.came(bytes);
        }
        drop(change);
        match came {
            Ok(Some(came)) => self.tell_loaded(model, &came, began.elapsed()),
            Ok(None) => {}
            Err(problem) => self.tell(FromWorker::NotLoaded { model, problem }),
        }
    }

    /// Waits for weights that have set out; gives what is still to be told.
    fn arrive(
        &self,
        model: usize,
        came: Arrival,
        began: Instant,
        arriving: Arriving,
    ) -> Result<Option<Arrival>, Failure> {
        // What is read again takes its time, and says nothing of the host's memory.
        let is_from_host = came.origin != Origin::Files;
        let speed = if is_from_host { self.speed.load(Ordering::Relaxed) } else { 0 };
        let takes = came.bytes.checked_mul(1_000_000).and_then(|bytes| bytes.checked_div(speed));
        let soon = takes.map(Duration::from_micros).filter(|takes| *takes <= EAGER_MAX);
        if let Some(soon) = soon {
            self.tell_loaded(model, &came, began.elapsed() + soon);
        }
        let set_out = Instant::now();
        let there = arriving();
        let micros = set_out.elapsed().as_micros().max(1) as u64;
        match (there, soon) {
            (Ok(()), _) => {
                if is_from_host {
                    self.speed.store(came.bytes.saturating_mul(1_000_000) / micros, Ordering::Relaxed);
                }
                Ok(soon.is_none().then_some(came))
            }
            (Err(failure), None) => {
                self.executor.release(model);
                Err(failure)
            }
            // They were said to be there, and batches wait for them: a new worker begins from the start.
            (Err(_), Some(_)) => std::process::abort(),
        }
    }

    fn tell_loaded(&self, model: usize, came: &Arrival, took: Duration) {
        let Arrival { precision, outputs, bytes, origin, provider, ref sums, .. } = *came;
        let memory = self.executor.memory();
        let arrived = Arrived { precision, outputs, bytes, took, origin, memory, provider, sums: sums.clone() };
        self.tell(FromWorker::Loaded { model, arrived });
    }

    fn offload(&self, model: usize) {
        let began = Instant::now();
        let change = self.holdings.change(model);
        self.executor.offload(model);
        drop(change);
        self.tell(FromWorker::Offloaded { model, took: began.elapsed(), memory: self.executor.memory() });
    }

    /// Loads a model, from the image that came along or into it.
    fn bring(&self, model: usize, image: Image, fd: Option<OwnedFd>) -> Result<Arrival, Failure> {
        let map = |image: u64, bytes: u64| {
            let missing = || io::Error::from(io::ErrorKind::NotFound);
            let words = usize::try_from(bytes.div_ceil(4)).map_err(io::Error::other);
            let memory = words.and_then(|words| SharedMemory::from_fd(fd.ok_or_else(missing)?, words));
            // Memory that cannot be mapped is as good as none.
            memory.map_err(|error| spoilt(&self.outgoing, model, image, not_mapped(&error))).ok()
        };
        let (filled, empty) = match image {
            Image::None => (None, None),
            Image::Empty { image, bytes_max } => (None, map(image, bytes_max).map(|memory| (image, memory))),
            Image::Filled { image, bytes } => (map(image, bytes).map(|memory| FilledImage { memory, bytes }), None),
        };
        let mut came = self.executor.load(model, filled).map_err(|failure| self.explained(failure))?;
        if let (Image::Filled { image, .. }, Some(failure)) = (image, came.image_failure.take()) {
            spoilt(&self.outgoing, model, image, failure);
        }
        if came.outputs > self.outputs_max {
            self.executor.release(model);
            let outputs = came.outputs;
            let message = format!("the model answers with {outputs} numbers: was its folder changed? Restart magray");
            return Err(Failure::new(FailureKind::Transient, "model_changed", message));
        }
        if let Some((image, memory)) = empty {
            let outgoing = self.outgoing.clone();
            let on_filled = move |filled: Result<u64, Failure>| match filled {
                Ok(bytes) => say(&outgoing, FromWorker::ImageFilled { model, image, bytes }),
                Err(failure) => spoilt(&outgoing, model, image, failure),
            };
            self.executor.keep_image(model, memory, Box::new(on_filled));
        }
        Ok(came)
    }

    /// Says why a file could not be read, where the sandbox is the likely reason.
    fn explained(&self, mut failure: Failure) -> Failure {
        if failure.code == Failure::MODEL_UNREADABLE && self.is_confined {
            failure.message += "; a GPU worker reads nothing but the model's own folder, and follows no link out of it: \
                                put the files there and restart magray, or set gpu.sandbox to off";
        }
        failure
    }

    fn tell(&self, event: FromWorker) {
        say(&self.outgoing, event);
    }
}

/// Says something. A supervisor that cannot be told is gone, and then the watcher ends the process.
fn say(outgoing: &SharedOutgoing, event: FromWorker) {
    let _ = outgoing.send(&ToSupervisor::Event(event));
}

fn spoilt(outgoing: &SharedOutgoing, model: usize, image: u64, problem: Failure) {
    say(outgoing, FromWorker::ImageSpoilt { model, image, problem });
}

fn not_mapped(error: &io::Error) -> Failure {
    let message = format!("the shared memory for weights cannot be mapped: {error}");
    Failure::new(FailureKind::Transient, "image_not_mapped", message)
}
