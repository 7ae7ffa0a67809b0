//! What lies in a place of a worker: a batch, steps of sequences, or the known text alone.
//! Sends nothing.

use super::super::canary::Canary;
use super::super::executor_handle::{Batch, Turn};
use super::super::work::Output;
use crate::packed::Tokens;

/// What a worker has in one of its places.
pub(super) enum Slot {
    Free,
    Batch(Batch),
    /// Steps of sequences.
    Turn(Turn),
    /// Only the known text of this model.
    Probe(usize),
}

/// What is asked of a batch.
pub(super) struct Held {
    pub(super) model: usize,
    pub(super) skip: usize,
    /// Of the answer, without those of the known text.
    pub(super) rows: usize,
    pub(super) output: Output,
}

impl Slot {
    pub(super) fn output(&self) -> Output {
        match self {
            Self::Batch(batch) => batch.output,
            Self::Turn(_) | Self::Probe(_) | Self::Free => Output::Texts,
        }
    }

    /// What was asked; `None` where that is no rows.
    pub(super) fn held(&self) -> Option<Held> {
        match self {
            Self::Batch(batch) => {
                let Batch { model, skip, output, .. } = *batch;
                Some(Held { model, skip, rows: batch.rows(), output })
            }
            Self::Probe(model) => Some(Held { model: *model, skip: 0, rows: 0, output: Output::Texts }),
            Self::Turn(_) | Self::Free => None,
        }
    }

    /// Whether the known text is computed with it.
    pub(super) fn carries(&self, canary: &Canary) -> bool {
        canary.rides_along() || matches!(self, Self::Probe(_))
    }

    /// The texts of a batch; a probe has none but the known one.
    pub(super) fn texts(&self) -> impl Iterator<Item = Tokens<'_>> {
        let batch = match self {
            Self::Batch(batch) => Some(batch),
            Self::Turn(_) | Self::Probe(_) | Self::Free => None,
        };
        batch.into_iter().flat_map(Batch::texts)
    }
}
