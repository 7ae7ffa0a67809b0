//! One tensor of a mapped file, and its numbers as f32.
//! Never assumes that its bytes are aligned, never converts more than it is asked for.

use std::{ops::Range, sync::Arc};

use magray_device::{MappedFile, NumberFormat};

/// A tensor in a mapped file, row by row.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// The type of its numbers.
    pub format: NumberFormat,
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
        self.bytes.len() / self.format.size()
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
        let size = self.format.size();
        let bytes = &self.bytes[range.start * size..range.end * size];
        self.format.widen(bytes, out);
    }

    /// Gives the memory of its bytes back to the system, after they were packed elsewhere.
    pub fn release_pages(&self) {
        self.map.release_pages(self.start..self.start + self.bytes.len());
    }
}
