//! Keys and values of a model, in the form of its operations.
//! Leaves to both forms where a token's numbers lie.

use super::{exact::FloatPages, fast::HalfPages};

/// Pages of keys and values of one model.
pub struct KvPages(pub(super) Form);

pub(super) enum Form {
    Floats(FloatPages),
    Halves(HalfPages),
}

impl KvPages {
    /// How many pages there are.
    pub fn count(&self) -> usize {
        match &self.0 {
            Form::Floats(pages) => pages.count(),
            Form::Halves(pages) => pages.count(),
        }
    }
}
