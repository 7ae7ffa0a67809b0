//! The primary context of one GPU, held as long as anything needs it.
//! Owns no memory, no stream, no kernel.

use super::driver;
use super::error::CudaError;
use super::gpu::GpuInfo;
use super::sys::{self, CUresult};
use std::sync::Arc;

/// A GPU ready for work. Costs some hundred MiB of its memory while it lives.
#[derive(Debug)]
pub struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
    gpu: GpuInfo,
}

// SAFETY: a context may be used from any thread that has made it current; the driver locks what it shares.
unsafe impl Send for Context {}
// SAFETY: as above; nothing here changes after `open`.
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
        let context = Arc::new(Self { device, raw, gpu: gpu.clone() });
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
