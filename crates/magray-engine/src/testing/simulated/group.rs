//! Simulated GPUs as a group: language models are computed by all of them together, other models by the first.
//! Fails as one: what breaks one of them breaks the group.

use super::{SimulatedDevice, load_decoder};
use crate::executors::group::together;
use crate::executors::native::{Hosted, Loading, NativeDevice};
use crate::executors::{Failure, HeldVectors, Label};
use crate::gpu::MemoryStats;
use crate::testing::SimulatedGpu;
use std::sync::Arc;

/// The first of them, and all.
pub(crate) struct SimulatedGroup {
    first: SimulatedDevice,
    all: Vec<SimulatedDevice>,
}

impl SimulatedGroup {
    /// Opens all of them; of the memory of each no more is taken than the limit allows.
    pub(crate) fn open(gpus: &[SimulatedGpu], limit: Option<u64>) -> Result<Self, Failure> {
        let all: Vec<_> = gpus.iter().map(|gpu| SimulatedDevice::open(*gpu, limit)).collect::<Result<_, _>>()?;
        let first = all.first().cloned().ok_or_else(|| Failure::unsupported("a group without GPUs"))?;
        Ok(Self { first, all })
    }
}

impl NativeDevice for SimulatedGroup {
    fn label(&self) -> Label {
        let uuids: Vec<String> = self.all.iter().map(|device| device.label().uuid).collect();
        Label { name: format!("{} simulated GPUs", self.all.len()), uuid: uuids.join("+") }
    }

    fn memory(&self) -> MemoryStats {
        together(&self.all.iter().map(NativeDevice::memory).collect::<Vec<_>>())
    }

    fn load(&self, loading: Loading<'_>) -> Result<Hosted, Failure> {
        match (loading.spec.generates(), loading.group) {
            (Some(generate), Some(_)) => {
                let devices: Vec<_> = self.all.iter().map(|device| Arc::clone(&device.0)).collect();
                load_decoder(&devices, generate, loading)
            }
            _ => self.first.load(loading),
        }
    }

    fn takes_images(&self) -> bool {
        false
    }

    fn hold_vectors(&self, dims: usize, room: usize) -> Result<Box<dyn HeldVectors>, Failure> {
        self.first.hold_vectors(dims, room)
    }
}
