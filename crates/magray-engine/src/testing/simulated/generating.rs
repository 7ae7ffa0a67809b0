//! A language model on a simulated GPU: portable code computes a token the same whatever is beside it, so that what one worker began
//! another goes on with bit by bit.

use super::Shared;
use super::weights::SimulatedWeights;
use crate::decoder::{DecoderBytes, DecoderFiles, stored_bytes};
use crate::executors::decoder_model::{DecoderModel, SequenceRoom};
use crate::executors::group::GroupWeights;
use crate::executors::held_weights::HeldWeights;
use crate::executors::native::{Loading, NativeModel};
use crate::executors::{Failure, FailureKind, GroupLayout, LayerSplit, NewTokens, RankSums, SequenceStep};
use crate::gpu::GpuError;
use crate::packed::Tokens;
use crate::spec::GenerateSpec;
use magray_core::CpuPath;
use magray_device::cpu::Cpu;
use magray_device::cuda::InjectedFault;
use magray_device::{DecoderDevice, Split};
use std::sync::Arc;
use std::time::Instant;

pub(super) struct SimulatedDecoder {
    /// One, or those of a group.
    devices: Vec<Arc<Shared>>,
    model: Box<dyn NativeModel>,
}

impl SimulatedDecoder {
    /// Also where the ranks of a group add up their parts.
    pub(super) fn new(
        devices: &[Arc<Shared>],
        spec: &GenerateSpec,
        Loading { kv, split, group, image, .. }: Loading<'_>,
    ) -> Result<(Self, Option<RankSums>), Failure> {
        let mut weights = match group {
            None => vec![SimulatedWeights::load(&devices[0], weight_bytes(spec, split)?, image)?],
            Some(group) => SimulatedWeights::load_parts(devices, &shares(spec, group)?, image)?,
        };
        let cpu = || Cpu::new(Some(CpuPath::Portable), Some(1)).map(Arc::new).map_err(Failure::of_model);
        let room = SequenceRoom::of(spec, kv_bytes(devices.iter().map(|device| device.gpu.kv_bytes)), kv);
        let counted = split.map(|split| split.kv_token_bytes).or(group.map(|group| group.kv_token_bytes));
        let building =
            Building { spec, room: SequenceRoom { token_bytes: counted.unwrap_or(room.token_bytes), ..room } };
        let stand_in = cpu()?;
        let mut sums = None;
        let model: Box<dyn NativeModel> = match (group, split.map(|split| split.cpu_layers.get())) {
            (None, cpu_layers) => {
                let weights: Box<dyn HeldWeights> = Box::new(weights.remove(0));
                building.beside_cpu(&stand_in, stand_in.decoder(), cpu_layers, cpu, weights)?
            }
            (Some(group), cpu_layers) => {
                let stages = Arc::new(group.over(vec![Arc::clone(&stand_in); devices.len()])?);
                let ops = group.ops(&stages, devices.iter().map(|_| stand_in.decoder()).collect());
                sums = RankSums::of(&ops);
                building.beside_cpu(&stages, ops, cpu_layers, cpu, Box::new(GroupWeights(weights)))?
            }
        };
        Ok((Self { devices: devices.to_vec(), model }, sums))
    }

    /// Whether all devices still work; the first that does not is told.
    fn check(&self) -> Result<(), Failure> {
        let is_group = self.devices.len() > 1;
        for (rank, device) in self.devices.iter().enumerate() {
            if let Err(error) = device.check() {
                let mut failure = Failure::from(error);
                if is_group {
                    failure.message = format!("GPU {rank} of the group: {}", failure.message);
                }
                return Err(failure);
            }
        }
        Ok(())
    }
}

/// What a model is made with.
struct Building<'a> {
    spec: &'a GenerateSpec,
    room: SequenceRoom,
}

impl Building<'_> {
    /// A model on a device, or its last layers there and the first on a CPU.
    fn beside_cpu<D: DecoderDevice + Send + Sync + 'static>(
        self,
        device: &Arc<D>,
        ops: D::Ops,
        cpu_layers: Option<usize>,
        cpu: impl Fn() -> Result<Arc<Cpu>, Failure>,
        weights: Box<dyn HeldWeights>,
    ) -> Result<Box<dyn NativeModel>, Failure>
    where
        DecoderModel<D>: NativeModel + 'static,
        DecoderModel<Split<Arc<Cpu>, Arc<D>>>: NativeModel + 'static,
        D::Error: 'static,
    {
        let Self { spec, room } = self;
        let Some(cpu_layers) = cpu_layers else {
            let mut model = DecoderModel::load(device, ops, spec, room, |error| never(&error), Box::new(()))?;
            model.hold(weights);
            return Ok(Box::new(model));
        };
        let first: Arc<Cpu> = cpu()?;
        let both = Arc::new(Split::new(Arc::clone(&first), Arc::clone(device), cpu_layers));
        let ops = both.ops(first.decoder(), ops);
        let mut model = DecoderModel::load(&both, ops, spec, room, |error| never(&error), Box::new(()))?;
        model.hold(weights);
        Ok(Box::new(model))
    }
}

/// Parts of pages are equal: each GPU counts as the one that has least.
fn kv_bytes(each: impl ExactSizeIterator<Item = u64>) -> u64 {
    let count = each.len() as u64;
    each.min().unwrap_or(0).saturating_mul(count)
}

/// CPUs do not fail.
fn never(error: &dyn std::error::Error) -> Failure {
    Failure::new(FailureKind::Transient, "cpu", error.to_string())
}

/// What each GPU of a group has, as it is stored.
pub(super) fn shares(spec: &GenerateSpec, group: &GroupLayout) -> Result<Vec<u64>, Failure> {
    let (bytes, layers) = (stored(spec)?, spec.decoder.layers.len());
    Ok(group.shares(|last| if last < layers { bytes.last(last) } else { bytes.whole() }))
}

fn stored(spec: &GenerateSpec) -> Result<DecoderBytes, Failure> {
    let files = DecoderFiles::of(&spec.source).map_err(Failure::of_model)?;
    DecoderBytes::of(&files, stored_bytes).map_err(Failure::of_model)
}

/// What the layers that it has take, as they are stored.
fn weight_bytes(spec: &GenerateSpec, split: Option<LayerSplit>) -> Result<u64, Failure> {
    let Some(split) = split else { return Ok(spec.weight_bytes) };
    Ok(stored(spec)?.last(spec.decoder.layers.len().saturating_sub(split.cpu_layers.get())))
}

impl NativeModel for SimulatedDecoder {
    fn outputs(&self) -> usize {
        self.model.outputs()
    }

    fn run(&mut self, texts: &[Tokens<'_>], skip: usize, out: &mut [f32]) -> Result<(), GpuError> {
        self.model.run(texts, skip, out)
    }

    fn advance(&mut self, steps: &[SequenceStep<'_>], new: &mut Vec<NewTokens>) -> Result<(), Failure> {
        let began = Instant::now();
        self.check()?;
        self.model.advance(steps, new)?;
        self.devices[0].take_time(steps.iter().map(|step| step.ids.len()).sum(), began);
        Ok(())
    }

    fn free(&mut self, sequence: u64) {
        self.model.free(sequence);
    }

    fn trim(&mut self) {
        self.model.trim();
    }

    fn weight_bytes(&self) -> u64 {
        self.model.weight_bytes()
    }

    fn weights(&self) -> Option<&dyn HeldWeights> {
        self.model.weights()
    }

    fn weights_mut(&mut self) -> Option<&mut (dyn HeldWeights + 'static)> {
        self.model.weights_mut()
    }

    fn rest(&mut self) -> Result<(), Failure> {
        self.model.rest()
    }

    fn inject(&mut self, fault: InjectedFault, rank: usize) -> Result<(), GpuError> {
        let rank = rank % self.devices.len();
        let failed = self.devices[rank].inject(fault);
        // The step that follows finds a group broken, and says which of its GPUs is.
        if self.devices.len() > 1 { Ok(()) } else { failed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_of_a_group_fit_its_smallest_gpu() {
        assert_eq!(kv_bytes([300, 100].into_iter()), 200);
        assert_eq!(kv_bytes([u64::MAX, u64::MAX].into_iter()), u64::MAX);
        assert_eq!(kv_bytes([70].into_iter()), 70);
    }
}
