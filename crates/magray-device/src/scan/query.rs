//! A query, checked and made ready for the kernels. Compares nothing.

use super::chunk::PAD;
use super::{Metric, ScanError, check, normalise};

/// One query.
pub(super) struct Query {
    /// Padded with zeros as rows are.
    pub(super) numbers: Vec<f32>,
}

impl Query {
    pub(super) fn new(numbers: &[f32], metric: Metric) -> Result<Self, ScanError> {
        let length = check(numbers)?;
        let mut padded = vec![0.0; numbers.len().next_multiple_of(PAD)];
        padded[..numbers.len()].copy_from_slice(numbers);
        if metric == Metric::Cosine {
            normalise(&mut padded, length);
        }
        Ok(Self { numbers: padded })
    }
}
