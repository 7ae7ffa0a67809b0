//! Writes down what memory is taken and given back, so that other allocators can be given the same to do.
//! Never fails the work it watches: a disk that takes no more ends the writing.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Lines `a ID BYTES` for an allocation, `f ID` for its end.
#[derive(Debug)]
pub(super) struct Trace {
    file: Option<BufWriter<File>>,
    next: u64,
}

impl Trace {
    /// Creates the file, replacing an old one.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: Some(BufWriter::with_capacity(1 << 16, File::create(path)?)), next: 0 })
    }

    /// Writes an allocation; returns its id.
    pub(super) fn take(&mut self, bytes: u64) -> u64 {
        self.next += 1;
        let number = self.next;
        self.write(format_args!("a {number} {bytes}\n"));
        number
    }

    pub(super) fn give_back(&mut self, number: u64) {
        self.write(format_args!("f {number}\n"));
    }

    pub(super) fn flush(&mut self) {
        if self.file.as_mut().is_some_and(|file| file.flush().is_err()) {
            self.file = None;
        }
    }

    fn write(&mut self, line: std::fmt::Arguments<'_>) {
        if self.file.as_mut().is_some_and(|file| file.write_fmt(line).is_err()) {
            self.file = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_names_what_comes_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace");
        let mut trace = Trace::create(&path).unwrap();
        let (first, second) = (trace.take(4096), trace.take(10));
        trace.give_back(first);
        trace.give_back(second);
        trace.flush();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a 1 4096\na 2 10\nf 1\nf 2\n");
        assert!(Trace::create(&dir.path().join("none/trace")).is_err());
    }
}
