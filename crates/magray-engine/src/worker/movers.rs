//! Brings models to the device and takes them off it, as ordered, and tells the supervisor what came of it.
//! Works beside the thread that computes; says nothing twice and keeps nobody waiting but the next order.

use super::channel::Outgoing;
use super::host::{Came, Host, Offered, Refused};
use super::jobs::{Job, Jobs, Way};
use super::message::{Arrival, Image, ToSupervisor, Trouble};
use super::mishaps::Mishaps;
use super::wire::Garbled;
use crate::faults::FaultKind;
use magray_core::schedule::Failure;
use magray_device::SharedMemory;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The orders of models that come and go.
pub(super) struct Movers {
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
}

impl Movers {
    pub(super) fn start(host: Arc<Host>, outgoing: Arc<Mutex<Outgoing>>, mishaps: Mishaps) -> io::Result<Self> {
        let models = host.models();
        let crew = Crew { host, outgoing, mishaps: Mutex::new(mishaps) };
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
        self.push(model, Way::In, Move::Load(image, fd))
    }

    pub(super) fn offload(&self, model: u32) -> Result<(), Garbled> {
        self.push(model, Way::Out, Move::Offload)
    }

    pub(super) fn forget(&self, model: u32) -> Result<(), Garbled> {
        self.push(model, Way::Out, Move::Forget)
    }

    /// Ends when the moves under way are done.
    pub(super) fn finish(self) {
        self.jobs.finish();
    }

    fn push(&self, model: u32, way: Way, what: Move) -> Result<(), Garbled> {
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
            None => self.host.load(model, self.offered(model as u32, image, fd)),
        };
        let model = model as u32;
        match came {
            Ok(Came { precision, outputs, bytes, origin }) => {
                let (outputs, took, memory) = (outputs as u32, began.elapsed(), (self.host.meter)());
                let arrival = Arrival { model, precision, outputs, bytes, took, origin, memory };
                self.tell(ToSupervisor::Loaded(arrival));
            }
            Err(problem) => self.tell(ToSupervisor::NotLoaded { model, trouble: problem.trouble() }),
        }
    }

    fn offload(&self, model: usize) {
        let began = Instant::now();
        self.host.offload(model);
        let (took, memory, model) = (began.elapsed(), (self.host.meter)(), model as u32);
        self.tell(ToSupervisor::Offloaded { model, took, memory });
    }

    /// What a load gets along. Memory that cannot be mapped is as good as none.
    fn offered(&self, model: u32, image: Image, fd: Option<OwnedFd>) -> Offered {
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
                    let on_filled = move |filled: Result<u64, crate::gpu::GpuError>| match filled {
                        Ok(bytes) => tell(&outgoing, ToSupervisor::ImageFilled { model, image, bytes }),
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

    fn tell(&self, message: ToSupervisor<'_>) {
        tell(&self.outgoing, message);
    }
}

fn spoilt(outgoing: &Mutex<Outgoing>, model: u32, image: u64, problem: &Refused) {
    tell(outgoing, ToSupervisor::ImageSpoilt { model, image, trouble: problem.trouble() });
}

/// Says something. A supervisor that cannot be told is gone, and then the watcher ends the process.
fn tell(outgoing: &Mutex<Outgoing>, message: ToSupervisor<'_>) {
    let mut outgoing = outgoing.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = outgoing.send(|to| message.encode(to));
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

impl Refused {
    pub(super) fn trouble(&self) -> Trouble<'_> {
        Trouble { failure: self.failure, code: self.code, message: &self.message }
    }

    fn not_mapped(error: &io::Error) -> Self {
        let message = format!("the shared memory for weights cannot be mapped: {error}");
        Self { failure: Failure::Transient, code: "image_not_mapped", message }
    }
}
