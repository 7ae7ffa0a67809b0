//! Names devices: what a user may ask for, and what an answer says it was computed on.
//! Does not know which of them the machine has.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// What a user asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceChoice {
    /// The GPU where there is one that is worth it, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// This GPU and no other device.
    Cuda(GpuSelector),
}

impl DeviceChoice {
    /// The word for [`Self::Auto`] by which a user says that a GPU is expected: where there is none, that is told.
    pub const PREFER_GPU: &'static str = "prefer-gpu";
    /// The word for any GPU and no other device.
    pub const REQUIRE_GPU: &'static str = "require-gpu";
}

/// Which of several GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum GpuSelector {
    /// The one that the settings name, or the first.
    #[default]
    Any,
    /// By number, in the order of the visible GPUs.
    Index(usize),
    /// By its UUID or the start of it, as `nvidia-smi -L` prints it.
    Uuid(String),
}

/// The device that computed an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceName {
    /// The CPU.
    #[default]
    Cpu,
    /// The NVIDIA GPU of this number.
    Cuda(usize),
    /// A worker that computes on the CPU and behaves like a GPU, for tests.
    Simulated(usize),
    /// ONNX Runtime, with the provider that computed; `None`: that is not settled.
    Onnx(Option<OnnxProvider>),
}

/// What ONNX Runtime computes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnnxProvider {
    /// NVIDIA's TensorRT.
    TensorRt,
    /// NVIDIA GPUs.
    Cuda,
    /// DirectX 12 devices of Windows.
    DirectMl,
    /// Apple's GPUs and neural engines.
    CoreMl,
    /// Intel's processors and GPUs.
    OpenVino,
    /// The processor, which every library has.
    Cpu,
    /// The processor, by the engine in the program itself: where ONNX Runtime cannot compute a model.
    Rust,
}

impl OnnxProvider {
    /// Those of ONNX Runtime's library.
    pub const ALL: [Self; 6] = [Self::TensorRt, Self::Cuda, Self::DirectMl, Self::CoreMl, Self::OpenVino, Self::Cpu];

    /// One word for programs and settings.
    pub fn code(self) -> &'static str {
        match self {
            Self::TensorRt => "tensorrt",
            Self::Cuda => "cuda",
            Self::DirectMl => "directml",
            Self::CoreMl => "coreml",
            Self::OpenVino => "openvino",
            Self::Cpu => "cpu",
            Self::Rust => "rust",
        }
    }

    /// What ONNX Runtime calls it.
    pub fn runtime_name(self) -> &'static str {
        match self {
            Self::TensorRt => "TensorrtExecutionProvider",
            Self::Cuda => "CUDAExecutionProvider",
            Self::DirectMl => "DmlExecutionProvider",
            Self::CoreMl => "CoreMLExecutionProvider",
            Self::OpenVino => "OpenVINOExecutionProvider",
            Self::Cpu => "CPUExecutionProvider",
            Self::Rust => "rten",
        }
    }
}

impl fmt::Display for OnnxProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

/// A way to use some hardware, as lists of preference name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// NVIDIA GPUs.
    Cuda,
    /// Apple's GPUs.
    Mps,
    /// The processor.
    Cpu,
    /// A provider of ONNX Runtime that nothing else here uses.
    Onnx(OnnxProvider),
}

/// A word that names no device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDevice(pub String);

impl UnknownDevice {
    /// The words that are known, as a phrase.
    pub const KNOWN: &'static str = "auto, prefer-gpu, require-gpu, cpu, cuda, cuda:NUMBER or cuda:UUID";
}

impl fmt::Display for UnknownDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown device '{}': use {}", self.0, Self::KNOWN)
    }
}

impl std::error::Error for UnknownDevice {}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Cpu => f.pad("cpu"),
            Self::Cuda(GpuSelector::Any) => f.pad("cuda"),
            Self::Cuda(GpuSelector::Index(index)) => f.pad(&format!("cuda:{index}")),
            Self::Cuda(GpuSelector::Uuid(uuid)) => f.pad(&format!("cuda:{uuid}")),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = UnknownDevice;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownDevice(word.to_owned());
        let (kind, which) = word.split_once(':').map_or((word, None), |(kind, which)| (kind, Some(which)));
        match (kind.to_ascii_lowercase().replace('_', "-").as_str(), which) {
            ("auto" | Self::PREFER_GPU, None) => Ok(Self::Auto),
            ("cpu", None) => Ok(Self::Cpu),
            ("cuda" | Self::REQUIRE_GPU, None) => Ok(Self::Cuda(GpuSelector::Any)),
            ("cuda", Some(which)) => selector(which).map(Self::Cuda).ok_or_else(unknown),
            _ => Err(unknown()),
        }
    }
}

fn selector(word: &str) -> Option<GpuSelector> {
    let kind = word.get(..4).unwrap_or_default();
    if ["GPU-", "MIG-"].iter().any(|known| kind.eq_ignore_ascii_case(known)) {
        return Some(GpuSelector::Uuid(word.to_owned()));
    }
    // Signs would parse as numbers too, and no driver numbers a GPU so.
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { word.parse().ok().map(GpuSelector::Index) } else { None }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.pad("cpu"),
            Self::Cuda(index) => f.pad(&format!("cuda:{index}")),
            Self::Simulated(index) => f.pad(&format!("sim:{index}")),
            Self::Onnx(None) => f.pad("onnx"),
            Self::Onnx(Some(provider)) => f.pad(&format!("onnx:{provider}")),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cuda => "cuda",
            Self::Mps => "mps",
            Self::Cpu => "cpu",
            Self::Onnx(provider) => provider.code(),
        })
    }
}

impl FromStr for Backend {
    type Err = UnknownDevice;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "cuda" => Ok(Self::Cuda),
            "mps" => Ok(Self::Mps),
            "cpu" => Ok(Self::Cpu),
            "tensorrt" => Ok(Self::Onnx(OnnxProvider::TensorRt)),
            "directml" => Ok(Self::Onnx(OnnxProvider::DirectMl)),
            "coreml" => Ok(Self::Onnx(OnnxProvider::CoreMl)),
            "openvino" => Ok(Self::Onnx(OnnxProvider::OpenVino)),
            _ => Err(UnknownDevice(word.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        for word in ["auto", "cpu", "cuda", "cuda:0", "cuda:17", "cuda:GPU-8f1a", "cuda:gpu-8F1A", "cuda:MIG-3c"] {
            assert_eq!(word.parse::<DeviceChoice>().unwrap().to_string(), word);
        }
        for word in ["require-gpu", "require_gpu", "REQUIRE_GPU"] {
            assert_eq!(word.parse(), Ok(DeviceChoice::Cuda(GpuSelector::Any)), "{word}");
        }
        assert_eq!("prefer-gpu".parse(), Ok(DeviceChoice::Auto));
        assert_eq!("Prefer_GPU".parse(), Ok(DeviceChoice::Auto));
        assert_eq!("CUDA:1".parse(), Ok(DeviceChoice::Cuda(GpuSelector::Index(1))));
        for backend in [Backend::Cuda, Backend::Mps, Backend::Cpu, Backend::Onnx(OnnxProvider::OpenVino)] {
            assert_eq!(backend.to_string().parse(), Ok(backend));
        }
        assert_eq!(DeviceName::Cuda(1).to_string(), "cuda:1");
    }

    #[test]
    fn words_that_name_no_device_are_refused() {
        for word in [
            "",
            "gpu",
            "cpu:0",
            "auto:1",
            "cuda:",
            "cuda:-1",
            "cuda:+1",
            "cuda:x",
            "cuda:99999999999999999999",
            "require-gpu:0",
            "prefergpu",
        ] {
            // An empty number parses as nothing, never as the first GPU.
            assert!(word.parse::<DeviceChoice>().is_err(), "{word:?}");
        }
        let message = "gpu".parse::<DeviceChoice>().unwrap_err().to_string();
        assert_eq!(
            message,
            "unknown device 'gpu': use auto, prefer-gpu, require-gpu, cpu, cuda, cuda:NUMBER or cuda:UUID"
        );
    }
}
