//! What the process knows of the files of vector stores: which are being indexed, and what was looked through.
//! All else is on the disk; indexing itself is `indexing`.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use magray_index::Collections;
use tokio::sync::Semaphore;

use super::errors::Problem;
use crate::vector_stores::{
    attached::{self, AttachedFile, Status},
    ids::{Numbers, Of},
};

/// Files that are indexed at once.
const FILES_AT_ONCE: usize = 2;

/// What the process knows of vector stores; all else is on the disk.
pub(crate) struct Indexing {
    numbers: Numbers,
    running: Mutex<BTreeSet<Job>>,
    /// Stores that were looked through for files that are not indexed yet.
    seen: Mutex<BTreeSet<String>>,
    /// Records are looked at and changed one after the other.
    changing: Mutex<()>,
    pub(super) slots: Semaphore,
}

/// A file that is to be indexed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Job {
    pub(super) store: String,
    pub(super) file_id: String,
    attempt: u64,
}

impl Job {
    pub(super) fn new(store: &str, file: &AttachedFile) -> Self {
        Self { store: store.to_owned(), file_id: file.file_id.clone(), attempt: file.attempt }
    }

    /// The record, as long as the file is to be indexed by this job.
    pub(super) fn record(&self, all: &Collections) -> Result<Option<AttachedFile>, Problem> {
        let collection = match all.get(&self.store) {
            Err(magray_index::Error::NotFound { .. }) => return Ok(None),
            found => found?,
        };
        let record = attached::find(&collection, Of::File.number(&self.file_id).unwrap_or_default())?;
        Ok(record.filter(|record| record.status == Status::InProgress && record.attempt == self.attempt))
    }
}

impl Default for Indexing {
    fn default() -> Self {
        Self {
            numbers: Numbers::default(),
            running: Mutex::default(),
            seen: Mutex::default(),
            changing: Mutex::default(),
            slots: Semaphore::new(FILES_AT_ONCE),
        }
    }
}

impl Indexing {
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.next(SystemTime::now())
    }

    /// Held while records are changed; blocks.
    pub(crate) fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The files of a store that are being indexed.
    pub(crate) fn unfinished(&self, store: &str) -> Vec<String> {
        self.running().iter().filter(|job| job.store == store).map(|job| job.file_id.clone()).collect()
    }

    /// Whether nobody has asked before for this store.
    pub(crate) fn is_new(&self, store: &str) -> bool {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(store.to_owned())
    }

    pub(crate) fn forget(&self, store: &str) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).remove(store);
    }

    pub(super) fn running(&self) -> MutexGuard<'_, BTreeSet<Job>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
