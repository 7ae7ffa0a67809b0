//! One JSON file of settings, read value by value, so that an error names the file and the setting.
//! Refuses files of absurd size; knows nothing of what the settings mean.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::SpecError;
use crate::bounded_file::{self, SETTINGS_BYTES_MAX};

/// The settings of one file.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) file: PathBuf,
    values: Map<String, Value>,
}

/// Reads a JSON file; `None` when it does not exist.
pub(super) fn read_json(file: &Path) -> Result<Option<Value>, SpecError> {
    let bytes = match bounded_file::read(file, SETTINGS_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(SpecError::Unreadable { file: file.to_owned(), source }),
    };
    let value = serde_json::from_slice(&bytes);
    value.map(Some).map_err(|source| SpecError::Malformed { file: file.to_owned(), source })
}

impl Settings {
    /// Reads a file that must hold a JSON object; `None` when it does not exist.
    pub(super) fn read(file: &Path) -> Result<Option<Self>, SpecError> {
        match read_json(file)? {
            None => Ok(None),
            Some(value) => Self::of(file, value).map(Some),
        }
    }

    /// As [`Settings::read`], for a file that must exist.
    pub(super) fn read_existing(file: &Path) -> Result<Self, SpecError> {
        Self::read(file)?.ok_or_else(|| SpecError::Missing { file: file.to_owned() })
    }

    /// The settings in a value of `file`.
    pub(super) fn of(file: &Path, value: Value) -> Result<Self, SpecError> {
        match value {
            Value::Object(values) => Ok(Self { file: file.to_owned(), values }),
            other => Err(SpecError::Invalid {
                file: file.to_owned(),
                field: "its whole content".to_owned(),
                found: shorten(&other),
                rule: "it must be a JSON object".to_owned(),
            }),
        }
    }

    /// The value of a setting; an explicit null counts as absent.
    pub(super) fn value(&self, field: &str) -> Option<&Value> {
        self.values.get(field).filter(|value| !value.is_null())
    }

    /// Whether there is a setting of this name, an explicit null included.
    pub(super) fn mentions(&self, field: &str) -> bool {
        self.values.contains_key(field)
    }

    /// A whole number in `1..=most`.
    pub(super) fn size(&self, field: &str, most: usize) -> Result<Option<usize>, SpecError> {
        let Some(value) = self.value(field) else { return Ok(None) };
        match value.as_u64().and_then(|size| usize::try_from(size).ok()) {
            Some(size) if (1..=most).contains(&size) => Ok(Some(size)),
            _ => Err(self.invalid(field, format!("it must be a whole number from 1 to {most}"))),
        }
    }

    /// As [`Settings::size`], for a setting that must be there.
    pub(super) fn needed_size(&self, field: &str, most: usize) -> Result<usize, SpecError> {
        self.size(field, most)?
            .ok_or_else(|| self.invalid(field, format!("it must be a whole number from 1 to {most}")))
    }

    /// A piece of text.
    pub(super) fn text(&self, field: &str) -> Result<Option<&str>, SpecError> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.invalid(field, "it must be a string")),
        }
    }

    /// A yes or no.
    pub(super) fn flag(&self, field: &str) -> Result<Option<bool>, SpecError> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.invalid(field, "it must be true or false")),
        }
    }

    /// The error for a setting that breaks `rule`.
    pub(super) fn invalid(&self, field: &str, rule: impl Into<String>) -> SpecError {
        SpecError::Invalid {
            file: self.file.clone(),
            field: field.to_owned(),
            found: self.values.get(field).map_or_else(|| "nothing".to_owned(), shorten),
            rule: rule.into(),
        }
    }

    /// The error for something that works elsewhere and not here.
    pub(super) fn unsupported(&self, option: impl Into<String>, instead: impl Into<String>) -> SpecError {
        SpecError::Unsupported { file: self.file.clone(), option: option.into(), instead: instead.into() }
    }
}

/// A value as it is shown in a message: never more than a line of it.
fn shorten(value: &Value) -> String {
    let whole = value.to_string();
    match whole.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &whole[..end]),
        None => whole,
    }
}
