//! Random weights, made where a language model is only timed.
//! The layers of a model share the same numbers, and what it says means nothing.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use magray_core::BlockFormat;
use magray_device::BlockMatrix;

use crate::spec::decoder::SyntheticDecoder;

/// Its weights, each size made once.
#[derive(Debug)]
pub(super) struct SyntheticWeights {
    model: SyntheticDecoder,
    made: Mutex<HashMap<(usize, usize), BlockMatrix>>,
}

impl SyntheticWeights {
    pub(super) fn new(model: SyntheticDecoder) -> Self {
        Self { model, made: Mutex::default() }
    }

    pub(super) fn model(&self) -> SyntheticDecoder {
        self.model
    }

    pub(super) fn matrix(&self, rows: usize, columns: usize) -> BlockMatrix {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.entry((rows, columns)).or_insert_with(|| random(self.model.format(), rows, columns)).clone()
    }
}

/// Random numbers that keep activations small: below a 50th in size.
fn random(format: BlockFormat, rows: usize, columns: usize) -> BlockMatrix {
    let mut bytes = vec![0_u8; format.bytes_of(rows * columns).unwrap_or(0)];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ (rows as u64) << 32 ^ columns as u64;
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        chunk.copy_from_slice(&(state ^ state >> 29).to_le_bytes()[..chunk.len()]);
    }
    match format {
        // The exponent of small numbers, a random sign and mantissa.
        BlockFormat::Bf16 => bytes.chunks_exact_mut(2).for_each(|number| number[1] = number[1] & 0x80 | 0x3c),
        // Scales of 0.00013 and 0.004.
        BlockFormat::Q8_0 => bytes.chunks_exact_mut(34).for_each(|block| block[..2].copy_from_slice(&[0x4a, 0x08])),
        _ => bytes.chunks_exact_mut(18).for_each(|block| block[..2].copy_from_slice(&[0x00, 0x1c])),
    }
    BlockMatrix::new(bytes, format, columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_small_in_every_format() {
        for format in [BlockFormat::Bf16, BlockFormat::Q8_0, BlockFormat::Q4_0] {
            let matrix = random(format, 4, 64);
            let mut row = vec![0.0; 64];
            matrix.read_row(3, &mut row);
            assert!(row.iter().all(|number| number.abs() < 0.05), "{format:?} {row:?}");
            assert!(row.iter().any(|number| *number != 0.0), "{format:?}");
        }
    }
}
