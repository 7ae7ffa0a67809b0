//! A worker's device, and the models that come to it, leave it and come back.
//! Computes nothing and speaks to nobody.

use super::message::Origin;
use super::spec::{CudaDevice, ModelSource, WorkerDevice, WorkerModel, WorkerSpec};
use crate::encoder::{LoadError, synthetic_spec};
use crate::executors::cuda::{CudaExecutor, WeightsFrom, open_device};
use crate::executors::simulated::{LoadOnSimulated, SimulatedDevice};
use crate::executors::{Accelerator, Arriving, OnFilled};
use crate::gpu::{GpuError, GpuInfo, MemoryMeter, MemoryStats, SandboxMode};
use crate::model::{Synthetic, TensorSource};
use crate::spec::ModelSpec;
use crate::weights::Weights;
use magray_core::Precision;
use magray_core::schedule::Failure;
use magray_device::SharedMemory;
use magray_device::cuda::{Context, Cuda, Visible, probe, resolve};
use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An open device. Its models are reached from several threads: one computes, others bring and take them.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) uuid: String,
    meter: MemoryMeter,
    device: Device,
    models: Vec<Known>,
    outputs_max: usize,
    is_confined: bool,
}

enum Device {
    Cuda { cuda: Arc<Cuda>, gpu: GpuInfo, streams: usize },
    Simulated(Arc<SimulatedDevice>),
}

/// A model that may be loaded.
struct Known {
    model: WorkerModel,
    /// Empty where it is not loaded, and while it is on its way.
    place: Mutex<Option<Hosted>>,
}

/// A model that was loaded; its weights may have left the device since.
pub(super) struct Hosted {
    pub(super) accelerator: Box<dyn Accelerator>,
    precision: Precision,
}

/// What came along with an order to load.
pub(super) enum Offered {
    None,
    /// To be filled when the model is there.
    Empty {
        memory: SharedMemory,
        on_filled: OnFilled,
    },
    /// To be read; `on_spoilt` is told if it cannot be.
    Filled {
        memory: SharedMemory,
        bytes: u64,
        on_spoilt: Box<dyn FnOnce(&Refused) + Send>,
    },
}

/// How a model came to be on the device.
pub(super) struct Came {
    pub(super) precision: Precision,
    pub(super) outputs: usize,
    pub(super) bytes: u64,
    pub(super) origin: Origin,
    /// Where weights are still on their way: waits for them. Batches may be computed meanwhile.
    pub(super) arriving: Option<Arriving>,
}

/// Why a device did not do what it was to.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) failure: Failure,
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl Host {
    /// Opens the device; no model is on it.
    pub(super) fn open(spec: &WorkerSpec) -> Result<Self, Refused> {
        let known = |model: &WorkerModel| Known { model: model.clone(), place: Mutex::new(None) };
        let models = spec.models.iter().map(known).collect();
        let (outputs_max, is_confined) = (spec.outputs_max, spec.sandbox != SandboxMode::Off);
        match &spec.device {
            WorkerDevice::Cuda(device) => {
                let (cuda, gpu) = open_cuda(device, spec.memory_limit_bytes)?;
                let meter = cuda_meter(Arc::clone(cuda.context()));
                let (name, uuid) = (gpu.name.clone(), gpu.uuid.clone());
                let device = Device::Cuda { cuda, gpu, streams: device.options(None).streams };
                Ok(Self { name, uuid, meter, device, models, outputs_max, is_confined })
            }
            WorkerDevice::Simulated(gpu) => {
                let device = SimulatedDevice::open(*gpu, spec.memory_limit_bytes)?;
                let (name, uuid, meter) = (device.name(), device.uuid(), device.meter());
                let device = Device::Simulated(device);
                Ok(Self { name, uuid, meter, device, models, outputs_max, is_confined })
            }
        }
    }

    pub(super) fn models(&self) -> usize {
        self.models.len()
    }

    /// The model, if it is loaded, until the caller lets go of it. One that nobody knows is a bug.
    pub(super) fn place(&self, model: usize) -> MutexGuard<'_, Option<Hosted>> {
        self.models[model].place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of the state of a sequence, whichever model has it.
    pub(super) fn free(&self, sequence: u64) {
        for known in &self.models {
            if let Some(hosted) = &mut *known.place.lock().unwrap_or_else(PoisonError::into_inner) {
                hosted.accelerator.free(sequence);
            }
        }
    }

    /// The device's memory. Keeps nobody waiting.
    pub(super) fn memory(&self) -> MemoryStats {
        let mut memory = (self.meter)();
        self.for_parked(|accelerator| memory.spare = memory.spare.saturating_add(accelerator.workspace_bytes()));
        memory.spare = memory.spare.min(memory.allocated);
        memory
    }

    /// Brings a model's weights to the device. Meanwhile its place is empty, and nobody waits for it.
    pub(super) fn load(&self, model: usize, offered: Offered) -> Result<Came, Refused> {
        self.device.bind()?;
        let there = self.place(model).take();
        let (mut hosted, origin, offered) = match there {
            Some(hosted) if hosted.accelerator.is_resident() => (hosted, Origin::Device, offered),
            Some(hosted) => (self.wake(model, hosted)?, Origin::Parked, offered),
            None => self.load_new(model, offered).map_err(|problem| self.explained(problem))?,
        };
        if let Offered::Empty { memory, on_filled } = offered {
            hosted.accelerator.keep_image(memory, on_filled);
        }
        let Hosted { accelerator, precision } = &hosted;
        let (outputs, bytes) = (accelerator.outputs(), accelerator.weight_bytes());
        let arriving = accelerator.arriving();
        let came = Came { precision: *precision, outputs, bytes, origin, arriving };
        *self.place(model) = Some(hosted);
        Ok(came)
    }

    /// Takes a model's weights off the device. They are kept for the next time where the device can do that.
    pub(super) fn offload(&self, model: usize) {
        // A device that cannot be reached any more has nothing to free.
        let _ = self.device.bind();
        let Some(mut hosted) = self.place(model).take() else { return };
        if hosted.accelerator.offload().is_ok() && !hosted.accelerator.is_resident() {
            *self.place(model) = Some(hosted);
        }
        // Else it goes as a whole, and its weights with it: the next load begins from the start. Where the device is
        // broken, that load will say so.
    }

    /// Lets go of a model altogether.
    pub(super) fn forget(&self, model: usize) {
        // A device that cannot be reached any more has nothing to free.
        let _ = self.device.bind();
        let hosted = self.place(model).take();
        drop(hosted);
    }

    /// Frees what passes have taken. Models that are on their way are left alone.
    pub(super) fn trim(&self) {
        for model in 0..self.models.len() {
            if let Some(hosted) = &mut *self.place(model) {
                hosted.accelerator.trim();
            }
        }
    }

    /// Time goes on, about a second: memory that no batch of late needed is given back. Models that compute just now are
    /// left alone, and nobody waits for this.
    pub(super) fn tend(&self) {
        for known in &self.models {
            if let Ok(mut place) = known.place.try_lock()
                && let Some(hosted) = &mut *place
            {
                hosted.accelerator.tend();
            }
        }
        if let Device::Cuda { cuda, .. } = &self.device {
            cuda.tend();
        }
    }

    fn wake(&self, model: usize, mut hosted: Hosted) -> Result<Hosted, Refused> {
        match self.make_room_for(|| Ok(hosted.accelerator.wake()?)) {
            Ok(()) => Ok(hosted),
            Err(problem) => {
                // Room may come: then it wakes. After anything else it is better begun anew.
                if problem.failure == Failure::OutOfMemory {
                    *self.place(model) = Some(hosted);
                }
                Err(problem)
            }
        }
    }

    /// Does something that takes memory. Where there is too little, models that are away give up what their passes had
    /// taken, and it is tried once more.
    fn make_room_for<T>(&self, mut act: impl FnMut() -> Result<T, Refused>) -> Result<T, Refused> {
        let mut has_more = false;
        match act() {
            Err(problem) if problem.failure == Failure::OutOfMemory => {
                self.for_parked(|accelerator| {
                    has_more |= accelerator.workspace_bytes() > 0;
                    accelerator.trim();
                });
                if has_more { act() } else { Err(problem) }
            }
            done => done,
        }
    }

    /// Looks at every model that was loaded and is away; those that somebody has in hand are left out.
    fn for_parked(&self, mut look: impl FnMut(&mut dyn Accelerator)) {
        for known in &self.models {
            if let Ok(mut place) = known.place.try_lock()
                && let Some(hosted) = place.as_mut().filter(|hosted| !hosted.accelerator.is_resident())
            {
                look(&mut *hosted.accelerator);
            }
        }
    }

    /// Says why a file could not be read, where the sandbox is the likely reason.
    fn explained(&self, mut problem: Refused) -> Refused {
        if problem.code == MODEL_UNREADABLE && self.is_confined {
            problem.message += "; a GPU worker reads nothing but the model's own folder, and follows no link out of it: \
                                put the files there and restart magray, or set gpu.sandbox to off";
        }
        problem
    }

    /// Loads a model that was not there before; gives what was offered and is still of use.
    fn load_new(&self, model: usize, offered: Offered) -> Result<(Hosted, Origin, Offered), Refused> {
        let source = &self.models[model].model;
        let from_files = || self.make_room_for(|| self.device.load_from_files(source));
        let (hosted, origin, offered) = match offered {
            Offered::Filled { memory, bytes, on_spoilt } => {
                match self.make_room_for(|| self.device.load_from_image(source, &memory, bytes)) {
                    Ok(hosted) => (hosted, Origin::Image, Offered::None),
                    Err(problem) if problem.code == IMAGE_SPOILT => {
                        // The files are still there.
                        on_spoilt(&problem);
                        (from_files()?, Origin::Files, Offered::None)
                    }
                    Err(problem) => return Err(problem),
                }
            }
            offered => (from_files()?, Origin::Files, offered),
        };
        let outputs = hosted.accelerator.outputs();
        if outputs > self.outputs_max {
            let message = format!("the model answers with {outputs} numbers: was its folder changed? Restart magray");
            return Err(Refused { failure: Failure::Transient, code: "model_changed", message });
        }
        Ok((hosted, origin, offered))
    }
}

impl Device {
    /// Makes the device usable from the calling thread.
    fn bind(&self) -> Result<(), GpuError> {
        match self {
            Self::Cuda { cuda, .. } => Ok(cuda.context().bind()?),
            Self::Simulated(_) => Ok(()),
        }
    }

    fn load_from_files(&self, model: &WorkerModel) -> Result<Hosted, Refused> {
        let (spec, source) = parts(&model.source)?;
        match self {
            Self::Cuda { cuda, gpu, streams } => {
                let precision = model.precision.settle_gpu(gpu.capability);
                let executor =
                    CudaExecutor::load(Arc::clone(cuda), *streams, &spec, WeightsFrom::Files(&*source), precision)?;
                Ok(Hosted { accelerator: Box::new(executor), precision })
            }
            Self::Simulated(device) => {
                let (model, precision) = device.load(&spec, &*source, model.precision)?;
                Ok(Hosted { accelerator: Box::new(model), precision })
            }
        }
    }

    fn load_from_image(&self, model: &WorkerModel, memory: &SharedMemory, bytes: u64) -> Result<Hosted, Refused> {
        // Mapped anew for every try: whoever loads it keeps it.
        let memory = memory.fd().try_clone_to_owned().and_then(SharedMemory::from_fd_whole);
        let memory = memory.map_err(|error| Refused::image(error.to_string()))?;
        match self {
            Self::Cuda { cuda, gpu, streams } => {
                let spec = spec_of(&model.source)?;
                let precision = model.precision.settle_gpu(gpu.capability);
                let from = WeightsFrom::Image { memory, bytes };
                let executor = CudaExecutor::load(Arc::clone(cuda), *streams, &spec, from, precision);
                let executor = executor.map_err(Refused::of_image)?;
                Ok(Hosted { accelerator: Box::new(executor), precision })
            }
            Self::Simulated(device) => {
                let (spec, source) = parts(&model.source)?;
                let loaded = device.load_from_image(&spec, &*source, model.precision, (memory, bytes));
                let (model, precision) = loaded.map_err(|error| match error {
                    LoadOnSimulated::Gpu(error) => Refused::of_image(error),
                    LoadOnSimulated::Load(error) => error.into(),
                })?;
                Ok(Hosted { accelerator: Box::new(model), precision })
            }
        }
    }
}

fn open_cuda(device: &CudaDevice, limit: Option<u64>) -> Result<(Arc<Cuda>, GpuInfo), Refused> {
    let options = device.options(limit);
    let gpus = probe(&options.search, &Visible::all()).map_err(GpuError::from)?;
    let gpu = resolve(&gpus, &format!("cuda:{}", device.uuid())).map_err(|declined| {
        // It was there when the supervisor chose it.
        Refused { failure: Failure::Lost, code: declined.code(), message: declined.to_string() }
    })?;
    Ok((open_device(gpu, &options)?, gpu.clone()))
}

fn cuda_meter(context: Arc<Context>) -> MemoryMeter {
    let free_at_first = context.memory_bytes().map_or(0, |(free, _)| free);
    Arc::new(move || {
        let allocated = context.allocated_bytes();
        // A context that is broken does not tell any more: what is known is told.
        let (free, total) = context.memory_bytes().unwrap_or((free_at_first, context.gpu().memory_bytes));
        MemoryStats {
            allocated,
            reserved: free_at_first.saturating_sub(free).max(allocated),
            spare: 0,
            peak_allocated: context.peak_allocated_bytes(),
            free,
            total,
            pool: context.device_pool_stats(),
        }
    })
}

/// What a model is, and where its numbers come from.
fn parts(source: &ModelSource) -> Result<(ModelSpec, Box<dyn TensorSource>), Refused> {
    let spec = spec_of(source)?;
    let numbers: Box<dyn TensorSource> = match source {
        ModelSource::Synthetic(_) => Box::new(Synthetic),
        ModelSource::Folder(_) => Box::new(Weights::open(&spec.encoder_folder).map_err(LoadError::from)?),
    };
    Ok((spec, numbers))
}

fn spec_of(source: &ModelSource) -> Result<ModelSpec, Refused> {
    match source {
        ModelSource::Synthetic(shape) => Ok(synthetic_spec(*shape)),
        ModelSource::Folder(folder) => Ok(ModelSpec::read(folder).map_err(LoadError::from)?),
    }
}

/// The code of what is wrong with an image, and with nothing else.
const IMAGE_SPOILT: &str = "image_spoilt";
/// The code of a model whose files may not be read.
const MODEL_UNREADABLE: &str = "model_unreadable";

impl Refused {
    fn image(message: String) -> Self {
        Self { failure: Failure::Transient, code: IMAGE_SPOILT, message }
    }

    /// Why weights did not come from an image: for its own sake, or as they would not have come from anywhere.
    fn of_image(error: GpuError) -> Self {
        match error {
            GpuError::Residency(error) => Self::image(error.to_string()),
            error => error.into(),
        }
    }
}

impl From<GpuError> for Refused {
    fn from(error: GpuError) -> Self {
        Self { failure: error.failure(), code: error.code(), message: error.to_string() }
    }
}

impl From<LoadError> for Refused {
    fn from(error: LoadError) -> Self {
        let code = if is_denied(&error) { MODEL_UNREADABLE } else { "model_broken" };
        Self { failure: Failure::Transient, code, message: error.to_string() }
    }
}

/// Whether the system did not permit to read a file.
fn is_denied(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

impl From<LoadOnSimulated> for Refused {
    fn from(error: LoadOnSimulated) -> Self {
        match error {
            LoadOnSimulated::Gpu(error) => error.into(),
            LoadOnSimulated::Load(error) => error.into(),
        }
    }
}
