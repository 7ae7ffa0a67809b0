//! Texts of given lengths. Their ids mean nothing.

use magray_device::TokenBatch;
use std::ops::Range;

/// Texts end to end, their ids counting up.
pub(crate) struct Texts {
    pub(crate) ids: Vec<u32>,
    pub(crate) offsets: Vec<usize>,
}

impl Texts {
    pub(crate) fn new(lengths: &[usize]) -> Self {
        let mut offsets = vec![0];
        for length in lengths {
            offsets.push(offsets[offsets.len() - 1] + length);
        }
        Self { ids: (0..offsets[lengths.len()] as u32).collect(), offsets }
    }

    pub(crate) fn batch(&self) -> TokenBatch<'_> {
        TokenBatch { ids: &self.ids, types: &[], offsets: &self.offsets }
    }

    pub(crate) fn count(&self) -> usize {
        self.offsets.len() - 1
    }

    pub(crate) fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// The tokens of a text.
    pub(crate) fn range(&self, text: usize) -> Range<usize> {
        self.offsets[text]..self.offsets[text + 1]
    }
}
