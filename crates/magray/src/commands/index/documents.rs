//! Documents of JSON lines as points: an id, a text to embed, and all fields as the payload.
//! Holds one portion at a time.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64},
};

use indicatif::ProgressBar;
use serde_json::{Map, Value};

use crate::{console::Console, exit::Failure, input::InputError, qdrant::texts};

/// Documents that are embedded and stored together.
const PORTION: usize = 256;
const PORTION_BYTES: usize = 1 << 20;
const LINE_BYTES_MAX: usize = 16 << 20;

pub(super) struct Documents {
    text_field: String,
    /// The last is read first.
    files: Vec<PathBuf>,
    open: Option<Lines>,
    bytes_total: u64,
    bytes_read: u64,
}

struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    line: u64,
}

impl Documents {
    pub(super) fn open(files: &[PathBuf], text_field: &str) -> Result<Self, Failure> {
        let mut bytes_total = 0;
        for path in files {
            // All of them are tried before anything is stored.
            let file = File::open(path).map_err(|reason| InputError::of_opening(path, reason))?;
            bytes_total += file.metadata().map_or(0, |metadata| metadata.len());
        }
        let files = files.iter().rev().cloned().collect();
        Ok(Self { text_field: text_field.to_owned(), files, open: None, bytes_total, bytes_read: 0 })
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    pub(super) fn bar(&self, console: &Console) -> (ProgressBar, Arc<AtomicU64>) {
        let done = Arc::new(AtomicU64::new(0));
        (console.texts_bar(Some(self.bytes_total), 0, Arc::clone(&done)), done)
    }

    /// The next points, whose vectors are texts for a model; `None` at the end.
    pub(super) fn next_points(&mut self, model: &str) -> Result<Option<Vec<Value>>, Failure> {
        let (mut points, before) = (Vec::new(), self.bytes_read);
        while points.len() < PORTION && self.bytes_read - before < PORTION_BYTES as u64 {
            let Some((path, number, line)) = self.next_line()? else { break };
            let wrong =
                |reason: String| Failure::Input(InputError::NoPoint { path: path.clone(), line: number, reason });
            points.push(point(&line, &self.text_field, model).map_err(wrong)?);
        }
        Ok((!points.is_empty()).then_some(points))
    }

    /// The next line that is not blank, with its file and number.
    fn next_line(&mut self) -> Result<Option<(PathBuf, u64, String)>, Failure> {
        loop {
            let Some(lines) = &mut self.open else {
                let Some(path) = self.files.pop() else { return Ok(None) };
                self.open = Some(Lines::open(path)?);
                continue;
            };
            match lines.next()? {
                None => self.open = None,
                Some(line) => {
                    self.bytes_read += line.len() as u64;
                    if !line.trim().is_empty() {
                        return Ok(Some((lines.path.clone(), lines.line, line)));
                    }
                }
            }
        }
    }
}

impl Lines {
    fn open(path: PathBuf) -> Result<Self, Failure> {
        let file = File::open(&path).map_err(|reason| InputError::of_opening(&path, reason))?;
        Ok(Self { path, reader: BufReader::new(file), line: 0 })
    }

    fn next(&mut self) -> Result<Option<String>, Failure> {
        self.line += 1;
        let read = read_line(&mut self.reader);
        read.map_err(|reason| Failure::Input(InputError::NoPoint { path: self.path.clone(), line: self.line, reason }))
    }
}

/// A line with its end, within the bound; `None` at the end.
pub(super) fn read_line(reader: &mut impl BufRead) -> Result<Option<String>, String> {
    let mut line = String::new();
    let mut bounded = std::io::Read::take(reader, LINE_BYTES_MAX as u64 + 1);
    match bounded.read_line(&mut line) {
        Ok(0) => Ok(None),
        Ok(_) if line.len() > LINE_BYTES_MAX => Err(format!("longer than {LINE_BYTES_MAX} bytes")),
        Ok(_) => Ok(Some(line)),
        Err(error) => Err(error.to_string()),
    }
}

/// The point of a line.
fn point(line: &str, text_field: &str, model: &str) -> Result<Value, String> {
    let fields = match serde_json::from_str(line).map_err(|error| format!("no JSON: {error}"))? {
        Value::Object(fields) => fields,
        Value::String(text) => Map::from_iter([(text_field.to_owned(), Value::String(text))]),
        _ => return Err("a document is an object with a text, or a text".to_owned()),
    };
    texts::point(fields, text_field, model)
}

/// The lines of a file of points.
pub(super) fn point_lines(path: &Path) -> Result<impl Iterator<Item = Result<Value, Failure>> + use<>, Failure> {
    let mut lines = Lines::open(path.to_owned())?;
    Ok(std::iter::from_fn(move || {
        loop {
            let line = match lines.next() {
                Ok(line) => line?,
                Err(failure) => return Some(Err(failure)),
            };
            if line.trim().is_empty() {
                continue;
            }
            return Some(serde_json::from_str(&line).map_err(|error| {
                let reason = format!("no JSON: {error}");
                Failure::Input(InputError::NoPoint { path: lines.path.clone(), line: lines.line, reason })
            }));
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_an_object_with_a_text_or_a_text() {
        let read = |line: &str| point(line, "text", "m");
        assert_eq!(read("\"a\"").unwrap()["id"], read(r#"{"text": "a"}"#).unwrap()["id"]);
        for wrong in ["{", "5", "{}", r#"{"text": 1}"#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_not_kept() {
        let mut endless = std::io::BufReader::new(std::io::repeat(b'x'));
        assert!(read_line(&mut endless).unwrap_err().contains("longer"));
        assert_eq!(read_line(&mut &b"a\nb"[..]).unwrap().as_deref(), Some("a\n"));
    }
}
