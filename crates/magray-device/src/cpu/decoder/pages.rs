//! Keys and values of a model, in the form of its operations.
//! Leaves to both forms where a token's numbers lie.

use super::{exact::FloatPages, fast::PackedPages};

/// Pages of keys and values of one model.
pub struct KvPages(pub(super) Form);

pub(super) enum Form {
    Floats(FloatPages),
    Packed(PackedPages),
}

impl KvPages {
    /// How many pages there are.
    pub fn count(&self) -> usize {
        match &self.0 {
            Form::Floats(pages) => pages.count(),
            Form::Packed(pages) => pages.count(),
        }
    }
}
