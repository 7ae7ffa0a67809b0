//! A table of vectors that ids are looked up in: in memory, or in a mapped file from which rows are read as they are asked for.
//! Never converts more than the rows asked for.

use crate::{MappedFile, NumberFormat, Numbers};
use std::ops::Range;
use std::sync::Arc;

/// Rows of equal length.
pub struct Table {
    numbers: Numbers,
    rows: usize,
    columns: usize,
}

impl Table {
    /// A table in memory.
    pub fn new(values: Vec<f32>, columns: usize) -> Self {
        Self::of(Numbers::new(values), columns)
    }

    /// A table of numbers wherever they are.
    pub fn of(numbers: Numbers, columns: usize) -> Self {
        assert!(columns > 0 && numbers.len().is_multiple_of(columns), "whole rows");
        Self { rows: numbers.len() / columns, columns, numbers }
    }

    /// A table that stays in its file.
    pub fn mapped(file: Arc<MappedFile>, range: Range<usize>, format: NumberFormat, columns: usize) -> Self {
        Self::of(Numbers::mapped(file, range, format), columns)
    }

    pub(crate) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How long a row is.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The bytes of a row, to be prefetched; empty where it is generated or does not exist.
    pub(crate) fn row_bytes(&self, row: usize) -> Range<*const u8> {
        if row < self.rows {
            self.numbers.byte_range(row * self.columns, self.columns)
        } else {
            std::ptr::null()..std::ptr::null()
        }
    }

    /// Adds a row to `out`; `spare` is as long and is overwritten.
    pub(crate) fn add_row(&self, row: usize, out: &mut [f32], spare: &mut [f32]) {
        assert!(row < self.rows, "id {row} in a table of {} rows: ids are checked at the door", self.rows);
        let start = row * self.columns;
        let values: &[f32] = match self.numbers.in_memory() {
            Some(values) => &values[start..start + self.columns],
            None => {
                self.numbers.read(start, spare);
                spare
            }
        };
        for (out, x) in out.iter_mut().zip(values) {
            *out += x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn rows_are_the_same_in_memory_and_mapped_in_every_format() {
        let values: Vec<f32> = (0..300).map(|i| i as f32 * 0.25 - 30.0).collect();
        let memory = Table::new(values.clone(), 100);
        for format in [NumberFormat::F32, NumberFormat::F16, NumberFormat::Bf16] {
            let mut bytes = vec![7u8];
            for &x in &values {
                match format {
                    NumberFormat::F32 => bytes.extend(x.to_le_bytes()),
                    NumberFormat::F16 => bytes.extend(f16::from_f32(x).to_le_bytes()),
                    NumberFormat::Bf16 => bytes.extend(bf16::from_f32(x).to_le_bytes()),
                }
            }
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("t"), &bytes).unwrap();
            let file = Arc::new(MappedFile::open(&dir.path().join("t")).unwrap());
            let mapped = Table::mapped(file, 1..bytes.len(), format, 100);
            for row in 0..3 {
                let (mut a, mut b, mut spare) = (vec![1.0; 100], vec![1.0; 100], vec![0.0; 100]);
                memory.add_row(row, &mut a, &mut spare);
                mapped.add_row(row, &mut b, &mut spare);
                assert_eq!(a, b, "{format:?}");
            }
        }
    }
}
