//! Flags of all commands that compute with a model, and how flags become settings.
//! Checks no value: the table of settings does.

use clap::Args;

use crate::config::FlagValue;

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ComputeArgs {
    /// Model: a name of the store, a well-known name, a hub repository org/name[@revision], or a folder
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Where to compute: auto, prefer-gpu, require-gpu, cpu, cuda, cuda:NUMBER or cuda:UUID
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Arithmetic: auto, f32, tf32, f16, bf16 or int8
    #[arg(long, value_name = "PRECISION")]
    pub(crate) precision: Option<String>,
    /// What computes: auto, native or onnx (ONNX Runtime)
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<String>,
    /// Threads that compute, or auto for one a core
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<String>,
    /// Instructions to use: auto, portable, avx2, avx512 or amx
    #[arg(long, value_name = "PATH")]
    pub(crate) cpu_path: Option<String>,
    /// Write what is done and how long it takes to this file, as a Chrome trace; `magray gpu profile` summarises it
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<String>,
}

impl ComputeArgs {
    pub(crate) fn flags(&self) -> Vec<FlagValue> {
        [
            flag("model.name", self.model.as_ref()),
            flag("embed.device", self.device.as_ref()),
            flag("embed.precision", self.precision.as_ref()),
            flag("model.backend", self.backend.as_ref()),
            flag("cpu.threads", self.threads.as_ref()),
            flag("cpu.path", self.cpu_path.as_ref()),
            flag("log.profile", self.profile.as_ref()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

pub(crate) fn flag(key: &'static str, value: Option<&String>) -> Option<FlagValue> {
    value.map(|value| FlagValue { key, value: value.clone() })
}
