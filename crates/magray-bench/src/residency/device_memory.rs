//! How much of a GPU's memory is in use in each state: by all processes as telemetry says, and by magray's own pool.
//! What a machine does not tell is left out.

use std::time::Duration;

use magray_core::pool::PoolStats;
use magray_engine::{
    DeviceName,
    engine::{DeviceStatus, Engine},
    gpu::{GpuOptions, Survey},
};
use serde::Serialize;

/// Workers report their memory with each heartbeat: after this time the last report is of the current state.
const TOLD_WITHIN: Duration = Duration::from_millis(600);

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct StateMemory {
    pub(super) state: &'static str,
    /// Of the whole GPU, by all processes.
    pub(super) device_used_bytes: Option<u64>,
    /// By magray; 0 where there is no worker.
    pub(super) magray_used_bytes: u64,
    pub(super) has_worker: bool,
    pub(super) pool: Option<PoolStats>,
}

pub(super) fn gpu_of(engine: &Engine) -> Option<DeviceStatus> {
    engine.status().devices.into_iter().find(|device| device.name != DeviceName::Cpu)
}

impl StateMemory {
    pub(super) fn look(state: &'static str, engine: &Engine, options: &GpuOptions) -> Self {
        std::thread::sleep(TOLD_WITHIN);
        let Some(gpu) = gpu_of(engine) else { return Self::without_engine(state, None) };
        let memory = gpu.pid.map(|_| gpu.memory.unwrap_or_default());
        Self {
            state,
            device_used_bytes: WholeGpus::look(options).used_of(gpu.name),
            magray_used_bytes: memory.map_or(0, |memory| memory.allocated),
            has_worker: memory.is_some(),
            pool: memory.map(|memory| memory.pool),
        }
    }

    /// With no engine, magray has nothing; others may.
    pub(super) fn without_engine(state: &'static str, device_used_bytes: Option<u64>) -> Self {
        Self { state, device_used_bytes, magray_used_bytes: 0, has_worker: false, pool: None }
    }
}

/// Memory of every real GPU that is in use, by all processes.
#[derive(Clone, Debug, Default)]
pub(super) struct WholeGpus(Vec<(usize, u64)>);

impl WholeGpus {
    /// Asks the driver; makes no context.
    pub(super) fn look(options: &GpuOptions) -> Self {
        let gpus = Survey::take(options).gpus.unwrap_or_default();
        Self(gpus.iter().filter_map(|gpu| Some((gpu.info.index, gpu.sample.memory_used_bytes?))).collect())
    }

    /// Of this one; `None` for what is no real GPU.
    pub(super) fn used_of(&self, name: DeviceName) -> Option<u64> {
        self.0.iter().find(|(index, _)| name == DeviceName::Cuda(*index)).map(|(_, bytes)| *bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_gpu_is_none_of_the_real_ones() {
        let gpus = WholeGpus(vec![(0, 5), (2, 7)]);
        let names = [DeviceName::Cuda(2), DeviceName::Cuda(1), DeviceName::Simulated(0), DeviceName::Cpu];
        assert_eq!(names.map(|name| gpus.used_of(name)), [Some(7), None, None, None]);
    }
}
