//! Reads lines of bytes with a limit, counting lines and bytes.
//! Never takes more of a line into memory than its limit.

use std::io::{self, BufRead, ErrorKind};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

pub(super) struct Lines<R> {
    reader: R,
    line_bytes_max: usize,
    buffer: Vec<u8>,
    number: u64,
    offset: u64,
    /// The rest of a line that was too long comes before the next.
    is_within_line: bool,
}

pub(super) struct Line<'a> {
    pub(super) bytes: &'a [u8],
    /// Counted from 1.
    pub(super) number: u64,
    /// Where it starts in the input.
    pub(super) offset: u64,
}

pub(super) enum Fault {
    TooLong { line: u64 },
    Io(io::Error),
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(reader: R, line_bytes_max: usize) -> Self {
        Self { reader, line_bytes_max, buffer: Vec::new(), number: 0, offset: 0, is_within_line: false }
    }

    pub(super) fn line_bytes_max(&self) -> usize {
        self.line_bytes_max
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next line; the last one may lack its end.
    pub(super) fn next_line(&mut self) -> Result<Option<Line<'_>>, Fault> {
        if self.is_within_line {
            self.pass_over_rest()?;
        }
        self.buffer.clear();
        self.number += 1;
        let mut start = self.offset;
        let has_end = self.fill_line()?;
        if !has_end && self.buffer.is_empty() {
            return Ok(None);
        }
        let mut bytes = self.buffer.as_slice();
        if has_end {
            bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        }
        if start == 0 && bytes.starts_with(BYTE_ORDER_MARK) {
            bytes = &bytes[BYTE_ORDER_MARK.len()..];
            start = BYTE_ORDER_MARK.len() as u64;
        }
        if bytes.len() > self.line_bytes_max {
            return Err(Fault::TooLong { line: self.number });
        }
        Ok(Some(Line { bytes, number: self.number, offset: start }))
    }

    /// Takes bytes up to the end of the line; says whether there was one.
    fn fill_line(&mut self) -> Result<bool, Fault> {
        loop {
            let Some((taken, end)) = next_piece(&mut self.reader)? else { return Ok(false) };
            // The byte order mark and `\r` may come on top of a line of the full length.
            if self.buffer.len() + taken.len() > self.line_bytes_max.saturating_add(BYTE_ORDER_MARK.len() + 1) {
                self.is_within_line = true;
                return Err(Fault::TooLong { line: self.number });
            }
            self.buffer.extend_from_slice(taken);
            let used = taken.len() + usize::from(end);
            self.reader.consume(used);
            self.offset += used as u64;
            if end {
                return Ok(true);
            }
        }
    }

    fn pass_over_rest(&mut self) -> Result<(), Fault> {
        while let Some((taken, end)) = next_piece(&mut self.reader)? {
            let used = taken.len() + usize::from(end);
            self.reader.consume(used);
            self.offset += used as u64;
            if end {
                break;
            }
        }
        self.is_within_line = false;
        Ok(())
    }
}

/// What is buffered of the line, and whether its end follows; `None` at the end of the input.
fn next_piece(reader: &mut impl BufRead) -> Result<Option<(&[u8], bool)>, Fault> {
    // Filled before the bytes are borrowed: a borrow cannot be returned from a loop.
    while let Err(error) = reader.fill_buf() {
        if error.kind() != ErrorKind::Interrupted {
            return Err(Fault::Io(error));
        }
    }
    let available = reader.fill_buf().map_err(Fault::Io)?;
    if available.is_empty() {
        return Ok(None);
    }
    let end = available.iter().position(|byte| *byte == b'\n');
    Ok(Some((&available[..end.unwrap_or(available.len())], end.is_some())))
}
