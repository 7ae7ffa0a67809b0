//! Writes embeddings: as text, as JSON lines, as a NumPy array or as a Parquet file.
//! Nothing that is not whole takes a file's name; a reader that has gone is no panic.

mod destination;
mod journal;
mod npy;
mod number;
mod parquet;
mod part;
mod row;
mod rows;
mod sink;
mod table;
mod thrift;

use std::{
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use magray_engine::engine::Answer;

pub(crate) use destination::Destination;
pub(crate) use journal::{Recipe, Record, hex};
pub(crate) use npy::Npy;
pub(crate) use row::{Layout, Place, Row};
pub(crate) use rows::Rows;
pub(crate) use sink::Sink;
pub(crate) use table::{Column, Kind, MAGIC, Node, Table};

#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    /// The other end of the pipe was closed, as `head` does. Nothing is wrong.
    #[error("the reader of the output has gone")]
    ReaderGone,
    #[error(
        "{}: the ending '.{ending}' chooses no format; use .jsonl, .npy, .parquet or .txt, or say it with --format",
        path.display()
    )]
    UnknownEnding { path: PathBuf, ending: String },
    #[error("{}: a folder; name a file in it", path.display())]
    IsFolder { path: PathBuf },
    #[error("{}: its folder does not exist; create it first", path.display())]
    NoFolder { path: PathBuf },
    #[error("cannot create {}: {reason}", path.display())]
    Create { path: PathBuf, reason: io::Error },
    #[error("{}: another magray is writing it", path.display())]
    Busy { path: PathBuf },
    #[error(
        "{} was begun with {what} = {was}, and now it is {now}: give the same as before, or leave --resume out to start anew",
        part.display()
    )]
    OtherRecipe { part: PathBuf, what: String, was: String, now: String },
    #[error("cannot write {name}: {reason}")]
    Write { name: String, reason: io::Error },
}

/// The forms of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    Text,
    Jsonl,
    Npy,
    Parquet,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Text => "the format text",
            Self::Jsonl => "the format jsonl",
            Self::Npy => "an .npy array",
            Self::Parquet => "a Parquet file",
        })
    }
}

impl Format {
    pub(crate) fn is_binary(self) -> bool {
        matches!(self, Self::Npy | Self::Parquet)
    }

    pub(crate) fn holds_texts(self) -> bool {
        matches!(self, Self::Jsonl | Self::Parquet)
    }

    /// Bytes at the start of a file that are written again at its end.
    pub(crate) fn prefix_bytes(self) -> u64 {
        match self {
            Self::Text | Self::Jsonl => 0,
            Self::Npy => npy::HEADER_BYTES as u64,
            Self::Parquet => table::MAGIC.len() as u64,
        }
    }

    /// The format that the ending of a file's name chooses; `None` for a name without one. Endings of nothing known are refused.
    pub(crate) fn of_path(path: &Path) -> Result<Option<Self>, OutputError> {
        let Some(ending) = path.extension() else { return Ok(None) };
        match ending.to_ascii_lowercase().to_str() {
            Some("npy") => Ok(Some(Self::Npy)),
            Some("parquet") => Ok(Some(Self::Parquet)),
            Some("jsonl" | "ndjson" | "json") => Ok(Some(Self::Jsonl)),
            Some("txt") => Ok(Some(Self::Text)),
            _ => {
                Err(OutputError::UnknownEnding { path: path.to_owned(), ending: ending.to_string_lossy().into_owned() })
            }
        }
    }
}

/// What computed a row; each JSON line says it.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) device: String,
    /// `None`: a server does not say it.
    pub(crate) precision: Option<String>,
    /// Why the CPU computed it in place of a GPU.
    pub(crate) fallback: Option<String>,
}

impl Origin {
    pub(crate) fn of(answer: &Answer) -> Self {
        Self {
            device: answer.device.to_string(),
            precision: Some(answer.precision.to_string()),
            fallback: answer.fallback.as_ref().map(|reason| reason.code().to_owned()),
        }
    }
}

pub(crate) fn print(answer: &str) -> Result<(), OutputError> {
    let mut out = Destination::open(None)?;
    out.checked(|out| out.write_all(answer.as_bytes()))?;
    out.finish()
}

/// A text with its control characters escaped: they could steer a terminal.
pub(crate) fn safe(text: &str) -> String {
    let shown = |character: char| match character.is_control() {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    text.chars().map(shown).collect()
}

/// Lines up columns, all but the last padded to the widest cell.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width_of = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width_of(column).unwrap_or(0)).collect();
    let mut table = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        table.push_str(cells.join("  ").trim_end());
        table.push('\n');
    }
    table
}

fn create_error(path: &Path, reason: io::Error) -> OutputError {
    match reason.kind() {
        ErrorKind::NotFound => OutputError::NoFolder { path: path.to_owned() },
        _ => OutputError::Create { path: path.to_owned(), reason },
    }
}

fn write_error(name: &str, reason: io::Error) -> OutputError {
    match reason.kind() {
        ErrorKind::BrokenPipe => OutputError::ReaderGone,
        _ => OutputError::Write { name: name.to_owned(), reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let cells = |row: [&str; 2]| row.map(str::to_owned).to_vec();
        assert_eq!(aligned(&[cells(["a", "b"]), cells(["longer", ""])]), "a       b\nlonger\n");
    }
}
