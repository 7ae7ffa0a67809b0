//! Snapshots: consistent copies of a collection in one file, and collections made of them.
//! Sends them nowhere; a snapshot that is not whole has another name.

use super::Collections;
use super::files::{check_name, make_folder, sync_file};
use crate::store::{FILE, io_failure};
use crate::{Collection, Error, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A snapshot of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The name of its file.
    pub name: String,
    /// Of the file.
    pub bytes: u64,
    /// Seconds since 1970.
    pub created: u64,
}

impl Collections {
    /// Writes a snapshot of a collection. Changes go on meanwhile and are not in it.
    pub fn create_snapshot(&self, collection: &str) -> Result<Snapshot> {
        let _changing = self.begin()?;
        let collection = self.get(collection)?;
        let folder = self.snapshots_of(collection.name());
        make_folder(&folder).map_err(|error| io_failure("making the folder of snapshots", &error))?;
        let taken = self.list_snapshots(collection.name())?;
        let second = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let names = (0..).map(|number| format!("{}-{second}-{number}.snapshot", collection.name()));
        let name = names.into_iter().find(|name| taken.iter().all(|snapshot| snapshot.name != *name));
        let name = name.unwrap_or_default();
        let (path, part) = (folder.join(&name), folder.join(format!(".{name}.part")));
        let _ = fs::remove_file(&part);
        let written = collection.copy_to(&part).and_then(|()| {
            let renamed = sync_file(&part).and_then(|()| fs::rename(&part, &path)).and_then(|()| sync_file(&path));
            renamed.map_err(|error| io_failure("writing a snapshot", &error))
        });
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written?;
        Ok(described(&path, name)?.1)
    }

    /// The snapshots of a collection, oldest first. Those of one that was deleted stay until they are deleted themselves.
    pub fn list_snapshots(&self, collection: &str) -> Result<Vec<Snapshot>> {
        check_name("a collection", collection)?;
        let entries = match fs::read_dir(self.snapshots_of(collection)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let is_there = self.list().contains(&self.resolve(collection));
                return if is_there { Ok(Vec::new()) } else { Err(Error::no_collection(collection)) };
            }
            Err(error) => return Err(io_failure("listing snapshots", &error)),
        };
        let mut snapshots = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| io_failure("listing snapshots", &error))?;
            if let Ok(name) = entry.file_name().into_string()
                && !name.starts_with('.')
            {
                snapshots.push(described(&entry.path(), name)?);
            }
        }
        snapshots.sort_by(|(one, first), (other, second)| (one, &first.name).cmp(&(other, &second.name)));
        Ok(snapshots.into_iter().map(|(_, snapshot)| snapshot).collect())
    }

    /// The file of a snapshot.
    pub fn snapshot_path(&self, collection: &str, name: &str) -> Result<PathBuf> {
        check_name("a collection", collection)?;
        check_name("a snapshot", name)?;
        let path = self.snapshots_of(collection).join(name);
        if path.is_file() { Ok(path) } else { Err(Error::NotFound { what: format!("snapshot '{name}'") }) }
    }

    /// Deletes a snapshot.
    pub fn delete_snapshot(&self, collection: &str, name: &str) -> Result<()> {
        let path = self.snapshot_path(collection, name)?;
        let _changing = self.begin()?;
        fs::remove_file(path).map_err(|error| io_failure("deleting a snapshot", &error))?;
        // Only where it was the last.
        let _ = fs::remove_dir(self.snapshots_of(collection));
        Ok(())
    }

    /// Makes a collection of a snapshot's file. One of this name is replaced, in one step.
    pub fn restore_snapshot(&self, collection: &str, snapshot: &Path) -> Result<()> {
        self.replace(collection, |folder, _| {
            let path = folder.join(FILE);
            let copied = fs::copy(snapshot, &path).and_then(|_| sync_file(&path));
            copied.map_err(|error| io_failure("reading a snapshot", &error))?;
            // A file that is no collection is refused before anything is replaced.
            Collection::open(folder, collection, self.access, self.hardware.clone())?.check()
        })
    }

    fn snapshots_of(&self, collection: &str) -> PathBuf {
        self.folder.join("snapshots").join(self.resolve(collection))
    }
}

/// A snapshot with the exact time of its file.
fn described(path: &Path, name: String) -> Result<(SystemTime, Snapshot)> {
    let file = path.metadata().map_err(|error| io_failure("reading a snapshot", &error))?;
    let written = file.modified().unwrap_or(UNIX_EPOCH);
    let created = written.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Ok((written, Snapshot { name, bytes: file.len(), created }))
}
