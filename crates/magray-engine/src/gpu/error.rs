//! Why a GPU could not load a model or compute, sorted by what to do about it.
//! Retries nothing.

use crate::weights::WeightsError;
use magray_core::Reason;
use magray_core::schedule::Failure;
use magray_device::cuda::{CudaError, Declined, DeviceError, KernelError};

/// A failure of a GPU.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The GPU, or what it needs, is not there: use another device.
    #[error(transparent)]
    Declined(#[from] Declined),
    /// The driver refused or stopped the work.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A kernel could not be made.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The model's files are wrong: no device can load them.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Weights could not be brought to the GPU or taken from it: load the model again.
    #[error("{0}")]
    Residency(DeviceError),
}

impl GpuError {
    /// One word for programs; it never changes its meaning.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Declined(declined) | Self::Kernel(KernelError::Declined { declined, .. }) => declined.code(),
            Self::Cuda(error) | Self::Kernel(KernelError::Load { source: error, .. }) => code_of(error),
            Self::Kernel(KernelError::Compile(_)) => "kernel_refused",
            Self::Weights(_) => "model_broken",
            Self::Residency(_) => "weights_away",
        }
    }

    /// What the scheduler is told: what to do about it.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Cuda(error) | Self::Kernel(KernelError::Load { source: error, .. }) => match error {
                CudaError::OutOfMemory => Failure::OutOfMemory,
                CudaError::Sticky { .. } => Failure::Sticky,
                CudaError::Lost { .. } => Failure::Lost,
                CudaError::Other { .. } => Failure::Transient,
            },
            // A new process would fail likewise: these count, and a device that goes on like this is given up.
            Self::Declined(_) | Self::Kernel(_) | Self::Weights(_) | Self::Residency(_) => Failure::Transient,
        }
    }

    /// The reason that an answer carries.
    pub fn reason(&self) -> Reason {
        Reason::Failed { code: self.code(), message: self.to_string() }
    }
}

fn code_of(error: &CudaError) -> &'static str {
    match error {
        CudaError::OutOfMemory => "out_of_memory",
        CudaError::Sticky { .. } => "gpu_fault",
        CudaError::Lost { .. } => "lost",
        CudaError::Other { .. } => "driver_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_memory_and_a_fault_are_told_apart() {
        let full = GpuError::from(CudaError::OutOfMemory);
        assert_eq!(full.reason().code(), "out_of_memory");
        assert_eq!(full.failure(), Failure::OutOfMemory);
        let fault = GpuError::from(CudaError::Sticky { code: 700, name: "illegal_address".to_owned() });
        assert_eq!(fault.reason().code(), "gpu_fault");
        assert_eq!(fault.failure(), Failure::Sticky);
        assert!(fault.reason().to_string().contains("illegal_address"));
    }

    #[test]
    fn a_missing_compiler_keeps_its_own_code() {
        let error = GpuError::from(KernelError::Declined { declined: Declined::NoNvrtc, archive: None });
        assert_eq!(error.code(), "no_nvrtc");
    }
}
