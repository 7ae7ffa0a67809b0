//! What a worker is told when it starts, and what it answers: the device, its models, the slots.
//! Opens nothing.

use super::sandbox::Sandbox;
use crate::executors::simulated::SimulatedGpu;
use crate::faults::FaultOrder;
use crate::gpu::{CONTEXT_BYTES, GpuInfo, GpuOptions, MemoryStats, SandboxMode, SearchPath};
use magray_core::{EncoderShape, PrecisionChoice, Rules};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::path::{Path, PathBuf};

/// All that a worker needs to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerSpec {
    /// What computes.
    pub device: WorkerDevice,
    /// The models that it may be told to load. Batches and orders name one by its place in this list.
    pub models: Vec<WorkerModel>,
    /// Batches that may be at the worker at once.
    pub slots: usize,
    /// Tokens of a batch at most; a text that is a batch of its own must fit too.
    pub slot_tokens_max: usize,
    /// Texts of a batch at most.
    pub slot_texts_max: usize,
    /// Numbers in the longest answer of a text, whatever the model.
    pub outputs_max: usize,
    /// What may be taken of the device's memory.
    pub memory_limit_bytes: Option<u64>,
    /// How far it must be confined.
    pub sandbox: SandboxMode,
    /// What is to go wrong, for tests.
    pub faults: Option<FaultOrder>,
}

/// What computes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum WorkerDevice {
    /// An NVIDIA GPU.
    Cuda(CudaDevice),
    /// The CPU, behind the interface of a GPU.
    Simulated(SimulatedGpu),
}

/// What a model's bytes on a device depend on, beside the model itself: workers whose forms are equal can share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    precision: PrecisionChoice,
    /// The compute capability; `None`: simulated.
    capability: Option<(u32, u32)>,
}

impl WorkerSpec {
    /// The form that a model has on this worker's device. A model that is not there is a bug.
    pub fn form(&self, model: usize) -> Form {
        let capability = match &self.device {
            WorkerDevice::Cuda(device) => Some(device.capability),
            WorkerDevice::Simulated(_) => None,
        };
        Form { precision: self.models[model].precision, capability }
    }

    /// What the driver takes of the device's memory.
    pub fn context_bytes(&self) -> u64 {
        match &self.device {
            WorkerDevice::Cuda(_) => CONTEXT_BYTES,
            WorkerDevice::Simulated(_) => 0,
        }
    }
}

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
    /// Where to write down what memory is taken and given back.
    memory_trace: Option<PathBuf>,
}

/// A model that may be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerModel {
    /// Where it comes from.
    pub source: ModelSource,
    /// The arithmetic; the device has the last word.
    pub precision: PrecisionChoice,
}

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModelSource {
    /// Its folder.
    Folder(PathBuf),
    /// Random weights of this shape, for benchmarks and tests.
    Synthetic(#[serde(with = "shape_numbers")] EncoderShape),
}

/// What a worker says when its device is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Its process.
    pub pid: u32,
    /// The device's product name.
    pub name: String,
    /// The device's UUID.
    pub uuid: String,
    /// The device's memory, without any model.
    pub memory: MemoryStats,
    /// What confines it.
    pub sandbox: Sandbox,
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
            memory_trace: options.memory_trace.clone(),
        }
    }

    /// The GPU's UUID.
    pub(super) fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Where the libraries are.
    pub(super) fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// The folder of compiled kernels.
    pub(super) fn kernel_cache(&self) -> Option<&Path> {
        self.kernel_cache.as_deref()
    }

    /// The file of what memory is taken and given back.
    pub(super) fn memory_trace(&self) -> Option<&Path> {
        self.memory_trace.as_deref()
    }

    /// As executors take it. Which GPUs may be seen was settled by who chose this one.
    pub(super) fn options(&self, memory_limit_bytes: Option<u64>) -> GpuOptions {
        GpuOptions {
            rules: Rules { memory_limit_bytes, ..Rules::default() },
            streams: self.streams,
            search: SearchPath::of_folders(self.folders.clone()),
            kernel_cache: self.kernel_cache.clone(),
            memory_trace: self.memory_trace.clone(),
            ..GpuOptions::default()
        }
    }
}

/// The words of a [`Ready`] as they travel; the process tells its number by itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReadyMessage {
    pub(super) name: String,
    pub(super) uuid: String,
    pub(super) sandbox: Sandbox,
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

#[cfg(test)]
mod tests {
    use super::super::wire::{decode, field_of};
    use super::*;
    use magray_core::Precision;

    #[test]
    fn a_worker_reads_what_the_supervisor_wrote() {
        let spec = WorkerSpec {
            device: WorkerDevice::Cuda(CudaDevice {
                uuid: "GPU-1".to_owned(),
                capability: (9, 0),
                streams: 3,
                folders: vec!["/usr/lib".into()],
                kernel_cache: Some("cache".into()),
                memory_trace: None,
            }),
            models: vec![
                WorkerModel { source: ModelSource::Folder("a model".into()), precision: PrecisionChoice::Auto },
                WorkerModel {
                    source: ModelSource::Synthetic("tiny".parse().unwrap()),
                    precision: PrecisionChoice::Exactly(Precision::Int8),
                },
            ],
            slots: 2,
            slot_tokens_max: 8192,
            slot_texts_max: 64,
            outputs_max: 384,
            memory_limit_bytes: Some(1 << 33),
            sandbox: SandboxMode::Require,
            faults: None,
        };
        let field = field_of(&spec).unwrap();
        let read: WorkerSpec = decode(&field).unwrap();
        assert_eq!((&read.models, read.outputs_max, read.sandbox), (&spec.models, 384, SandboxMode::Require));
        assert_eq!((read.form(1), read.context_bytes()), (spec.form(1), CONTEXT_BYTES));
        assert_ne!(read.form(0), read.form(1), "other numbers in other bytes");
        let WorkerDevice::Cuda(cuda) = read.device else { panic!("another device") };
        assert_eq!((cuda.uuid(), cuda.options(None).streams), ("GPU-1", 3));
        assert_eq!(cuda.options(Some(7)).rules.memory_limit_bytes, Some(7));
        assert_eq!(cuda.options(None).search.folders(), [PathBuf::from("/usr/lib")]);
    }

    #[test]
    fn nonsense_is_refused() {
        let good = field_of(&ModelSource::Synthetic("tiny".parse().unwrap())).unwrap();
        let shape = |numbers: [usize; 6]| [&good[..1], &field_of(&numbers).unwrap()].concat();
        assert!(decode::<ModelSource>(&shape([1000, 64, 2, 4, 128, 512])).is_ok());
        for heads in [0, 5] {
            assert!(decode::<ModelSource>(&shape([1000, 64, 2, heads, 128, 512])).is_err(), "{heads} heads");
        }
        assert!(decode::<ModelSource>(&good[..3]).is_err());
    }
}
