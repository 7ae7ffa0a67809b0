//! Flags of all measurements that compute with a model: which model, where, and how.
//! Pulls no model: a folder, or random weights of a published shape.

use std::{env, path::PathBuf};

use clap::Args;
use magray_engine::{
    CpuPath, DeviceChoice, DeviceName, EncoderOptions, EncoderShape, PrecisionChoice, SingleDevice,
    engine::ModelSource,
    gpu::{self, GpuOptions},
};

use crate::failure::Failure;

const SYNTHETIC: &str = "synthetic:";

#[derive(Clone, Debug, Args)]
pub(crate) struct ModelFlags {
    /// Model: a folder, or synthetic:SHAPE for random weights
    #[arg(long, value_name = "MODEL", default_value = "synthetic:minilm-l6")]
    pub(crate) model: String,
    /// Where to compute: auto, cpu, cuda, cuda:NUMBER or cuda:UUID
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub(crate) device: String,
    /// Arithmetic: auto, f32, tf32, f16, bf16 or int8
    #[arg(long, value_name = "PRECISION", default_value = "auto")]
    precision: PrecisionChoice,
    /// Threads that compute [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
    /// Instructions to use: portable, avx2, avx512 or amx [default: the best]
    #[arg(long, value_name = "PATH")]
    cpu_path: Option<CpuPath>,
}

impl ModelFlags {
    /// Where the model comes from.
    pub(crate) fn source(&self) -> Result<ModelSource, Failure> {
        match self.shape()? {
            Some(shape) => Ok(ModelSource::Synthetic(shape)),
            None => Ok(ModelSource::Folder(PathBuf::from(&self.model))),
        }
    }

    /// `None`: a folder.
    pub(crate) fn shape(&self) -> Result<Option<EncoderShape>, Failure> {
        let wrong = |error| Failure::Usage(format!("--model {}: {error}", self.model));
        self.model.strip_prefix(SYNTHETIC).map(|shape| shape.parse().map_err(wrong)).transpose()
    }

    /// Whether a worker is wanted that behaves like a GPU's and computes on the CPU.
    pub(crate) fn is_simulated(&self) -> bool {
        matches!(self.device.as_str(), "simulated" | "sim")
    }

    /// Simulated GPUs replace real ones.
    pub(crate) fn options(&self) -> Result<EncoderOptions, Failure> {
        let device = match self.is_simulated() {
            true => DeviceChoice::Auto,
            false => self.device.parse().map_err(|error| Failure::Usage(format!("--device: {error}")))?,
        };
        let threads = self.threads.map(usize::from);
        let (precision, cpu_path) = (self.precision, self.cpu_path);
        Ok(EncoderOptions { precision, threads, cpu_path, device, gpu: gpu_options(), ..EncoderOptions::default() })
    }

    /// The device for plain passes: the GPU that is named, or the first, or the CPU.
    pub(crate) fn plain_device(&self, options: &EncoderOptions) -> Result<DeviceName, Failure> {
        if self.is_simulated() || options.device == DeviceChoice::Cpu {
            return Ok(DeviceName::Cpu);
        }
        match gpu::find(&options.device, &options.gpu) {
            Ok(gpu) => Ok(DeviceName::Cuda(gpu.index)),
            Err(_) if options.device == DeviceChoice::Auto => Ok(DeviceName::Cpu),
            Err(declined) => Err(Failure::NoGpuToMeasure(declined)),
        }
    }

    pub(crate) fn open(&self, device: DeviceName, options: &EncoderOptions) -> Result<SingleDevice, Failure> {
        SingleDevice::open(&self.source()?, device, options).map_err(|reason| Failure::load(&self.model, reason))
    }
}

/// GPUs as magray has them by default, with the kernels that it has compiled.
pub(crate) fn gpu_options() -> GpuOptions {
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    GpuOptions {
        kernel_cache: cache.map(|cache| cache.join("magray/kernels")),
        kernel_archive: magray_engine::gpu::carried_kernels(),
        ..GpuOptions::default()
    }
}

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("'{text}' is not a number"))?;
    if (0.0..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("use 0 to 3600 seconds".to_owned()) }
}
