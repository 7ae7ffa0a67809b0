//! A NumPy array file (`.npy`, version 1.0) of float32 rows, written as they come.
//! Holds no rows in memory; the count in the header is filled in at the end.

use std::{
    fs::File,
    io::{self, BufWriter, Seek, Write},
};

use super::{Destination, OutputError, write_error};

/// A multiple of 64, as the format asks for, with room for any count.
const HEADER_BYTES: usize = 128;

pub(crate) struct Npy {
    destination: Destination,
    /// For a pipe, where one cannot go back to the header: the rows wait here, on disk.
    spool: Option<BufWriter<File>>,
    /// Of the first row; all others have as many.
    dimensions: usize,
    rows: u64,
}

impl Npy {
    pub(crate) fn start(mut destination: Destination) -> Result<Self, OutputError> {
        let spool = match destination.seekable() {
            Some(_) => None,
            None => {
                Some(BufWriter::new(tempfile::tempfile().map_err(|reason| write_error("a temporary file", reason))?))
            }
        };
        let mut npy = Self { destination, spool, dimensions: 0, rows: 0 };
        npy.checked(|body| body.write_all(&header(0, 0)))?;
        Ok(npy)
    }

    pub(crate) fn write_row(&mut self, row: &[f32]) -> Result<(), OutputError> {
        if self.rows == 0 {
            self.dimensions = row.len();
        }
        assert_eq!(row.len(), self.dimensions, "rows of one array have one length");
        self.rows += 1;
        self.checked(|body| row.iter().try_for_each(|value| body.write_all(&value.to_le_bytes())))
    }

    pub(crate) fn finish(mut self) -> Result<(), OutputError> {
        let header = header(self.rows, self.dimensions);
        self.checked(|body| {
            body.rewind()?;
            body.write_all(&header)?;
            body.rewind()
        })?;
        if let Some(spool) = self.spool.take() {
            let mut spool = spool.into_inner().map_err(|error| write_error("a temporary file", error.into_error()))?;
            self.destination.checked(|out| io::copy(&mut spool, out).map(drop))?;
        }
        self.destination.finish()
    }

    fn checked(&mut self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), OutputError> {
        let name = self.destination.name().to_owned();
        match self.spool.as_mut() {
            Some(spool) => write(spool).map_err(|reason| write_error("a temporary file", reason)),
            None => match self.destination.seekable() {
                Some(body) => write(body).map_err(|reason| write_error(&name, reason)),
                None => unreachable!("without a spool the destination is a file"),
            },
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
        let mut npy = Npy::start(Destination::open(Some(&path)).unwrap()).unwrap();
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
