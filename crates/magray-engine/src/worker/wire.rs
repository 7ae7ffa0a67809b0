//! How a message lies in bytes: a header with length and protocol, then the message in postcard's format.
//! Knows no message; bytes that make no sense are an error, never a panic.

use serde::{Deserialize, Serialize};

/// Counts up with every change of the messages. Both sides are the same program, but its file may be replaced while it
/// runs.
pub(super) const PROTOCOL: u8 = 8;
/// Length of what follows the header, then the protocol.
pub(super) const HEADER_BYTES: usize = 5;
/// No message is longer than this; the longest is the one that names models and folders.
pub(super) const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// The most that a message may carry in one field of bytes.
pub(super) const FIELD_BYTES_MAX: usize = PAYLOAD_BYTES_MAX - 1024;

/// Bytes that make no sense; says what is wrong with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Garbled(pub(super) &'static str);

/// Writes the whole message, header and all, over what the buffer held. The buffer's memory is used again.
pub(super) fn encode(message: &impl Serialize, to: &mut Vec<u8>) {
    to.clear();
    to.resize(HEADER_BYTES, 0);
    *to = postcard::to_extend(message, std::mem::take(to))
        .unwrap_or_else(|error| unreachable!("messages hold texts, bytes and numbers: {error}"));
    let length = u32::try_from(to.len() - HEADER_BYTES).unwrap_or(u32::MAX);
    to[..4].copy_from_slice(&length.to_le_bytes());
    to[4] = PROTOCOL;
}

/// Reads what follows a header.
pub(super) fn decode<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, Garbled> {
    match postcard::take_from_bytes(payload) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(Garbled("a message with more in it than it should have")),
        Err(postcard::Error::DeserializeUnexpectedEnd) => Err(Garbled("a message that is cut short")),
        Err(_) => Err(Garbled("bytes that are no message of this protocol")),
    }
}

/// What a field of a message holds. Fails for a path that is not UTF-8.
pub(super) fn field_of(content: &impl Serialize) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_extend(content, Vec::new())
}
