//! Blocks of 256 numbers (K-quants): parts of 16 or 32 numbers have scales of few bits, and the block scales the scales.
//! Leaves the number of blocks to its caller.

use super::half_at;

/// Bytes: 16 scales and minima, 64 of quarters, scale, minimum. A run of 32 bytes holds 128 numbers, two bits of each 32 after the other.
pub(super) fn q2(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scale, least) = (half_at(block, 80), half_at(block, 82));
    for (part, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let packed = block[part];
        let (step, least) = (scale * f32::from(packed & 15), least * f32::from(packed >> 4));
        let (first, shift) = (16 + part / 8 * 32 + part % 2 * 16, part % 8 / 2 * 2);
        for (out, byte) in out.iter_mut().zip(&block[first..]) {
            *out = step * f32::from(byte >> shift & 3) - least;
        }
    }
}

/// Bytes: 32 of third bits, 64 of quarters, 12 of scales, scale. A third bit that is not set stands for minus 4.
pub(super) fn q3(block: &[u8; 110], out: &mut [f32; 256]) {
    let scale = half_at(block, 108);
    let (high, scales) = (&block[..32], &block[96..108]);
    for (part, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let low = scales[part % 8] >> (part / 8 * 4) & 15;
        let top = scales[8 + part % 4] >> (part / 4 * 2) & 3;
        let step = scale * f32::from((low | top << 4) as i8 - 32);
        let (first, shift) = (32 + part / 8 * 32 + part % 2 * 16, part % 8 / 2 * 2);
        let high = high[part % 2 * 16..].iter().map(|byte| (byte >> (part / 2) & 1) as i8);
        for ((out, byte), high) in out.iter_mut().zip(&block[first..]).zip(high) {
            *out = step * f32::from((byte >> shift & 3) as i8 - 4 * (1 - high));
        }
    }
}

/// The scale and the minimum of a part of 32 numbers, six bits each: four of each lie whole, the others in the bits that are left.
fn six_bits(scales: &[u8], part: usize) -> (u8, u8) {
    let i = part % 4;
    let (scale, least, both) = (scales[i], scales[4 + i], scales[8 + i]);
    if part < 4 { (scale & 63, least & 63) } else { (both & 15 | scale >> 2 & 48, both >> 4 | least >> 2 & 48) }
}

/// The step of a part of 32 numbers, what is taken away from each, and the bytes whose low halves (those of even parts) or high
/// halves count the steps.
pub(crate) fn q4_k_parts(block: &[u8; 144], part: usize) -> (f32, f32, &[u8]) {
    let (scale, least) = (half_at(block, 0), half_at(block, 2));
    let (step, lower) = six_bits(&block[4..16], part);
    (scale * f32::from(step), least * f32::from(lower), &block[16 + part / 2 * 32..])
}

/// Bytes: scale, minimum, 12 of scales and minima, 128 of halves. A run of 32 bytes holds 64 numbers.
pub(super) fn q4(block: &[u8; 144], out: &mut [f32; 256]) {
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (step, lower, bytes) = q4_k_parts(block, part);
        for (out, byte) in out.iter_mut().zip(bytes) {
            *out = step * f32::from(byte >> (part % 2 * 4) & 15) - lower;
        }
    }
}

/// Bytes: scale, minimum, 12 of scales and minima, 32 of fifth bits, 128 of halves.
pub(super) fn q5(block: &[u8; 176], out: &mut [f32; 256]) {
    let (scale, least) = (half_at(block, 0), half_at(block, 2));
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (step, lower) = six_bits(&block[4..16], part);
        let (step, lower) = (scale * f32::from(step), least * f32::from(lower));
        let high = block[16..48].iter().map(|byte| (byte >> part & 1) << 4);
        for ((out, byte), high) in out.iter_mut().zip(&block[48 + part / 2 * 32..]).zip(high) {
            *out = step * f32::from(byte >> (part % 2 * 4) & 15 | high) - lower;
        }
    }
}

/// The steps of a run of 32 numbers, of the first 16 and of the others, and its numbers plus 32.
pub(crate) fn q6_k_parts(block: &[u8; 210], run: usize) -> ([f32; 2], [u8; 32]) {
    let scale = half_at(block, 208);
    let steps = [0, 1].map(|half| scale * f32::from(block[192 + 2 * run + half] as i8));
    let (half, place) = (run / 4, run % 4);
    let (low, high) = (&block[half * 64 + place % 2 * 32..], &block[128 + half * 32..]);
    (steps, std::array::from_fn(|i| low[i] >> (place / 2 * 4) & 15 | (high[i] >> (place * 2) & 3) << 4))
}

/// Bytes: 128 of halves, 64 of fifth and sixth bits, 16 scales, scale. A run of 64 bytes holds 128 numbers.
pub(super) fn q6(block: &[u8; 210], out: &mut [f32; 256]) {
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (steps, numbers) = q6_k_parts(block, run);
        for (i, (out, number)) in out.iter_mut().zip(numbers).enumerate() {
            *out = steps[i / 16] * f32::from(number as i8 - 32);
        }
    }
}
