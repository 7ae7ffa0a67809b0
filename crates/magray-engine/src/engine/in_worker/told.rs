//! What workers told of the models that they had on the device.
//! Keeps the last of each, also when its worker is gone.

use crate::executors::RankSums;
use magray_core::{OnnxProvider, Precision};

/// What a worker told of a model.
#[derive(Clone, Debug)]
pub(super) struct Told {
    /// Its arithmetic.
    pub(super) precision: Precision,
    /// What of ONNX Runtime computes it.
    pub(super) provider: Option<OnnxProvider>,
    /// Where the ranks of a group add up their parts of its sums.
    pub(super) sums: Option<RankSums>,
}

/// By model, what was told last.
#[derive(Debug, Default)]
pub(super) struct ToldModels(Vec<Option<Told>>);

impl ToldModels {
    pub(super) fn of(&self, model: usize) -> Option<&Told> {
        self.0.get(model)?.as_ref()
    }

    pub(super) fn note(&mut self, model: usize, told: Told) {
        if self.0.len() <= model {
            self.0.resize(model + 1, None);
        }
        self.0[model] = Some(told);
    }
}
