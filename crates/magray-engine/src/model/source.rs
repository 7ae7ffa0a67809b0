//! Where a model's numbers come from: its files, or a generator for benchmarks. Packs nothing.

use crate::weights::{Tensor, Weights, WeightsError};
use magray_device::Table;

/// Hands out tensors by name and expected shape.
pub(crate) trait TensorSource {
    /// Appends a tensor's numbers.
    fn append(&self, name: &str, shape: &[usize], to: &mut Vec<f32>) -> Result<(), WeightsError>;
    /// A table to look rows up in.
    fn table(&self, name: &str, rows: usize, columns: usize) -> Result<Table, WeightsError>;
}

impl TensorSource for Weights {
    fn append(&self, name: &str, shape: &[usize], to: &mut Vec<f32>) -> Result<(), WeightsError> {
        let tensor = self.tensor(name, shape)?;
        let start = to.len();
        to.resize(start + tensor.len(), 0.0);
        tensor.read_f32_into(0..tensor.len(), &mut to[start..]);
        // Its numbers are packed elsewhere now; the file's pages would only double the memory in use.
        tensor.release_pages();
        Ok(())
    }

    fn table(&self, name: &str, rows: usize, columns: usize) -> Result<Table, WeightsError> {
        let Tensor { format, .. } = self.tensor(name, &[rows, columns])?;
        let (file, range) = self.place(name, &[rows, columns])?;
        Ok(Table::mapped(file, range, format, columns))
    }
}

/// Random numbers of the size that real weights have; the same for the same name.
pub(crate) struct Synthetic;

impl Synthetic {
    fn numbers(name: &str, count: usize) -> impl Iterator<Item = f32> {
        let mut state = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        // Norm gains stand around 1 as trained ones do; all else around 0.
        let centre = if name.contains("orm.weight") || name.contains("norm.weight") { 1.0 } else { 0.0 };
        (0..count).map(move |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            centre + ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 0.14
        })
    }
}

impl TensorSource for Synthetic {
    fn append(&self, name: &str, shape: &[usize], to: &mut Vec<f32>) -> Result<(), WeightsError> {
        to.extend(Self::numbers(name, shape.iter().product()));
        Ok(())
    }

    fn table(&self, name: &str, rows: usize, columns: usize) -> Result<Table, WeightsError> {
        Ok(Table::new(Self::numbers(name, rows * columns).collect(), columns))
    }
}
