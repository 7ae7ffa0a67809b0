//! All collections of a folder, their aliases and snapshots.
//! A folder belongs to one process; a collection that cannot be opened does not keep the others from it.

mod files;
mod lock;
mod replacing;
mod snapshots;

pub use snapshots::Snapshot;

use crate::collection::{Collection, Hardware, SearchCounts};
use crate::store::{Access, io_failure};
use crate::{CollectionConfig, Error, Result};
use files::{check_name, make_folder, replace, sync_folder};
use lock::Lock;
use magray_device::cpu::Cpu;
use magray_device::scan::RowsHost;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// Before the name of a collection that a snapshot is about to replace.
const REPLACED: &str = ".replaced-";

/// How a folder is opened.
#[derive(Clone)]
pub struct Options {
    /// What searches; `None` takes all cores.
    pub cpu: Option<Arc<Cpu>>,
    /// Devices that may hold vectors, and search them sooner.
    pub host: Option<Arc<dyn RowsHost>>,
    /// The most bytes that the file of one collection may take.
    pub collection_bytes_max: u64,
    /// The log of a collection is written back into its file when it is longer.
    pub log_bytes_max: u64,
    /// The most collections.
    pub collections_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { cpu: None, host: None, collection_bytes_max: 1 << 42, log_bytes_max: 32 << 20, collections_max: 1000 }
    }
}

/// A change of names. An alias can be used wherever a collection's name can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AliasChange {
    /// Makes an alias, or leads it elsewhere.
    Set {
        /// The new name.
        alias: String,
        /// What it leads to.
        collection: String,
    },
    /// Removes an alias.
    Remove {
        /// Its name.
        alias: String,
    },
    /// Gives an alias another name.
    Rename {
        /// Its name until now.
        from: String,
        /// Its name from now on.
        to: String,
    },
}

/// The collections of a folder.
pub struct Collections {
    folder: PathBuf,
    access: Access,
    collections_max: usize,
    hardware: Hardware,
    names: RwLock<Names>,
    /// Creating, deleting and restoring happen one after the other; reading goes on.
    changing: Mutex<()>,
    /// Collections that were replaced or deleted since the start.
    left: AtomicU64,
    /// None if nothing can be written.
    _lock: Option<Lock>,
}

#[derive(Default)]
struct Names {
    open: BTreeMap<String, Arc<Collection>>,
    /// Collections that could not be opened, with the reason.
    damaged: BTreeMap<String, String>,
    aliases: BTreeMap<String, String>,
}

impl Collections {
    /// Opens a folder, or makes it. What collections hold is read when they are first used.
    pub fn open(folder: &Path, options: Options) -> Result<Self> {
        let prepare = || make_folder(&collections_of(folder));
        let lock = match prepare().map_err(|error| io_failure("making the folder of the collections", &error)) {
            Ok(()) => Lock::take(folder),
            Err(error) => Err(error),
        };
        let (lock, access) = match lock {
            Ok(lock) => {
                let (bytes_max, log_bytes_max) = (options.collection_bytes_max, options.log_bytes_max);
                (Some(lock), Access::Write { bytes_max, log_bytes_max })
            }
            Err(Error::ReadOnly) if folder.is_dir() => (None, Access::ReadOnly),
            Err(error) => return Err(error),
        };
        let cpu = match options.cpu {
            Some(cpu) => cpu,
            None => Arc::new(Cpu::new(None, None).map_err(|error| Error::Store(error.to_string()))?),
        };
        let all = Self {
            folder: folder.to_owned(),
            access,
            collections_max: options.collections_max,
            hardware: Hardware { cpu, host: options.host, searches: Arc::default() },
            names: RwLock::default(),
            changing: Mutex::default(),
            left: AtomicU64::new(0),
            _lock: lock,
        };
        all.open_all()?;
        Ok(all)
    }

    /// How often dense vectors were searched, and where.
    pub fn searches(&self) -> &SearchCounts {
        &self.hardware.searches
    }

    /// Ends what a process that was killed had begun: puts back what was being replaced, removes the rest.
    fn clean_up(&self) -> Result<()> {
        let all = collections_of(&self.folder);
        let clean = || {
            for (path, name) in hidden(&all)? {
                match name.strip_prefix(REPLACED).map(|name| all.join(name)) {
                    Some(folder) if !folder.exists() => fs::rename(path, folder)?,
                    _ => fs::remove_dir_all(path)?,
                }
            }
            sync_folder(&all)?;
            let snapshots = self.folder.join("snapshots");
            if snapshots.is_dir() {
                for folder in fs::read_dir(snapshots)? {
                    hidden(&folder?.path())?.into_iter().try_for_each(|(path, _)| fs::remove_file(path))?;
                }
            }
            Ok(())
        };
        clean().map_err(|error| io_failure("cleaning up the folder of the collections", &error))
    }

    fn open_all(&self) -> Result<()> {
        if self.access != Access::ReadOnly {
            self.clean_up()?;
        }
        let mut names = Names { aliases: self.read_aliases()?, ..Names::default() };
        let entries = match fs::read_dir(collections_of(&self.folder)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(io_failure("listing the collections", &error)),
        };
        for entry in entries {
            let entry = entry.map_err(|error| io_failure("listing the collections", &error))?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            match Collection::open(&entry.path(), &name, self.access, self.hardware.clone()) {
                Ok(collection) => drop(names.open.insert(name, Arc::new(collection))),
                Err(error) => drop(names.damaged.insert(name, error.to_string())),
            }
        }
        // A process that was killed while it deleted a collection may have left aliases of it.
        names.aliases.retain(|_, name| names.open.contains_key(name) || names.damaged.contains_key(name));
        *self.names.write().unwrap_or_else(PoisonError::into_inner) = names;
        Ok(())
    }

    /// Makes a collection.
    pub fn create(&self, name: &str, config: CollectionConfig) -> Result<()> {
        check_name("a collection", name)?;
        let _changing = self.begin()?;
        {
            let names = self.names();
            let count = names.open.len() + names.damaged.len();
            let is_taken = names.open.contains_key(name) || names.damaged.contains_key(name);
            if is_taken || names.aliases.contains_key(name) {
                return Err(Error::Exists { what: format!("collection '{name}'") });
            }
            if count >= self.collections_max {
                return Err(Error::bad(format!("there are {count} collections: delete some first")));
            }
        }
        self.put_in_place(name, |folder| Collection::create(folder, name, &config, self.access))
    }

    /// Deletes a collection and the aliases that lead to it. Returns whether it was there. Threads that have it read it to
    /// their end; its snapshots stay.
    pub fn delete(&self, name: &str) -> Result<bool> {
        let _changing = self.begin()?;
        let known = self.names().open.get(name).cloned();
        if known.is_none() && !self.names().damaged.contains_key(name) {
            return Ok(false);
        }
        // A change that has begun comes to its end. A damaged file may refuse that, and is deleted too.
        let held = known.as_ref().and_then(|known| known.hold().ok());
        let leaving = known.as_ref().map(|known| known.leave());
        let (folder, gone) = (self.folder_of(name), self.left_folder(name));
        let removed = fs::rename(&folder, &gone).and_then(|()| sync_folder(&collections_of(&self.folder)));
        removed.map_err(|error| io_failure("deleting a collection", &error))?;
        match leaving {
            Some(leaving) => leaving.arrive(&gone),
            None => drop(fs::remove_dir_all(&gone)),
        }
        if let Some(known) = &known {
            known.retire();
        }
        drop(held);
        let aliases = {
            let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
            names.open.remove(name);
            names.damaged.remove(name);
            names.aliases.retain(|_, collection| collection != name);
            names.aliases.clone()
        };
        self.write_aliases(&aliases)?;
        Ok(true)
    }

    /// The names of all collections, also of those that cannot be opened.
    pub fn list(&self) -> Vec<String> {
        let names = self.names();
        let mut all: Vec<String> = names.open.keys().chain(names.damaged.keys()).cloned().collect();
        all.sort();
        all
    }

    /// A collection by its name or alias.
    pub fn get(&self, name: &str) -> Result<Arc<Collection>> {
        let names = self.names();
        let name = names.aliases.get(name).map_or(name, String::as_str);
        if let Some(what) = names.damaged.get(name) {
            return Err(Error::Corrupt { collection: name.to_owned(), what: what.clone() });
        }
        names.open.get(name).cloned().ok_or_else(|| Error::no_collection(name))
    }

    /// The name of the collection that an alias leads to; other names stay as they are.
    pub fn resolve(&self, name: &str) -> String {
        self.names().aliases.get(name).map_or(name, String::as_str).to_owned()
    }

    /// Whether there is a collection of this name or alias.
    pub fn exists(&self, name: &str) -> bool {
        !matches!(self.get(name), Err(Error::NotFound { .. }))
    }

    /// Aliases, each with its collection.
    pub fn aliases(&self) -> Vec<(String, String)> {
        self.names().aliases.iter().map(|(alias, collection)| (alias.clone(), collection.clone())).collect()
    }

    /// Changes aliases in order: all of them, or none.
    pub fn change_aliases(&self, changes: &[AliasChange]) -> Result<()> {
        let _changing = self.begin()?;
        let mut aliases = self.names().aliases.clone();
        let unknown = |alias: &str| Error::NotFound { what: format!("alias '{alias}'") };
        for change in changes {
            match change {
                AliasChange::Set { alias, collection } => {
                    check_name("an alias", alias)?;
                    let names = self.names();
                    if names.open.contains_key(alias) || names.damaged.contains_key(alias) {
                        return Err(Error::Exists { what: format!("collection '{alias}'") });
                    }
                    if !names.open.contains_key(collection) {
                        return Err(Error::no_collection(collection));
                    }
                    aliases.insert(alias.clone(), collection.clone());
                }
                AliasChange::Remove { alias } => {
                    aliases.remove(alias).ok_or_else(|| unknown(alias))?;
                }
                AliasChange::Rename { from, to } => {
                    check_name("an alias", to)?;
                    if self.names().open.contains_key(to) {
                        return Err(Error::Exists { what: format!("collection '{to}'") });
                    }
                    let collection = aliases.remove(from).ok_or_else(|| unknown(from))?;
                    aliases.insert(to.clone(), collection);
                }
            }
        }
        self.write_aliases(&aliases)?;
        self.names.write().unwrap_or_else(PoisonError::into_inner).aliases = aliases;
        Ok(())
    }

    /// Makes the folder of a collection under another name, then renames it: it is there whole or not at all.
    fn put_in_place(&self, name: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let all = collections_of(&self.folder);
        let (new, folder) = (all.join(format!(".new-{name}")), self.folder_of(name));
        let _ = fs::remove_dir_all(&new);
        fs::create_dir_all(&new).map_err(|error| io_failure("making a collection", &error))?;
        let made = fill(&new).and_then(|()| {
            let renamed = sync_folder(&new).and_then(|()| fs::rename(&new, &folder)).and_then(|()| sync_folder(&all));
            renamed.map_err(|error| io_failure("making a collection", &error))
        });
        if made.is_err() {
            let _ = fs::remove_dir_all(&new);
        }
        made?;
        let collection = Collection::open(&folder, name, self.access, self.hardware.clone())?;
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        names.damaged.remove(name);
        names.open.insert(name.to_owned(), Arc::new(collection));
        Ok(())
    }

    fn names(&self) -> RwLockReadGuard<'_, Names> {
        self.names.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> Result<MutexGuard<'_, ()>> {
        if self.access == Access::ReadOnly {
            return Err(Error::ReadOnly);
        }
        Ok(self.changing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where a collection goes that was deleted or replaced. The next start removes what stays.
    fn left_folder(&self, name: &str) -> PathBuf {
        let number = self.left.fetch_add(1, Ordering::Relaxed);
        collections_of(&self.folder).join(format!(".left-{number}-{name}"))
    }

    fn folder_of(&self, name: &str) -> PathBuf {
        collections_of(&self.folder).join(name)
    }

    fn read_aliases(&self) -> Result<BTreeMap<String, String>> {
        match fs::read(self.folder.join("aliases.json")) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|_| Error::Corrupt {
                collection: "aliases".to_owned(),
                what: "the file aliases.json is not readable: delete it and set the aliases again".to_owned(),
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(io_failure("reading the aliases", &error)),
        }
    }

    fn write_aliases(&self, aliases: &BTreeMap<String, String>) -> Result<()> {
        let bytes = serde_json::to_vec(aliases).map_err(|error| Error::Store(error.to_string()))?;
        replace(&self.folder.join("aliases.json"), &bytes)
    }
}

/// What is not whole yet, or no longer wanted.
fn hidden(folder: &Path) -> std::io::Result<Vec<(PathBuf, String)>> {
    let named = |entry: std::io::Result<fs::DirEntry>| {
        entry.map(|entry| (entry.path(), entry.file_name().to_string_lossy().into_owned()))
    };
    let entries = fs::read_dir(folder)?.map(named).collect::<std::io::Result<Vec<_>>>()?;
    Ok(entries.into_iter().filter(|(_, name)| name.starts_with('.')).collect())
}

fn collections_of(folder: &Path) -> PathBuf {
    folder.join("collections")
}
