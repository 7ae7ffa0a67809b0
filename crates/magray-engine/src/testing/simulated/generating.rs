//! A language model on a simulated GPU: portable code computes a token the same whatever is beside it, so that what one worker began
//! another goes on with bit by bit.

use super::Shared;
use super::weights::SimulatedWeights;
use crate::executors::decoder_model::{DecoderModel, SequenceRoom};
use crate::executors::held_weights::HeldWeights;
use crate::executors::native::NativeModel;
use crate::executors::{Failure, FilledImage, NewTokens, SequenceStep};
use crate::gpu::GpuError;
use crate::packed::Tokens;
use crate::spec::GenerateSpec;
use magray_core::CpuPath;
use magray_device::KvFormat;
use magray_device::cpu::Cpu;
use magray_device::cuda::InjectedFault;
use std::sync::Arc;
use std::time::Instant;

pub(super) struct SimulatedDecoder {
    device: Arc<Shared>,
    model: DecoderModel<Cpu>,
}

impl SimulatedDecoder {
    pub(super) fn new(
        device: &Arc<Shared>,
        spec: &GenerateSpec,
        kv: KvFormat,
        image: Option<FilledImage>,
    ) -> Result<Self, Failure> {
        let weights = SimulatedWeights::load(device, spec.weight_bytes, image)?;
        let cpu = Arc::new(Cpu::new(Some(CpuPath::Portable), Some(1)).map_err(Failure::of_model)?);
        let room = SequenceRoom { kv_bytes: device.gpu.kv_bytes, kv };
        let mut model = DecoderModel::load(&cpu, cpu.decoder(), spec, room, |never| match never {}, Box::new(()))?;
        model.hold(weights.bytes(), Box::new(weights));
        Ok(Self { device: Arc::clone(device), model })
    }
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
        self.device.check()?;
        self.model.advance(steps, new)?;
        self.device.take_time(steps.iter().map(|step| step.ids.len()).sum(), began);
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

    fn inject(&mut self, fault: InjectedFault) -> Result<(), GpuError> {
        self.device.inject(fault)
    }
}
