//! How numbers, texts and whole messages lie in bytes.
//! Knows no message; bytes that make no sense are an error, never a panic.

use std::time::Duration;

/// Counts up with every change of the messages. Both sides are the same program, but its file may be replaced while it
/// runs.
pub(super) const PROTOCOL: u8 = 4;
/// Length of what follows the header, protocol, kind.
pub(super) const HEADER_BYTES: usize = 6;
/// No message is longer than this; the longest is the one that names models and folders.
pub(super) const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Texts for people are cut to this.
pub(super) const TEXT_BYTES_MAX: usize = 2048;

/// Bytes that make no sense; says what is wrong with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Garbled(pub(super) &'static str);

/// Puts a header before what `fill` writes; `fill` returns the kind.
pub(super) fn frame(to: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>) -> u8) {
    to.clear();
    to.resize(HEADER_BYTES, 0);
    let kind = fill(to);
    let length = u32::try_from(to.len() - HEADER_BYTES).unwrap_or(u32::MAX);
    to[..4].copy_from_slice(&length.to_le_bytes());
    to[4..HEADER_BYTES].copy_from_slice(&[PROTOCOL, kind]);
}

pub(super) fn put_u32(to: &mut Vec<u8>, number: u32) {
    to.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn put_u64(to: &mut Vec<u8>, number: u64) {
    to.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn put_time(to: &mut Vec<u8>, time: Duration) {
    put_u64(to, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

/// Puts one of a few known things, as its place among them.
pub(super) fn put_known<T: PartialEq>(to: &mut Vec<u8>, known: &[T], thing: &T) {
    let at = known.iter().position(|known| known == thing);
    to.push(at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX));
}

pub(super) fn put_text(to: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    put_u32(to, text.len() as u32);
    to.extend_from_slice(text.as_bytes());
}

/// What is left of a message.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Garbled> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Garbled("a message that is cut short"))?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Garbled> {
        self.bytes().map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Garbled> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Garbled> {
        self.bytes().map(u64::from_le_bytes)
    }

    pub(super) fn time(&mut self) -> Result<Duration, Garbled> {
        self.u64().map(Duration::from_nanos)
    }

    /// One of a few known things.
    pub(super) fn known<T: Copy>(&mut self, known: &[T]) -> Result<T, Garbled> {
        known.get(self.u8()? as usize).copied().ok_or(Garbled("something that is none of what it may be"))
    }

    pub(super) fn flag(&mut self) -> Result<bool, Garbled> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Garbled("a yes or no that is neither")),
        }
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Garbled> {
        let length = self.u32()? as usize;
        let (text, rest) = self.0.split_at_checked(length).ok_or(Garbled("a text that is cut short"))?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| Garbled("a text that is not UTF-8"))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(super) fn end(self) -> Result<(), Garbled> {
        if self.0.is_empty() { Ok(()) } else { Err(Garbled("a message with more in it than it should have")) }
    }
}
