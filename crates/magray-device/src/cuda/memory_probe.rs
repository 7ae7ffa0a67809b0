//! A door to a context's memory alone: takes and gives back as buffers do, so that taking itself can be measured.
//! Copies nothing and runs nothing: the memory is never touched.

use super::context::{Context, MemoryOptions};
use super::device_memory::Taken;
use super::error::CudaError;
use super::gpu::GpuInfo;
use magray_core::pool::{PoolStats, StreamId};
use std::sync::Arc;

/// The stream of all that is taken here. Real ones are counted from 1, and none has this number.
const NOBODYS: StreamId = StreamId(0);

/// A GPU of which nothing but memory is used.
#[derive(Debug)]
pub struct MemoryProbe {
    context: Arc<Context>,
}

/// Memory that was taken.
#[derive(Debug)]
#[must_use = "memory that is dropped stays taken until the probe is gone: give it back"]
pub struct Probed(Taken);

impl MemoryProbe {
    /// Opens a GPU that [`super::probe`] found.
    pub fn open(gpu: &GpuInfo, options: &MemoryOptions) -> Result<Self, CudaError> {
        Ok(Self { context: Context::open_with(gpu, options)? })
    }

    /// Takes so many bytes, more than none.
    pub fn take(&self, bytes: usize) -> Result<Probed, CudaError> {
        self.context.take(bytes, NOBODYS).map(Probed)
    }

    /// Gives memory back.
    pub fn give_back(&self, probed: Probed) {
        self.context.give_back(probed.0, None);
    }

    /// How the pool is.
    pub fn stats(&self) -> PoolStats {
        self.context.device_pool_stats()
    }
}
