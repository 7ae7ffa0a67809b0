//! Why no GPU is used, as a code for programs and a sentence for people.
//! Decides nothing: what follows from a reason is up to the caller.

use super::gpu_info::GpuInfo;

/// The least driver, as the CUDA version that it brings.
pub const LEAST_DRIVER: (u32, u32) = (12, 0);
/// The least compute capability: Turing, the first with tensor cores for all that the kernels do.
pub const LEAST_CAPABILITY: (u32, u32) = (7, 5);

/// Why a GPU, or all of them, cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// The driver's library is not on this machine.
    #[error("no NVIDIA driver was found: install version 525 or newer, or give the container access to the host's")]
    NoDriver,
    /// The driver is older than the oldest that is supported.
    #[error("the NVIDIA driver supports CUDA {}.{} only: install one for CUDA {}.{} or newer", found.0, found.1, LEAST_DRIVER.0, LEAST_DRIVER.1)]
    DriverTooOld {
        /// The CUDA version of the driver.
        found: (u32, u32),
    },
    /// The driver is there and does not start.
    #[error("the NVIDIA driver does not start ({name}, code {code}): {}", advice(*code))]
    DriverFailed {
        /// The driver's number.
        code: u32,
        /// The driver's name of it.
        name: String,
    },
    /// The driver sees no GPU.
    #[error("the NVIDIA driver sees no GPU: check `nvidia-smi`; a container must be started with access to GPUs")]
    NoDevice,
    /// GPUs are there, but a variable of the environment hides them.
    #[error("{by}='{value}' leaves no GPU visible: unset it, or name a GPU that `nvidia-smi -L` lists")]
    Hidden {
        /// The name of the variable.
        by: &'static str,
        /// Its value.
        value: String,
    },
    /// All GPUs are older than the kernels need.
    #[error("{name} has compute capability {}.{}: {}.{} (Turing) or newer is needed", capability.0, capability.1, LEAST_CAPABILITY.0, LEAST_CAPABILITY.1)]
    DeviceTooOld {
        /// The name of the newest GPU.
        name: String,
        /// Its compute capability.
        capability: (u32, u32),
    },
    /// A device was named that is not there.
    #[error("there is no device '{asked}': {}", known(available))]
    UnknownDevice {
        /// The name as it was given.
        asked: String,
        /// The names of the devices here.
        available: Vec<String>,
    },
    /// Kernels must be compiled and there is no compiler for them.
    #[error(
        "the CUDA kernel compiler (NVRTC 12 or newer) was not found: `pip install nvidia-cuda-nvrtc`, or install the CUDA toolkit"
    )]
    NoNvrtc,
    /// The compilers found do not know this GPU.
    #[error("NVRTC {}.{} cannot compile for {arch}: `pip install --upgrade nvidia-cuda-nvrtc`, or install a newer CUDA toolkit", version.0, version.1)]
    NvrtcTooOld {
        /// The version of the newest compiler found.
        version: (u32, u32),
        /// The GPU's architecture.
        arch: String,
    },
}

impl Declined {
    /// For programs: it stays the same from version to version.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoDriver => "no_driver",
            Self::DriverTooOld { .. } => "driver_too_old",
            Self::DriverFailed { .. } => "driver_failed",
            Self::NoDevice => "no_device",
            Self::Hidden { .. } => "hidden",
            Self::DeviceTooOld { .. } => "device_too_old",
            Self::UnknownDevice { .. } => "unknown_device",
            Self::NoNvrtc => "no_nvrtc",
            Self::NvrtcTooOld { .. } => "nvrtc_too_old",
        }
    }

    /// The refusal of a name that no device has.
    pub(super) fn unknown(asked: &str, gpus: &[GpuInfo]) -> Self {
        let available = gpus.iter().map(|gpu| format!("cuda:{} ({}, {})", gpu.index, gpu.name, gpu.uuid)).collect();
        Self::UnknownDevice { asked: asked.to_owned(), available }
    }
}

fn known(available: &[String]) -> String {
    if available.is_empty() { "there is no GPU".to_owned() } else { format!("there are {}", available.join(", ")) }
}

/// What to do about common failures to start.
fn advice(code: u32) -> &'static str {
    match code {
        34 => "a stub of the toolkit was loaded in its place; take the folder `stubs` out of the library path",
        802 => "the fabric manager of this machine's GPUs is not running; start it, or wait until it is ready",
        803 => "the driver was updated while in use; restart the machine, or the container",
        804 => "a forward-compatibility library is installed that this GPU does not support; remove it",
        _ => "check `nvidia-smi`; restarting the machine helps after an update of the driver",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_say_what_to_do() {
        let too_old = Declined::DriverTooOld { found: (11, 4) };
        assert_eq!(
            too_old.to_string(),
            "the NVIDIA driver supports CUDA 11.4 only: install one for CUDA 12.0 or newer"
        );
        let stub = Declined::DriverFailed { code: 34, name: "stub_library".to_owned() };
        assert!(stub.to_string().contains("take the folder `stubs` out"), "{stub}");
        let hidden = Declined::Hidden { by: "CUDA_VISIBLE_DEVICES", value: "-1".to_owned() };
        assert!(hidden.to_string().starts_with("CUDA_VISIBLE_DEVICES='-1' leaves no GPU visible"), "{hidden}");
        let none = Declined::unknown("cuda:3", &[]);
        assert_eq!(none.to_string(), "there is no device 'cuda:3': there is no GPU");
    }
}
