//! Numbers of a model that are read when a device wants them: from memory, from a file, from a generator, or not at all.
//! Never reads more than it is asked for.

use crate::{MappedFile, NumberFormat};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A run of numbers. Clones share them.
#[derive(Clone)]
pub struct Numbers {
    source: Source,
    len: usize,
}

/// Makes the numbers from an index on, as many as there is room for.
pub type Generator = dyn Fn(usize, &mut [f32]) + Send + Sync;

#[derive(Clone)]
enum Source {
    Memory(Arc<[f32]>),
    Mapped { file: Arc<MappedFile>, start: usize, format: NumberFormat },
    Made(Arc<Generator>),
    Unread,
}

impl Numbers {
    /// Numbers in memory.
    pub fn new(values: impl Into<Arc<[f32]>>) -> Self {
        let values = values.into();
        Self { len: values.len(), source: Source::Memory(values) }
    }

    /// Numbers that stay in their file.
    pub fn mapped(file: Arc<MappedFile>, range: Range<usize>, format: NumberFormat) -> Self {
        assert!(range.start <= range.end && range.end <= file.len(), "the numbers lie inside the file");
        assert!(range.len().is_multiple_of(format.size()), "whole numbers");
        Self { len: range.len() / format.size(), source: Source::Mapped { file, start: range.start, format } }
    }

    /// Numbers that are made when they are read; the same each time.
    pub fn made(len: usize, generator: Arc<Generator>) -> Self {
        Self { len, source: Source::Made(generator) }
    }

    /// Numbers that are never read: a device has them already, or only their count matters. Reading them is a bug.
    pub fn unread(len: usize) -> Self {
        Self { len, source: Source::Unread }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads numbers from the index `at` on, as many as there is room for.
    pub fn read(&self, at: usize, out: &mut [f32]) {
        assert!(at + out.len() <= self.len, "no more than there are");
        match &self.source {
            Source::Memory(values) => out.copy_from_slice(&values[at..at + out.len()]),
            Source::Mapped { file, start, format } => {
                let first = start + at * format.size();
                format.widen(&file[first..first + out.len() * format.size()], out);
            }
            Source::Made(generator) => generator(at, out),
            Source::Unread => panic!("numbers that are not there were asked for"),
        }
    }

    /// Some of them, in their order. Nothing is read yet.
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "no more than there are");
        match &self.source {
            Source::Mapped { file, start, format } => {
                let source = Source::Mapped {
                    file: Arc::clone(file),
                    start: start + range.start * format.size(),
                    format: *format,
                };
                Self { source, len: range.len() }
            }
            Source::Unread => Self::unread(range.len()),
            _ => {
                let (all, first) = (self.clone(), range.start);
                Self::made(range.len(), Arc::new(move |at, out| all.read(first + at, out)))
            }
        }
    }

    /// Some columns of these rows. Nothing is read yet.
    pub fn columns_of(&self, row: usize, columns: Range<usize>) -> Self {
        assert!(row > 0 && self.len.is_multiple_of(row) && columns.end <= row, "columns of whole rows");
        let (width, first) = (columns.len(), columns.start);
        let len = self.len / row * width;
        if matches!(self.source, Source::Unread) {
            return Self::unread(len);
        }
        let all = self.clone();
        let read = move |at: usize, out: &mut [f32]| {
            let (mut at, mut out) = (at, out);
            while !out.is_empty() {
                let (row_at, column) = (at / width, at % width);
                let (now, rest) = out.split_at_mut((width - column).min(out.len()));
                all.read(row_at * row + first + column, now);
                at += now.len();
                out = rest;
            }
        };
        Self::made(len, Arc::new(read))
    }

    /// Appends all of them.
    pub fn append_to(&self, to: &mut Vec<f32>) {
        let start = to.len();
        to.resize(start + self.len, 0.0);
        self.read(0, &mut to[start..]);
    }

    /// All of them, if they lie in memory as floats.
    pub(crate) fn in_memory(&self) -> Option<&[f32]> {
        match &self.source {
            Source::Memory(values) => Some(values),
            _ => None,
        }
    }

    /// Where these numbers lie in memory or in a mapped file, from the index `at` on; empty elsewhere.
    pub(crate) fn byte_range(&self, at: usize, count: usize) -> Range<*const u8> {
        match &self.source {
            Source::Memory(values) => {
                let Range { start, end } = values[at..at + count].as_ptr_range();
                start.cast()..end.cast()
            }
            Source::Mapped { file, start, format } => {
                let first = start + at * format.size();
                file[first..first + count * format.size()].as_ptr_range()
            }
            Source::Made(_) | Source::Unread => std::ptr::null()..std::ptr::null(),
        }
    }

    /// The format that they have in their file, if they lie in one.
    pub(crate) fn format(&self) -> Option<NumberFormat> {
        match &self.source {
            Source::Mapped { format, .. } => Some(*format),
            _ => None,
        }
    }

    /// Reads their bytes as they stand in their file, from the byte `at` on.
    pub(crate) fn read_bytes(&self, at: usize, out: &mut [u8]) -> io::Result<()> {
        match &self.source {
            Source::Mapped { file, start, format } => {
                assert!(at + out.len() <= self.len * format.size(), "no more than there are");
                file.read_at(start + at, out)
            }
            _ => Err(io::Error::new(io::ErrorKind::Unsupported, "the numbers lie in no file")),
        }
    }

    /// Gives the memory of the file's pages back to the system, after the numbers went elsewhere.
    pub fn release_pages(&self) {
        if let Source::Mapped { file, start, format } = &self.source {
            file.release_pages(*start..start + self.len * format.size());
        }
    }
}

impl std::fmt::Debug for Numbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let source = match &self.source {
            Source::Memory(_) => "in memory",
            Source::Mapped { .. } => "in a file",
            Source::Made(_) => "made",
            Source::Unread => "not there",
        };
        write!(f, "{} numbers {source}", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_same_from_memory_a_file_and_a_generator() {
        let values: Vec<f32> = (0..1000).map(|i| i as f32 * 0.5 - 100.0).collect();
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = [7, 7, 7].into_iter().chain(values.iter().flat_map(|x| x.to_le_bytes())).collect();
        std::fs::write(dir.path().join("numbers"), &bytes).unwrap();
        let file = Arc::new(MappedFile::open(&dir.path().join("numbers")).unwrap());
        let mapped = Numbers::mapped(file, 3..bytes.len(), NumberFormat::F32);
        let copy = values.clone();
        let made = Numbers::made(1000, Arc::new(move |at, out| out.copy_from_slice(&copy[at..at + out.len()])));
        for numbers in [Numbers::new(values.clone()), mapped.clone(), made] {
            assert_eq!(numbers.len(), 1000);
            let mut some = [0.0; 10];
            numbers.read(985, &mut some);
            assert_eq!(some, values[985..995]);
            let mut all = vec![1.0];
            numbers.append_to(&mut all);
            assert_eq!(all[1..], values);
        }
        let mut raw = [0; 8];
        mapped.read_bytes(16, &mut raw).unwrap();
        assert_eq!(raw, bytes[19..27]);
    }

    #[test]
    fn parts_and_columns_are_the_same_numbers() {
        let values: Vec<f32> = (0..60).map(|i| i as f32).collect();
        let numbers = Numbers::new(values.clone());
        let read = |numbers: &Numbers| {
            let mut all = Vec::new();
            numbers.append_to(&mut all);
            all
        };
        assert_eq!(read(&numbers.part(7..31)), values[7..31]);
        assert_eq!(read(&numbers.part(10..50).part(5..6)), [15.0]);
        let columns = numbers.columns_of(12, 3..8);
        let wanted: Vec<f32> = values.chunks(12).flat_map(|row| &row[3..8]).copied().collect();
        assert_eq!(read(&columns), wanted);
        let mut some = [0.0; 9];
        columns.read(4, &mut some);
        assert_eq!(some, wanted[4..13]);
        assert_eq!(Numbers::unread(60).columns_of(12, 0..3).len(), 15);
    }

    #[test]
    #[should_panic(expected = "not there")]
    fn numbers_that_are_not_there_cannot_be_read() {
        Numbers::unread(3).read(0, &mut [0.0]);
    }
}
