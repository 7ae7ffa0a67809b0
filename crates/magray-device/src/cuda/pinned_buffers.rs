//! Page-locked buffers in host memory, which the GPU reaches by the same address.
//! Never grow; the memory goes back to its context.

use super::context::Context;
use super::error::CudaError;
use super::pinned::Piece;
use std::sync::Arc;

/// Page-locked bytes, which the GPU reaches by the same address.
#[derive(Debug)]
pub(super) struct PinnedBytes {
    context: Arc<Context>,
    /// There until `drop`.
    piece: Option<Piece>,
    address: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for PinnedBytes {}

impl PinnedBytes {
    /// With undefined content.
    pub(super) fn take(context: &Arc<Context>, bytes: usize) -> Result<Self, CudaError> {
        context.bind()?;
        let piece = context.pinned().take(bytes)?;
        let address = piece.address;
        Ok(Self { context: Arc::clone(context), address, bytes: piece.bytes, piece: Some(piece) })
    }

    pub(super) fn address(&self) -> u64 {
        self.address as u64
    }

    /// The bytes, while the GPU does not touch them.
    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this length, written by `zero` or by the driver's own clearing of fresh pages, or by an
        // owner before: any bits are bytes. Who calls has waited for the GPU.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) }
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            self.context.give_back_pinned(piece);
        }
    }
}

/// Page-locked words, which the GPU reaches by the same address.
#[derive(Debug)]
pub(super) struct PinnedWords {
    bytes: PinnedBytes,
    words: usize,
}

impl PinnedWords {
    /// Words that are zero.
    pub(super) fn zeroed(context: &Arc<Context>, words: usize) -> Result<Self, CudaError> {
        let words = words.max(1);
        let mut bytes = PinnedBytes::take(context, words * 4)?;
        bytes.as_mut_slice()[..words * 4].fill(0);
        Ok(Self { bytes, words })
    }

    pub(super) fn len(&self) -> usize {
        self.words
    }

    pub(super) fn address(&self) -> u64 {
        self.bytes.address()
    }

    /// The words, while the GPU does not touch them.
    pub(super) fn as_mut_slice(&mut self) -> &mut [u32] {
        // SAFETY: it has this many words, aligned as pages are; the caller has waited for the GPU.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.address.cast::<u32>(), self.words) }
    }

    /// The words as floats, while the GPU does not touch them.
    pub(super) fn floats(&self, count: usize) -> &[f32] {
        assert!(count <= self.words, "no more than there are");
        // SAFETY: as above; every word is a float.
        unsafe { std::slice::from_raw_parts(self.bytes.address.cast::<f32>(), count) }
    }
}
