//! Reads bytes one part after the other.
//! Never reads beyond the end, whatever length a file claims.

use std::ops::Range;

/// A position in the bytes of a file.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

/// The bytes ended before the part did.
#[derive(Debug)]
pub(super) struct Ended;

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Bytes in all.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    pub(super) fn at(&self, range: Range<usize>) -> &'a [u8] {
        &self.bytes[range]
    }

    pub(super) fn skip(&mut self, count: usize) -> Result<Range<usize>, Ended> {
        let end = self.position.checked_add(count).filter(|end| *end <= self.bytes.len()).ok_or(Ended)?;
        let range = self.position..end;
        self.position = end;
        Ok(range)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Ended> {
        let range = self.skip(N)?;
        self.bytes[range].try_into().map_err(|_| Ended)
    }

    /// Bytes whose length stands before them.
    pub(super) fn text(&mut self) -> Result<Range<usize>, Ended> {
        let length = u64::from_le_bytes(self.array()?);
        self.skip(usize::try_from(length).map_err(|_| Ended)?)
    }
}
