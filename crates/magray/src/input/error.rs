//! Why an input or a line of it gives no text.
//! Prints nothing.

use std::{
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("{input} holds {}", match skipped { 0 => "no text".to_owned(), lines => format!("no text but {lines} bad lines") })]
    NoTexts { input: String, skipped: u64 },
    #[error("cannot read the profile '{}': {reason}", path.display())]
    Profile { path: PathBuf, reason: String },
    #[error("{}: no such file", path.display())]
    NotFound { path: PathBuf },
    #[error("{}: a folder, not a file of texts", path.display())]
    IsFolder { path: PathBuf },
    #[error("{}: no permission to read it", path.display())]
    Forbidden { path: PathBuf },
    #[error("cannot read {input}: {reason}")]
    Unreadable { input: InputName, reason: io::Error },
    #[error(
        "{input}, line {line}: not valid UTF-8 at byte {byte} of the line (byte {offset} of the input, counted from 0)"
    )]
    NotUtf8 { input: InputName, line: u64, byte: usize, offset: u64 },
    #[error("text {index} of the command line is not valid UTF-8 at byte {byte} (counted from 0)")]
    ArgumentNotUtf8 { index: usize, byte: usize },
    #[error("{input}, {} {line}: longer than {limit} bytes; split it, or raise --max-text-bytes", input.unit())]
    TooLong { input: InputName, line: u64, limit: usize },
    #[error("{input} is not what it was: its first {texts} texts are others now; leave --resume out to start anew")]
    Changed { input: String, texts: u64 },
    #[error("{input}, line {line}: not JSON: {message}")]
    NotJson { input: InputName, line: u64, message: String },
    #[error("{}, line {line}: {reason}", path.display())]
    NoPoint { path: PathBuf, line: u64, reason: String },
    #[error("{}, row {row}: {reason}", path.display())]
    NoRow { path: PathBuf, row: u64, reason: String },
    #[error("{}: no Parquet file that can be read: {reason}", path.display())]
    NoParquet { path: PathBuf, reason: String },
    #[error("{input}, line {line}: {found}; a line is a JSON string, or an object with the string \"{field}\"")]
    NoText { input: InputName, line: u64, found: String, field: String },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum InputName {
    Arguments,
    Stdin,
    File(PathBuf),
}

impl InputName {
    fn unit(&self) -> &'static str {
        match self {
            Self::Arguments => "text",
            Self::Stdin | Self::File(_) => "line",
        }
    }
}

impl std::fmt::Display for InputName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Arguments => f.write_str("the command line"),
            Self::Stdin => f.write_str("standard input"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl InputError {
    /// Whether the lines after it can still be read.
    pub(super) fn is_of_one_line(&self) -> bool {
        matches!(
            self,
            Self::NotUtf8 { .. }
                | Self::ArgumentNotUtf8 { .. }
                | Self::TooLong { .. }
                | Self::NotJson { .. }
                | Self::NoText { .. }
        )
    }

    pub(crate) fn of_opening(path: &Path, reason: io::Error) -> Self {
        let path = path.to_owned();
        match reason.kind() {
            ErrorKind::NotFound => Self::NotFound { path },
            ErrorKind::PermissionDenied => Self::Forbidden { path },
            ErrorKind::IsADirectory => Self::IsFolder { path },
            _ => Self::Unreadable { input: InputName::File(path), reason },
        }
    }
}
