//! Files on disk: written with their hash, synced, and every failure told apart.
//! Never decides where a file belongs, never retries.

use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// One read or write: large enough that calls cost nothing, small enough for a smooth progress bar.
pub(super) const BLOCK_BYTES: usize = 256 * 1024;

/// Why the disk did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The disk or the user's quota is full.
    #[error("no space left for '{}': free some, or set another folder for models", path.display())]
    NoSpace {
        /// The file or folder that was being written.
        path: PathBuf,
    },
    /// The disk has less room than the model needs.
    #[error(
        "'{}' has {free} bytes free and the model needs {needed}: free some, or set another folder for models",
        path.display()
    )]
    TooSmall {
        /// The folder that was about to be written.
        path: PathBuf,
        /// What the model needs.
        needed: u64,
        /// What the disk has.
        free: u64,
    },
    /// The user may not read or write there.
    #[error("permission denied for '{}': change its rights, or set another folder for models", path.display())]
    Denied {
        /// The file or folder in question.
        path: PathBuf,
    },
    /// The file system takes no writes.
    #[error("'{}' is on a read-only file system: set another folder for models", path.display())]
    ReadOnly {
        /// The file or folder in question.
        path: PathBuf,
    },
    /// Anything else the system reports.
    #[error("'{}': {source}", path.display())]
    Io {
        /// The file or folder in question.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl DiskError {
    pub(super) fn at(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::NoSpace { path },
            ErrorKind::PermissionDenied => Self::Denied { path },
            ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { path },
            _ => Self::Io { path, source },
        }
    }
}

/// A file that can be forced to the disk.
pub(super) trait SyncWrite: Write {
    fn sync(&mut self) -> io::Result<()>;
}

impl SyncWrite for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// How new files come to be; tests put a full disk here.
pub(super) type CreateFile = fn(&Path) -> io::Result<Box<dyn SyncWrite>>;

/// What a pull writes to; tests put a bad disk here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disk {
    pub(super) create: CreateFile,
    /// What this user may still write at a path; `None` where the system does not say.
    pub(super) free_bytes: fn(&Path) -> Option<u64>,
}

impl Disk {
    pub(super) const REAL: Self = Self { create: create_file, free_bytes };

    /// Refuses a pull that cannot end well, before it begins.
    pub(super) fn check_room(&self, path: &Path, needed: u64) -> Result<(), DiskError> {
        match (self.free_bytes)(path) {
            Some(free) if free < needed => Err(DiskError::TooSmall { path: path.to_path_buf(), needed, free }),
            _ => Ok(()),
        }
    }
}

#[cfg(unix)]
fn free_bytes(path: &Path) -> Option<u64> {
    let told = rustix::fs::statvfs(path).ok()?;
    // Some file systems, such as those of a network, do not know their size.
    (told.f_blocks > 0).then(|| told.f_bavail.saturating_mul(told.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_path: &Path) -> Option<u64> {
    None
}

pub(super) fn create_file(path: &Path) -> io::Result<Box<dyn SyncWrite>> {
    Ok(Box::new(File::create(path)?))
}

/// A file that is hashed while it is written.
pub(super) struct HashedFile {
    path: PathBuf,
    file: Box<dyn SyncWrite>,
    hasher: Sha256,
    bytes: u64,
}

impl HashedFile {
    /// Creates the file and the folders above it.
    pub(super) fn create(path: &Path, create: CreateFile) -> Result<Self, DiskError> {
        if let Some(parent) = path.parent() {
            create_dir(parent)?;
        }
        let file = create(path).map_err(|e| DiskError::at(path, e))?;
        Ok(Self { path: path.to_path_buf(), file, hasher: Sha256::new(), bytes: 0 })
    }

    pub(super) fn write(&mut self, block: &[u8]) -> Result<(), DiskError> {
        self.file.write_all(block).map_err(|e| DiskError::at(&self.path, e))?;
        self.hasher.update(block);
        self.bytes += block.len() as u64;
        Ok(())
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Forces the file to the disk; returns its size and hash.
    pub(super) fn finish(mut self) -> Result<(u64, String), DiskError> {
        self.file.flush().and_then(|()| self.file.sync()).map_err(|e| DiskError::at(&self.path, e))?;
        Ok((self.bytes, hex(&self.hasher.finalize())))
    }
}

/// The sha256 of a file, in small letters.
pub(super) fn hash_file(path: &Path) -> Result<String, DiskError> {
    let mut file = File::open(path).map_err(|e| DiskError::at(path, e))?;
    let mut hasher = Sha256::new();
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(hex(&hasher.finalize())),
            Ok(n) => hasher.update(&block[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(DiskError::at(path, e)),
        }
    }
}

pub(super) fn create_dir(path: &Path) -> Result<(), DiskError> {
    fs::create_dir_all(path).map_err(|e| DiskError::at(path, e))
}

/// Removes a folder and what is in it; one that is not there is fine.
pub(super) fn remove_dir(path: &Path) -> Result<(), DiskError> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(DiskError::at(path, e)),
        _ => Ok(()),
    }
}

pub(super) fn rename(from: &Path, to: &Path) -> Result<(), DiskError> {
    fs::rename(from, to).map_err(|e| DiskError::at(to, e))
}

/// The names in a folder, sorted; a folder that is not there has none.
pub(super) fn names_in(path: &Path) -> Result<Vec<String>, DiskError> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(DiskError::at(path, e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| DiskError::at(path, e))?;
        // A name that is not Unicode was not made by the store, so it is none of its business.
        names.extend(entry.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

/// Forces the entries of a folder to the disk, so that a rename is not ahead of the files it names.
#[cfg(unix)]
pub(super) fn sync_dir(path: &Path) -> Result<(), DiskError> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(|e| DiskError::at(path, e))
}

/// Folders cannot be opened as files here; the system orders renames by itself.
#[cfg(not(unix))]
pub(super) fn sync_dir(_path: &Path) -> Result<(), DiskError> {
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_file_has_the_hash_of_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/file");
        let mut file = HashedFile::create(&path, create_file).unwrap();
        file.write(b"a").unwrap();
        file.write(b"bc").unwrap();
        assert_eq!(file.bytes(), 3);
        let (bytes, sha256) = file.finish().unwrap();
        assert_eq!((bytes, fs::read(&path).unwrap().as_slice()), (3, &b"abc"[..]));
        assert_eq!(sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(hash_file(&path).unwrap(), sha256);
    }

    #[test]
    fn failures_are_told_apart() {
        let at = |kind: ErrorKind| DiskError::at(Path::new("x"), kind.into());
        assert!(matches!(at(ErrorKind::StorageFull), DiskError::NoSpace { .. }));
        assert!(matches!(at(ErrorKind::QuotaExceeded), DiskError::NoSpace { .. }));
        assert!(matches!(at(ErrorKind::PermissionDenied), DiskError::Denied { .. }));
        assert!(matches!(at(ErrorKind::ReadOnlyFilesystem), DiskError::ReadOnly { .. }));
        assert!(matches!(at(ErrorKind::NotADirectory), DiskError::Io { .. }));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_device_is_no_space() {
        let full = Path::new("/dev/full");
        let mut file = HashedFile::create(full, |path| Ok(Box::new(File::options().write(true).open(path)?))).unwrap();
        assert!(matches!(file.write(b"x"), Err(DiskError::NoSpace { .. })));
    }
}
