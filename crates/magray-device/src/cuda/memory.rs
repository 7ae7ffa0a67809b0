//! Memory of the GPU, and memory of the host that the GPU reads and writes itself.
//! Never grows by itself: who holds it decides when.

use super::context::Context;
use super::error::CudaError;
use super::sys;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::sync::Arc;

/// How numbers lie in the GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Number {
    F32,
    F16,
    Bf16,
}

impl Number {
    pub(super) fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The kernels' name of the type.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Appends floats in this form.
    pub(super) fn append(self, floats: &[f32], bytes: &mut Vec<u8>) {
        const BLOCK: usize = 1024;
        match self {
            Self::F32 => floats.iter().for_each(|x| bytes.extend(x.to_le_bytes())),
            // Whole slices at once, because the CPU's instruction is asked for once a slice.
            Self::F16 => floats.chunks(BLOCK).for_each(|floats| {
                let mut block = [f16::ZERO; BLOCK];
                block[..floats.len()].convert_from_f32_slice(floats);
                block[..floats.len()].iter().for_each(|x| bytes.extend(x.to_le_bytes()));
            }),
            Self::Bf16 => floats.iter().for_each(|&x| bytes.extend(bf16::from_f32(x).to_le_bytes())),
        }
    }
}

/// Waits for what the driver does by itself: such work may go on after its call, and other streams do not wait for it.
fn settle() -> Result<(), CudaError> {
    // SAFETY: the stream is the driver's own, of the current context.
    CudaError::check(unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) })
}

/// A range of the GPU's memory.
#[derive(Debug)]
pub(super) struct DeviceBuffer {
    context: Arc<Context>,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl DeviceBuffer {
    /// No memory.
    pub(super) fn empty(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context), address: 0, bytes: 0 }
    }

    /// Memory full of zeros; of no bytes, none is taken.
    pub(super) fn zeroed(context: &Arc<Context>, bytes: usize) -> Result<Self, CudaError> {
        context.bind()?;
        let mut buffer = Self::empty(context);
        buffer.bytes = bytes;
        if bytes > 0 {
            // SAFETY: a context is current; writes one address, freed in `drop`.
            CudaError::check(unsafe { sys::cuMemAlloc_v2(&mut buffer.address, bytes) })?;
            context.note_taken(bytes);
            // SAFETY: the range was allocated above.
            CudaError::check(unsafe { sys::cuMemsetD8_v2(buffer.address, 0, bytes) })?;
            settle()?;
        }
        Ok(buffer)
    }

    /// Memory that holds these bytes.
    pub(super) fn holding(context: &Arc<Context>, bytes: &[u8]) -> Result<Self, CudaError> {
        let buffer = Self::zeroed(context, bytes.len())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// Overwrites a part; done when this returns.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(at + bytes.len() <= self.bytes, "inside the buffer");
        if bytes.is_empty() {
            return Ok(());
        }
        self.context.bind()?;
        let to = self.address + at as u64;
        // SAFETY: both ranges are as long, as was checked above.
        CudaError::check(unsafe { sys::cuMemcpyHtoD_v2(to, bytes.as_ptr().cast(), bytes.len()) })?;
        settle()
    }

    /// Memory that holds these floats.
    pub(super) fn of_floats(context: &Arc<Context>, floats: &[f32]) -> Result<Self, CudaError> {
        let mut bytes = Vec::with_capacity(floats.len() * 4);
        Number::F32.append(floats, &mut bytes);
        Self::holding(context, &bytes)
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.address == 0 {
            return;
        }
        // What cannot be freed is gone with its context, which nobody can use any more.
        self.context.note_given_back(self.bytes);
        if self.context.bind().is_ok() {
            // SAFETY: allocated once in `zeroed`. The driver waits for work that uses it; a failure has nobody to tell.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Words of the host's memory that never move, which the GPU reaches by the same address.
#[derive(Debug)]
pub(super) struct PinnedWords {
    context: Arc<Context>,
    address: *mut u32,
    words: usize,
}

// SAFETY: the memory belongs to this value alone, and may be freed from any thread.
unsafe impl Send for PinnedWords {}

impl PinnedWords {
    pub(super) fn zeroed(context: &Arc<Context>, words: usize) -> Result<Self, CudaError> {
        context.bind()?;
        let mut address = std::ptr::null_mut();
        let words = words.max(1);
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: a context is current; writes one address, freed in `drop`.
        CudaError::check(unsafe { sys::cuMemHostAlloc(&mut address, words * 4, flags) })?;
        let address = address.cast::<u32>();
        // SAFETY: the range was allocated above, and nobody else has it yet.
        unsafe { address.write_bytes(0, words) };
        Ok(Self { context: Arc::clone(context), address, words })
    }

    pub(super) fn len(&self) -> usize {
        self.words
    }

    pub(super) fn address(&self) -> u64 {
        self.address as u64
    }

    /// The words, while the GPU does not touch them.
    pub(super) fn as_mut_slice(&mut self) -> &mut [u32] {
        // SAFETY: allocated with this length; who calls has waited for the GPU.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.words) }
    }

    /// The words as floats, while the GPU does not touch them.
    pub(super) fn floats(&self, count: usize) -> &[f32] {
        assert!(count <= self.words, "no more than there are");
        // SAFETY: as above; every word is a float.
        unsafe { std::slice::from_raw_parts(self.address.cast::<f32>(), count) }
    }
}

impl Drop for PinnedWords {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated once in `zeroed`; a failure has nobody to tell.
            let _ = unsafe { sys::cuMemFreeHost(self.address.cast()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_appended_in_their_form() {
        let floats: Vec<f32> = (0..3000).map(|i| i as f32 * 0.25 - 100.0).collect();
        for number in [Number::F32, Number::F16, Number::Bf16] {
            let mut bytes = vec![7];
            number.append(&floats, &mut bytes);
            assert_eq!(bytes.len(), 1 + floats.len() * number.size());
            let last = &bytes[bytes.len() - number.size()..];
            let last = match number {
                Number::F32 => f32::from_le_bytes([last[0], last[1], last[2], last[3]]),
                Number::F16 => f16::from_le_bytes([last[0], last[1]]).to_f32(),
                Number::Bf16 => bf16::from_le_bytes([last[0], last[1]]).to_f32(),
            };
            assert!((last - floats[2999]).abs() < 4.0, "{number:?} {last}");
        }
    }
}
