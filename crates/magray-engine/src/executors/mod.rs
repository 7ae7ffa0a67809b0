//! What computes: the contract of executors and those that are built in.
//! Knows no queue and no process: where an executor runs is for the engine to say.

pub(crate) mod cpu;
pub(crate) mod cpu_stream;
pub(crate) mod cuda;
#[cfg(unix)]
pub(crate) mod simulated;

use crate::gpu::GpuError;
use crate::packed::Tokens;
use cuda::CudaExecutor;
#[cfg(unix)]
use magray_device::SharedMemory;
use magray_device::cuda::{CudaError, DeviceError, InjectedFault};
use serde::{Deserialize, Serialize};

/// Told once when an image of weights is whole, with its bytes, or why it never will be. Called from any thread.
#[cfg(unix)]
pub(crate) type OnFilled = Box<dyn FnOnce(Result<u64, GpuError>) + Send>;

/// Waits until weights that were on their way are there.
#[cfg(unix)]
pub(crate) type Arriving = Box<dyn FnOnce() -> Result<(), GpuError> + Send>;

/// A step of a sequence whose state is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceStep<'a> {
    pub(crate) sequence: u64,
    /// Where it begins: the tokens before it are known from earlier steps.
    pub(crate) from: u32,
    pub(crate) ids: &'a [u32],
    /// New tokens at most; none after a chunk that is not the last of its prompt.
    pub(crate) new_tokens_max: u32,
}

/// What came of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTokens {
    /// They follow those of the sequence.
    pub tokens: Vec<u32>,
    /// Whether the sequence ends with them.
    pub is_end: bool,
}

/// A model on a GPU.
pub(crate) trait Accelerator: Send {
    /// Numbers in a text's answer.
    fn outputs(&self) -> usize;

    /// Computes the answers of all texts, in their order; `skip` leading tokens of each are not pooled.
    fn run(&mut self, texts: &[Tokens<'_>], skip: usize, out: &mut [f32]) -> Result<(), GpuError>;

    /// Memory of the GPU that the model and its passes hold.
    fn memory_used_bytes(&self) -> u64;

    /// Computes steps of sequences and keeps their state. Encoders cannot.
    #[cfg_attr(not(unix), expect(dead_code, reason = "workers alone use it, and they are of Unix"))]
    fn advance(&mut self, _: &[SequenceStep<'_>]) -> Result<Vec<NewTokens>, GpuError> {
        Err(CudaError::Other { code: 0, name: "no_decoder".to_owned() }.into())
    }

    /// Lets go of the state of a sequence.
    #[cfg_attr(not(unix), expect(dead_code, reason = "workers alone use it, and they are of Unix"))]
    fn free(&mut self, _: u64) {}

    /// Frees all memory of the GPU that passes have taken; the next ones take what they need.
    #[cfg_attr(not(unix), expect(dead_code, reason = "workers alone use it, and they are of Unix"))]
    fn trim(&mut self) {}

    /// Time goes on, about a second, and no batch runs: what no batch of late needed is given back.
    #[cfg_attr(not(unix), expect(dead_code, reason = "workers alone use it, and they are of Unix"))]
    fn tend(&mut self) {}

    /// Lets the GPU fail on purpose.
    #[cfg_attr(not(unix), expect(dead_code, reason = "workers alone use it, and they are of Unix"))]
    fn inject(&mut self, _: InjectedFault) -> Result<(), GpuError> {
        Ok(())
    }

    /// Bytes of the weights, wherever they are.
    #[cfg_attr(not(unix), expect(dead_code, reason = "workers alone use it, and they are of Unix"))]
    fn weight_bytes(&self) -> u64 {
        self.memory_used_bytes()
    }

    /// Memory of the GPU that passes hold, also while the weights are away.
    #[cfg_attr(not(unix), expect(dead_code, reason = "workers alone use it, and they are of Unix"))]
    fn workspace_bytes(&self) -> u64 {
        0
    }

    /// Whether the weights have memory on the GPU; they may still be on their way there.
    #[cfg_attr(not(unix), expect(dead_code, reason = "workers alone use it, and they are of Unix"))]
    fn is_resident(&self) -> bool {
        true
    }

    /// Waits, when it is called, for weights that are on their way, while others compute. `None`: all are there.
    #[cfg(unix)]
    fn arriving(&self) -> Option<Arriving> {
        None
    }

    /// Fills an image of the weights beside other work, and tells once how that went. Who cannot do so says so at once.
    #[cfg(unix)]
    fn keep_image(&mut self, _: SharedMemory, on_filled: OnFilled) {
        on_filled(Err(GpuError::Residency(DeviceError::CannotPark)));
    }

    /// Takes the weights from the GPU and keeps everything else. Waits for passes and for an image that is being filled.
    #[cfg(unix)]
    fn offload(&mut self) -> Result<(), GpuError> {
        Err(GpuError::Residency(DeviceError::CannotPark))
    }

    /// Brings the weights back; returns when texts may be given, while weights may still be on their way. Without memory
    /// for them they stay away.
    #[cfg(unix)]
    fn wake(&mut self) -> Result<(), GpuError> {
        Ok(())
    }
}

impl Accelerator for CudaExecutor {
    fn outputs(&self) -> usize {
        Self::outputs(self)
    }

    fn run(&mut self, texts: &[Tokens<'_>], skip: usize, out: &mut [f32]) -> Result<(), GpuError> {
        Self::run(self, texts, skip, out)
    }

    fn memory_used_bytes(&self) -> u64 {
        Self::memory_used_bytes(self)
    }

    fn trim(&mut self) {
        Self::trim(self);
    }

    fn tend(&mut self) {
        Self::tend(self);
    }

    fn inject(&mut self, fault: InjectedFault) -> Result<(), GpuError> {
        Self::inject(self, fault)
    }

    fn weight_bytes(&self) -> u64 {
        Self::weight_bytes(self)
    }

    fn workspace_bytes(&self) -> u64 {
        Self::workspace_bytes(self)
    }

    fn is_resident(&self) -> bool {
        Self::is_resident(self)
    }

    #[cfg(unix)]
    fn arriving(&self) -> Option<Arriving> {
        Self::arriving(self)
    }

    #[cfg(unix)]
    fn keep_image(&mut self, image: SharedMemory, on_filled: OnFilled) {
        Self::keep_image(self, image, on_filled);
    }

    #[cfg(unix)]
    fn offload(&mut self) -> Result<(), GpuError> {
        Self::offload(self)
    }

    #[cfg(unix)]
    fn wake(&mut self) -> Result<(), GpuError> {
        Self::wake(self)
    }
}
