//! A language model on a simulated GPU: portable code computes a token the same whatever is beside it, so that what one worker began
//! another goes on with bit by bit.

use super::{Shared, duration};
use crate::executors::decoder_model::{DecoderModel, SequenceRoom};
use crate::executors::native::NativeModel;
use crate::executors::{Failure, NewTokens, SequenceStep};
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
    model: DecoderModel<Cpu>,
    taken: Taken,
}

/// Memory of the device that is given back.
struct Taken {
    device: Arc<Shared>,
    bytes: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.device.memory.give_back(self.bytes);
    }
}

impl SimulatedDecoder {
    pub(super) fn new(device: &Arc<Shared>, spec: &GenerateSpec, kv: KvFormat) -> Result<Self, Failure> {
        device.check()?;
        let (bytes, gpu) = (spec.weight_bytes, device.gpu);
        device.memory.take(bytes).map_err(GpuError::from)?;
        let taken = Taken { device: Arc::clone(device), bytes };
        std::thread::sleep(duration(bytes, gpu.load_us_per_mib));
        let cpu = Arc::new(Cpu::new(Some(CpuPath::Portable), Some(1)).map_err(Failure::of_model)?);
        let room = SequenceRoom { kv_bytes: gpu.kv_bytes, kv };
        let model = DecoderModel::load(&cpu, cpu.decoder(), spec, room, |never| match never {}, Box::new(()))?;
        Ok(Self { model, taken })
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
        self.taken.device.check()?;
        self.model.advance(steps, new)?;
        self.taken.device.take_time(steps.iter().map(|step| step.ids.len()).sum(), began);
        Ok(())
    }

    fn free(&mut self, sequence: u64) {
        self.model.free(sequence);
    }

    fn trim(&mut self) {
        self.model.trim();
    }

    fn weight_bytes(&self) -> u64 {
        self.taken.bytes
    }

    fn inject(&mut self, fault: InjectedFault) -> Result<(), GpuError> {
        self.taken.device.inject(fault)
    }
}
