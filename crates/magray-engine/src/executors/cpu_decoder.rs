//! A language model on the CPU: its sequences share its threads with whatever else is computed there.
//! Its weights go with it: they are packed again from its files.

use super::allocated::Allocated;
use super::native::NativeModel;
use super::sequences::{Sequences, StepError};
use super::{Failure, FailureKind, NewTokens, SequenceStep};
use crate::decoder::{Decoder, DecoderFiles};
use crate::gpu::GpuError;
use crate::packed::Tokens;
use crate::spec::GenerateSpec;
use magray_device::PAGE_TOKENS;
use magray_device::cpu::Cpu;
use magray_device::cuda::CudaError;
use std::convert::Infallible;
use std::sync::Arc;

/// Sequences whose last page may be used in part, beyond what the state of tokens takes.
const PARTIAL_PAGES: usize = 256;

/// A decoder and its sequences.
pub(super) struct CpuDecoder {
    cpu: Arc<Cpu>,
    sequences: Sequences<Cpu>,
    weight_bytes: u64,
    allocated: Arc<Allocated>,
}

impl CpuDecoder {
    /// Packs a model, with room for this many bytes of keys and values.
    pub(super) fn load(
        cpu: &Arc<Cpu>,
        spec: &GenerateSpec,
        kv_bytes: u64,
        allocated: &Arc<Allocated>,
    ) -> Result<Self, Failure> {
        let files = DecoderFiles::open(&spec.path).map_err(Failure::of_model)?;
        let decoder = Decoder::load(&**cpu, &files, spec.decoder.context).map_err(Failure::of_model)?;
        let pages = kv_bytes / spec.kv_token_bytes().max(1) / PAGE_TOKENS as u64;
        let sequences = Sequences::new(decoder, cpu, cpu.decoder(), pages as usize + PARTIAL_PAGES, spec.ends.clone());
        allocated.add(spec.weight_bytes);
        let (cpu, allocated) = (Arc::clone(cpu), Arc::clone(allocated));
        Ok(Self { cpu, sequences, weight_bytes: spec.weight_bytes, allocated })
    }
}

impl NativeModel for CpuDecoder {
    fn outputs(&self) -> usize {
        0
    }

    fn run(&mut self, _: &[Tokens<'_>], _: usize, _: &mut [f32]) -> Result<(), GpuError> {
        Err(CudaError::Other { code: 0, name: "no_rows".to_owned() }.into())
    }

    fn advance(&mut self, steps: &[SequenceStep<'_>], new: &mut Vec<NewTokens>) -> Result<(), Failure> {
        self.sequences.advance(&self.cpu, steps, new).map_err(failure)
    }

    fn free(&mut self, sequence: u64) {
        self.sequences.free(sequence);
    }

    fn trim(&mut self) {
        self.sequences.trim();
    }

    fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }
}

impl Drop for CpuDecoder {
    fn drop(&mut self) {
        self.allocated.take(self.weight_bytes);
    }
}

fn failure(error: StepError<Infallible>) -> Failure {
    let message = error.to_string();
    match error {
        StepError::NoPages => Failure::out_of_memory(message),
        StepError::StateMissing => Failure::new(FailureKind::Transient, "state_missing", message),
        StepError::NotFinite => Failure::new(FailureKind::WrongAnswer, "not_finite", message),
        StepError::Device(never) => match never {},
    }
}
