//! One process for each folder: a lock that ends with the process, however it ends.
//! Says which process has it; takes it from none.

use crate::store::io_failure;
use crate::{Error, Result};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

const FILE: &str = "lock";

/// Held as long as the folder is open.
pub(crate) struct Lock {
    file: File,
}

impl Lock {
    /// Takes the lock of a folder.
    pub(crate) fn take(folder: &Path) -> Result<Self> {
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(folder.join(FILE));
        let mut file = open.map_err(|error| io_failure("opening the lock of the collections", &error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // The words are for people: without them the refusal is the same.
                let _ = file.read_to_string(&mut holder);
                let by = if holder.trim().is_empty() { "another process" } else { holder.trim() };
                return Err(Error::Locked { by: by.to_owned() });
            }
            Err(TryLockError::Error(error)) => return Err(io_failure("locking the collections", &error)),
        }
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            write!(file, "process {}", std::process::id())
        };
        write(&mut file).map_err(|error| io_failure("writing the lock of the collections", &error))?;
        Ok(Self { file })
    }
}

impl Drop for Lock {
    /// A program that is being started has the file too until it runs: closing it here would leave it locked meanwhile.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}
