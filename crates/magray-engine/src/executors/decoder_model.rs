//! A language model on a device: its weights, its sequences and their pages.
//! Sequences go with the weights: who scheduled them gives what is known of them again.

use super::guides::Guides;
use super::held_weights::HeldWeights;
use super::native::NativeModel;
use super::sequences::{SequenceBounds, Sequences, StepError};
use super::{Failure, FailureKind, NewTokens, SequenceStep};
use crate::decoder::{Decoder, DecoderFiles, LoadDecoderError};
use crate::gpu::GpuError;
use crate::packed::Tokens;
use crate::spec::GenerateSpec;
use magray_device::cuda::CudaError;
use magray_device::{DecoderDevice, KvFormat, PAGE_TOKENS};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sequences whose last page may be used in part, beyond what the state of tokens takes.
const PARTIAL_PAGES: u64 = 256;

/// Room for the sequences of a model on a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceRoom {
    /// Memory for their keys and values.
    pub(crate) kv_bytes: u64,
    /// How these are kept.
    pub(crate) kv: KvFormat,
    /// What those of a token are counted as.
    pub(crate) token_bytes: u64,
}

impl SequenceRoom {
    /// Room for this many bytes of a model's keys and values, of all its layers.
    pub(crate) fn of(spec: &GenerateSpec, kv_bytes: u64, kv: KvFormat) -> Self {
        Self { kv_bytes, kv, token_bytes: spec.kv_token_bytes(kv) }
    }
}

/// A decoder and its sequences.
pub(crate) struct DecoderModel<D: DecoderDevice> {
    device: Arc<D>,
    sequences: Sequences<D>,
    weight_bytes: u64,
    /// Where these can leave the device by themselves.
    weights: Option<Box<dyn HeldWeights>>,
    of_device: fn(D::Error) -> Failure,
    /// Dropped with it.
    _held: Box<dyn Send>,
}

/// Why a model was not loaded.
pub(crate) fn not_loaded<E: std::error::Error + 'static>(
    error: LoadDecoderError<E>,
    of_device: impl FnOnce(E) -> Failure,
) -> Failure {
    match error {
        LoadDecoderError::Device(error) => of_device(error),
        LoadDecoderError::Weights(error) => Failure::of_model(error),
        context @ LoadDecoderError::Context { .. } => Failure::of_model(context),
    }
}

impl<D: DecoderDevice> DecoderModel<D>
where
    D::Error: 'static,
{
    /// Puts a model on a device, with room for its sequences.
    pub(crate) fn load(
        device: &Arc<D>,
        ops: D::Ops,
        spec: &GenerateSpec,
        room: SequenceRoom,
        of_device: fn(D::Error) -> Failure,
        held: Box<dyn Send>,
    ) -> Result<Self, Failure> {
        let files = DecoderFiles::of(&spec.source).map_err(Failure::of_model)?;
        let decoder = Decoder::load(&**device, &files, spec.decoder.context);
        let decoder = decoder.map_err(|error| not_loaded(error, of_device))?;
        Ok(Self { _held: held, ..Self::new(device, (decoder, ops), spec, room, of_device) })
    }

    /// A model whose layers are on the device, with room for its sequences.
    pub(crate) fn new(
        device: &Arc<D>,
        (decoder, ops): (Decoder<D>, D::Ops),
        spec: &GenerateSpec,
        room: SequenceRoom,
        of_device: fn(D::Error) -> Failure,
    ) -> Self {
        let SequenceRoom { kv_bytes, kv, token_bytes } = room;
        let pages = kv_bytes / token_bytes.max(1) / PAGE_TOKENS as u64 + PARTIAL_PAGES;
        let bounds = SequenceBounds { pages: pages as usize, kv };
        let mut sequences = Sequences::new(decoder, device, ops, bounds, spec.ends.clone());
        sequences.constrain_by(Guides::new(spec));
        let (device, weight_bytes) = (Arc::clone(device), spec.weight_bytes);
        Self { device, sequences, weight_bytes, weights: None, of_device, _held: Box::new(()) }
    }

    fn step(&mut self, steps: &[SequenceStep<'_>], new: &mut Vec<NewTokens>) -> Result<(), Failure> {
        let advanced = self.sequences.advance(&self.device, steps, new);
        advanced.map_err(|error| match error {
            StepError::Device(error) => (self.of_device)(error),
            StepError::NoPages => Failure::out_of_memory(error.to_string()),
            StepError::StateMissing => Failure::new(FailureKind::Transient, "state_missing", error.to_string()),
            StepError::NotFinite => Failure::new(FailureKind::WrongAnswer, "not_finite", error.to_string()),
        })
    }

    /// Its weights can leave the device by themselves.
    pub(crate) fn hold(&mut self, weights: Box<dyn HeldWeights>) {
        (self.weight_bytes, self.weights) = (weights.bytes(), Some(weights));
    }

    /// Computes steps of all sizes once, so that no request waits for kernels that are made for the first of a size. A device that
    /// computes nonsense is known before a request comes. No step is begun after this time.
    pub(crate) fn rehearse(&mut self, within: Duration) -> Result<(), Failure> {
        let began = Instant::now();
        let ids = vec![0; PROMPT_REHEARSED.min(self.sequences.context())];
        let mut new = Vec::new();
        let whole = |sequence: u64| SequenceStep {
            sequence,
            from: 0,
            ids: &ids,
            new_tokens_max: 1,
            passes_max: 2,
            goes_on: false,
            sampling: None,
        };
        let one = |sequence| SequenceStep { ids: &ids[..1], new_tokens_max: 2, ..whole(sequence) };
        let side_by_side = ROWS_REHEARSED.iter().map(|rows| (0..*rows).map(one).collect::<Vec<_>>());
        let mut all = side_by_side.chain([vec![whole(0)]]);
        let rehearsed = all.try_for_each(|steps| match began.elapsed() <= within {
            true => self.step(&steps, &mut new),
            false => Ok(()),
        });
        (0..ROWS_REHEARSED[ROWS_REHEARSED.len() - 1]).for_each(|sequence| self.sequences.free(sequence));
        self.sequences.give_pages_back();
        rehearsed
    }
}

/// Tokens of a prompt, and sequences side by side, of the steps that are rehearsed: one for each way of multiplying.
const PROMPT_REHEARSED: usize = 300;
const ROWS_REHEARSED: [u64; 6] = [1, 8, 16, 32, 64, 128];

impl<D: DecoderDevice> NativeModel for DecoderModel<D>
where
    Self: Send,
    D::Error: 'static,
{
    fn outputs(&self) -> usize {
        0
    }

    fn run(&mut self, _: &[Tokens<'_>], _: usize, _: &mut [f32]) -> Result<(), GpuError> {
        Err(CudaError::Other { code: 0, name: "no_rows".to_owned() }.into())
    }

    fn advance(&mut self, steps: &[SequenceStep<'_>], new: &mut Vec<NewTokens>) -> Result<(), Failure> {
        self.step(steps, new)
    }

    fn free(&mut self, sequence: u64) {
        self.sequences.free(sequence);
    }

    fn trim(&mut self) {
        self.sequences.trim(&self.device);
    }

    fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    fn workspace_bytes(&self) -> u64 {
        self.sequences.held_bytes()
    }

    /// Recorded steps stay, for the weights come back to their places.
    fn rest(&mut self) -> Result<(), Failure> {
        self.sequences.rest().map_err(self.of_device)
    }

    fn weights(&self) -> Option<&dyn HeldWeights> {
        self.weights.as_deref()
    }

    fn weights_mut(&mut self) -> Option<&mut (dyn HeldWeights + 'static)> {
        self.weights.as_deref_mut()
    }
}
