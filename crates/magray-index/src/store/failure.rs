//! Turns failures of SQLite into decisions of the caller.
//! Keeps statements and paths out of the words that clients read.

use crate::Error;
use rusqlite::ErrorCode;

/// What a failure of a collection's file means.
pub(crate) fn failure(collection: &str, error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        _ if is_damage(&error) => {
            Error::Corrupt { collection: collection.to_owned(), what: "pages of its file are not readable".to_owned() }
        }
        Some(ErrorCode::DiskFull) => Error::Full,
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => Error::ReadOnly,
        Some(ErrorCode::NotADatabase) => {
            Error::Corrupt { collection: collection.to_owned(), what: "pages of its file are not readable".to_owned() }
        }
        Some(ErrorCode::TooBig) => Error::bad("a value is larger than the store can hold: send smaller payloads"),
        _ => Error::Store(format!("{error} (collection '{collection}')")),
    }
}

/// What a failure of the file system means.
pub(crate) fn io_failure(doing: &str, error: &std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded | std::io::ErrorKind::FileTooLarge => {
            Error::Full
        }
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => Error::ReadOnly,
        _ => Error::Store(format!("{doing}: {error}")),
    }
}

/// Whether pages of the file are damaged, so that other rows may still be readable.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    // A value of another type than was written is one of another row, or of none; a statement that is wrong does not fit the
    // tables that were made.
    let does_not_fit = matches!(
        error,
        rusqlite::Error::SqlInputError { .. }
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
    );
    does_not_fit || matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt))
}
