//! One tensor of a mapped file, and its numbers as f32.
//! Never assumes that its bytes are aligned, never converts more than it is asked for.

use std::{ops::Range, sync::Arc};

use half::{f16, slice::HalfFloatSliceExt};
use magray_device::MappedFile;

/// The types of numbers that weights are read in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// The upper half of 32-bit floats.
    Bf16,
}

impl Dtype {
    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The type of this name in a file.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "F32" => Some(Self::F32),
            "F16" => Some(Self::F16),
            "BF16" => Some(Self::Bf16),
            _ => None,
        }
    }
}

/// A tensor in a mapped file, row by row.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// The type of its numbers.
    pub dtype: Dtype,
    /// Its sizes, the outermost first.
    pub shape: &'a [usize],
    /// Its numbers, little-endian, not aligned.
    pub bytes: &'a [u8],
    pub(super) map: &'a Arc<MappedFile>,
    pub(super) start: usize,
}

impl Tensor<'_> {
    /// How many numbers it has.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// Whether it has no numbers.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All its numbers.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.len()];
        self.read_f32_into(0..self.len(), &mut values);
        values
    }

    /// Writes the numbers of `range` (counted in numbers) to `out`, which must have their length.
    pub fn read_f32_into(&self, range: Range<usize>, out: &mut [f32]) {
        assert!(range.start <= range.end && range.end <= self.len(), "the range lies inside the tensor");
        assert_eq!(range.len(), out.len(), "the room is as long as the range");
        let size = self.dtype.size();
        let bytes = &self.bytes[range.start * size..range.end * size];
        match self.dtype {
            Dtype::F32 => {
                for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
            Dtype::Bf16 => {
                for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                }
            }
            Dtype::F16 => f16_to_f32(bytes, out),
        }
    }

    /// Gives the memory of its bytes back to the system, after they were packed elsewhere.
    pub fn release_pages(&self) {
        self.map.release_pages(self.start..self.start + self.bytes.len());
    }
}

/// Converts through a small aligned buffer, because the CPU's instruction is asked for once a slice, not once a number.
fn f16_to_f32(bytes: &[u8], out: &mut [f32]) {
    const BLOCK: usize = 512;
    let mut aligned = [f16::ZERO; BLOCK];
    for (values, bytes) in out.chunks_mut(BLOCK).zip(bytes.chunks(2 * BLOCK)) {
        let aligned = &mut aligned[..values.len()];
        for (half, bytes) in aligned.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *half = f16::from_le_bytes(*bytes);
        }
        aligned.convert_to_f32_slice(values);
    }
}
