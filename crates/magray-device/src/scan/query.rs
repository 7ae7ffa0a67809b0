//! A query, checked and made ready for the kernels. Compares nothing.

use super::chunk::PAD;
use super::kernels::{DotKernel, Gauge, quantise};
use super::{Metric, ScanError, check, normalise};
use magray_core::CpuPath;

/// One query.
pub(super) struct Query {
    /// Padded with zeros as rows are.
    pub(super) numbers: Vec<f32>,
    /// The same in 64 bits.
    pub(super) wide: Vec<f64>,
    /// The same as signed bytes.
    pub(super) levels: Vec<i8>,
    pub(super) gauge: Gauge,
}

impl Query {
    pub(super) fn new(numbers: &[f32], metric: Metric, path: CpuPath) -> Result<Self, ScanError> {
        let length = check(numbers)?;
        let mut padded = vec![0.0; numbers.len().next_multiple_of(PAD)];
        padded[..numbers.len()].copy_from_slice(numbers);
        if metric == Metric::Cosine {
            normalise(&mut padded, length);
        }
        let (levels, gauge) = quantise(&padded, metric, DotKernel::query_levels(path));
        let wide = padded.iter().copied().map(f64::from).collect();
        Ok(Self { numbers: padded, wide, levels, gauge })
    }
}
