//! Reads documents from files for an index: finds them, takes their text out, splits it by tokens.
//! Writes nothing, follows no links, runs no programs; a file that cannot be read is named with the reason, and the rest is read.
//!
//! [`walk`] lists files, [`FileBytes::read`] reads one and has the digest that tells whether it changed,
//! [`FileBytes::document`] takes the text out, [`split`] cuts it.

mod html;
mod kind;
mod pdf;
mod read;
mod refused;
mod split;
mod walk;

pub use kind::Kind;
pub use read::{Document, FileBytes};
pub use refused::Refused;
pub use split::{Chunk, ChunkSize, split};
pub use walk::{Listed, walk};

/// How much is read at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// Files of one walk.
    pub files: usize,
    /// Bytes of one file, and of the text that comes out of it.
    pub file_bytes: usize,
    /// Folders below each other.
    pub depth: usize,
}

impl Default for FileLimits {
    fn default() -> Self {
        Self { files: 100_000, file_bytes: 32 << 20, depth: 64 }
    }
}
