//! The residual stream between this GPU and the host: a step that begins with rows of another device, or ends with rows for one.
//! Copies through page-locked memory; a recorded step has these copies before and behind it, never inside.

use super::CudaDecoderOps;
use super::memory::DecoderActs;
use crate::cuda::context::Context;
use crate::cuda::device_error::DeviceError;
use crate::cuda::error::CudaError;
use crate::cuda::pinned_buffers::PinnedWords;
use crate::cuda::stream::Mark;
use std::sync::Arc;

/// Page-locked memory for the rows of a step.
#[derive(Debug)]
pub(super) struct Crossing {
    context: Arc<Context>,
    rows: PinnedWords,
    /// Behind the copy that reads it.
    done: Mark,
}

impl Crossing {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Ok(Self { context: Arc::clone(context), rows: PinnedWords::zeroed(context, 0)?, done: Mark::new(context)? })
    }

    /// This many words, which no copy reads any more.
    fn room(&mut self, words: usize) -> Result<&mut [u32], CudaError> {
        self.done.wait()?;
        if self.rows.len() < words {
            self.rows = PinnedWords::zeroed(&self.context, words.next_power_of_two())?;
        }
        Ok(&mut self.rows.as_mut_slice()[..words])
    }
}

impl CudaDecoderOps {
    /// Copies rows to the residual stream. Rows beyond the last token become zeros, as wide as they lie in memory.
    pub(super) fn bring_hidden(&mut self, rows: &[f32], hidden: &DecoderActs) -> Result<(), CudaError> {
        let (count, stride) = (self.shape.rows, hidden.stride());
        assert!(count <= hidden.room(), "room for all rows");
        let words = self.crossing.room(count * stride)?;
        words.fill(0);
        for (row, words) in rows.chunks_exact(hidden.columns).zip(words.chunks_exact_mut(stride)) {
            for (x, word) in row.iter().zip(words) {
                *word = x.to_bits();
            }
        }
        self.cuda.context().bind()?;
        // SAFETY: both hold this many words. The host's are written again only behind the mark, which stands behind this copy; the
        // stream's kernels run in its order.
        unsafe { self.stream.copy_in(hidden.address(), self.crossing.rows.address(), count * stride * 4) }?;
        self.stream.mark_again(&mut self.crossing.done)
    }

    /// The rows of the residual stream behind a step that was launched, end to end; waits for them.
    pub(super) fn take_hidden(&mut self, hidden: &DecoderActs) -> Result<&[f32], DeviceError> {
        // The step has no tokens to ask for.
        self.results.forget();
        self.end_failed()?;
        let (rows, columns, stride) = (hidden.rows, hidden.columns, hidden.stride());
        self.crossing.room(rows * stride)?;
        self.cuda.context().bind()?;
        let to = self.crossing.rows.address() as *mut u8;
        // SAFETY: both hold these bytes; the wait follows before either goes or is read.
        unsafe { self.stream.copy_out(to, hidden.address(), rows * stride * 4) }?;
        self.stream.wait()?;
        let words = self.crossing.rows.as_mut_slice();
        for row in 1..rows {
            words.copy_within(row * stride..row * stride + columns, row * columns);
        }
        Ok(self.crossing.rows.floats(rows * columns))
    }
}
