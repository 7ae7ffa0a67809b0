//! Brings models to the device and takes them off it, as ordered, and tells the supervisor what came of it.
//! Works beside the thread that computes; says nothing twice and keeps nobody waiting but the next order.

use super::channel::Outgoing;
use super::host::{Came, Host, Offered, Refused};
use super::jobs::{Job, Jobs, TransferThread};
use super::message::{Arrived, FromWorker, Image, Problem};
use super::mishaps::Mishaps;
use super::serve::report;
use super::wire::Garbled;
use crate::executors::Arriving;
use crate::faults::FaultKind;
use crate::gpu::GpuError;
use magray_core::schedule::Failure;
use magray_device::SharedMemory;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The orders of models that come and go. When it goes, the moves under way are waited for and the others dropped.
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
    host: Arc<Host>,
    outgoing: Arc<Mutex<Outgoing>>,
    mishaps: Mutex<Mishaps>,
    /// Bytes a second at which weights last came from the host's memory; 0: not measured yet.
    speed: AtomicU64,
}

/// Weights that come within this time are said to be there when they have set out: layers wait for theirs, and the first
/// batch is answered sooner. A batch that waited much longer would be taken for one that hangs.
const EAGER_MAX: Duration = Duration::from_millis(500);

impl Transfers {
    pub(super) fn start(host: Arc<Host>, outgoing: Arc<Mutex<Outgoing>>, mishaps: Mishaps) -> io::Result<Self> {
        let models = host.models();
        let crew = Crew { host, outgoing, mishaps: Mutex::new(mishaps), speed: AtomicU64::new(0) };
        let jobs = Jobs::start(move |model, what| {
            // The thread that computes would end the process by a panic; so does this one.
            if catch_unwind(AssertUnwindSafe(|| crew.work(model, what))).is_err() {
                std::process::abort();
            }
        })?;
        Ok(Self { jobs, models })
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

    fn push(&self, model: u32, way: TransferThread, what: Move) -> Result<(), Garbled> {
        let model = model as usize;
        if model >= self.models {
            return Err(Garbled("an order for a model that is not there"));
        }
        self.jobs.push(Job { model, way, what })
    }
}

impl Crew {
    fn work(&self, model: usize, what: Move) {
        match what {
            Move::Load(image, fd) => self.load(model, image, fd),
            Move::Offload => self.offload(model),
            Move::Forget => self.host.forget(model),
        }
    }

    fn load(&self, model: usize, image: Image, fd: Option<OwnedFd>) {
        let began = Instant::now();
        let injected = self.mishaps.lock().unwrap_or_else(PoisonError::into_inner).befall_load();
        let came = match injected {
            Some(fault) => Err(befall(fault)),
            None => self.host.load(model, self.offered(model, image, fd)),
        };
        let came = came.and_then(|mut came| match came.arriving.take() {
            Some(arriving) => self.arrive(model, came, began, arriving).inspect_err(|problem| {
                if let Image::Filled { image, .. } = image {
                    // Whatever is wrong with it: the next load reads the files.
                    spoilt(&self.outgoing, model, image, problem);
                }
            }),
            None => Ok(Some(came)),
        });
        match came {
            Ok(Some(came)) => self.tell_loaded(model, &came, began.elapsed()),
            Ok(None) => {}
            Err(problem) => self.tell(FromWorker::NotLoaded { model, problem: (&problem).into() }),
        }
    }

    /// Waits for weights that have set out; gives what is still to be told.
    fn arrive(&self, model: usize, came: Came, began: Instant, arriving: Arriving) -> Result<Option<Came>, Refused> {
        let speed = self.speed.load(Ordering::Relaxed);
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
                self.speed.store(came.bytes.saturating_mul(1_000_000) / micros, Ordering::Relaxed);
                Ok(soon.is_none().then_some(came))
            }
            (Err(error), None) => {
                self.host.forget(model);
                Err(error.into())
            }
            // They were said to be there, and batches wait for them: a new worker begins from the start.
            (Err(_), Some(_)) => std::process::abort(),
        }
    }

    fn tell_loaded(&self, model: usize, came: &Came, took: Duration) {
        let Came { precision, outputs, bytes, origin, .. } = *came;
        let arrived = Arrived { precision, outputs, bytes, took, origin, memory: self.host.memory() };
        self.tell(FromWorker::Loaded { model, arrived });
    }

    fn offload(&self, model: usize) {
        let began = Instant::now();
        self.host.offload(model);
        self.tell(FromWorker::Offloaded { model, took: began.elapsed(), memory: self.host.memory() });
    }

    /// What a load gets along. Memory that cannot be mapped is as good as none.
    fn offered(&self, model: usize, image: Image, fd: Option<OwnedFd>) -> Offered {
        let map = |image: u64, bytes: u64| {
            let missing = || io::Error::from(io::ErrorKind::NotFound);
            let words = usize::try_from(bytes.div_ceil(4)).map_err(io::Error::other);
            let memory = words.and_then(|words| SharedMemory::from_fd(fd.ok_or_else(missing)?, words));
            memory.map_err(|error| spoilt(&self.outgoing, model, image, &Refused::not_mapped(&error))).ok()
        };
        let outgoing = Arc::clone(&self.outgoing);
        match image {
            Image::None => Offered::None,
            Image::Empty { image, bytes_max } => match map(image, bytes_max) {
                None => Offered::None,
                Some(memory) => {
                    let on_filled = move |filled: Result<u64, GpuError>| match filled {
                        Ok(bytes) => say(&outgoing, FromWorker::ImageFilled { model, image, bytes }),
                        Err(error) => spoilt(&outgoing, model, image, &error.into()),
                    };
                    Offered::Empty { memory, on_filled: Box::new(on_filled) }
                }
            },
            Image::Filled { image, bytes } => match map(image, bytes) {
                None => Offered::None,
                Some(memory) => {
                    let on_spoilt = move |problem: &Refused| spoilt(&outgoing, model, image, problem);
                    Offered::Filled { memory, bytes, on_spoilt: Box::new(on_spoilt) }
                }
            },
        }
    }

    fn tell(&self, event: FromWorker) {
        say(&self.outgoing, event);
    }
}

/// Says something. A supervisor that cannot be told is gone, and then the watcher ends the process.
fn say(outgoing: &Mutex<Outgoing>, event: FromWorker) {
    let _ = report(outgoing, event);
}

fn spoilt(outgoing: &Mutex<Outgoing>, model: usize, image: u64, problem: &Refused) {
    say(outgoing, FromWorker::ImageSpoilt { model, image, problem: problem.into() });
}

/// What a load becomes by plan.
fn befall(fault: FaultKind) -> Refused {
    let planned = |failure, code| Refused { failure, code, message: format!("planned: {code}") };
    match fault {
        FaultKind::LoadCrash => std::process::abort(),
        FaultKind::LoadHang => loop {
            std::thread::park();
        },
        FaultKind::LoadOutOfMemory => planned(Failure::OutOfMemory, "out_of_memory"),
        _ => planned(Failure::Transient, "load_failed"),
    }
}

impl From<&Refused> for Problem {
    fn from(refused: &Refused) -> Self {
        Self::new(refused.failure, refused.code, &refused.message)
    }
}

impl Refused {
    fn not_mapped(error: &io::Error) -> Self {
        let message = format!("the shared memory for weights cannot be mapped: {error}");
        Self { failure: Failure::Transient, code: "image_not_mapped", message }
    }
}
