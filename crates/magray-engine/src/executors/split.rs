//! A language model by layers between the CPU and a GPU: what settings ask for, and what a worker is told.
//! Decides nothing: how many layers fit is found beside the devices.

use super::{GroupLayout, RankSums};
use magray_core::CpuPath;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::fmt;
use std::num::NonZeroUsize;

/// How many of a language model's last layers are on a GPU, with its head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// All that fit.
    #[default]
    Auto,
    /// This many, or all where there are fewer; 0: the CPU computes the model.
    Number(usize),
}

/// A language model whose first layers the CPU computes, in the worker of the GPU that has the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSplit {
    /// Layers on the CPU, with the table of tokens.
    pub cpu_layers: NonZeroUsize,
    /// What the keys and values of a token are counted as in the GPU's memory.
    pub kv_token_bytes: u64,
    /// Threads that compute them.
    pub threads: NonZeroUsize,
    /// The instructions that they use; `None`: the best of the machine.
    #[serde(with = "path_name")]
    pub path: Option<CpuPath>,
}

/// Where the layers of a language model are, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayersOnGpu {
    /// Layers on a GPU; 0: the CPU computes the model.
    pub on_gpu: usize,
    /// All layers.
    pub of: usize,
    /// How GPUs compute them together, where they do.
    pub group: Option<GroupLayout>,
    /// Why not all are there.
    pub reason: String,
    /// Where GPUs that share layers add up their parts of sums; told once a group has the model.
    pub sums: Option<RankSums>,
}

impl fmt::Display for LayersOnGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { on_gpu, of, group, reason, sums } = self;
        if let Some(group) = group {
            let beside = if on_gpu == of { String::new() } else { format!(", and the CPU the first {}", of - on_gpu) };
            write!(f, "{group}{beside}: {reason}")?;
            return sums.as_ref().map_or(Ok(()), |sums| write!(f, "; they add up their parts {sums}"));
        }
        match on_gpu {
            0 => write!(f, "no layer of {of} is on a GPU: {reason}"),
            _ if on_gpu == of => write!(f, "all {of} layers are for a GPU: {reason}"),
            _ => write!(f, "{on_gpu} of {of} layers are on a GPU, the CPU computes the others: {reason}"),
        }
    }
}

/// A path as its name.
mod path_name {
    use super::*;

    pub(super) fn serialize<S: Serializer>(path: &Option<CpuPath>, to: S) -> Result<S::Ok, S::Error> {
        path.map(|path| path.to_string()).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<CpuPath>, D::Error> {
        let name = Option::<String>::deserialize(from)?;
        name.map(|name| name.parse().map_err(|_| D::Error::custom(format!("no path {name}")))).transpose()
    }
}
