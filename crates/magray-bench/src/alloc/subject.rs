//! What is measured: the pool of a GPU, or its arithmetic over memory that is not there.
//! Measures nothing itself.

use magray_core::pool::{AllocateError, Block, Pool, PoolOptions, PoolStats, SimulatedMemory, StreamId};
use magray_engine::gpu::{CudaError, GpuInfo, MemoryOptions, PoolProbe, ProbeBlock};

use crate::failure::Failure;

pub(super) trait Device {
    type Subject: Subject;

    fn name(&self) -> String;

    /// Fresh memory of which nothing is taken.
    fn open(&self) -> Result<Self::Subject, Failure>;
}

pub(super) trait Subject {
    type Block;

    fn allocate(&mut self, bytes: u64) -> Result<Self::Block, Failure>;
    fn free(&mut self, block: Self::Block);
    fn stats(&self) -> PoolStats;
}

pub(super) struct OnGpu {
    pub(super) gpu: GpuInfo,
}

impl Device for OnGpu {
    type Subject = PoolProbe;

    fn name(&self) -> String {
        self.gpu.name.clone()
    }

    fn open(&self) -> Result<PoolProbe, Failure> {
        PoolProbe::open(&self.gpu, &MemoryOptions::default()).map_err(Failure::Memory)
    }
}

impl Subject for PoolProbe {
    type Block = ProbeBlock;

    fn allocate(&mut self, bytes: u64) -> Result<ProbeBlock, Failure> {
        let bytes = usize::try_from(bytes).map_err(|_| Failure::Memory(CudaError::OutOfMemory))?;
        self.take(bytes).map_err(Failure::Memory)
    }

    fn free(&mut self, block: ProbeBlock) {
        self.give_back(block);
    }

    fn stats(&self) -> PoolStats {
        Self::stats(self)
    }
}

/// No GPU: a pool as one of 141 GB has it.
pub(super) struct Simulated;

/// Like the pool of a real GPU.
const LIKE_A_GPU: PoolOptions = PoolOptions {
    range_bytes: 8 * (141 << 30),
    limit_bytes: 141 << 30,
    grain_bytes: 2 << 20,
    handle_bytes: 64 << 20,
    large_bytes: 8 << 20,
    align_bytes: 256,
};

impl Device for Simulated {
    type Subject = Pool<SimulatedMemory>;

    fn name(&self) -> String {
        "simulated".to_owned()
    }

    fn open(&self) -> Result<Pool<SimulatedMemory>, Failure> {
        Ok(Pool::new(LIKE_A_GPU, SimulatedMemory::new()))
    }
}

impl Subject for Pool<SimulatedMemory> {
    type Block = Block;

    fn allocate(&mut self, bytes: u64) -> Result<Block, Failure> {
        Self::allocate(self, bytes, StreamId(0)).map_err(|error| match error {
            AllocateError::Limit { .. } | AllocateError::Upstream(_) => Failure::Memory(CudaError::OutOfMemory),
        })
    }

    fn free(&mut self, block: Block) {
        Self::free(self, block);
    }

    fn stats(&self) -> PoolStats {
        Self::stats(self)
    }
}
