//! How much of a GPU's memory is in use in each state: by all processes as telemetry says, and by magray's own pool.
//! What a machine does not tell is left out.

use std::time::Duration;

use magray_engine::{
    DeviceName,
    engine::{DeviceStatus, Engine},
    gpu::{GpuOptions, Survey},
};
use serde::Serialize;

use crate::control::PoolReport;

/// A worker tells its memory with every sign of life; by then the last word is of the state that is looked at.
const TOLD_WITHIN: Duration = Duration::from_millis(600);

/// Memory in one state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct StateMemory {
    pub(super) state: &'static str,
    /// Of the whole GPU, by all processes.
    pub(super) device_used_bytes: Option<u64>,
    /// By magray; 0 where there is no worker.
    pub(super) magray_used_bytes: u64,
    pub(super) has_worker: bool,
    pub(super) pool: Option<PoolReport>,
}

/// The GPU, as the engine sees it.
pub(super) fn gpu_of(engine: &Engine) -> Option<DeviceStatus> {
    engine.status().devices.into_iter().find(|device| device.name != DeviceName::Cpu)
}

impl StateMemory {
    /// Looks now.
    pub(super) fn look(state: &'static str, engine: &Engine, options: &GpuOptions) -> Self {
        std::thread::sleep(TOLD_WITHIN);
        let gpu = gpu_of(engine);
        let name = gpu.as_ref().map(|gpu| gpu.name);
        let memory = gpu.filter(|gpu| gpu.pid.is_some()).map(|gpu| gpu.memory.unwrap_or_default());
        Self {
            state,
            device_used_bytes: name.and_then(|name| used_by_all(name, options)),
            magray_used_bytes: memory.map_or(0, |memory| memory.allocated),
            has_worker: memory.is_some(),
            pool: memory.map(|memory| PoolReport::of(&memory.pool)),
        }
    }
}

/// Memory of a GPU that is in use, by all processes.
fn used_by_all(name: DeviceName, options: &GpuOptions) -> Option<u64> {
    let DeviceName::Cuda(index) = name else { return None };
    let gpus = Survey::take(options).gpus.ok()?;
    gpus.into_iter().find(|gpu| gpu.info.index == index)?.sample.memory_used_bytes
}
