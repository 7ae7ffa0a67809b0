//! How numbers lie in a file, and how they become floats.
//! Reads no file.

use half::{f16, slice::HalfFloatSliceExt};

/// The numbers of a mapped table, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberFormat {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// The upper half of 32-bit floats.
    Bf16,
}

impl NumberFormat {
    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Converts bytes, which need not be aligned, to as many floats as `out` holds.
    pub fn widen(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * self.size(), "as many numbers on both sides");
        match self {
            Self::F32 => {
                for (x, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *x = f32::from_le_bytes(*bytes);
                }
            }
            Self::Bf16 => {
                for (x, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *x = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                }
            }
            // Through a small aligned buffer, because the CPU's instruction is asked for once a slice, not once a number.
            Self::F16 => {
                const BLOCK: usize = 512;
                let mut aligned = [f16::ZERO; BLOCK];
                for (out, bytes) in out.chunks_mut(BLOCK).zip(bytes.chunks(2 * BLOCK)) {
                    for (half, bytes) in aligned.iter_mut().zip(bytes.as_chunks::<2>().0) {
                        *half = f16::from_le_bytes(*bytes);
                    }
                    aligned[..out.len()].convert_to_f32_slice(out);
                }
            }
        }
    }
}
