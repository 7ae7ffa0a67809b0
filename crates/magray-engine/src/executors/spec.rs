//! What executors are told: which GPU, and the models that they may load.
//! Opens nothing.

use super::{GroupLayout, LayerSplit};
use crate::decoder::DecoderFiles;
use crate::gpu::{GpuInfo, GpuOptions, SearchPath};
use crate::spec::decoder::{DecoderSource, read_config};
use crate::spec::{ModelSpec, SpecError, find_graph};
use crate::weights::{Weights, gguf};
use magray_core::{EncoderShape, PrecisionChoice, Rules};
use magray_device::KvFormat;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::path::{Path, PathBuf};

/// An NVIDIA GPU and how it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaDevice {
    /// Names it in every process alike, whatever order the driver counts in.
    uuid: String,
    capability: (u32, u32),
    streams: usize,
    /// Where the libraries are.
    folders: Vec<PathBuf>,
    kernel_cache: Option<PathBuf>,
    kernel_archive: Option<PathBuf>,
    /// Where to write down what memory is taken and given back.
    memory_trace: Option<PathBuf>,
    /// Memory for the keys and values of sequences.
    kv_bytes: u64,
}

/// A model that may be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorModel {
    /// Where it comes from.
    pub source: ModelSource,
    /// The arithmetic; the device has the last word.
    pub precision: PrecisionChoice,
    /// How the keys and values of its sequences are kept, where it generates.
    #[serde(with = "kv_bits")]
    pub kv: KvFormat,
    /// How a GPU shares its layers with the CPU, where it has not all of them.
    pub split: Option<LayerSplit>,
    /// How its layers lie on the GPUs of a group, where the device is one.
    pub group: Option<GroupLayout>,
}

impl ExecutorModel {
    /// This model, with keys and values as they are by default.
    pub fn new(source: ModelSource, precision: PrecisionChoice) -> Self {
        Self { source, precision, kv: KvFormat::default(), split: None, group: None }
    }
}

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModelSource {
    /// Its folder.
    Folder(PathBuf),
    /// Its folder, with the graph for ONNX Runtime.
    Onnx {
        /// The folder.
        folder: PathBuf,
        /// The file of the graph.
        graph: PathBuf,
    },
    /// A language model.
    Decoder(DecoderSource),
    /// Random weights of this shape, for benchmarks and tests.
    Synthetic(#[serde(with = "shape_numbers")] EncoderShape),
}

/// What computes a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// The native engine where it knows the model, else ONNX Runtime.
    #[default]
    Auto,
    /// The native engine.
    Native,
    /// ONNX Runtime.
    Onnx,
}

impl ModelSource {
    /// The model in a folder, or in a GGUF file, as this backend computes it, and why it is ONNX Runtime where that was not asked for. What is
    /// wrong with a model that neither knows is told when it is opened.
    pub fn in_folder(
        folder: PathBuf,
        backend: BackendChoice,
        precision: PrecisionChoice,
    ) -> Result<(Self, Option<String>), SpecError> {
        if let Some(file) = gguf::find(&folder) {
            return Ok((Self::Decoder(DecoderSource::Path(file)), None));
        }
        if backend != BackendChoice::Onnx && is_decoder(&folder) {
            return Ok((Self::Decoder(DecoderSource::Path(folder)), None));
        }
        let native = match backend {
            BackendChoice::Native => return Ok((Self::Folder(folder), None)),
            BackendChoice::Onnx => None,
            BackendChoice::Auto => Some(why_not_native(&folder)),
        };
        match (native, find_graph(&folder, precision)) {
            (Some(None), _) | (Some(Some(_)), None) => Ok((Self::Folder(folder), None)),
            (reason, Some(graph)) => Ok((Self::Onnx { folder, graph }, reason.flatten())),
            (None, None) => Err(SpecError::Missing { file: folder.join("onnx").join("model.onnx") }),
        }
    }

    /// Whether it generates text.
    pub fn is_decoder(&self) -> bool {
        matches!(self, Self::Decoder(_))
    }

    /// Whether ONNX Runtime computes it.
    pub fn is_onnx(&self) -> bool {
        matches!(self, Self::Onnx { .. })
    }

    /// Whether its weights are random.
    pub fn is_synthetic(&self) -> bool {
        matches!(self, Self::Synthetic(_) | Self::Decoder(DecoderSource::Synthetic(_)))
    }

    /// The model's folder, if it has one.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(folder) | Self::Onnx { folder, .. } | Self::Decoder(DecoderSource::Path(folder)) => {
                Some(folder)
            }
            Self::Synthetic(_) | Self::Decoder(DecoderSource::Synthetic(_)) => None,
        }
    }

    /// What the model says of itself.
    pub fn spec(&self) -> Result<ModelSpec, SpecError> {
        match self {
            Self::Synthetic(shape) => Ok(ModelSpec::synthetic(*shape)),
            Self::Folder(folder) => ModelSpec::read(folder),
            Self::Onnx { folder, graph } => ModelSpec::read_onnx(folder, graph),
            Self::Decoder(source) => DecoderFiles::of(source)?.model_spec(),
        }
    }
}

impl CudaDevice {
    /// This GPU, used as the options say.
    pub fn new(gpu: &GpuInfo, options: &GpuOptions) -> Self {
        Self {
            uuid: gpu.uuid.clone(),
            capability: gpu.capability,
            streams: options.streams,
            // Messages carry paths as UTF-8; libraries are in no folder whose name is not.
            folders: options.search.folders().into_iter().filter(|folder| folder.to_str().is_some()).collect(),
            kernel_cache: options.kernel_cache.clone(),
            kernel_archive: options.kernel_archive.clone(),
            memory_trace: options.memory_trace.clone(),
            kv_bytes: 0,
        }
    }

    /// The same, with this much memory for the keys and values of sequences.
    #[must_use]
    pub fn with_kv_bytes(self, kv_bytes: u64) -> Self {
        Self { kv_bytes, ..self }
    }

    /// Memory for the keys and values of sequences.
    pub(crate) fn kv_bytes(&self) -> u64 {
        self.kv_bytes
    }

    /// The compute capability: a model's bytes on the GPU depend on it.
    pub(crate) fn capability(&self) -> (u32, u32) {
        self.capability
    }

    /// The GPU's UUID.
    pub(crate) fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Where the libraries are.
    pub(crate) fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// The folder of compiled kernels.
    pub(crate) fn kernel_cache(&self) -> Option<&Path> {
        self.kernel_cache.as_deref()
    }

    /// The file of compiled kernels that came with the program.
    pub(crate) fn kernel_archive(&self) -> Option<&Path> {
        self.kernel_archive.as_deref()
    }

    /// The file of what memory is taken and given back.
    pub(crate) fn memory_trace(&self) -> Option<&Path> {
        self.memory_trace.as_deref()
    }

    /// As executors take it. Which GPUs may be seen was settled by who chose this one.
    pub(crate) fn options(&self, memory_limit_bytes: Option<u64>) -> GpuOptions {
        GpuOptions {
            rules: Rules { memory_limit_bytes, ..Rules::default() },
            streams: self.streams,
            search: SearchPath::of_folders(self.folders.clone()),
            kernel_cache: self.kernel_cache.clone(),
            kernel_archive: self.kernel_archive.clone(),
            memory_trace: self.memory_trace.clone(),
            ..GpuOptions::default()
        }
    }
}

/// Whether this is a language model: a GGUF file, or a folder of one that is known.
fn is_decoder(path: &Path) -> bool {
    path.is_file() || read_config(path).is_ok()
}

/// Why the native engine does not compute the model in a folder.
fn why_not_native(folder: &Path) -> Option<String> {
    match ModelSpec::read(folder) {
        Err(error) => Some(error.to_string()),
        Ok(spec) => Weights::open(&spec.encoder_folder).err().map(|error| error.to_string()),
    }
}

/// How keys and values are kept, as the bits of a number.
mod kv_bits {
    use super::*;

    pub(super) fn serialize<S: Serializer>(kv: &KvFormat, to: S) -> Result<S::Ok, S::Error> {
        let bits: u8 = match kv {
            KvFormat::Halves => 16,
            KvFormat::Bytes => 8,
        };
        bits.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<KvFormat, D::Error> {
        match u8::deserialize(from)? {
            16 => Ok(KvFormat::Halves),
            8 => Ok(KvFormat::Bytes),
            bits => Err(D::Error::custom(format!("keys and values of {bits} bits"))),
        }
    }
}

/// A shape as its six numbers.
mod shape_numbers {
    use super::*;

    pub(super) fn serialize<S: Serializer>(shape: &EncoderShape, to: S) -> Result<S::Ok, S::Error> {
        let EncoderShape { vocab, hidden, layers, heads, ffn, positions } = *shape;
        [vocab, hidden, layers, heads, ffn, positions].serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<EncoderShape, D::Error> {
        let [vocab, hidden, layers, heads, ffn, positions] = <[usize; 6]>::deserialize(from)?;
        if heads == 0 || !hidden.is_multiple_of(heads) {
            return Err(D::Error::custom("heads that do not divide the width"));
        }
        Ok(EncoderShape { vocab, hidden, layers, heads, ffn, positions })
    }
}
