//! The pool of a GPU's memory for those who measure it: takes and gives back, and does nothing else.
//! What it hands out must not be computed with.

use super::context::{Context, MemoryOptions};
use super::device::Cuda;
use super::device_memory::Taken;
use super::error::CudaError;
use super::gpu_info::GpuInfo;
use super::progress::Progress;
use magray_core::pool::PoolStats;
use std::sync::Arc;

/// Allocates from a GPU's pool as a stream without work would.
#[derive(Debug)]
pub struct PoolProbe {
    context: Arc<Context>,
    progress: Arc<Progress>,
}

/// Memory that a probe took.
#[derive(Debug)]
#[must_use = "it stays taken until it is given back"]
pub struct ProbeBlock(Taken);

impl Cuda {
    /// A probe of this GPU's pool.
    pub fn pool_probe(&self) -> PoolProbe {
        PoolProbe { context: Arc::clone(self.context()), progress: self.context().new_progress(std::ptr::null_mut()) }
    }
}

impl PoolProbe {
    /// Opens a GPU that [`super::probe`] found, for its memory alone.
    pub fn open(gpu: &GpuInfo, options: &MemoryOptions) -> Result<Self, CudaError> {
        let context = Context::open_with(gpu, options)?;
        Ok(Self { progress: context.new_progress(std::ptr::null_mut()), context })
    }

    /// Takes this many bytes, at least one.
    pub fn take(&self, bytes: usize) -> Result<ProbeBlock, CudaError> {
        self.context.take(bytes.max(1), self.progress.id()).map(ProbeBlock)
    }

    /// Gives memory back.
    pub fn give_back(&self, block: ProbeBlock) {
        self.context.give_back(block.0, Some(&self.progress));
    }

    /// Gives all unused memory back to the driver.
    pub fn trim(&self) {
        self.context.trim();
    }

    /// Statistics of the pool.
    pub fn stats(&self) -> PoolStats {
        self.context.device_pool_stats()
    }
}

impl Drop for PoolProbe {
    fn drop(&mut self) {
        self.context.ended(&self.progress, || {});
    }
}
