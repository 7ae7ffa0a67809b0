//! Weights in blocks of few bits, as they lie in files, and the floats that they stand for.
//! Never rounds in another order than the makers of the formats do: the floats are equal to theirs bit by bit.

mod matrix;
mod of_256;
mod of_32;
#[cfg(test)]
mod tests;

use crate::NumberFormat;
use magray_core::BlockFormat;

pub use matrix::BlockMatrix;
pub(crate) use of_256::{q4_k_parts, q6_k_parts};

/// Writes the numbers of whole blocks to `out`, which has as many.
pub fn dequantise(format: BlockFormat, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(format.bytes_of(out.len()), Some(bytes.len()), "whole blocks, and room for their numbers");
    match format {
        BlockFormat::F32 => NumberFormat::F32.widen(bytes, out),
        BlockFormat::F16 => NumberFormat::F16.widen(bytes, out),
        BlockFormat::Bf16 => NumberFormat::Bf16.widen(bytes, out),
        BlockFormat::Q4_0 => each(bytes, out, of_32::q4_0),
        BlockFormat::Q4_1 => each(bytes, out, of_32::q4_1),
        BlockFormat::Q5_0 => each(bytes, out, of_32::q5_0),
        BlockFormat::Q5_1 => each(bytes, out, of_32::q5_1),
        BlockFormat::Q8_0 => each(bytes, out, of_32::q8_0),
        BlockFormat::Q2K => each(bytes, out, of_256::q2),
        BlockFormat::Q3K => each(bytes, out, of_256::q3),
        BlockFormat::Q4K => each(bytes, out, of_256::q4),
        BlockFormat::Q5K => each(bytes, out, of_256::q5),
        BlockFormat::Q6K => each(bytes, out, of_256::q6),
    }
}

fn each<const BYTES: usize, const NUMBERS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; NUMBERS]),
) {
    for (bytes, out) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        block(bytes, out);
    }
}

/// The 16-bit float at this byte.
fn half_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}
