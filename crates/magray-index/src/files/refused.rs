//! Why a file is not indexed.
//! Names no file: the caller knows which.

use std::io;

/// Why a file is not indexed.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// No permission, or gone, or no regular file.
    #[error("cannot be read: {0}")]
    Unreadable(io::ErrorKind),
    /// Larger than the limit.
    #[error("has more than {most} bytes of data or text; split it, or raise the limit")]
    TooLarge {
        /// What it has, as far as it was read.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// Not a kind of document that is known.
    #[error("is binary data, not text, Markdown, HTML, PDF or code")]
    Binary,
    /// Something about a PDF.
    #[error("is a PDF that gives no text: {0}")]
    Pdf(String),
    /// Nothing but white space.
    #[error("has no text")]
    Empty,
    /// A link, a device, a socket.
    #[error("is not a regular file; links are not followed")]
    NotAFile,
    /// Folders that are too deep.
    #[error("lies more than {0} folders deep")]
    TooDeep(usize),
}
