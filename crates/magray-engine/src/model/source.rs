//! Where a model's numbers come from: its files, a generator for benchmarks, or nowhere if a device has them already.
//! Packs nothing.

use crate::weights::{Tensor, Weights, WeightsError};
use magray_device::{Numbers, Table};
use std::path::Path;
use std::sync::Arc;

/// Hands out tensors by name and expected shape.
pub(crate) trait TensorSource {
    /// A tensor's numbers, which are read when a device wants them.
    fn numbers(&self, name: &str, shape: &[usize]) -> Result<Numbers, WeightsError>;

    /// Appends a tensor's numbers: for small ones.
    fn append(&self, name: &str, shape: &[usize], to: &mut Vec<f32>) -> Result<(), WeightsError> {
        let numbers = self.numbers(name, shape)?;
        numbers.append_to(to);
        // They are packed elsewhere now; the file's pages would only double the memory in use.
        numbers.release_pages();
        Ok(())
    }

    /// A table to look rows up in.
    fn table(&self, name: &str, rows: usize, columns: usize) -> Result<Table, WeightsError> {
        Ok(Table::of(self.numbers(name, &[rows, columns])?, columns))
    }

    /// The numbers of a layer that has a folder of its own.
    fn beside(&self, folder: &Path) -> Result<Box<dyn TensorSource>, WeightsError>;
}

impl TensorSource for Weights {
    fn numbers(&self, name: &str, shape: &[usize]) -> Result<Numbers, WeightsError> {
        let Tensor { format, .. } = self.tensor(name, shape)?;
        let (file, range) = self.place(name, shape)?;
        Ok(Numbers::mapped(file, range, format))
    }

    fn beside(&self, folder: &Path) -> Result<Box<dyn TensorSource>, WeightsError> {
        Ok(Box::new(Self::open(folder)?))
    }
}

/// No numbers: for a device that only measures a model, or has its weights already.
pub(crate) struct Unread;

impl TensorSource for Unread {
    fn numbers(&self, _: &str, shape: &[usize]) -> Result<Numbers, WeightsError> {
        Ok(Numbers::unread(shape.iter().product()))
    }

    /// Zeros, which are not read either: small tensors are handed over as numbers, not as promises.
    fn append(&self, _: &str, shape: &[usize], to: &mut Vec<f32>) -> Result<(), WeightsError> {
        to.resize(to.len() + shape.iter().product::<usize>(), 0.0);
        Ok(())
    }

    fn beside(&self, _: &Path) -> Result<Box<dyn TensorSource>, WeightsError> {
        Ok(Box::new(Self))
    }
}

/// Random numbers of the size that real weights have; the same for the same name.
pub(crate) struct Synthetic;

/// Tables up to this size are kept in memory, so that looking rows up costs what it costs in a real model.
const TABLE_NUMBERS_KEPT: usize = 64 << 20;

impl Synthetic {
    /// The numbers of a tensor from an index on. Each stands for itself, so that threads can make them side by side.
    fn make(seed: u64, centre: f32, start: usize, out: &mut [f32]) {
        let number = |bits: u32| centre + ((bits >> 8) as f32 / (1u32 << 24) as f32 - 0.5) * 0.14;
        // One mixing gives two numbers.
        let mixed = |pair: usize| {
            let x = (seed.wrapping_add(pair as u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x ^ (x >> 32)
        };
        let mut index = start;
        let mut out = out.iter_mut();
        if !start.is_multiple_of(2)
            && let Some(first) = out.next()
        {
            *first = number((mixed(start / 2) >> 32) as u32);
            index += 1;
        }
        let rest = out.into_slice();
        for (pair, two) in rest.chunks_mut(2).enumerate() {
            let bits = mixed(index / 2 + pair);
            two[0] = number(bits as u32);
            if let Some(second) = two.get_mut(1) {
                *second = number((bits >> 32) as u32);
            }
        }
    }
}

impl TensorSource for Synthetic {
    fn numbers(&self, name: &str, shape: &[usize]) -> Result<Numbers, WeightsError> {
        let seed = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        // Norm gains stand around 1 as trained ones do; all else around 0.
        let centre = if name.contains("orm.weight") || name.contains("norm.weight") { 1.0 } else { 0.0 };
        let make = move |start: usize, out: &mut [f32]| Self::make(seed, centre, start, out);
        Ok(Numbers::made(shape.iter().product(), Arc::new(make)))
    }

    fn table(&self, name: &str, rows: usize, columns: usize) -> Result<Table, WeightsError> {
        let numbers = self.numbers(name, &[rows, columns])?;
        if numbers.len() > TABLE_NUMBERS_KEPT {
            return Ok(Table::of(numbers, columns));
        }
        let mut values = Vec::with_capacity(numbers.len());
        numbers.append_to(&mut values);
        Ok(Table::new(values, columns))
    }

    fn beside(&self, _: &Path) -> Result<Box<dyn TensorSource>, WeightsError> {
        Ok(Box::new(Self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synthetic_numbers_are_the_same_wherever_reading_begins() {
        let numbers = Synthetic.numbers("encoder.layer.0.output.dense.weight", &[7, 143]).unwrap();
        let mut all = Vec::new();
        numbers.append_to(&mut all);
        for (start, count) in [(0, 1), (1, 1), (1, 2), (5, 100), (6, 101), (1000, 1), (998, 3)] {
            let mut some = vec![0.0; count];
            numbers.read(start, &mut some);
            assert_eq!(some, all[start..start + count], "from {start}");
        }
    }

    #[test]
    fn synthetic_numbers_spread_as_weights_do() {
        let mut all = Vec::new();
        Synthetic.append("a.weight", &[100_000], &mut all).unwrap();
        let mean = all.iter().sum::<f32>() / all.len() as f32;
        let spread = all.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / all.len() as f32;
        assert!(mean.abs() < 1e-3 && (spread.sqrt() - 0.0404).abs() < 1e-3, "{mean} {spread}");
        let mut gains = Vec::new();
        Synthetic.append("LayerNorm.weight", &[64], &mut gains).unwrap();
        assert!(gains.iter().all(|x| (0.9..1.1).contains(x)));
        let neighbours = all.windows(2).map(|w| w[0] * w[1]).sum::<f32>() / all.len() as f32;
        assert!(neighbours.abs() < 1e-4, "neighbours do not hang together: {neighbours}");
    }
}
