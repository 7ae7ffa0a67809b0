//! The built-in executors by name: the CPU, an NVIDIA GPU, a simulated one, groups of either; and how each is opened.
//! Opens one where it is told to, and never another in its place.

use crate::executors::cpu::CpuDevice;
use crate::executors::cuda::CudaHost;
use crate::executors::cuda_group::CudaGroup;
use crate::executors::native::{Native, NativeDevice};
use crate::executors::{CudaDevice, Executor, ExecutorModel, Failure, OnnxDevice, OpenExecutor, onnx};
use crate::gpu::CONTEXT_BYTES;
use crate::testing::SimulatedGpu;
use magray_device::cpu::Cpu;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What computes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ExecutorDevice {
    /// The CPU of this machine.
    Cpu {
        /// Threads; `None`: one a core.
        threads: Option<usize>,
    },
    /// An NVIDIA GPU.
    Cuda(CudaDevice),
    /// A GPU that the CPU simulates, for tests.
    Simulated(SimulatedGpu),
    /// ONNX Runtime, by the provider that computes each model.
    Onnx(OnnxDevice),
    /// NVIDIA GPUs that are one device: they fail together.
    CudaGroup(Vec<CudaDevice>),
    /// The same of simulated ones.
    SimulatedGroup(Vec<SimulatedGpu>),
}

impl ExecutorDevice {
    /// Whether weights come to it from the host's memory.
    pub(crate) fn takes_images(&self) -> bool {
        !matches!(self, Self::Onnx(_))
    }

    /// How many GPUs it is, or devices in place of them.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::CudaGroup(devices) => devices.len(),
            Self::SimulatedGroup(gpus) => gpus.len(),
            Self::Cpu { .. } | Self::Cuda(_) | Self::Simulated(_) | Self::Onnx(_) => 1,
        }
    }

    /// What its driver takes of a limit of memory.
    pub(crate) fn context_bytes(&self) -> u64 {
        match self {
            Self::Cuda(_) => CONTEXT_BYTES,
            Self::CudaGroup(devices) => CONTEXT_BYTES * devices.len() as u64,
            Self::Cpu { .. } | Self::Simulated(_) | Self::SimulatedGroup(_) | Self::Onnx(_) => 0,
        }
    }

    /// The NVIDIA GPUs that it opens.
    pub(crate) fn cuda_devices(&self) -> &[CudaDevice] {
        match self {
            Self::Cuda(device) => std::slice::from_ref(device),
            Self::CudaGroup(devices) => devices,
            Self::Cpu { .. } | Self::Simulated(_) | Self::SimulatedGroup(_) | Self::Onnx(_) => &[],
        }
    }

    /// Opens a built-in executor, which takes no more of the device's memory than this.
    pub(crate) fn open_within(
        &self,
        models: &[ExecutorModel],
        memory_limit_bytes: Option<u64>,
    ) -> Result<Arc<dyn Executor>, Failure> {
        let device: Box<dyn NativeDevice> = match self {
            Self::Cpu { threads } => {
                Box::new(CpuDevice::new(Arc::new(Cpu::new(None, *threads).map_err(Failure::of_model)?)))
            }
            Self::Cuda(device) => Box::new(CudaHost::open(device, memory_limit_bytes)?),
            Self::CudaGroup(devices) => Box::new(CudaGroup::open(devices, memory_limit_bytes)?),
            Self::Onnx(device) => return onnx::open_executor(device, models),
            #[cfg(feature = "testing")]
            Self::Simulated(gpu) => Box::new(crate::testing::SimulatedDevice::open(*gpu, memory_limit_bytes)?),
            #[cfg(feature = "testing")]
            Self::SimulatedGroup(gpus) => Box::new(crate::testing::SimulatedGroup::open(gpus, memory_limit_bytes)?),
            #[cfg(not(feature = "testing"))]
            Self::Simulated(_) | Self::SimulatedGroup(_) => {
                return Err(Failure::unsupported("simulated GPUs: build it with the feature `testing`"));
            }
        };
        Ok(Arc::new(Native::new(device, models.iter().map(|model| (model.clone(), None)))))
    }
}

impl OpenExecutor for ExecutorDevice {
    fn open(&self, models: &[ExecutorModel]) -> Result<Arc<dyn Executor>, Failure> {
        self.open_within(models, None)
    }
}
