//! A worker's device, and the models that come to it, leave it and come back.
//! Computes nothing and speaks to nobody.

use super::message::Origin;
use super::spec::{CudaDevice, ModelSource, WorkerDevice, WorkerModel, WorkerSpec};
use crate::cuda_executor::{CudaExecutor, WeightsFrom, open_device};
use crate::encoder::{LoadError, synthetic_spec};
use crate::executor::{Accelerator, Arriving, OnFilled};
use crate::gpu::{GpuError, GpuInfo, MemoryMeter, MemoryStats};
use crate::model::{Synthetic, TensorSource};
use crate::simulated_gpu::{LoadOnSimulated, SimulatedDevice};
use crate::spec::ModelSpec;
use crate::weights::Weights;
use magray_core::Precision;
use magray_core::schedule::Failure;
use magray_device::SharedMemory;
use magray_device::cuda::{Context, Cuda, Visible, probe, resolve};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An open device. Its models are reached from several threads: one computes, others bring and take them.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) uuid: String,
    pub(super) meter: MemoryMeter,
    device: Device,
    models: Vec<Known>,
    outputs_max: usize,
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

/// Memory of the device that was not used for so long goes back: longer than the pauses between bursts of requests, and
/// not so long that other programs miss it.
const UNUSED_SECONDS_MAX: u32 = 10;

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
        let outputs_max = spec.outputs_max;
        match &spec.device {
            WorkerDevice::Cuda(device) => {
                let (cuda, gpu) = open_cuda(device)?;
                let meter = cuda_meter(Arc::clone(cuda.context()));
                let (name, uuid) = (gpu.name.clone(), gpu.uuid.clone());
                let device = Device::Cuda { cuda, gpu, streams: device.options().streams };
                Ok(Self { name, uuid, meter, device, models, outputs_max })
            }
            WorkerDevice::Simulated(gpu) => {
                let device = SimulatedDevice::open(*gpu)?;
                let (name, uuid, meter) = (device.name(), device.uuid(), device.meter());
                Ok(Self { name, uuid, meter, device: Device::Simulated(device), models, outputs_max })
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

    /// Brings a model's weights to the device. Meanwhile its place is empty, and nobody waits for it.
    pub(super) fn load(&self, model: usize, offered: Offered) -> Result<Came, Refused> {
        self.device.bind()?;
        let there = self.place(model).take();
        let (hosted, origin) = match there {
            Some(hosted) if hosted.accelerator.is_resident() => (hosted, Origin::Device),
            Some(hosted) => (self.wake(model, hosted)?, Origin::Parked),
            None => self.load_new(model, offered)?,
        };
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

    /// Looks after the device's memory. Called about once a second.
    pub(super) fn tend(&self) {
        match &self.device {
            Device::Cuda { cuda, .. } => cuda.context().tend(UNUSED_SECONDS_MAX),
            // It has no more than its models use.
            Device::Simulated(_) => {}
        }
    }

    fn wake(&self, model: usize, mut hosted: Hosted) -> Result<Hosted, Refused> {
        match hosted.accelerator.wake() {
            Ok(()) => Ok(hosted),
            Err(error) => {
                // Room may come: then it wakes. After anything else it is better begun anew.
                if error.failure() == Failure::OutOfMemory {
                    *self.place(model) = Some(hosted);
                }
                Err(error.into())
            }
        }
    }

    fn load_new(&self, model: usize, offered: Offered) -> Result<(Hosted, Origin), Refused> {
        let source = &self.models[model].model;
        let (hosted, origin) = match offered {
            Offered::Filled { memory, bytes, on_spoilt } => {
                match self.device.load_from_image(source, memory, bytes) {
                    Ok(hosted) => (hosted, Origin::Image),
                    Err(problem) if problem.failure == Failure::Transient => {
                        // The files are still there.
                        on_spoilt(&problem);
                        (self.device.load_from_files(source)?, Origin::Files)
                    }
                    Err(problem) => return Err(problem),
                }
            }
            Offered::Empty { memory, on_filled } => {
                let mut hosted = self.device.load_from_files(source)?;
                hosted.accelerator.keep_image(memory, on_filled);
                (hosted, Origin::Files)
            }
            Offered::None => (self.device.load_from_files(source)?, Origin::Files),
        };
        let outputs = hosted.accelerator.outputs();
        if outputs > self.outputs_max {
            let message = format!("the model answers with {outputs} numbers: was its folder changed? Restart magray");
            return Err(Refused { failure: Failure::Transient, code: "model_changed", message });
        }
        Ok((hosted, origin))
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

    fn load_from_image(&self, model: &WorkerModel, memory: SharedMemory, bytes: u64) -> Result<Hosted, Refused> {
        match self {
            Self::Cuda { cuda, gpu, streams } => {
                let spec = spec_of(&model.source)?;
                let precision = model.precision.settle_gpu(gpu.capability);
                let from = WeightsFrom::Image { memory, bytes };
                let executor = CudaExecutor::load(Arc::clone(cuda), *streams, &spec, from, precision)?;
                Ok(Hosted { accelerator: Box::new(executor), precision })
            }
            Self::Simulated(device) => {
                let (spec, source) = parts(&model.source)?;
                let (model, precision) = device.load_from_image(&spec, &*source, model.precision, (memory, bytes))?;
                Ok(Hosted { accelerator: Box::new(model), precision })
            }
        }
    }
}

fn open_cuda(device: &CudaDevice) -> Result<(Arc<Cuda>, GpuInfo), Refused> {
    let options = device.options();
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

impl From<GpuError> for Refused {
    fn from(error: GpuError) -> Self {
        Self { failure: error.failure(), code: error.code(), message: error.to_string() }
    }
}

impl From<LoadError> for Refused {
    fn from(error: LoadError) -> Self {
        Self { failure: Failure::Transient, code: "model_broken", message: error.to_string() }
    }
}

impl From<LoadOnSimulated> for Refused {
    fn from(error: LoadOnSimulated) -> Self {
        match error {
            LoadOnSimulated::Gpu(error) => error.into(),
            LoadOnSimulated::Load(error) => error.into(),
        }
    }
}
