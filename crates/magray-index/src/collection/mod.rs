//! A collection of points: changes, reading, filters, ranked queries.
//! One process has it open; in it, any number of threads may read while one writes.

mod change;
mod dense;
mod filling;
mod formula;
mod map;
mod multi;
mod query;
mod read;
mod schema;
mod scores;
mod selection;
mod state;

pub use change::Change;
pub use map::{MapRequest, MapValues, NO_VALUE, PointMap};

use crate::filter::{self, FieldIndex, Source};
use crate::store::{self, Access, Reader, Store};
use crate::{CollectionConfig, Error, Filter, JsonPath, Payload, PointId, Result};
use magray_device::cpu::Cpu;
use magray_device::scan::RowsHost;
use roaring::RoaringBitmap;
use schema::Schema;
use state::State;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};

/// The largest payload, as JSON.
const PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// Points with vectors and payloads, in one file.
pub struct Collection {
    name: String,
    config: RwLock<Arc<CollectionConfig>>,
    schema: Schema,
    text_field: Option<JsonPath>,
    store: Store,
    hardware: Hardware,
    state: OnceLock<RwLock<State>>,
    loading: Mutex<()>,
    /// It was deleted, or another file has taken its place.
    is_replaced: AtomicBool,
}

/// What searches.
#[derive(Clone)]
pub(crate) struct Hardware {
    pub(crate) cpu: Arc<Cpu>,
    /// Other devices, which may hold vectors.
    pub(crate) host: Option<Arc<dyn RowsHost>>,
    pub(crate) searches: Arc<SearchCounts>,
}

/// Searches of dense vectors.
#[derive(Debug, Default)]
pub struct SearchCounts {
    cpu: AtomicU64,
    elsewhere: AtomicU64,
}

impl SearchCounts {
    /// Those that the CPU has done.
    pub fn cpu(&self) -> u64 {
        self.cpu.load(Ordering::Relaxed)
    }

    /// Those that another device has done.
    pub fn elsewhere(&self) -> u64 {
        self.elsewhere.load(Ordering::Relaxed)
    }

    fn note(&self, is_elsewhere: bool) {
        if is_elsewhere { &self.elsewhere } else { &self.cpu }.fetch_add(1, Ordering::Relaxed);
    }
}

/// What is known of a collection.
#[derive(Clone, Debug, PartialEq)]
pub struct Info {
    /// Points.
    pub points: usize,
    /// Vectors by name.
    pub vectors: Vec<(String, usize)>,
    /// By name: the device that vectors are on beside the CPU.
    pub devices: Vec<(String, String)>,
    /// Bytes on the disk.
    pub disk_bytes: u64,
    /// Bytes of indexes in memory, about.
    pub memory_bytes: usize,
    /// What could not be read, in words. Reading and searching leave it out.
    pub damage: Vec<String>,
}

impl Collection {
    pub(crate) fn create(folder: &Path, name: &str, config: &CollectionConfig, access: Access) -> Result<()> {
        Schema::new(config)?;
        text_field(config)?;
        Store::create(folder, name, config, access)
    }

    pub(crate) fn open(folder: &Path, name: &str, access: Access, hardware: Hardware) -> Result<Self> {
        let (store, config) = Store::open(folder, name, access)?;
        let (schema, text_field) = (Schema::new(&config)?, text_field(&config)?);
        let (name, config) = (name.to_owned(), RwLock::new(Arc::new(config)));
        let (state, loading, is_replaced) = (OnceLock::new(), Mutex::default(), AtomicBool::new(false));
        Ok(Self { name, config, schema, text_field, store, hardware, state, loading, is_replaced })
    }

    /// Its name; aliases lead to it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The settings that it was created with, and its metadata.
    pub fn config(&self) -> Arc<CollectionConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces what the caller wants to remember of the collection.
    pub fn set_metadata(&self, metadata: Payload) -> Result<()> {
        self.change_metadata(|own| {
            *own = metadata;
            Ok(())
        })
    }

    /// Changes what the caller wants to remember of the collection; other changes wait meanwhile.
    pub fn change_metadata(&self, change: impl FnOnce(&mut Payload) -> Result<()>) -> Result<()> {
        let mut rows = self.hold()?;
        let mut metadata = self.config().metadata.clone();
        change(&mut metadata)?;
        self.check_payload(&metadata)?;
        let config = CollectionConfig { metadata, ..self.config().as_ref().clone() };
        rows.put_config(&config)?;
        rows.commit()?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        Ok(())
    }

    /// What is known of it.
    pub fn info(&self) -> Result<Info> {
        let view = self.view()?;
        let state = view.state();
        let count = |number: usize| state.with_vector(number).len() as usize;
        let vectors = self.schema.vectors().iter().enumerate();
        Ok(Info {
            points: state.ids().len(),
            vectors: vectors.map(|(number, vector)| (vector.name.clone(), count(number))).collect(),
            devices: state.devices(&self.schema),
            disk_bytes: self.store.bytes(),
            memory_bytes: state.bytes(),
            damage: state.damage(),
        })
    }

    /// Begins a change; others wait until it ends.
    pub(crate) fn hold(&self) -> Result<store::Change<'_>> {
        let rows = self.store.begin()?;
        if self.is_replaced.load(Ordering::Acquire) { Err(Error::Replaced) } else { Ok(rows) }
    }

    /// Refuses changes from now on: they would be lost.
    pub(crate) fn retire(&self) {
        self.is_replaced.store(true, Ordering::Release);
    }

    /// Lets the file go to another folder. Threads that have the collection read it there.
    pub(crate) fn leave(&self) -> store::Leaving<'_> {
        self.store.leave()
    }

    /// Reads the whole file and refuses one whose structure is damaged.
    pub(crate) fn check(&self) -> Result<()> {
        self.store.check()
    }

    /// Writes a consistent copy of the file.
    pub(crate) fn copy_to(&self, path: &Path) -> Result<()> {
        self.store.copy_to(path)
    }

    fn check_payload(&self, payload: &Payload) -> Result<()> {
        struct Count(usize);
        impl std::io::Write for Count {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0 += bytes.len();
                let is_too_long = self.0 > PAYLOAD_BYTES_MAX;
                if is_too_long { Err(std::io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes.len()) }
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        serde_json::to_writer(Count(0), payload).map_err(|_| {
            Error::bad(format!("a payload is larger than {} MiB: store large data elsewhere", PAYLOAD_BYTES_MAX >> 20))
        })
    }

    /// Reads the ids at the first use.
    fn state(&self) -> Result<&RwLock<State>> {
        if let Some(state) = self.state.get() {
            return Ok(state);
        }
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        match self.state.get() {
            Some(state) => Ok(state),
            None => {
                let state = State::load(&self.schema, &self.store.reader()?)?;
                Ok(self.state.get_or_init(|| RwLock::new(state)))
            }
        }
    }

    /// Everything as it is now. Changes wait until it is dropped.
    fn view(&self) -> Result<View<'_>> {
        let state = self.state()?.read().unwrap_or_else(PoisonError::into_inner);
        Ok(View { collection: self, state, reader: self.store.reader()? })
    }
}

fn text_field(config: &CollectionConfig) -> Result<Option<JsonPath>> {
    config.text_field.as_ref().map(|field| field.parse()).transpose()
}

/// A collection at one moment.
struct View<'a> {
    collection: &'a Collection,
    state: RwLockReadGuard<'a, State>,
    reader: Reader<'a>,
}

impl View<'_> {
    fn state(&self) -> &State {
        &self.state
    }

    /// The slots that meet a filter.
    fn meeting(&self, filter: &Filter) -> Result<RoaringBitmap> {
        filter::slots(filter, self)
    }

    /// The slots that meet a filter, if there is one.
    fn meeting_any(&self, filter: Option<&Filter>) -> Result<RoaringBitmap> {
        filter.map_or_else(|| Ok(self.state.live().clone()), |filter| self.meeting(filter))
    }
}

impl Source for View<'_> {
    fn live(&self) -> &RoaringBitmap {
        self.state.live()
    }

    fn slot_of(&self, id: PointId) -> Option<u32> {
        self.state.ids().get(&id).copied()
    }

    fn id_of(&self, slot: u32) -> Option<PointId> {
        self.state.head(slot).map(|head| head.id)
    }

    fn has_vector(&self, slot: u32, name: &str) -> bool {
        let number = self.collection.schema.number(name);
        number.is_ok_and(|number| self.state.head(slot).is_some_and(|head| head.vectors >> number & 1 == 1))
    }

    fn with_vector(&self, name: &str) -> RoaringBitmap {
        self.collection
            .schema
            .number(name)
            .map_or_else(|_| RoaringBitmap::new(), |number| self.state.with_vector(number))
    }

    fn field(&self, key: &JsonPath) -> Result<Option<Arc<FieldIndex>>> {
        self.state.field(key, &self.reader)
    }

    fn payload(&self, slot: u32) -> Result<Option<Payload>> {
        if self.state.head(slot).is_some_and(|head| !head.has_payload) {
            return Ok(Some(Payload::new()));
        }
        match self.reader.payload(slot)? {
            Ok(payload) => Ok(Some(payload)),
            Err(_) => {
                let point = self.id_of(slot).map_or_else(String::new, |id| id.to_string());
                self.state.note_damage(slot, format!("the payload of point {point} is not readable"));
                Ok(None)
            }
        }
    }
}
