//! Simulated GPUs as a group: language models are computed by all of them together, other models by the first.
//! Fails as one: what breaks one of them breaks the group.

use super::{SimulatedDevice, load_decoder};
use crate::executors::group::{VectorsOnFirst, together};
use crate::executors::native::{Hosted, Loading, NativeDevice};
use crate::executors::{Failure, HeldVectors, Label};
use crate::gpu::MemoryStats;
use crate::testing::SimulatedGpu;
use std::sync::Arc;

/// The first of them, and all.
pub(crate) struct SimulatedGroup {
    first: SimulatedDevice,
    all: Vec<SimulatedDevice>,
}

impl SimulatedGroup {
    /// Opens all of them; of the memory of each no more is taken than the limit allows.
    pub(crate) fn open(gpus: &[SimulatedGpu], limit: Option<u64>) -> Result<Self, Failure> {
        let all: Vec<_> = gpus.iter().map(|gpu| SimulatedDevice::open(*gpu, limit)).collect::<Result<_, _>>()?;
        let first = all.first().cloned().ok_or_else(|| Failure::unsupported("a group without GPUs"))?;
        Ok(Self { first, all })
    }
}

impl NativeDevice for SimulatedGroup {
    fn label(&self) -> Label {
        let uuids: Vec<String> = self.all.iter().map(|device| device.label().uuid).collect();
        Label { name: format!("{} simulated GPUs", self.all.len()), uuid: uuids.join("+") }
    }

    fn memory(&self) -> MemoryStats {
        together(&self.all.iter().map(NativeDevice::memory).collect::<Vec<_>>())
    }

    fn load(&self, loading: Loading<'_>) -> Result<Hosted, Failure> {
        match (loading.spec.generates(), loading.group) {
            (Some(generate), Some(_)) => {
                let devices: Vec<_> = self.all.iter().map(|device| Arc::clone(&device.0)).collect();
                load_decoder(&devices, generate, loading)
            }
            _ => Ok(self.first.load(loading)?.on_first_of(self.all.len())),
        }
    }

    fn hold_vectors(&self, dims: usize, room: usize) -> Result<Box<dyn HeldVectors>, Failure> {
        let vectors = self.first.hold_vectors(dims, room)?;
        Ok(Box::new(VectorsOnFirst { vectors, devices: self.all.len() }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::generating;
    use super::*;
    use crate::executor_device::ExecutorDevice;
    use crate::executors::{ExecutorModel, GroupLayout, ModelSource, OpenExecutor};
    use crate::gpu::MemoryAccounts;
    use crate::spec::decoder::DecoderSource;
    use crate::testing::tiny_decoder;
    use magray_core::{Precision, PrecisionChoice};
    use std::num::NonZeroUsize;

    #[test]
    fn what_a_worker_reports_of_a_group_counts_as_often_as_the_fullest_gpu_has_it() {
        let folder = tempfile::tempdir().unwrap();
        tiny_decoder::write_layers(folder.path(), 3, 4).unwrap();
        let source = ModelSource::Decoder(DecoderSource::Path(folder.path().to_owned()));
        let spec = source.spec().unwrap();
        let precision = PrecisionChoice::Exactly(Precision::F32);
        let encoder = ExecutorModel::new(ModelSource::Synthetic("tiny".parse().unwrap()), precision);
        // The first has more, though the second has the head.
        let stages = [3, 1].map(|layers| NonZeroUsize::new(layers).unwrap()).to_vec();
        let group = GroupLayout { ranks: NonZeroUsize::MIN, stages, kv_token_bytes: 1 };
        let shares = generating::shares(spec.generates().unwrap(), &group).unwrap();
        assert!(shares[0] > shares[1]);
        let decoder = ExecutorModel { group: Some(group), ..ExecutorModel::new(source, precision) };
        let gpu = |index| SimulatedGpu { index, kv_bytes: 1 << 20, ..SimulatedGpu::default() };
        let executor = ExecutorDevice::SimulatedGroup(vec![gpu(0), gpu(1)]).open(&[encoder, decoder]).unwrap();
        let alone = executor.load(0, None).unwrap().bytes;
        assert_eq!(alone, 2 * executor.memory().allocated);
        let together = executor.load(1, None).unwrap().bytes;
        assert_eq!(together, 2 * shares[0]);
        let vectors = executor.hold_vectors(8, 100).unwrap();
        assert_eq!(vectors.bytes(), 2 * 100 * (8 * 2 + 4));
        let memory = executor.memory();
        assert_eq!(memory.allocated, (alone + vectors.bytes()) / 2 + shares.iter().sum::<u64>());
        let accounts = MemoryAccounts::of(&memory, 0, vec![alone, together], vec![(0, vectors.bytes())]);
        assert_eq!((accounts.workspace, accounts.cached), (0, 0));
        assert_eq!(accounts.report(memory.free).capacity(), memory.total);
    }
}
