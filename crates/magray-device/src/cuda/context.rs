//! The primary context of one GPU, held as long as anything needs it.
//! Owns no memory, no stream, no kernel.

use super::driver;
use super::error::CudaError;
use super::gpu::GpuInfo;
use super::sys::{self, CUresult};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A GPU ready for work. Costs some hundred MiB of its memory while it lives.
#[derive(Debug)]
pub struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
    gpu: GpuInfo,
    /// Memory of the GPU that was taken and not given back, and the most that ever was.
    allocated_bytes: AtomicU64,
    peak_bytes: AtomicU64,
}

// SAFETY: a context may be used from any thread that has made it current; the driver locks what it shares.
unsafe impl Send for Context {}
// SAFETY: as above; what changes after `open` is atomic.
unsafe impl Sync for Context {}

impl Context {
    /// Takes the primary context of a GPU that [`super::probe`] found, and makes it current on this thread.
    pub fn open(gpu: &GpuInfo) -> Result<Arc<Self>, CudaError> {
        // Without a driver the bindings would panic; a GPU that was not probed can only be a wrong one.
        if !driver::is_started() {
            CudaError::check(CUresult::CUDA_ERROR_NOT_INITIALIZED)?;
        }
        let mut device = 0;
        let ordinal = i32::try_from(gpu.ordinal).unwrap_or(i32::MAX);
        // SAFETY: the driver is started; writes one number, and refuses an ordinal out of range.
        CudaError::check(unsafe { sys::cuDeviceGet(&mut device, ordinal) })?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the device is one of the driver's; writes one handle, given back in `drop`.
        CudaError::check(unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, device) })?;
        let context = Arc::new(Self {
            device,
            raw,
            gpu: gpu.clone(),
            allocated_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
        });
        context.bind()?;
        Ok(context)
    }

    /// Makes this context current on the calling thread; cheap when it is already.
    pub fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as `self` lives.
        CudaError::check(unsafe { sys::cuCtxSetCurrent(self.raw) })
    }

    /// The GPU.
    pub fn gpu(&self) -> &GpuInfo {
        &self.gpu
    }

    /// The memory of the GPU in bytes: free, and all of it. What other processes use is not free.
    pub fn memory_bytes(&self) -> Result<(u64, u64), CudaError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current; writes two numbers.
        CudaError::check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Memory of the GPU that buffers of this context hold.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes.load(Ordering::Relaxed)
    }

    /// The most that they ever held at once.
    pub fn peak_allocated_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn note_taken(&self, bytes: usize) {
        let before = self.allocated_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.peak_bytes.fetch_max(before + bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn note_given_back(&self, bytes: usize) {
        self.allocated_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`; whatever was made in the context holds an `Arc` of it, so nothing is left.
        // A failure means that the context is gone already.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::gpu::tests::gpu;
    use super::*;

    #[test]
    fn a_gpu_that_is_not_there_is_refused() {
        let none = gpu(4711, "GPU-none", "0000:00:00.0");
        assert!(Context::open(&none).is_err());
    }
}
