//! The file of one collection: heads, payloads and vectors by slot, in SQLite with a write-ahead log.
//! Knows no filters and no ranking. What it acknowledged survives the end of the process and of the machine.

mod failure;
mod rows;

pub(crate) use failure::{failure, io_failure};
pub(crate) use rows::{Head, Shape, floats_into, vector_from_bytes};

use crate::{CollectionConfig, Error, Payload, Result, Vector};
use failure::is_damage;
use rows::{Place, payload_from_bytes, vector_to_bytes};
use rusqlite::{Connection, OpenFlags, OptionalExtension};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The file's name in the folder of a collection.
pub(crate) const FILE: &str = "points.db";

/// Five vectors of 384 dimensions fill a page.
const PAGE_BYTES: u64 = 8 * 1024;

/// Connections that wait for the next reader; others are closed after use.
const IDLE_READERS_MAX: usize = 8;

/// Vectors of a collection, by the bits of a head.
pub(crate) const VECTORS_MAX: usize = 64;

const HEADS: u32 = 0;
const PAYLOADS: u32 = 1;
const VECTORS: u32 = 2;

/// The form of the file. Another form is refused.
const FORMAT: i64 = 1;

/// A row that cannot be read as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

/// Takes the bytes of a slot.
type EachRow<'a> = &'a mut dyn FnMut(u32, Result<&[u8], Damaged>);

/// One collection's file: one connection that writes, and as many that read as are needed at once.
pub(crate) struct Store {
    collection: String,
    place: RwLock<FilePlace>,
    access: Access,
    writer: Mutex<Connection>,
    readers: Mutex<Vec<Connection>>,
}

/// Where the file is.
struct FilePlace {
    path: PathBuf,
    /// Its folder goes with the last user.
    is_left: bool,
}

/// How the file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The file may grow to so many bytes; its log is written back into it when it is longer than allowed.
    Write { bytes_max: u64, log_bytes_max: u64 },
    /// Nothing can be written in the folder.
    ReadOnly,
}

impl Store {
    /// Makes the file of a new collection.
    pub(crate) fn create(folder: &Path, collection: &str, config: &CollectionConfig, access: Access) -> Result<()> {
        let connection = connect(&folder.join(FILE), access).map_err(|error| failure(collection, error))?;
        let make = || {
            connection.execute_batch(&format!(
                "BEGIN; PRAGMA user_version={FORMAT}; CREATE TABLE settings(key TEXT PRIMARY KEY, body BLOB NOT NULL);"
            ))?;
            let tables = config.dense.len() + config.sparse.len() + VECTORS as usize;
            for table in 0..tables {
                let name = table_name(table as u32);
                connection
                    .execute_batch(&format!("CREATE TABLE {name}(slot INTEGER PRIMARY KEY, body BLOB NOT NULL);"))?;
            }
            put_config(&connection, config)?;
            connection.execute_batch("COMMIT")
        };
        make().map_err(|error| failure(collection, error))
    }

    /// Opens a file; reads its settings and nothing else.
    pub(crate) fn open(folder: &Path, collection: &str, access: Access) -> Result<(Self, CollectionConfig)> {
        let path = folder.join(FILE);
        let is_there = path.try_exists().map_err(|error| io_failure("looking for a collection", &error))?;
        let damaged = |what: &str| Error::Corrupt { collection: collection.to_owned(), what: what.to_owned() };
        if !is_there {
            return Err(damaged("its file is missing"));
        }
        let writer = connect(&path, access).map_err(|error| failure(collection, error))?;
        let read = || {
            let format: i64 = writer.query_row("PRAGMA user_version", [], |row| row.get(0))?;
            let body: Vec<u8> =
                writer.query_row("SELECT body FROM settings WHERE key='config'", [], |row| row.get(0))?;
            Ok((format, body))
        };
        let (format, body) = read().map_err(|error| failure(collection, error))?;
        if format != FORMAT {
            return Err(damaged(&format!("its file has form {format}, and this version reads form {FORMAT}")));
        }
        let config = serde_json::from_slice(&body).map_err(|_| damaged("its settings are not readable"))?;
        let (writer, place) = (Mutex::new(writer), RwLock::new(FilePlace { path, is_left: false }));
        Ok((Self { collection: collection.to_owned(), place, access, writer, readers: Mutex::default() }, config))
    }

    /// A damaged part of this collection.
    pub(crate) fn damaged(&self, what: impl Into<String>) -> Error {
        Error::Corrupt { collection: self.collection.clone(), what: what.into() }
    }

    /// Bytes of the file and its log.
    pub(crate) fn bytes(&self) -> u64 {
        let path = self.place().path.clone();
        let log = path.with_extension("db-wal");
        [&path, &log].iter().filter_map(|path| path.metadata().ok()).map(|file| file.len()).sum()
    }

    /// Begins a change of several rows. Nothing is kept unless it is committed.
    pub(crate) fn begin(&self) -> Result<Change<'_>> {
        if self.access == Access::ReadOnly {
            return Err(Error::ReadOnly);
        }
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        // A change that panicked half way is taken back here.
        if !writer.is_autocommit() {
            writer.execute_batch("ROLLBACK").map_err(|error| failure(&self.collection, error))?;
        }
        writer.execute_batch("BEGIN IMMEDIATE").map_err(|error| failure(&self.collection, error))?;
        Ok(Change { store: self, writer, is_open: true })
    }

    /// A connection that sees what was committed last.
    pub(crate) fn reader(&self) -> Result<Reader<'_>> {
        let idle = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => {
                let place = self.place();
                connect(&place.path, self.access).map_err(|error| failure(&self.collection, error))?
            }
        };
        Ok(Reader { store: self, connection: Some(connection) })
    }

    /// Lets no one open the file until it has another place: its name may soon lead to another file.
    pub(crate) fn leave(&self) -> Leaving<'_> {
        Leaving(self.place.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn place(&self) -> RwLockReadGuard<'_, FilePlace> {
        self.place.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads all pages and refuses a file whose structure is damaged.
    pub(crate) fn check(&self) -> Result<()> {
        let found = self.reader()?.connection().query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
        match found.map_err(|error| failure(&self.collection, error))?.as_str() {
            "ok" => Ok(()),
            what => Err(self.damaged(what)),
        }
    }

    /// Writes a consistent copy into a new file.
    pub(crate) fn copy_to(&self, path: &Path) -> Result<()> {
        let reader = self.reader()?;
        let path = path.to_str().ok_or_else(|| Error::Store("the folder's name is no Unicode text".to_owned()))?;
        reader.connection().execute("VACUUM INTO ?", [path]).map_err(|error| failure(&self.collection, error))?;
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let place = self.place.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = place.path.parent().filter(|_| place.is_left) {
            // What stays is removed at the next start.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// A file on its way to another folder. Dropped without `arrive`, it is where it was.
pub(crate) struct Leaving<'s>(RwLockWriteGuard<'s, FilePlace>);

impl Leaving<'_> {
    /// The file is in this folder now, which is removed after its last use.
    pub(crate) fn arrive(mut self, folder: &Path) {
        *self.0 = FilePlace { path: folder.join(FILE), is_left: true };
    }
}

/// Rows that are written together. Dropped without `commit`, nothing of it is kept.
pub(crate) struct Change<'s> {
    store: &'s Store,
    writer: MutexGuard<'s, Connection>,
    is_open: bool,
}

impl Change<'_> {
    pub(crate) fn put_config(&self, config: &CollectionConfig) -> Result<()> {
        put_config(&self.writer, config).map_err(|error| failure(&self.store.collection, error))
    }

    pub(crate) fn put_head(&self, slot: u32, head: Head) -> Result<()> {
        self.put(Place { table: HEADS, slot }, head.to_bytes())
    }

    /// An empty payload has no row.
    pub(crate) fn put_payload(&self, slot: u32, payload: &Payload) -> Result<()> {
        let place = Place { table: PAYLOADS, slot };
        if payload.is_empty() {
            return self.remove(place);
        }
        self.put(place, serde_json::to_vec(payload).map_err(|error| Error::Store(error.to_string()))?)
    }

    pub(crate) fn put_vector(&self, slot: u32, number: usize, vector: Option<&Vector>) -> Result<()> {
        let place = Place { table: VECTORS + number as u32, slot };
        match vector {
            Some(vector) => self.put(place, vector_to_bytes(vector)),
            None => self.remove(place),
        }
    }

    pub(crate) fn remove_point(&self, slot: u32, vectors: usize) -> Result<()> {
        (0..VECTORS + vectors as u32).try_for_each(|table| self.remove(Place { table, slot }))
    }

    pub(crate) fn payload(&self, slot: u32) -> Result<Result<Payload, Damaged>> {
        payload(&self.writer, slot).map_err(|error| failure(&self.store.collection, error))
    }

    /// Makes the change permanent: returns when it is on the disk.
    pub(crate) fn commit(&mut self) -> Result<()> {
        self.writer.execute_batch("COMMIT").map_err(|error| failure(&self.store.collection, error))?;
        self.is_open = false;
        Ok(())
    }

    fn put(&self, place: Place, bytes: Vec<u8>) -> Result<()> {
        let insert = || {
            let name = table_name(place.table);
            let mut statement = self.writer.prepare_cached(&format!("INSERT OR REPLACE INTO {name} VALUES(?, ?)"))?;
            statement.execute((place.slot, place.seal(bytes)))
        };
        insert().map(|_| ()).map_err(|error| failure(&self.store.collection, error))
    }

    fn remove(&self, place: Place) -> Result<()> {
        let delete = || {
            let name = table_name(place.table);
            self.writer.prepare_cached(&format!("DELETE FROM {name} WHERE slot=?"))?.execute([place.slot])
        };
        delete().map(|_| ()).map_err(|error| failure(&self.store.collection, error))
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // What fails here is taken back when the next change begins.
            let _ = self.writer.execute_batch("ROLLBACK");
        } else if let Access::Write { log_bytes_max, .. } = self.store.access
            && self.store.place().path.with_extension("db-wal").metadata().is_ok_and(|log| log.len() > log_bytes_max)
        {
            // Readers that still need the log keep it: the next change tries again.
            let _ = self.writer.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        }
    }
}

/// Reads rows. Each statement sees what is committed when it begins.
pub(crate) struct Reader<'s> {
    store: &'s Store,
    connection: Option<Connection>,
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let mut idle = self.store.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_READERS_MAX {
            idle.extend(self.connection.take());
        }
    }
}

impl Reader<'_> {
    fn connection(&self) -> &Connection {
        self.connection.as_ref().expect("it is there until the reader is dropped")
    }

    fn failure(&self, error: rusqlite::Error) -> Error {
        failure(&self.store.collection, error)
    }

    pub(crate) fn payload(&self, slot: u32) -> Result<Result<Payload, Damaged>> {
        payload(self.connection(), slot).map_err(|error| self.failure(error))
    }

    pub(crate) fn vector(&self, slot: u32, number: usize, shape: Shape) -> Result<Result<Vector, Damaged>> {
        let place = Place { table: VECTORS + number as u32, slot };
        let sealed = row(self.connection(), place).map_err(|error| self.failure(error))?;
        let bytes = sealed.as_ref().ok().and_then(|sealed| place.open(sealed.as_deref()?));
        Ok(bytes.and_then(|bytes| vector_from_bytes(shape, bytes)).ok_or(Damaged))
    }

    /// Every head in the order of slots.
    pub(crate) fn heads(&self, each: &mut dyn FnMut(u32, Result<Head, Damaged>)) -> Result<()> {
        let slots = self.slots_max()?.map_or(0..0, |last| 0..last.saturating_add(1));
        self.scan(HEADS, slots, &mut |slot, bytes| {
            each(slot, bytes.and_then(|bytes| Head::from_bytes(bytes).ok_or(Damaged)))
        })
    }

    /// Every payload that is not empty, in the order of slots.
    pub(crate) fn payloads(&self, slots: u32, each: &mut dyn FnMut(u32, Result<Payload, Damaged>)) -> Result<()> {
        let read = |bytes: &[u8]| payload_from_bytes(bytes).ok_or(Damaged);
        self.scan(PAYLOADS, 0..slots, &mut |slot, bytes| each(slot, bytes.and_then(read)))
    }

    /// The bytes of every vector with this number, in the order of slots.
    pub(crate) fn vectors(&self, number: usize, slots: u32, each: EachRow<'_>) -> Result<()> {
        self.scan(VECTORS + number as u32, 0..slots, each)
    }

    /// The last slot of any table, as far as they are readable.
    fn slots_max(&self) -> Result<Option<u32>> {
        let mut last = None;
        for table in [HEADS, PAYLOADS] {
            let name = table_name(table);
            let found = self
                .connection()
                .query_row(&format!("SELECT max(slot) FROM {name}"), [], |row| row.get::<_, Option<i64>>(0));
            match found {
                Ok(found) => last = last.max(found.and_then(|slot| u32::try_from(slot).ok())),
                Err(error) if is_damage(&error) => {}
                Err(error) => return Err(self.failure(error)),
            }
        }
        Ok(last)
    }

    /// All rows of a table. Where pages are damaged the rows behind them are looked for one by one.
    fn scan(&self, table: u32, slots: std::ops::Range<u32>, each: EachRow<'_>) -> Result<()> {
        let mut next = slots.start;
        let Err(error) = self.scan_until_damage(table, &mut next, each) else {
            return Ok(());
        };
        if !is_damage(&error) {
            return Err(self.failure(error));
        }
        for slot in next..slots.end {
            let place = Place { table, slot };
            match row(self.connection(), place).map_err(|error| self.failure(error))? {
                Ok(Some(sealed)) => each(slot, place.open(&sealed).ok_or(Damaged)),
                Ok(None) => {}
                Err(damaged) => each(slot, Err(damaged)),
            }
        }
        Ok(())
    }

    fn scan_until_damage(&self, table: u32, next: &mut u32, each: EachRow<'_>) -> rusqlite::Result<()> {
        let name = table_name(table);
        let mut statement =
            self.connection().prepare_cached(&format!("SELECT slot, body FROM {name} ORDER BY slot"))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let Ok(slot) = u32::try_from(row.get::<_, i64>(0)?) else {
                each(u32::MAX, Err(Damaged));
                continue;
            };
            let sealed = row.get_ref(1)?.as_blob().unwrap_or_default();
            each(slot, Place { table, slot }.open(sealed).ok_or(Damaged));
            *next = slot.saturating_add(1);
        }
        Ok(())
    }
}

fn put_config(connection: &Connection, config: &CollectionConfig) -> rusqlite::Result<()> {
    let body = serde_json::to_vec(config).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    connection.execute("INSERT OR REPLACE INTO settings VALUES('config', ?)", [body]).map(drop)
}

/// A row, or that pages on the way to it are damaged.
fn row(connection: &Connection, place: Place) -> rusqlite::Result<Result<Option<Vec<u8>>, Damaged>> {
    let name = table_name(place.table);
    let mut statement = connection.prepare_cached(&format!("SELECT body FROM {name} WHERE slot=?"))?;
    match statement.query_row([place.slot], |row| row.get(0)).optional() {
        Ok(sealed) => Ok(Ok(sealed)),
        Err(error) if is_damage(&error) => Ok(Err(Damaged)),
        Err(error) => Err(error),
    }
}

/// The payload of a point that has one.
fn payload(connection: &Connection, slot: u32) -> rusqlite::Result<Result<Payload, Damaged>> {
    let place = Place { table: PAYLOADS, slot };
    let sealed = row(connection, place)?;
    let bytes = sealed.as_ref().ok().and_then(|sealed| place.open(sealed.as_deref()?));
    Ok(bytes.and_then(payload_from_bytes).ok_or(Damaged))
}

fn table_name(table: u32) -> String {
    match table {
        HEADS => "heads".to_owned(),
        PAYLOADS => "payloads".to_owned(),
        vector => format!("vectors_{}", vector - VECTORS),
    }
}

fn connect(path: &Path, access: Access) -> rusqlite::Result<Connection> {
    let connection = match access {
        Access::Write { .. } => Connection::open(path)?,
        Access::ReadOnly => {
            // Without a log that could hold newer pages the file can be read as it is.
            let has_log = path.with_extension("db-wal").metadata().is_ok_and(|log| log.len() > 0);
            let address = format!("file:{}?mode=ro{}", escaped(path), if has_log { "" } else { "&immutable=1" });
            Connection::open_with_flags(address, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI)?
        }
    };
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    connection.set_prepared_statement_cache_capacity(4 * VECTORS_MAX);
    if let Access::Write { bytes_max, .. } = access {
        let pages_max = bytes_max / PAGE_BYTES;
        // A commit returns when the log is on the disk. The log is written back by `Change`, not inside of a commit.
        connection.execute_batch(&format!(
            "PRAGMA page_size={PAGE_BYTES}; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-16384;
             PRAGMA wal_autocheckpoint=0; PRAGMA cell_size_check=ON; PRAGMA max_page_count={pages_max};"
        ))?;
    }
    Ok(connection)
}

/// A path in an address that SQLite reads.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23")
}
