//! Writes embeddings: as text, as JSON lines or as a NumPy array.
//! Never leaves half a file behind, never panics when the reader has gone.

mod destination;
mod npy;

use std::{
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

use magray_engine::{Reason, engine::Answer};
use serde::Serialize;

pub(crate) use destination::Destination;
pub(crate) use npy::Npy;

#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    /// The other end of the pipe was closed, as `head` does. Nothing is wrong.
    #[error("the reader of the output has gone")]
    ReaderGone,
    #[error("{}: a folder; name a file in it", path.display())]
    IsFolder { path: PathBuf },
    #[error("{}: its folder does not exist; create it first", path.display())]
    NoFolder { path: PathBuf },
    #[error("cannot create {}: {reason}", path.display())]
    Create { path: PathBuf, reason: io::Error },
    #[error("cannot write {name}: {reason}")]
    Write { name: String, reason: io::Error },
}

/// The forms of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    Text,
    Jsonl,
    Npy,
}

impl Format {
    pub(crate) fn of_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "npy" => Some(Self::Npy),
            "jsonl" | "ndjson" | "json" => Some(Self::Jsonl),
            "txt" => Some(Self::Text),
            _ => None,
        }
    }
}

pub(crate) struct Row<'a> {
    pub(crate) index: u64,
    pub(crate) text: &'a str,
    pub(crate) id: Option<&'a serde_json::Value>,
    pub(crate) vector: &'a [f32],
    pub(crate) is_truncated: bool,
    pub(crate) origin: &'a Origin,
}

/// What computed a row; each JSON line says it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Origin {
    device: String,
    precision: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fallback: Option<&'static str>,
}

impl Origin {
    pub(crate) fn of(answer: &Answer) -> Self {
        Self {
            device: answer.device.to_string(),
            precision: answer.precision.to_string(),
            fallback: answer.fallback.as_ref().map(Reason::code),
        }
    }
}

pub(crate) enum Rows {
    Preview(Destination),
    Values(Destination),
    JsonLines(Destination),
    Npy(Npy),
}

impl Rows {
    pub(crate) fn start(format: Format, destination: Destination, dimensions: usize) -> Result<Self, OutputError> {
        Ok(match format {
            Format::Text if destination.is_terminal() => Self::Preview(destination),
            Format::Text => Self::Values(destination),
            Format::Jsonl => Self::JsonLines(destination),
            Format::Npy => Self::Npy(Npy::start(destination, dimensions)?),
        })
    }

    pub(crate) fn write(&mut self, row: &Row<'_>) -> Result<(), OutputError> {
        match self {
            Self::Preview(out) => out.checked(|out| write_preview(out, row)),
            Self::Values(out) => out.checked(|out| write_values(out, row.vector)),
            Self::JsonLines(out) => out.checked(|out| write_json(out, row)),
            Self::Npy(npy) => npy.write_row(row.vector),
        }
    }

    pub(crate) fn are_shown(&self) -> bool {
        match self {
            Self::Preview(_) => true,
            Self::Values(out) | Self::JsonLines(out) => out.is_terminal(),
            Self::Npy(_) => false,
        }
    }

    /// Ends the output: only now does a file appear under its name.
    pub(crate) fn finish(self) -> Result<(), OutputError> {
        match self {
            Self::Preview(out) | Self::Values(out) | Self::JsonLines(out) => out.finish(),
            Self::Npy(npy) => npy.finish(),
        }
    }

    pub(crate) fn flush(&mut self) -> Result<(), OutputError> {
        match self {
            Self::Preview(out) | Self::Values(out) | Self::JsonLines(out) => out.checked(|out| out.flush()),
            Self::Npy(_) => Ok(()),
        }
    }
}

fn write_preview(out: &mut dyn Write, row: &Row<'_>) -> io::Result<()> {
    const VALUES: usize = 5;
    const CHARS: usize = 40;
    let norm = row.vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    write!(out, "{}: {} values, norm {norm:.4}  [", row.index, row.vector.len())?;
    for value in row.vector.iter().take(VALUES) {
        write!(out, "{value:.4}, ")?;
    }
    // Control characters of a text could steer the terminal: they are shown escaped.
    let start: String = row.text.chars().take(CHARS).flat_map(shown).collect();
    let dots = if row.text.chars().nth(CHARS).is_some() { "..." } else { "" };
    writeln!(out, "...]  {start}{dots}")
}

fn shown(character: char) -> impl Iterator<Item = char> {
    let (plain, escaped) = match character.is_control() {
        true => (None, Some(character.escape_default())),
        false => (Some(character), None),
    };
    plain.into_iter().chain(escaped.into_iter().flatten())
}

fn write_values(out: &mut dyn Write, vector: &[f32]) -> io::Result<()> {
    for (at, value) in vector.iter().enumerate() {
        let space = if at == 0 { "" } else { " " };
        write!(out, "{space}{value}")?;
    }
    writeln!(out)
}

fn write_json(out: &mut dyn Write, row: &Row<'_>) -> io::Result<()> {
    #[derive(Serialize)]
    struct Line<'a> {
        index: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a serde_json::Value>,
        embedding: &'a [f32],
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        truncated: bool,
        #[serde(flatten)]
        origin: &'a Origin,
    }
    let line =
        Line { index: row.index, id: row.id, embedding: row.vector, truncated: row.is_truncated, origin: row.origin };
    serde_json::to_writer(&mut *out, &line).map_err(io::Error::from)?;
    writeln!(out)
}

pub(crate) fn print(answer: &str) -> Result<(), OutputError> {
    let mut out = Destination::open(None)?;
    out.checked(|out| out.write_all(answer.as_bytes()))?;
    out.finish()
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

fn write_error(name: &str, reason: io::Error) -> OutputError {
    match reason.kind() {
        ErrorKind::BrokenPipe => OutputError::ReaderGone,
        _ => OutputError::Write { name: name.to_owned(), reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    const VECTOR: &[f32] = &[0.5, -0.25, 1e-7, 3.0, 0.0, 1.0];

    fn origin(fallback: Option<&'static str>) -> Origin {
        Origin { device: "cpu".to_owned(), precision: "f32".to_owned(), fallback }
    }

    fn row<'a>(text: &'a str, id: Option<&'a serde_json::Value>, origin: &'a Origin) -> Row<'a> {
        Row { index: 3, text, id, vector: VECTOR, is_truncated: id.is_some(), origin }
    }

    fn written(write: impl Fn(&mut dyn Write) -> io::Result<()>) -> String {
        let mut bytes = Vec::new();
        write(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_preview_is_one_safe_line() {
        let origin = origin(None);
        let preview = written(|out| write_preview(out, &row("red\u{1b}[31m\ntext", None, &origin)));
        expect![[r#"
            3: 6 values, norm 3.2113  [0.5000, -0.2500, 0.0000, 3.0000, 0.0000, ...]  red\u{1b}[31m\ntext
        "#]]
        .assert_eq(&preview);
        let long = "x".repeat(41);
        assert!(written(|out| write_preview(out, &row(&long, None, &origin))).ends_with("x...\n"));
    }

    #[test]
    fn values_read_back_exactly() {
        let line = written(|out| write_values(out, VECTOR));
        let values: Vec<f32> = line.split_whitespace().map(|value| value.parse().unwrap()).collect();
        assert_eq!(values, VECTOR);
    }

    #[test]
    fn json_names_the_device_and_gives_the_id_back() {
        let id = serde_json::json!("a-1");
        expect![[r#"
            {"index":3,"id":"a-1","embedding":[0.5,-0.25,1e-7,3.0,0.0,1.0],"truncated":true,"device":"cpu","precision":"f32"}
        "#]]
        .assert_eq(&written(|out| write_json(out, &row("x", Some(&id), &origin(None)))));
        expect![[r#"
            {"index":3,"embedding":[0.5,-0.25,1e-7,3.0,0.0,1.0],"device":"cpu","precision":"f32","fallback":"out_of_memory"}
        "#]]
        .assert_eq(&written(|out| write_json(out, &row("x", None, &origin(Some("out_of_memory"))))));
    }

    #[test]
    fn columns_line_up() {
        let cells = |row: [&str; 2]| row.map(str::to_owned).to_vec();
        assert_eq!(aligned(&[cells(["a", "b"]), cells(["longer", ""])]), "a       b\nlonger\n");
    }
}
