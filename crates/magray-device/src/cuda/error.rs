//! What the driver reports, sorted by what to do about it.
//! Never retries and never hides a code.

use super::sys::{self, CUresult};
use std::ffi::CStr;

/// A failed call of the driver. Each variant is a decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// Free memory or use less, then try again.
    #[error(
        "the GPU's memory, or the part of it that may be used, is full: use a smaller batch, raise the limit, or end other programs that use this GPU"
    )]
    OutOfMemory,
    /// This process cannot use the GPU any more: every later call fails. A new process can.
    #[error("the GPU stopped this program's work ({name}, code {code}): start the program again")]
    Sticky {
        /// The driver's number.
        code: u32,
        /// The driver's name of it.
        name: String,
    },
    /// The device is gone for every process until it is reset.
    #[error("the GPU is not available any more ({name}, code {code}): see `nvidia-smi`; it may need a reset")]
    Lost {
        /// The driver's number.
        code: u32,
        /// The driver's name of it.
        name: String,
    },
    /// A single call failed; the context still works.
    #[error("the CUDA driver refused a call ({name}, code {code})")]
    Other {
        /// The driver's number.
        code: u32,
        /// The driver's name of it.
        name: String,
    },
}

impl CudaError {
    pub(crate) fn check(result: CUresult) -> Result<(), Self> {
        if result == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Self::of(result)) }
    }

    /// Whether the process must be replaced before this GPU can be used again.
    pub fn needs_new_process(&self) -> bool {
        matches!(self, Self::Sticky { .. } | Self::Lost { .. })
    }

    /// Whether the driver says that an image was not made for this GPU, or not for this driver.
    pub(super) fn is_bad_image(&self) -> bool {
        let codes = [CUresult::CUDA_ERROR_INVALID_IMAGE, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU];
        let more = [CUresult::CUDA_ERROR_INVALID_SOURCE, CUresult::CUDA_ERROR_NOT_FOUND];
        matches!(self, Self::Other { code, .. } if codes.iter().chain(&more).any(|known| *known as u32 == *code))
    }

    fn of(result: CUresult) -> Self {
        let code = result as u32;
        match result {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Self::OutOfMemory,
            // After each of these the context is lost; a measurement showed that a reset of it does not help.
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_CONTAINED
            | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
            | CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_DEINITIALIZED
            | CUresult::CUDA_ERROR_UNKNOWN => Self::Sticky { code, name: name_of(result) },
            CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUresult::CUDA_ERROR_NO_DEVICE
            | CUresult::CUDA_ERROR_INVALID_DEVICE
            | CUresult::CUDA_ERROR_DEVICE_NOT_LICENSED
            | CUresult::CUDA_ERROR_SYSTEM_NOT_READY => Self::Lost { code, name: name_of(result) },
            _ => Self::Other { code, name: name_of(result) },
        }
    }
}

/// The driver's name of a result, without its common beginning.
pub(super) fn name_of(result: CUresult) -> String {
    // A result exists only where the driver was loaded, but tests make their own.
    let known = super::libraries::is_driver_loaded().then(|| {
        let mut text = std::ptr::null();
        // SAFETY: the driver is loaded; it writes a pointer to a text that lives as long as the process.
        let found = unsafe { sys::cuGetErrorName(result, &mut text) };
        // SAFETY: on success the pointer is that text, ended by a zero.
        (found == CUresult::CUDA_SUCCESS && !text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
    });
    let name = known.flatten().map_or_else(|| format!("{result:?}"), |text| text.to_string_lossy().into_owned());
    name.trim_start_matches("CUDA_ERROR_").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_decisions() {
        let of = CudaError::of;
        assert_eq!(of(CUresult::CUDA_ERROR_OUT_OF_MEMORY), CudaError::OutOfMemory);
        let sticky = of(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(sticky, CudaError::Sticky { code: 700, name: "illegal_address".to_owned() });
        assert!(sticky.needs_new_process());
        assert!(matches!(of(CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE), CudaError::Lost { code: 46, .. }));
        let other = of(CUresult::CUDA_ERROR_INVALID_VALUE);
        assert!(matches!(other, CudaError::Other { code: 1, .. }) && !other.needs_new_process());
        assert!(of(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU).is_bad_image() && !other.is_bad_image());
        assert_eq!(CudaError::check(CUresult::CUDA_SUCCESS), Ok(()));
    }

    #[test]
    fn messages_say_what_to_do() {
        let message = CudaError::of(CUresult::CUDA_ERROR_LAUNCH_FAILED).to_string();
        assert!(message.contains("launch_failed") && message.contains("start the program again"), "{message}");
    }
}
