//! The record beside each stored model: where it came from, its files, their sizes and hashes.
//! Never changes a model; a folder without a readable record is not one.

use super::disk::{CreateFile, DiskError, HashedFile, hash_file};
use super::model_ref::is_plain_segment;
use crate::bounded_file::{self, SETTINGS_BYTES_MAX};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// The record's file name; written last, so that its presence says that the rest is there.
pub(super) const MANIFEST_FILE: &str = "magray-model.json";

/// Raised when old programs could not read new records.
const FORMAT: u32 = 1;

/// What is known about a stored model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    format: u32,
    /// The name it was asked for by, such as `BAAI/bge-small-en-v1.5`.
    pub model: String,
    /// Where it came from.
    pub origin: Origin,
    /// Its files, the record itself left out.
    pub files: Vec<StoredFile>,
    /// When it was pulled, in seconds since 1970.
    pub pulled_at_unix_s: u64,
}

/// Where a model came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The kind of source.
    pub source: Source,
    /// The repository's address, or the package's name.
    pub location: String,
    /// The commit, or the package's version.
    pub revision: String,
}

/// The kinds of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The Hugging Face hub or a mirror of it.
    Hub,
    /// A Python package, fetched by the user's own pip.
    Pip,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hub => "Hugging Face hub",
            Self::Pip => "Python package",
        })
    }
}

/// A file of a stored model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFile {
    /// Its path below the model's folder, with `/`.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its hash, in small letters.
    pub sha256: String,
}

/// A file that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileFault {
    /// It is not there.
    #[error("'{file}' is missing")]
    Missing {
        /// The file's name below the model's folder.
        file: String,
    },
    /// It is longer or shorter than recorded.
    #[error("'{file}' has {found} bytes where {expected} were expected")]
    WrongSize {
        /// The file's name below the model's folder.
        file: String,
        /// The recorded size.
        expected: u64,
        /// The size found.
        found: u64,
    },
    /// Its content differs from what was recorded.
    #[error("'{file}' has the sha256 {found} where {expected} was expected")]
    WrongHash {
        /// The file's name below the model's folder.
        file: String,
        /// The recorded hash.
        expected: String,
        /// The hash found.
        found: String,
    },
}

/// Why a folder in the store is not a whole model.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// There is no record, so it is not known what should be there.
    #[error("its record '{MANIFEST_FILE}' is missing")]
    NoManifest,
    /// The record cannot be read.
    #[error("its record '{MANIFEST_FILE}' cannot be read: {reason}")]
    BadManifest {
        /// What is wrong with it.
        reason: String,
    },
    /// A file is not what the record says.
    #[error("{0}")]
    File(FileFault),
}

/// How closely files are compared with the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Sizes only: cheap enough for every start.
    Sizes,
    /// Sizes and hashes: reads every byte.
    Hashes,
}

impl Manifest {
    pub(super) fn new(model: String, origin: Origin, files: Vec<StoredFile>, pulled_at_unix_s: u64) -> Self {
        Self { format: FORMAT, model, origin, files, pulled_at_unix_s }
    }

    /// The size of all its files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.size))
    }

    /// Reads the record of a folder.
    pub(super) fn read(dir: &Path) -> Result<Result<Self, Damage>, DiskError> {
        let path = dir.join(MANIFEST_FILE);
        let text = match bounded_file::read(&path, SETTINGS_BYTES_MAX) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Err(Damage::NoManifest)),
            Err(e) => return Err(DiskError::at(&path, e)),
        };
        let bad = |reason: String| Ok(Err(Damage::BadManifest { reason }));
        let manifest: Self = match serde_json::from_slice(&text) {
            Ok(manifest) => manifest,
            Err(e) => return bad(e.to_string()),
        };
        if manifest.format != FORMAT {
            return bad(format!("its format is {}, this program reads {FORMAT}", manifest.format));
        }
        // The names become paths, so they are looked at even though the store wrote them itself.
        if let Some(file) = manifest.files.iter().find(|file| !file.name.split('/').all(is_plain_segment)) {
            return bad(format!("'{}' is no file name of a model", file.name.escape_default()));
        }
        Ok(Ok(manifest))
    }

    pub(super) fn write(&self, dir: &Path, create: CreateFile) -> Result<(), DiskError> {
        let path = dir.join(MANIFEST_FILE);
        let text = serde_json::to_vec_pretty(self).map_err(|e| DiskError::at(&path, e.into()))?;
        let mut file = HashedFile::create(&path, create)?;
        file.write(&text)?;
        file.finish().map(drop)
    }

    /// Compares the files of a folder with the record, and returns all that differ.
    pub(super) fn faults(&self, dir: &Path, depth: Depth) -> Result<Vec<FileFault>, DiskError> {
        let mut faults = Vec::new();
        for file in &self.files {
            faults.extend(file.fault(dir, depth)?);
        }
        Ok(faults)
    }
}

impl StoredFile {
    fn fault(&self, dir: &Path, depth: Depth) -> Result<Option<FileFault>, DiskError> {
        let path = dir.join(&self.name);
        let found = match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            Ok(_) => return Ok(Some(FileFault::Missing { file: self.name.clone() })),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(Some(FileFault::Missing { file: self.name.clone() }));
            }
            Err(e) => return Err(DiskError::at(&path, e)),
        };
        if found != self.size {
            return Ok(Some(FileFault::WrongSize { file: self.name.clone(), expected: self.size, found }));
        }
        if depth == Depth::Sizes {
            return Ok(None);
        }
        let found = hash_file(&path)?;
        Ok((found != self.sha256).then(|| FileFault::WrongHash {
            file: self.name.clone(),
            expected: self.sha256.clone(),
            found,
        }))
    }
}
