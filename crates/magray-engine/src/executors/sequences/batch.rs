//! A batch of steps as a device reads it.
//! Knows neither what its tokens mean nor who has its pages.

use magray_device::StepBatch;

/// A batch as a device reads it. Its memory is used again.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) ids: Vec<u32>,
    offsets: Vec<usize>,
    starts: Vec<usize>,
    pages: Vec<u32>,
    page_offsets: Vec<usize>,
    logit_rows: Vec<usize>,
}

impl Batch {
    /// Takes everything out.
    pub(super) fn clear(&mut self) {
        let Self { ids, offsets, starts, pages, page_offsets, logit_rows } = self;
        for tokens in [ids, pages] {
            tokens.clear();
        }
        for places in [starts, logit_rows] {
            places.clear();
        }
        for offsets in [offsets, page_offsets] {
            offsets.clear();
            offsets.push(0);
        }
    }

    /// New tokens of a sequence behind those that its pages hold; the logits of this many of them, the last, are wanted.
    pub(super) fn push(&mut self, ids: &[u32], start: usize, pages: &[u32], wanted: usize) {
        self.ids.extend_from_slice(ids);
        self.offsets.push(self.ids.len());
        self.starts.push(start);
        self.pages.extend_from_slice(pages);
        self.page_offsets.push(self.pages.len());
        self.logit_rows.extend(self.ids.len() - wanted..self.ids.len());
    }

    /// What the device is given.
    pub(super) fn steps(&self) -> StepBatch<'_> {
        StepBatch {
            ids: &self.ids,
            offsets: &self.offsets,
            starts: &self.starts,
            pages: &self.pages,
            page_offsets: &self.page_offsets,
            logit_rows: &self.logit_rows,
        }
    }
}
