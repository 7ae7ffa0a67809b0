//! Vectors that an executor holds beside its models, to find the best of them for queries.
//! Knows no collection: which vectors these are is for others to say.

use super::Failure;
use crate::gpu::GpuError;
use magray_device::cuda::{Cuda, DeviceError, Near, Scan, Vectors};
use std::sync::Arc;

/// Vectors in a device's memory.
pub trait HeldVectors: Send {
    /// What they take of the memory.
    fn bytes(&self) -> u64;

    /// Puts vectors, which lie end to end, into slots. A vector whose offset is minus infinity is never found.
    fn put(&mut self, slots: &[u32], vectors: &[f32], offsets: &[f32]) -> Result<(), Failure>;

    /// Keeps the signs of all vectors, for scans that need not be exact.
    fn keep_signs(&mut self, centre: Vec<f32>) -> Result<(), Failure>;

    /// The best for each query.
    fn best(&mut self, scan: &Scan<'_>) -> Result<Vec<Vec<Near>>, Failure>;
}

/// Those in a GPU's memory.
pub(super) struct CudaVectors {
    vectors: Vectors,
    dims: usize,
}

impl CudaVectors {
    pub(super) fn new(cuda: &Arc<Cuda>, dims: usize, room: usize) -> Result<Self, Failure> {
        Ok(Self { vectors: Vectors::new(cuda, dims, room, true).map_err(failure)?, dims })
    }
}

impl HeldVectors for CudaVectors {
    fn bytes(&self) -> u64 {
        self.vectors.bytes()
    }

    /// Neighbours are put together.
    fn put(&mut self, slots: &[u32], vectors: &[f32], offsets: &[f32]) -> Result<(), Failure> {
        let mut from = 0;
        for neighbours in slots.chunk_by(|one, next| one + 1 == *next) {
            let to = from + neighbours.len();
            let rows = &vectors[from * self.dims..to * self.dims];
            self.vectors.put(neighbours[0] as usize, rows, &offsets[from..to]).map_err(failure)?;
            from = to;
        }
        Ok(())
    }

    fn keep_signs(&mut self, centre: Vec<f32>) -> Result<(), Failure> {
        self.vectors.keep_signs(centre).map_err(failure)
    }

    fn best(&mut self, scan: &Scan<'_>) -> Result<Vec<Vec<Near>>, Failure> {
        self.vectors.best(scan).map_err(failure)
    }
}

fn failure(error: DeviceError) -> Failure {
    GpuError::from(error).into()
}
