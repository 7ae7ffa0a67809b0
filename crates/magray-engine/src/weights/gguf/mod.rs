//! A model in one GGUF file: what it says of itself, and its tensors as they lie there, mapped.
//! Reads no weight before it is asked for, and hands out no tensor of another shape than the caller expects.

mod cursor;
mod header;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod writer;

use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use magray_core::BlockFormat;
use magray_device::{BlockMatrix, MappedFile};

use super::WeightsError;
use cursor::Cursor;
use header::{Array, Header, Kind, Value};

/// A GGUF file.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    map: Arc<MappedFile>,
    header: Header,
}

/// The GGUF file of a folder that holds one model in this form, and nothing in another.
pub fn find(folder: &Path) -> Option<PathBuf> {
    if folder.join("config.json").exists() {
        return None;
    }
    let files = folder.read_dir().ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files = files.filter(|file| file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf")));
    files.next().filter(|_| files.next().is_none())
}

impl Gguf {
    /// Opens a file and checks its header.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let map =
            MappedFile::open(path).map_err(|source| WeightsError::Unreadable { file: path.to_owned(), source })?;
        let header = header::read(path, &map)?;
        Ok(Self { path: path.to_owned(), map: Arc::new(map), header })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, tensor: &str) -> bool {
        self.header.tensors.contains_key(tensor)
    }

    /// The sizes of a tensor, the outermost first.
    pub fn shape(&self, tensor: &str) -> Option<&[usize]> {
        self.header.tensors.get(tensor).map(|entry| entry.shape.as_slice())
    }

    /// A piece of text.
    pub fn text(&self, key: &str) -> Result<Option<&str>, WeightsError> {
        match self.header.values.get(key) {
            None => Ok(None),
            Some(Value::Text(range)) => Ok(Some(as_text(&self.map[range.clone()]))),
            Some(_) => Err(self.wrong(key, "a string")),
        }
    }

    /// A whole number that is not negative.
    pub fn number(&self, key: &str) -> Result<Option<u64>, WeightsError> {
        match self.header.values.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(number)) => Ok(Some(*number)),
            Some(&Value::Signed(number)) if number >= 0 => Ok(Some(number as u64)),
            Some(_) => Err(self.wrong(key, "a whole number from 0")),
        }
    }

    /// A number.
    pub fn float(&self, key: &str) -> Result<Option<f64>, WeightsError> {
        match self.header.values.get(key) {
            None => Ok(None),
            Some(&Value::Float(number)) if number.is_finite() => Ok(Some(number)),
            Some(_) => Err(self.wrong(key, "a finite number")),
        }
    }

    /// A yes or no.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, WeightsError> {
        match self.header.values.get(key) {
            None => Ok(None),
            Some(&Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    /// A list of texts.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, WeightsError> {
        let Some(array) = self.array(key, &[Kind::Text], "a list of strings")? else { return Ok(None) };
        let mut cursor = Cursor::new(&self.map[array.range.clone()]);
        let texts = (0..array.count).map_while(|_| cursor.text().ok().map(|range| as_text(cursor.at(range))));
        Ok(Some(texts.collect()))
    }

    /// A list of whole numbers of 32 bits.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, WeightsError> {
        let Some(array) = self.array(key, &[Kind::I32, Kind::U32], "a list of whole numbers")? else {
            return Ok(None);
        };
        let words = self.map[array.range.clone()].as_chunks::<4>().0.iter();
        let signed = array.kind == Kind::I32;
        let read = |word: &[u8; 4]| {
            if signed { i64::from(i32::from_le_bytes(*word)) } else { i64::from(u32::from_le_bytes(*word)) }
        };
        Ok(Some(words.map(read).collect()))
    }

    /// A list of yes or no.
    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, WeightsError> {
        let array = self.array(key, &[Kind::Bool], "a list of true and false")?;
        Ok(array.map(|array| self.map[array.range.clone()].iter().map(|byte| *byte != 0).collect()))
    }

    /// A list of numbers.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, WeightsError> {
        let array = self.array(key, &[Kind::F32], "a list of numbers")?;
        let read = |array: &Array| {
            let words = self.map[array.range.clone()].as_chunks::<4>().0.iter();
            words.map(|word| f32::from_le_bytes(*word)).collect()
        };
        Ok(array.map(read))
    }

    /// Whether a value is a list.
    pub fn is_list(&self, key: &str) -> bool {
        matches!(self.header.values.get(key), Some(Value::Array(_)))
    }

    fn array(&self, key: &str, kinds: &[Kind], rule: &str) -> Result<Option<&Array>, WeightsError> {
        match self.header.values.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) if kinds.contains(&array.kind) => Ok(Some(array)),
            Some(_) => Err(self.wrong(key, rule)),
        }
    }

    fn wrong(&self, key: &str, rule: &str) -> WeightsError {
        self.invalid(format!("the value '{key}' is not {rule}"))
    }

    /// The error for something in the file that cannot be true.
    pub fn invalid(&self, reason: String) -> WeightsError {
        WeightsError::Corrupt { file: self.path.clone(), reason }
    }

    /// The matrix of this name, which must have this shape; it stays in the file.
    pub fn matrix(&self, name: &str, rows: usize, columns: usize) -> Result<BlockMatrix, WeightsError> {
        let (format, range) = self.place(name, &[rows, columns])?;
        Ok(BlockMatrix::mapped(Arc::clone(&self.map), range, format, columns))
    }

    /// The floats of the vector of this name, which must have this length.
    pub fn vector(&self, name: &str, length: usize) -> Result<Vec<f32>, WeightsError> {
        let (format, range) = self.place(name, &[length])?;
        let mut values = vec![0.0; length];
        magray_device::dequantise(format, &self.map[range], &mut values);
        Ok(values)
    }

    fn place(&self, name: &str, expected: &[usize]) -> Result<(BlockFormat, Range<usize>), WeightsError> {
        let Some(entry) = self.header.tensors.get(name) else {
            let nearest = super::nearest(self.header.tensors.keys(), name);
            return Err(WeightsError::Missing { dir: self.path.clone(), name: name.to_owned(), nearest });
        };
        if entry.shape != expected {
            let found = &entry.shape;
            return Err(self.invalid(format!(
                "tensor '{name}' has the shape {found:?} where the file's own settings ask for {expected:?}"
            )));
        }
        Ok((entry.format, entry.range.clone()))
    }
}

/// Text that was found to be UTF-8 when the header was read.
fn as_text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}
