//! How an engine is, for people and metrics.
//! Words and figures only: what follows from them is decided elsewhere.

use super::executor_handle::LastError;
use super::throughput::Recent;
use crate::executors::LayersOnGpu;
use crate::gpu::MemoryStats;
use crate::health::HealthSample;
use magray_core::schedule::{DeviceView, ModelView};
use magray_core::{CpuPath, DeviceName, OnnxProvider, Precision};
use std::time::Duration;

/// How everything is.
#[derive(Clone, Debug)]
pub struct Status {
    /// How long the engine has been running.
    pub uptime: Duration,
    /// Requests that wait or are computed.
    pub requests: usize,
    /// Their tokens.
    pub tokens: u64,
    /// Requests of which nothing is being computed.
    pub waiting: usize,
    /// How long all of them should take, by the speed measured lately; `None` where no speed is known yet.
    pub wait: Option<Duration>,
    /// How fast it has been in the last minute.
    pub recent: Recent,
    /// The devices; the CPU is the first.
    pub devices: Vec<DeviceStatus>,
    /// How the CPU computes.
    pub cpu: CpuStatus,
    /// The models, in their order.
    pub models: Vec<ModelStatus>,
}

/// How the CPU computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuStatus {
    /// The instructions it uses.
    pub path: CpuPath,
    /// Threads that compute.
    pub threads: usize,
    /// The arithmetic of all models.
    pub precision: Precision,
}

/// How a model is.
#[derive(Clone, Debug)]
pub struct ModelStatus {
    /// What people call it.
    pub name: String,
    /// Whether it was removed: nothing of it is computed any more.
    pub is_gone: bool,
    /// The provider of ONNX Runtime that computes it, or did last.
    pub provider: Option<OnnxProvider>,
    /// Where the layers of a language model are, where not all are on one device or settings say so.
    pub layers: Option<LayersOnGpu>,
    /// What the scheduler knows of it; where its weights are is told by device, in the order of the devices.
    pub view: ModelView,
}

/// How a device is.
#[derive(Clone, Debug)]
pub struct DeviceStatus {
    /// What it is called.
    pub name: DeviceName,
    /// What is sold under this name, such as `NVIDIA H200`; `None` where it is not known.
    pub hardware: Option<String>,
    /// What the scheduler knows of it.
    pub schedule: DeviceView,
    /// The worker's process; `None` where there is none.
    pub pid: Option<u32>,
    /// Its memory, as its worker told it last; `None` for the CPU.
    pub memory: Option<MemoryStats>,
    /// What telemetry said of it last; `None` for the CPU.
    pub health: Option<HealthSample>,
    /// The most of its memory that models and passes had since the start.
    pub memory_peak: u64,
    /// What went wrong last.
    pub last_error: Option<LastError>,
}
