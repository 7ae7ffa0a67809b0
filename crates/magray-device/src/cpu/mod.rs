//! The CPU as a device: chooses its path once, owns the threads, packs weights, hands out operations.

mod activation;
mod acts;
mod aligned;
mod attention;
mod decoder;
mod detect;
mod embed;
mod gemm;
mod head_columns;
mod items;
mod layer_norm;
mod ops;
#[cfg(target_arch = "x86_64")]
mod pack_tiles;
mod pool;
mod pooling;
mod products;
mod sched_slice;
mod simd;
mod softmax;
mod widened;

pub use acts::Acts;
pub(crate) use aligned::{Aligned, Plain, Region};
pub use decoder::{CpuDecoderOps, KvPages, RmsNorm, RowActs, RowLinear, decoder_linear_bytes};
pub(crate) use detect::has_vnni;
pub use detect::{PathUnavailable, available_paths};
pub use gemm::Linear;
#[cfg(target_arch = "x86_64")]
pub(crate) use gemm::tile_registers as tiles;
pub(crate) use items::Shares;
pub use ops::CpuOps;
pub use pool::ThreadPool;
pub use sched_slice::{register_latency_thread, request_short_slices};
pub use widened::{Wide, widened};

use crate::{Device, DistanceBias, Embedding, LinearSource, Norm};
use acts::Format;
use gemm::Layout;
use magray_core::{CpuPath, Precision};
use std::convert::Infallible;
use std::sync::Arc;

/// Why the CPU cannot be used as asked.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The path is not one of this machine's.
    #[error(transparent)]
    Path(#[from] PathUnavailable),
    /// The system gave no thread.
    #[error("cannot start {threads} threads: {source}; ask for fewer")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the system says.
        source: std::io::Error,
    },
}

/// The CPU: a path through the code, and threads.
pub struct Cpu {
    path: CpuPath,
    pool: ThreadPool,
    /// The memory of packed weights.
    weights: Region,
}

impl Cpu {
    /// The CPU on the path asked for (or the best there is) with this many threads (or one a core).
    pub fn new(path: Option<CpuPath>, threads: Option<usize>) -> Result<Self, CpuError> {
        let path = detect::choose_path(path)?;
        let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let pool = ThreadPool::new(threads).map_err(|source| CpuError::Threads { threads, source })?;
        Ok(Self { path, pool, weights: Region::default() })
    }

    /// The path that was chosen.
    pub fn path(&self) -> CpuPath {
        self.path
    }

    /// The threads. [`Cpu::team`] runs each operation on all of them; a caller of [`Cpu::solo`] divides texts between them.
    pub fn pool(&self) -> &ThreadPool {
        &self.pool
    }

    /// Whether bf16 is faster than f32 here.
    pub fn has_fast_bf16(&self) -> bool {
        self.path == CpuPath::Amx
    }

    /// Operations that each use all threads: for few texts at once.
    pub fn team(self: &Arc<Self>) -> CpuOps {
        CpuOps::new(Arc::clone(self), self.pool.threads())
    }

    /// Operations that stay on the calling thread: for many texts, each thread having its own.
    pub fn solo(self: &Arc<Self>) -> CpuOps {
        CpuOps::new(Arc::clone(self), 1)
    }
}

impl Device for Cpu {
    type Error = Infallible;
    type Ops = CpuOps;

    fn linear(&self, source: LinearSource<'_>, precision: Precision) -> Result<Linear, Infallible> {
        let layout = Layout::of(self.path, precision, detect::has_vnni());
        Ok(Linear::pack(source, layout, &self.pool, &self.weights))
    }

    fn norm(&self, norm: Norm) -> Result<Norm, Infallible> {
        Ok(norm)
    }

    fn embedding(&self, embedding: Embedding, _: Precision) -> Result<Embedding, Infallible> {
        Ok(embedding)
    }

    fn bias(&self, bias: DistanceBias) -> Result<DistanceBias, Infallible> {
        Ok(bias)
    }

    fn acts(&self, precision: Precision, columns: usize) -> Acts {
        assert!(
            precision.is_for_cpu(),
            "{precision} is for GPUs alone: settle it with PrecisionChoice::settle_cpu first"
        );
        let format = match (self.path, precision) {
            (CpuPath::Amx, Precision::Bf16 | Precision::Int8) => Format::Bf16,
            _ => Format::F32,
        };
        Acts::new(format, columns)
    }
}
