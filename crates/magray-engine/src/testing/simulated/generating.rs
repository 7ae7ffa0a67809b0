//! A language model on a simulated GPU: portable code computes a token the same whatever is beside it, so that what one worker began
//! another goes on with bit by bit.

use super::Shared;
use super::weights::SimulatedWeights;
use crate::decoder::{DecoderBytes, DecoderFiles, stored_bytes};
use crate::executors::decoder_model::{DecoderModel, SequenceRoom};
use crate::executors::held_weights::HeldWeights;
use crate::executors::native::NativeModel;
use crate::executors::{Failure, FilledImage, LayerSplit, NewTokens, SequenceStep};
use crate::gpu::GpuError;
use crate::packed::Tokens;
use crate::spec::GenerateSpec;
use magray_core::CpuPath;
use magray_device::cpu::Cpu;
use magray_device::cuda::InjectedFault;
use magray_device::{KvFormat, Split, SplitError};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

pub(super) struct SimulatedDecoder {
    device: Arc<Shared>,
    model: Box<dyn NativeModel>,
}

impl SimulatedDecoder {
    pub(super) fn new(
        device: &Arc<Shared>,
        spec: &GenerateSpec,
        kv: KvFormat,
        split: Option<LayerSplit>,
        image: Option<FilledImage>,
    ) -> Result<Self, Failure> {
        let weights = SimulatedWeights::load(device, weight_bytes(spec, split)?, image)?;
        let cpu = || Cpu::new(Some(CpuPath::Portable), Some(1)).map(Arc::new).map_err(Failure::of_model);
        let (stand_in, room) = (cpu()?, SequenceRoom::of(spec, device.gpu.kv_bytes, kv));
        let ops = stand_in.decoder();
        let model: Box<dyn NativeModel> = match split {
            None => {
                let mut model = DecoderModel::load(&stand_in, ops, spec, room, |never| match never {}, Box::new(()))?;
                model.hold(weights.bytes(), Box::new(weights));
                Box::new(model)
            }
            Some(LayerSplit { cpu_layers, kv_token_bytes, .. }) => {
                let first: Arc<Cpu> = cpu()?;
                let both = Arc::new(Split::new(Arc::clone(&first), stand_in, cpu_layers.get()));
                let (ops, room) =
                    (both.ops(first.decoder(), ops), SequenceRoom { token_bytes: kv_token_bytes, ..room });
                let never = |error: SplitError<Infallible, Infallible>| match error {
                    SplitError::First(never) | SplitError::Last(never) => match never {},
                };
                let mut model = DecoderModel::load(&both, ops, spec, room, never, Box::new(()))?;
                model.hold(weights.bytes(), Box::new(weights));
                Box::new(model)
            }
        };
        Ok(Self { device: Arc::clone(device), model })
    }
}

/// What the layers that it has take, as they are stored.
fn weight_bytes(spec: &GenerateSpec, split: Option<LayerSplit>) -> Result<u64, Failure> {
    let Some(split) = split else { return Ok(spec.weight_bytes) };
    let files = DecoderFiles::of(&spec.source).map_err(Failure::of_model)?;
    let bytes = DecoderBytes::of(&files, stored_bytes).map_err(Failure::of_model)?;
    Ok(bytes.last(spec.decoder.layers.len().saturating_sub(split.cpu_layers.get())))
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
