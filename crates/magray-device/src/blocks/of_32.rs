//! Blocks of 32 numbers. The low halves of 16 bytes are the first 16 numbers, the high halves the others.
//! Leaves the number of blocks to its caller.

use super::half_at;

pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    for (i, byte) in block[2..].iter().enumerate() {
        out[i] = scale * f32::from((byte & 15) as i8 - 8);
        out[i + 16] = scale * f32::from((byte >> 4) as i8 - 8);
    }
}

pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, least) = (half_at(block, 0), half_at(block, 2));
    for (i, byte) in block[4..].iter().enumerate() {
        out[i] = scale * f32::from(byte & 15) + least;
        out[i + 16] = scale * f32::from(byte >> 4) + least;
    }
}

/// The fifth bit of number `i`, at its place.
fn fifth_bit(high: u32, i: usize) -> u8 {
    ((high >> i & 1) as u8) << 4
}

pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for (i, byte) in block[6..].iter().enumerate() {
        out[i] = scale * f32::from((byte & 15 | fifth_bit(high, i)) as i8 - 16);
        out[i + 16] = scale * f32::from((byte >> 4 | fifth_bit(high, i + 16)) as i8 - 16);
    }
}

pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, least) = (half_at(block, 0), half_at(block, 2));
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for (i, byte) in block[8..].iter().enumerate() {
        out[i] = scale * f32::from(byte & 15 | fifth_bit(high, i)) + least;
        out[i + 16] = scale * f32::from(byte >> 4 | fifth_bit(high, i + 16)) + least;
    }
}

pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    for (out, byte) in out.iter_mut().zip(&block[2..]) {
        *out = f32::from(*byte as i8) * scale;
    }
}
