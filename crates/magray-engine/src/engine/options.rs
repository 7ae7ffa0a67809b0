//! How an engine is started: its models, its devices, and the rules of its queue.
//! Starts nothing.

use super::{ModelPlan, Options};
use crate::encoder::EncoderOptions;
use crate::executors::{ModelSource, OpenExecutor};
use crate::health::AlertOptions;
use crate::profile::Profile;
use crate::spec::decoder::DecoderSource;
#[cfg(feature = "testing")]
use crate::testing::{FaultPlan, SimulatedGpu};
use magray_core::several_gpus::Strategy;
use magray_core::{DeviceChoice, DeviceName};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How an engine is started.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Where and how models are computed.
    pub encoder: EncoderOptions,
    /// The models, named by their place in this list.
    pub models: Vec<EngineModel>,
    /// Where models lie that come later; GPU workers may read it.
    pub models_folder: Option<PathBuf>,
    /// Which GPUs are used.
    pub gpus: Gpus,
    /// How several of them compute a language model.
    pub strategy: Strategy,
    /// Bounds, batches, placement, recovery.
    pub schedule: Options,
    /// Tokens that are proposed for a pass of a sequence whose prompt does not say ([`Sampling::speculate`](crate::decoder::Sampling::speculate)).
    pub speculate: u8,
    /// What computes in this process; `None`: the CPU.
    pub in_process: Option<Arc<dyn OpenExecutor>>,
    /// The program whose command `worker` is a GPU worker: this one.
    pub worker_exe: PathBuf,
    /// Workers that behave like GPUs and compute on the CPU, for tests.
    #[cfg(feature = "testing")]
    pub simulated_gpus: Vec<SimulatedGpu>,
    /// What of the host's memory is taken to be available, for tests; `None`: what the system says.
    #[cfg(feature = "testing")]
    pub host_bytes: Option<u64>,
    /// Faults to happen, for tests.
    #[cfg(feature = "testing")]
    pub faults: Option<FaultPlan>,
    /// Who is told when a device leaves or returns.
    pub alerts: AlertOptions,
    /// From one look at the GPUs to the next; `None`: they are not monitored.
    pub monitor_interval: Option<Duration>,
    /// Where it is noted what is done and how long it takes.
    pub profile: Option<Arc<Profile>>,
}

impl EngineOptions {
    /// These models on the GPUs of this machine, and on the CPU where there is none or it fails; all else as it is by
    /// default. A GPU is used through a process of `worker_exe`: `magray`, or any program whose command `worker` calls
    /// [`crate::serve`].
    pub fn with_gpus(models: Vec<EngineModel>, worker_exe: PathBuf) -> Self {
        let on_cpu = Self::on_cpu(models);
        let encoder = EncoderOptions { device: DeviceChoice::Auto, ..on_cpu.encoder };
        Self { encoder, worker_exe, gpus: Gpus::All, monitor_interval: Some(Duration::from_millis(500)), ..on_cpu }
    }

    /// These models only on the CPU, all else as it is by default.
    pub fn on_cpu(models: Vec<EngineModel>) -> Self {
        Self {
            encoder: EncoderOptions { device: DeviceChoice::Cpu, ..EncoderOptions::default() },
            models,
            models_folder: None,
            gpus: Gpus::One,
            strategy: Strategy::default(),
            schedule: Options::default(),
            speculate: 0,
            in_process: None,
            worker_exe: PathBuf::new(),
            #[cfg(feature = "testing")]
            simulated_gpus: Vec::new(),
            #[cfg(feature = "testing")]
            host_bytes: None,
            #[cfg(feature = "testing")]
            faults: None,
            alerts: AlertOptions::default(),
            monitor_interval: None,
            profile: None,
        }
    }
}

/// Which GPUs are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Gpus {
    /// The one that the settings name.
    #[default]
    One,
    /// All that may be seen.
    All,
    /// Those of these numbers.
    These(Vec<usize>),
}

/// A model of an engine.
#[derive(Clone, Debug)]
pub struct EngineModel {
    /// Where it comes from.
    pub source: ModelSource,
    /// The device that it is assigned to by hand; `None`: wherever it is done first.
    pub assigned: Option<DeviceName>,
    /// What people call it.
    pub name: String,
    /// How it comes and goes. Its size is filled in when its files are read.
    pub plan: ModelPlan,
}

impl From<ModelSource> for EngineModel {
    fn from(source: ModelSource) -> Self {
        let name = match &source {
            ModelSource::Synthetic(shape) => format!("synthetic:{}x{}", shape.layers, shape.hidden),
            ModelSource::Decoder(DecoderSource::Synthetic(model)) => format!("synthetic:{model}"),
            ModelSource::Folder(folder)
            | ModelSource::Onnx { folder, .. }
            | ModelSource::Decoder(DecoderSource::Path(folder)) => {
                folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned()
            }
        };
        Self { source, assigned: None, name, plan: ModelPlan::default() }
    }
}
