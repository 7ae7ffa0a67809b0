//! What a worker is told when it starts, and what it answers: the device, its models, the slots.
//! Opens nothing.

use crate::executor_device::ExecutorDevice;
use crate::executors::{CudaDevice, ExecutorModel, GroupLayout};
use crate::gpu::{MemoryStats, SandboxMode};
use crate::testing::FaultOrder;
use magray_core::PrecisionChoice;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// All that a worker needs to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerSpec {
    /// What computes.
    pub device: ExecutorDevice,
    /// The models that it may be told to load; others may come later. Batches and orders name one by its place in this list.
    pub models: Vec<ExecutorModel>,
    /// Where models lie that come later.
    pub models_folder: Option<PathBuf>,
    /// Batches that may be at the worker at once.
    pub slots: usize,
    /// Tokens of a batch at most; a text that is a batch of its own must fit too.
    pub slot_tokens_max: usize,
    /// Texts of a batch at most.
    pub slot_texts_max: usize,
    /// Numbers in the longest answer of a text, whatever the model.
    pub outputs_max: usize,
    /// Numbers in the largest answer that has a row for each token; 0: none is asked for.
    pub token_numbers_max: usize,
    /// What may be taken of the device's memory.
    pub memory_limit_bytes: Option<u64>,
    /// How far it must be confined.
    pub sandbox: SandboxMode,
    /// What is to go wrong, for tests.
    pub faults: Option<FaultOrder>,
}

/// What a model's bytes on a device depend on, beside the model itself: workers whose forms are equal can share them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    precision: PrecisionChoice,
    /// The compute capabilities of its GPUs; none: simulated.
    capabilities: Vec<(u32, u32)>,
    /// Layers that are elsewhere.
    cpu_layers: Option<NonZeroUsize>,
    group: Option<GroupLayout>,
}

impl WorkerSpec {
    /// The form that a model has on this worker's device.
    pub fn form(&self, model: &ExecutorModel) -> Form {
        let ExecutorModel { precision, split, ref group, .. } = *model;
        let capabilities = self.device.cuda_devices().iter().map(CudaDevice::capability).collect();
        Form { precision, capabilities, cpu_layers: split.map(|split| split.cpu_layers), group: group.clone() }
    }

    /// What the driver takes of the device's memory.
    pub fn context_bytes(&self) -> u64 {
        self.device.context_bytes()
    }
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

/// What confines a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// The version of Landlock that limits its files.
    pub landlock: Option<u32>,
    /// Whether seccomp limits its system calls.
    pub has_seccomp: bool,
    /// What is not in force, and what the system said to it.
    pub missing: Option<String>,
}

/// The first version of Landlock that also keeps files from being cut short (Linux 6.2).
const LEAST_LANDLOCK: u32 = 3;
/// The code of a worker that had to be confined and is not.
pub(super) const NOT_CONFINED: &str = "not_confined";

impl Sandbox {
    /// Whether programs, network and all other files are out of reach.
    pub fn is_whole(&self) -> bool {
        let has_landlock = self.landlock.is_some_and(|version| version >= LEAST_LANDLOCK);
        has_landlock && self.has_seccomp && self.missing.is_none()
    }
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.landlock, self.has_seccomp) {
            (Some(version), true) => write!(f, "Landlock {version} and seccomp"),
            (Some(version), false) => write!(f, "only Landlock {version}"),
            (None, true) => f.write_str("only seccomp"),
            (None, false) => f.write_str("none"),
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

#[cfg(test)]
mod tests {
    use super::super::wire::{decode, field_of};
    use super::*;
    use crate::executors::{CudaDevice, GroupLayout, LayerSplit, ModelSource};
    use crate::gpu::{CONTEXT_BYTES, GpuInfo, GpuOptions, SearchPath};
    use magray_core::{CpuPath, Precision};
    use magray_device::KvFormat;
    use std::num::NonZeroUsize;

    #[test]
    fn a_worker_reads_what_the_supervisor_wrote() {
        let gpu = GpuInfo {
            index: 0,
            ordinal: 0,
            uuid: "GPU-1".to_owned(),
            name: "a GPU".to_owned(),
            capability: (9, 0),
            multiprocessors: 132,
            memory_bytes: 1 << 37,
            pci_bus_id: "0000:3b:00.0".to_owned(),
        };
        let search = SearchPath::of_folders(vec!["/usr/lib".into()]);
        let options = GpuOptions { streams: 3, search, ..GpuOptions::default() };
        let spec = WorkerSpec {
            device: ExecutorDevice::Cuda(CudaDevice::new(&gpu, &options)),
            models: vec![
                ExecutorModel::new(ModelSource::Folder("a model".into()), PrecisionChoice::Auto),
                ExecutorModel {
                    source: ModelSource::Synthetic("tiny".parse().unwrap()),
                    precision: PrecisionChoice::Exactly(Precision::Int8),
                    kv: KvFormat::Bytes,
                    split: Some(LayerSplit {
                        cpu_layers: NonZeroUsize::MIN,
                        kv_token_bytes: 1 << 40,
                        threads: NonZeroUsize::MIN,
                        path: Some(CpuPath::Portable),
                    }),
                    group: Some(GroupLayout {
                        ranks: NonZeroUsize::MIN,
                        stages: vec![NonZeroUsize::MAX, NonZeroUsize::MIN],
                        kv_token_bytes: 7,
                    }),
                },
            ],
            models_folder: Some("models".into()),
            slots: 2,
            slot_tokens_max: 8192,
            slot_texts_max: 64,
            outputs_max: 384,
            token_numbers_max: 0,
            memory_limit_bytes: Some(1 << 33),
            sandbox: SandboxMode::Require,
            faults: None,
        };
        let field = field_of(&spec).unwrap();
        let read: WorkerSpec = decode(&field).unwrap();
        assert_eq!((&read.models, read.outputs_max, read.sandbox), (&spec.models, 384, SandboxMode::Require));
        let form = |at: usize| read.form(&read.models[at]);
        assert_eq!((form(1), read.context_bytes()), (spec.form(&spec.models[1]), CONTEXT_BYTES));
        assert_ne!(form(0), form(1), "other numbers in other bytes");
        let elsewhere = [
            ExecutorModel { split: None, ..read.models[1].clone() },
            ExecutorModel { group: None, ..read.models[1].clone() },
        ];
        assert!(elsewhere.iter().all(|model| read.form(model) != form(1)), "other layers in other places");
        let ExecutorDevice::Cuda(cuda) = read.device else { panic!("another device") };
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

    #[test]
    fn a_sandbox_is_whole_with_both_and_a_landlock_that_guards_lengths() {
        let both = |landlock| Sandbox { landlock, has_seccomp: true, missing: None };
        assert!(both(Some(3)).is_whole() && both(Some(7)).is_whole());
        assert!(!both(Some(2)).is_whole() && !both(None).is_whole());
        assert!(!Sandbox { has_seccomp: false, ..both(Some(7)) }.is_whole());
        assert!(!Sandbox { missing: Some("capabilities".to_owned()), ..both(Some(7)) }.is_whole());
        assert_eq!(both(Some(7)).to_string(), "Landlock 7 and seccomp");
        assert_eq!(Sandbox::default().to_string(), "none");
    }
}
