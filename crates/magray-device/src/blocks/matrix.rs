//! Rows of weights in one format, in memory or in a mapped file.
//! Converts no more than the rows asked for, and never copies what is mapped.

use super::dequantise;
use crate::MappedFile;
use magray_core::BlockFormat;
use std::borrow::Cow;
use std::{fmt, io, ops::Range, sync::Arc};

/// A matrix of weights, a row after the other. Clones share the bytes.
#[derive(Clone)]
pub struct BlockMatrix {
    source: Source,
    /// Its bytes in the source.
    range: Range<usize>,
    format: BlockFormat,
    rows: usize,
    columns: usize,
    row_bytes: usize,
    /// Bytes from one row to the next: more than those of a row where the matrix is some columns of another.
    stride: usize,
}

#[derive(Clone)]
enum Source {
    Memory(Arc<[u8]>),
    Mapped(Arc<MappedFile>),
    /// Columns of another matrix from this one on, as 32-bit floats: they do not lie between blocks of it.
    Unpacked(Arc<BlockMatrix>, usize),
}

impl BlockMatrix {
    /// A matrix in memory.
    pub fn new(bytes: impl Into<Arc<[u8]>>, format: BlockFormat, columns: usize) -> Self {
        let bytes = bytes.into();
        let range = 0..bytes.len();
        Self::of(Source::Memory(bytes), range, format, columns)
    }

    /// A matrix of these floats.
    pub fn of_floats(values: &[f32], columns: usize) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self::new(bytes, BlockFormat::F32, columns)
    }

    /// A matrix that stays in its file.
    pub fn mapped(file: Arc<MappedFile>, range: Range<usize>, format: BlockFormat, columns: usize) -> Self {
        assert!(range.start <= range.end && range.end <= file.len(), "the matrix lies inside the file");
        Self::of(Source::Mapped(file), range, format, columns)
    }

    fn of(source: Source, range: Range<usize>, format: BlockFormat, columns: usize) -> Self {
        let row_bytes = format.bytes_of(columns).filter(|bytes| *bytes > 0);
        let row_bytes = row_bytes.unwrap_or_else(|| panic!("{columns} columns are no whole blocks of {format}"));
        assert!(range.len().is_multiple_of(row_bytes), "whole rows");
        Self { rows: range.len() / row_bytes, source, range, format, columns, row_bytes, stride: row_bytes }
    }

    /// Some of its rows.
    pub fn rows_of(&self, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows of the matrix");
        if let Source::Unpacked(of, first) = &self.source {
            let source = Source::Unpacked(Arc::new(of.rows_of(rows.clone())), *first);
            return Self { source, rows: rows.len(), ..self.clone() };
        }
        let start = self.range.start + rows.start * self.stride;
        let last = rows.len().saturating_sub(1) * self.stride;
        let end = if rows.is_empty() { start } else { start + last + self.row_bytes };
        Self { range: start..end, rows: rows.len(), ..self.clone() }
    }

    /// Some of its columns: they stay as they are if they are whole blocks, and are read as 32-bit floats if not.
    pub fn columns_of(&self, columns: Range<usize>) -> Self {
        assert!(columns.start < columns.end && columns.end <= self.columns, "columns of the matrix");
        let of = |columns| self.format.bytes_of(columns);
        match (&self.source, of(columns.start), of(columns.len())) {
            (Source::Unpacked(of, first), ..) => Self::unpacked(Arc::clone(of), first + columns.start, columns.len()),
            (_, Some(from), Some(row_bytes)) => {
                let start = self.range.start + from;
                let last = self.rows.saturating_sub(1) * self.stride;
                let end = if self.rows == 0 { start } else { start + last + row_bytes };
                Self { range: start..end, columns: columns.len(), row_bytes, ..self.clone() }
            }
            _ => Self::unpacked(Arc::new(self.clone()), columns.start, columns.len()),
        }
    }

    fn unpacked(of: Arc<Self>, first: usize, columns: usize) -> Self {
        let (rows, row_bytes) = (of.rows, columns * size_of::<f32>());
        let source = Source::Unpacked(of, first);
        Self { source, range: 0..0, format: BlockFormat::F32, rows, columns, row_bytes, stride: row_bytes }
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers of a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// How its numbers are stored.
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// Bytes of all rows.
    pub fn byte_len(&self) -> usize {
        self.rows * self.row_bytes
    }

    /// From its first byte to its last, with those between its rows.
    fn span(&self) -> &[u8] {
        match &self.source {
            Source::Memory(bytes) => &bytes[self.range.clone()],
            Source::Mapped(file) => &file[self.range.clone()],
            Source::Unpacked(..) => &[],
        }
    }

    /// The bytes of a row.
    pub fn row(&self, row: usize) -> Cow<'_, [u8]> {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        if matches!(self.source, Source::Unpacked(..)) {
            let mut floats = vec![0.0; self.columns];
            self.read_row(row, &mut floats);
            return floats.iter().flat_map(|value| value.to_le_bytes()).collect();
        }
        Cow::Borrowed(&self.span()[row * self.stride..][..self.row_bytes])
    }

    /// Copies the bytes of some rows out, as many as there is room for. Faster than through the map where many are wanted once.
    pub(crate) fn copy_rows(&self, row: usize, out: &mut [u8]) -> io::Result<()> {
        assert!(row * self.row_bytes + out.len() <= self.byte_len(), "rows of the matrix");
        // Those of some columns of another matrix do not lie end to end.
        let lies_together = self.stride == self.row_bytes && !matches!(self.source, Source::Unpacked(..));
        let at_once = if lies_together { out.len() } else { self.row_bytes };
        for (at, out) in out.chunks_mut(at_once.max(1)).enumerate() {
            let start = (row + at) * self.stride;
            match &self.source {
                Source::Memory(_) => out.copy_from_slice(&self.span()[start..start + out.len()]),
                Source::Mapped(file) => file.read_at(self.range.start + start, out)?,
                Source::Unpacked(..) => out.copy_from_slice(&self.row(row + at)[..out.len()]),
            }
        }
        Ok(())
    }

    /// Gives the memory of mapped bytes back to the system; touched again, they are read from the file again.
    pub fn release_pages(&self) {
        match &self.source {
            Source::Memory(_) => {}
            Source::Mapped(file) => file.release_pages(self.range.clone()),
            Source::Unpacked(of, _) => of.release_pages(),
        }
    }

    /// Writes a row's numbers to `out`, which has room for them.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        match &self.source {
            Source::Unpacked(of, first) => {
                let mut whole = vec![0.0; of.columns];
                of.read_row(row, &mut whole);
                out[..self.columns].copy_from_slice(&whole[*first..][..self.columns]);
            }
            _ => dequantise(self.format, &self.row(row), out),
        }
    }
}

impl fmt::Debug for BlockMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} {}", self.rows, self.columns, self.format)
    }
}
