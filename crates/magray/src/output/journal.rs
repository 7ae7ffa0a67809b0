//! The journal beside a file that is written in several runs: what decides its bytes, and how far they are whole.
//! Counts only what the checksums prove; a record that was cut short is as if it had never been written.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// No line of a journal is longer: digests, counts and sizes of columns.
const LINE_BYTES_MAX: u64 = 1 << 16;

/// What decides the bytes of an output, by name. A run goes on only where all of it is the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recipe(pub(crate) Vec<(String, String)>);

impl Recipe {
    /// The first entry that differs: its name, what it was and what it is.
    pub(super) fn difference(&self, now: &Self) -> Option<(String, String, String)> {
        let value = |recipe: &Self, name: &str| {
            let found = recipe.0.iter().find(|(known, _)| known == name);
            found.map_or_else(|| "not given".to_owned(), |(_, value)| value.clone())
        };
        let mut names = self.0.iter().chain(&now.0).map(|(name, _)| name);
        let differs = names.find(|name| value(self, name) != value(now, name))?;
        Some((differs.clone(), value(self, differs), value(now, differs)))
    }
}

/// A moment at which the output was whole up to here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) texts: u64,
    /// Of the input, up to and with these texts.
    pub(crate) input_digest: String,
    pub(super) dimensions: usize,
    /// Bytes of the file.
    pub(super) bytes: u64,
    /// Of the bytes since the record before.
    pub(super) output_digest: String,
    /// Bytes of each column since the record before, where the format has columns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) columns: Vec<u64>,
}

/// Columns of the rows between two records.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Group {
    pub(super) rows: u64,
    pub(super) columns: Vec<u64>,
}

pub(super) struct Journal {
    file: File,
}

/// What an earlier run left.
pub(super) struct Found {
    pub(super) recipe: Recipe,
    pub(super) last: Record,
    pub(super) groups: Vec<Group>,
}

impl Journal {
    pub(super) fn new(file: File) -> Self {
        Self { file }
    }

    pub(super) fn start(&mut self, recipe: &Recipe) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.write(recipe)
    }

    pub(super) fn write(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(line).map_err(io::Error::from)?;
        line.push(b'\n');
        // In one call, so that a kill leaves a whole line or a part of one, and never lines mixed.
        self.file.write_all(&line)
    }

    /// Reads what was written, compares it with the file that it is about, and drops what is not proven. `None`: there is no
    /// whole record.
    pub(super) fn read(&mut self, part: &mut File, prefix_bytes: u64) -> io::Result<Option<Found>> {
        self.file.rewind()?;
        part.seek(SeekFrom::Start(prefix_bytes))?;
        let (mut lines, mut part) = (BufReader::new(&self.file), BufReader::with_capacity(1 << 16, part));
        let mut kept_bytes = 0;
        let Some(recipe) = read_line::<Recipe>(&mut lines, &mut kept_bytes)? else { return Ok(None) };
        let mut last = Record { bytes: prefix_bytes, ..Record::default() };
        let mut groups = Vec::new();
        let mut line_end = kept_bytes;
        while let Some(record) = read_line::<Record>(&mut lines, &mut line_end)? {
            let is_proven = record.bytes >= last.bytes
                && record.texts >= last.texts
                && digest_of(&mut part, record.bytes - last.bytes)? == Some(record.output_digest.clone());
            if !is_proven {
                break;
            }
            if !record.columns.is_empty() {
                groups.push(Group { rows: record.texts - last.texts, columns: record.columns.clone() });
            }
            (last, kept_bytes) = (record, line_end);
        }
        self.file.set_len(kept_bytes)?;
        self.file.seek(SeekFrom::End(0))?;
        Ok((last.texts > 0).then_some(Found { recipe, last, groups }))
    }
}

/// The next whole line; `None` where there is none, or it is no such thing.
fn read_line<T: for<'a> Deserialize<'a>>(lines: &mut impl BufRead, end: &mut u64) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    let bytes = lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Ok(None);
    }
    *end += bytes as u64;
    Ok(serde_json::from_slice(&line).ok())
}

/// The digest of the next bytes; `None` where there are fewer.
fn digest_of(part: &mut impl Read, bytes: u64) -> io::Result<Option<String>> {
    let mut hashing = Hashing(Sha256::new());
    let found = io::copy(&mut part.take(bytes), &mut hashing)?;
    Ok((found == bytes).then(|| hex(hashing.0)))
}

struct Hashing(Sha256);

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
