//! Opens a worker's device and its models.
//! Computes nothing and speaks to nobody.

use super::spec::{CudaDevice, ModelSource, WorkerDevice, WorkerModel, WorkerSpec};
use crate::cuda_executor::{CudaExecutor, WeightsFrom, open_device};
use crate::encoder::{LoadError, synthetic_spec};
use crate::executor::Accelerator;
use crate::gpu::{GpuError, MemoryMeter, MemoryStats};
use crate::model::{Synthetic, TensorSource};
use crate::simulated_gpu::{LoadOnSimulated, SimulatedDevice, SimulatedGpu};
use crate::spec::ModelSpec;
use crate::weights::Weights;
use magray_core::Precision;
use magray_core::schedule::Failure;
use magray_device::cuda::{Context, Visible, probe, resolve};
use std::sync::Arc;

/// A device with its models.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) uuid: String,
    pub(super) models: Vec<Hosted>,
    pub(super) meter: MemoryMeter,
}

/// A model on the device.
pub(super) struct Hosted {
    pub(super) accelerator: Box<dyn Accelerator>,
    pub(super) precision: Precision,
}

/// Why there is no device with models.
#[derive(Debug)]
pub(super) struct NotOpen {
    pub(super) failure: Failure,
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl Host {
    pub(super) fn open(spec: &WorkerSpec) -> Result<Self, NotOpen> {
        match &spec.device {
            WorkerDevice::Cuda(device) => open_cuda(device, &spec.models),
            WorkerDevice::Simulated(gpu) => open_simulated(*gpu, &spec.models),
        }
    }

    /// Frees what passes have taken.
    pub(super) fn trim(&mut self) {
        self.models.iter_mut().for_each(|model| model.accelerator.trim());
    }
}

fn open_cuda(device: &CudaDevice, models: &[WorkerModel]) -> Result<Host, NotOpen> {
    let options = device.options();
    let gpus = probe(&options.search, &Visible::all()).map_err(GpuError::from)?;
    let gpu = resolve(&gpus, &format!("cuda:{}", device.uuid())).map_err(|declined| {
        // It was there when the supervisor chose it.
        NotOpen { failure: Failure::Lost, code: declined.code(), message: declined.to_string() }
    })?;
    let cuda = open_device(gpu, &options)?;
    let meter = cuda_meter(Arc::clone(cuda.context()));
    let load = |model: &WorkerModel| {
        let (spec, source) = parts(&model.source)?;
        let precision = model.precision.settle_gpu(gpu.capability);
        let from = WeightsFrom::Files(&*source);
        let executor = CudaExecutor::load(Arc::clone(&cuda), options.streams, &spec, from, precision)?;
        Ok(Hosted { accelerator: Box::new(executor), precision })
    };
    let models = models.iter().map(load).collect::<Result<_, NotOpen>>()?;
    Ok(Host { name: gpu.name.clone(), uuid: gpu.uuid.clone(), models, meter })
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
            total,
        }
    })
}

fn open_simulated(gpu: SimulatedGpu, models: &[WorkerModel]) -> Result<Host, NotOpen> {
    let device = SimulatedDevice::open(gpu)?;
    let load = |model: &WorkerModel| {
        let (spec, source) = parts(&model.source)?;
        let (model, precision) = device.load(&spec, &*source, model.precision)?;
        Ok(Hosted { accelerator: Box::new(model), precision })
    };
    let models = models.iter().map(load).collect::<Result<_, NotOpen>>()?;
    Ok(Host { name: device.name(), uuid: device.uuid(), models, meter: device.meter() })
}

/// What a model is, and where its numbers come from.
fn parts(source: &ModelSource) -> Result<(ModelSpec, Box<dyn TensorSource>), NotOpen> {
    match source {
        ModelSource::Synthetic(shape) => Ok((synthetic_spec(*shape), Box::new(Synthetic))),
        ModelSource::Folder(folder) => {
            let spec = ModelSpec::read(folder).map_err(LoadError::from)?;
            let weights = Weights::open(&spec.encoder_folder).map_err(LoadError::from)?;
            Ok((spec, Box::new(weights)))
        }
    }
}

impl From<GpuError> for NotOpen {
    fn from(error: GpuError) -> Self {
        Self { failure: error.failure(), code: error.code(), message: error.to_string() }
    }
}

impl From<LoadError> for NotOpen {
    fn from(error: LoadError) -> Self {
        Self { failure: Failure::Transient, code: "model_broken", message: error.to_string() }
    }
}

impl From<LoadOnSimulated> for NotOpen {
    fn from(error: LoadOnSimulated) -> Self {
        match error {
            LoadOnSimulated::Gpu(error) => error.into(),
            LoadOnSimulated::Load(error) => error.into(),
        }
    }
}
