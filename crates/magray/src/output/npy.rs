//! A NumPy array file (`.npy`, version 1.0) of float32 rows, written as they come.
//! Holds no rows in memory; the count in the header is filled in at the end.

use std::{
    fs::File,
    io::{self, BufWriter, Seek, Write},
};

use super::{Destination, OutputError, Sink, journal::Record, part::Part, write_error};

/// A multiple of 64, as the format asks for, with room for any count.
pub(super) const HEADER_BYTES: usize = 128;

pub(crate) struct Npy {
    body: Body,
    /// Of the first row; all others have as many.
    dimensions: usize,
    rows: u64,
}

enum Body {
    File(Destination),
    Part(Box<Part>),
    /// A pipe, where one cannot go back to the header: the rows wait on disk.
    Spooled(Destination, BufWriter<File>),
}

impl Npy {
    pub(crate) fn start(sink: Sink) -> Result<Self, OutputError> {
        let body = match sink {
            Sink::Part(part) => {
                let (dimensions, rows) = part.last().map_or((0, 0), |last| (part.dimensions(), last.texts));
                let mut npy = Self { body: Body::Part(part), dimensions, rows };
                npy.write_header()?;
                return Ok(npy);
            }
            Sink::Once(mut destination) => match destination.seekable() {
                Some(_) => Body::File(destination),
                None => {
                    let spool = tempfile::tempfile().map_err(|reason| write_error("a temporary file", reason))?;
                    Body::Spooled(destination, BufWriter::new(spool))
                }
            },
        };
        let mut npy = Self { body, dimensions: 0, rows: 0 };
        npy.write_header()?;
        Ok(npy)
    }

    pub(crate) fn write_row(&mut self, row: &[f32]) -> Result<(), OutputError> {
        if self.rows == 0 {
            self.dimensions = row.len();
        }
        assert_eq!(row.len(), self.dimensions, "rows of one array have one length");
        self.rows += 1;
        let write = |body: &mut dyn Write| row.iter().try_for_each(|value| body.write_all(&value.to_le_bytes()));
        match &mut self.body {
            Body::File(destination) => destination.checked(write),
            Body::Part(part) => part.checked(write),
            Body::Spooled(_, spool) => write(spool).map_err(|reason| write_error("a temporary file", reason)),
        }
    }

    pub(super) fn commit(&mut self, at: Record) -> Result<(), OutputError> {
        match &mut self.body {
            Body::Part(part) => part.commit(Record { dimensions: self.dimensions, ..at }),
            Body::File(_) | Body::Spooled(..) => Ok(()),
        }
    }

    pub(crate) fn finish(mut self) -> Result<(), OutputError> {
        self.write_header()?;
        match self.body {
            Body::File(destination) => destination.finish(),
            Body::Part(part) => part.finish(),
            Body::Spooled(mut destination, spool) => {
                let spool = spool.into_inner().map_err(|error| write_error("a temporary file", error.into_error()));
                let mut spool = spool?;
                spool.rewind().map_err(|reason| write_error("a temporary file", reason))?;
                destination.checked(|out| io::copy(&mut spool, out).map(drop))?;
                destination.finish()
            }
        }
    }

    /// Writes the header for the rows that there are, before them.
    fn write_header(&mut self) -> Result<(), OutputError> {
        let header = header(self.rows, self.dimensions);
        let write = |body: &mut BufWriter<File>| {
            body.rewind()?;
            body.write_all(&header)
        };
        match &mut self.body {
            Body::Part(part) => part.write_prefix(&header),
            Body::Spooled(_, spool) => write(spool).map_err(|reason| write_error("a temporary file", reason)),
            Body::File(destination) => {
                let name = destination.name().to_owned();
                match destination.seekable() {
                    Some(body) => write(body).map_err(|reason| write_error(&name, reason)),
                    None => unreachable!("without a spool the destination is a file"),
                }
            }
        }
    }
}

fn header(rows: u64, dimensions: usize) -> [u8; HEADER_BYTES] {
    let dict = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {dimensions}), }}");
    let mut header = [b' '; HEADER_BYTES];
    header[..8].copy_from_slice(b"\x93NUMPY\x01\x00");
    header[8..10].copy_from_slice(&(HEADER_BYTES as u16 - 10).to_le_bytes());
    header[10..10 + dict.len()].copy_from_slice(dict.as_bytes());
    header[HEADER_BYTES - 1] = b'\n';
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_has_its_count_and_its_values() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.npy");
        let mut npy = Npy::start(Sink::Once(Destination::open(Some(&path)).unwrap())).unwrap();
        for row in [[1.0, 2.0], [3.0, 4.0], [5.0, 6.5]] {
            npy.write_row(&row).unwrap();
        }
        npy.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(&bytes[..10], b"\x93NUMPY\x01\x00\x76\x00");
        let head = std::str::from_utf8(&bytes[10..HEADER_BYTES]).unwrap();
        assert!(head.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }"), "{head}");
        assert!(head.ends_with(" \n"));
        let values: Vec<f32> =
            bytes[HEADER_BYTES..].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert_eq!(values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.5]);
    }

    #[test]
    fn the_largest_count_fits_in_the_header() {
        assert!(header(u64::MAX, usize::MAX).ends_with(b"\n"));
    }
}
