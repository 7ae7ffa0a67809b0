//! One lock a model, so that two pulls never write the same folder.
//! Never removes a lock file: that would let two owners hold two files of one name.

use super::disk::{DiskError, create_dir};
use std::fs::{File, TryLockError};
use std::path::Path;

/// The right to change one model; given back when dropped, or by the system when the process dies.
pub(super) struct ModelLock {
    file: File,
}

impl ModelLock {
    /// Waits until the lock is free; `on_wait` is called once if it is not free at once.
    pub(super) fn acquire(path: &Path, on_wait: &mut dyn FnMut()) -> Result<Self, DiskError> {
        if let Some(lock) = Self::try_acquire(path)? {
            return Ok(lock);
        }
        on_wait();
        let file = open(path)?;
        file.lock().map_err(|e| DiskError::at(path, e))?;
        Ok(Self { file })
    }

    /// Takes the lock if it is free; `None` while someone else holds it.
    pub(super) fn try_acquire(path: &Path) -> Result<Option<Self>, DiskError> {
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(DiskError::at(path, e)),
        }
    }
}

impl Drop for ModelLock {
    /// A program that is being started has the file too until it runs: closing it here would leave it locked meanwhile.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

fn open(path: &Path) -> Result<File, DiskError> {
    if let Some(parent) = path.parent() {
        create_dir(parent)?;
    }
    File::options().create(true).truncate(false).write(true).open(path).map_err(|e| DiskError::at(path, e))
}
