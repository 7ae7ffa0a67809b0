//! Buffers in the GPU's memory, and the forms of the numbers in them.
//! Never grows by itself: who holds it decides when.

use super::context::Context;
use super::device_memory::Taken;
use super::error::CudaError;
use super::progress::Progress;
use super::stream::Stream;
use super::sys;
use crate::NumberFormat;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::sync::Arc;

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

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Writes floats in this format; `bytes` has exactly their size.
    pub(super) fn write(self, floats: &[f32], bytes: &mut [u8]) {
        const BLOCK: usize = 1024;
        assert_eq!(bytes.len(), floats.len() * self.size(), "as many numbers on both sides");
        match self {
            Self::F32 => {
                for (x, to) in floats.iter().zip(bytes.as_chunks_mut::<4>().0) {
                    *to = x.to_le_bytes();
                }
            }
            // Whole slices at once, because the CPU's instruction is asked for once a slice.
            Self::F16 => {
                let mut block = [f16::ZERO; BLOCK];
                for (floats, bytes) in floats.chunks(BLOCK).zip(bytes.chunks_mut(2 * BLOCK)) {
                    block[..floats.len()].convert_from_f32_slice(floats);
                    for (x, to) in block.iter().zip(bytes.as_chunks_mut::<2>().0) {
                        *to = x.to_le_bytes();
                    }
                }
            }
            Self::Bf16 => {
                for (x, to) in floats.iter().zip(bytes.as_chunks_mut::<2>().0) {
                    *to = bf16::from_f32(*x).to_le_bytes();
                }
            }
        }
    }

    /// Whether numbers of a file in this format can be used as they are.
    pub(super) fn is(self, format: NumberFormat) -> bool {
        matches!(
            (self, format),
            (Self::F32, NumberFormat::F32) | (Self::F16, NumberFormat::F16) | (Self::Bf16, NumberFormat::Bf16)
        )
    }
}

#[derive(Debug)]
pub(super) struct DeviceBuffer {
    context: Arc<Context>,
    /// `None` where it has no bytes.
    taken: Option<Taken>,
    bytes: usize,
    /// The only stream that uses it; `None`: any may.
    owner: Option<Arc<Progress>>,
}

impl DeviceBuffer {
    pub(super) fn empty(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context), taken: None, bytes: 0, owner: None }
    }

    /// Memory with undefined content, for work that begins in this stream; of no bytes, nothing is allocated.
    pub(super) fn uncertain(stream: &Stream, bytes: usize) -> Result<Self, CudaError> {
        let mut buffer = Self::empty(stream.context());
        if bytes > 0 {
            buffer.taken = Some(stream.context().take(bytes, stream.progress().id())?);
            buffer.bytes = bytes;
        }
        Ok(buffer)
    }

    /// Memory with undefined content that can be unmapped from its address.
    pub(super) fn parkable(context: &Arc<Context>, bytes: usize) -> Result<Self, CudaError> {
        let mut buffer = Self::empty(context);
        if bytes > 0 {
            buffer.taken = Some(context.take_parkable(bytes)?);
            buffer.bytes = bytes;
        }
        Ok(buffer)
    }

    /// Memory full of zeros, for any stream; waits until they are there.
    pub(super) fn zeroed(stream: &Stream, bytes: usize) -> Result<Self, CudaError> {
        let buffer = Self::uncertain(stream, bytes)?;
        if bytes > 0 {
            stream.context().bind()?;
            // SAFETY: the range was taken above and is as long; should the wait fail, the buffer rests until the stream is
            // done, like any other.
            unsafe { stream.zero(buffer.address(), bytes) }?;
            stream.wait()?;
        }
        Ok(buffer)
    }

    /// Memory full of zeros that this stream alone will use.
    pub(super) fn private(stream: &Stream, bytes: usize) -> Result<Self, CudaError> {
        let mut buffer = Self::zeroed(stream, bytes)?;
        buffer.owner = Some(Arc::clone(stream.progress()));
        Ok(buffer)
    }

    /// The same for memory that other GPUs read, where there are any. It may be dropped once none of them reads it.
    pub(super) fn private_but(stream: &Stream, bytes: usize, readers: &[sys::CUdevice]) -> Result<Self, CudaError> {
        if readers.is_empty() || bytes == 0 {
            return Self::private(stream, bytes);
        }
        let mut buffer = Self::parkable(stream.context(), bytes)?;
        if let Some(taken) = &buffer.taken {
            stream.context().open_to(taken, readers)?;
        }
        stream.context().bind()?;
        // SAFETY: the range was taken above and is as long; should the wait fail, the buffer rests until all streams of this GPU are done.
        unsafe { stream.zero(buffer.address(), bytes) }?;
        stream.wait()?;
        buffer.owner = Some(Arc::clone(stream.progress()));
        Ok(buffer)
    }

    /// Another stream uses it too: from now on any may.
    pub(super) fn share_with(&mut self, stream: &Stream) {
        if self.owner.as_ref().is_some_and(|owner| !Arc::ptr_eq(owner, stream.progress())) {
            self.owner = None;
        }
    }

    /// 0 without memory.
    pub(super) fn address(&self) -> u64 {
        self.taken.as_ref().map_or(0, Taken::address)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Unmaps the memory and keeps the address. No stream uses it before it is restored.
    pub(super) fn park(&self) {
        if let Some(taken) = &self.taken {
            self.context.park(taken);
        }
    }

    /// Maps memory at the address again, with undefined content.
    pub(super) fn restore(&self) -> Result<(), CudaError> {
        self.taken.as_ref().map_or(Ok(()), |taken| self.context.restore(taken))
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take() {
            self.context.give_back(taken, self.owner.as_ref());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_their_form() {
        let floats: Vec<f32> = (0..3000).map(|i| i as f32 * 0.25 - 100.0).collect();
        for (number, format) in
            [(Number::F32, NumberFormat::F32), (Number::F16, NumberFormat::F16), (Number::Bf16, NumberFormat::Bf16)]
        {
            let mut bytes = vec![7; floats.len() * number.size()];
            number.write(&floats, &mut bytes);
            let mut back = vec![0.0; floats.len()];
            format.widen(&bytes, &mut back);
            assert!(floats.iter().zip(&back).all(|(a, b)| (a - b).abs() <= a.abs() / 128.0), "{number:?}");
            assert!(number.is(format) && !number.is(NumberFormat::F32) | (number == Number::F32));
        }
    }
}
