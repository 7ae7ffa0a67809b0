//! Answers on stdout; notes, warnings and errors on stderr.
//! Ends nothing: a reader that has gone is told to the caller.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
};

use crate::failure::Failure;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Console {
    is_quiet: bool,
}

impl Console {
    pub(crate) fn new(is_quiet: bool) -> Self {
        Self { is_quiet }
    }

    /// Left out with `--quiet`.
    pub(crate) fn note(self, message: impl Display) {
        if !self.is_quiet {
            write_line("", message);
        }
    }

    /// Shown also with `--quiet`.
    pub(crate) fn warn(self, message: impl Display) {
        write_line("warning: ", message);
    }

    pub(crate) fn fail(self, message: impl Display) {
        write_line("error: ", message);
    }
}

fn write_line(prefix: &str, message: impl Display) {
    // With stderr closed there is nothing to tell, and no reason to stop.
    let _ = writeln!(io::stderr(), "{prefix}{message}");
}

pub(crate) fn print(answer: &str) -> Result<(), Failure> {
    io::stdout().write_all(answer.as_bytes()).map_err(|reason| match reason.kind() {
        ErrorKind::BrokenPipe => Failure::ReaderGone,
        _ => Failure::File { path: "stdout".into(), reason },
    })
}

pub(crate) fn print_json(report: &impl serde::Serialize) -> Result<(), Failure> {
    let line = serde_json::to_string(report).unwrap_or_else(|error| unreachable!("plain numbers: {error}"));
    print(&(line + "\n"))
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
