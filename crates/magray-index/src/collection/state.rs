//! What is derived from the store and kept in memory: ids, slots, and indexes that are built when first used.
//! Changes only after the store has committed; can be built again at any time.

use super::Hardware;
use super::dense::Dense;
use super::filling::filled;
use super::multi::Multi;
use super::schema::{Kind, Named, Schema};
use crate::filter::FieldIndex;
use crate::store::{Head, Reader, floats_into};
use crate::text::{Analyzer, Language, SparseIndex, WordIndex};
use crate::{Error, JsonPath, Payload, PointId, Result, Vector};
use roaring::RoaringBitmap;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Fields that have an index. Filters on others read payloads.
const FIELDS_MAX: usize = 64;

pub(crate) struct State {
    ids: BTreeMap<PointId, u32>,
    heads: Vec<Option<Head>>,
    live: RoaringBitmap,
    /// Slots below the last one that points may take.
    free: RoaringBitmap,
    vectors: Vec<VectorIndex>,
    words: OnceLock<WordIndex>,
    fields: Mutex<HashMap<JsonPath, Arc<FieldIndex>>>,
    /// What could not be read, by slot.
    damage: Mutex<BTreeMap<u32, String>>,
    /// One thread builds an index, the others wait for it.
    building: Mutex<()>,
}

/// The vectors of one name, as they are searched.
pub(crate) enum VectorIndex {
    Dense(OnceLock<Dense>),
    Multi(OnceLock<Multi>),
    Sparse(OnceLock<SparseIndex>),
}

/// How one slot changes.
pub(crate) struct Edit {
    pub(crate) slot: u32,
    /// `None`: the point is deleted.
    pub(crate) head: Option<Head>,
    /// The payload before and after, if it changes and something in memory is derived from it.
    pub(crate) payload: Option<(Payload, Payload)>,
    /// New vectors by number; `None`: there is none any more.
    pub(crate) vectors: Vec<(usize, Option<Vector>)>,
}

impl State {
    /// Reads the heads; everything else waits for its first use.
    pub(crate) fn load(schema: &Schema, reader: &Reader<'_>) -> Result<Self> {
        let mut state = Self {
            ids: BTreeMap::new(),
            heads: Vec::new(),
            live: RoaringBitmap::new(),
            free: RoaringBitmap::new(),
            vectors: schema.vectors().iter().map(|vector| VectorIndex::empty(&vector.kind)).collect(),
            words: OnceLock::new(),
            fields: Mutex::default(),
            damage: Mutex::default(),
            building: Mutex::default(),
        };
        let mut ids = Vec::new();
        let mut damage = BTreeMap::new();
        reader.heads(&mut |slot, head| {
            // A slot is believed only with its checksum: damaged pages have rows out of order, and far away.
            state.free.remove(slot);
            match head {
                Ok(head) => {
                    if state.heads.len() <= slot as usize {
                        state.free.insert_range(state.heads.len() as u32..slot);
                        state.heads.resize(slot as usize + 1, None);
                    }
                    state.heads[slot as usize] = Some(head);
                    state.live.insert(slot);
                    ids.push((head.id, slot));
                }
                Err(_) => drop(damage.insert(slot, format!("the id of the point at slot {slot} is not readable"))),
            }
        })?;
        ids.sort_unstable();
        for pair in ids.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            damage.insert(pair[1].1, format!("point {} is stored twice", pair[0].0));
        }
        state.ids = ids.into_iter().collect();
        state.damage = Mutex::new(damage);
        Ok(state)
    }

    pub(crate) fn live(&self) -> &RoaringBitmap {
        &self.live
    }

    pub(crate) fn ids(&self) -> &BTreeMap<PointId, u32> {
        &self.ids
    }

    pub(crate) fn head(&self, slot: u32) -> Option<Head> {
        self.heads.get(slot as usize).copied().flatten()
    }

    /// The slots whose points have the vector with this number.
    pub(crate) fn with_vector(&self, number: usize) -> RoaringBitmap {
        let has = |head: &Option<Head>| head.is_some_and(|head| head.vectors >> number & 1 == 1);
        (0..).zip(&self.heads).filter(|(_, head)| has(head)).map(|(slot, _)| slot).collect()
    }

    /// Slots that were ever used.
    pub(crate) fn slots(&self) -> u32 {
        self.heads.len() as u32
    }

    pub(crate) fn free(&self) -> &RoaringBitmap {
        &self.free
    }

    /// Remembers what could not be read.
    pub(crate) fn note_damage(&self, slot: u32, what: String) {
        locked(&self.damage).insert(slot, what);
    }

    fn note_unreadable(&self, slot: u32, name: &str) {
        let point = self.head(slot).map_or_else(String::new, |head| head.id.to_string());
        self.note_damage(slot, format!("vector '{name}' of point {point} is not readable"));
    }

    pub(crate) fn damage(&self) -> Vec<String> {
        locked(&self.damage).values().cloned().collect()
    }

    /// Whether payloads must be known before they change.
    pub(crate) fn needs_payloads(&self) -> bool {
        self.words.get().is_some() || !locked(&self.fields).is_empty()
    }

    /// Indexes of payloads are built again when they are next asked for.
    pub(crate) fn forget_payload_indexes(&mut self) {
        self.words.take();
        self.fields.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Memory of the indexes that are built.
    pub(crate) fn bytes(&self) -> usize {
        let vectors = self.vectors.iter().map(|index| match index {
            VectorIndex::Dense(cell) => cell.get().map_or(0, Dense::bytes),
            VectorIndex::Multi(cell) => cell.get().map_or(0, Multi::bytes),
            VectorIndex::Sparse(cell) => cell.get().map_or(0, SparseIndex::bytes),
        });
        vectors.sum::<usize>() + self.words.get().map_or(0, WordIndex::bytes)
    }

    /// By name of the vectors: the device that they are on beside the CPU.
    pub(crate) fn devices(&self, schema: &Schema) -> Vec<(String, String)> {
        let device = |(index, vector): (&VectorIndex, &Named)| match index {
            VectorIndex::Dense(cell) => Some((vector.name.clone(), cell.get()?.device()?)),
            VectorIndex::Multi(_) | VectorIndex::Sparse(_) => None,
        };
        self.vectors.iter().zip(schema.vectors()).filter_map(device).collect()
    }

    pub(crate) fn dense(
        &self,
        number: usize,
        schema: &Schema,
        reader: &Reader<'_>,
        hardware: &Hardware,
    ) -> Result<&Dense> {
        let (VectorIndex::Dense(cell), Kind::Dense(config)) = (&self.vectors[number], &schema.vectors()[number].kind)
        else {
            return Err(Error::bad(format!(
                "Dense vector {} is not found in the collection",
                schema.vectors()[number].name
            )));
        };
        self.built(cell, || {
            let name = &schema.vectors()[number].name;
            let index = Dense::new(config, hardware);
            let unreadable = |slot| self.note_unreadable(slot, name);
            filled(index, config.size, &unreadable, |filling| {
                self.read_vectors(number, schema, reader, &mut |slot, bytes| filling.add(slot, bytes))
            })
        })
    }

    pub(crate) fn multi(&self, number: usize, schema: &Schema, reader: &Reader<'_>) -> Result<&Multi> {
        let (VectorIndex::Multi(cell), Kind::Multi(config)) = (&self.vectors[number], &schema.vectors()[number].kind)
        else {
            return Err(Error::bad(format!(
                "Multivector {} is not found in the collection",
                schema.vectors()[number].name
            )));
        };
        self.built(cell, || {
            let mut index = Multi::new(config);
            self.read_vectors(number, schema, reader, &mut |slot, bytes| {
                let mut values = vec![0.0; bytes.len() / 4];
                let is_whole = floats_into(bytes, &mut values) && values.len().is_multiple_of(config.size);
                if is_whole {
                    index.set(slot, values);
                }
                is_whole
            })?;
            Ok(index)
        })
    }

    pub(crate) fn sparse(&self, number: usize, schema: &Schema, reader: &Reader<'_>) -> Result<&SparseIndex> {
        let (VectorIndex::Sparse(cell), Kind::Sparse(config)) = (&self.vectors[number], &schema.vectors()[number].kind)
        else {
            return Err(Error::bad(format!(
                "Sparse vector {} is not found in the collection",
                schema.vectors()[number].name
            )));
        };
        self.built(cell, || {
            let mut index = SparseIndex::new(config.idf);
            self.read_vectors(number, schema, reader, &mut |slot, bytes| match crate::store::vector_from_bytes(
                schema.shape(number),
                bytes,
            ) {
                Some(Vector::Sparse { indices, values }) => {
                    index.insert(slot, &indices, &values);
                    true
                }
                _ => false,
            })?;
            Ok(index)
        })
    }

    /// The words of a field of all payloads.
    pub(crate) fn words(&self, field: &JsonPath, reader: &Reader<'_>) -> Result<&WordIndex> {
        self.built(&self.words, || {
            let mut index = WordIndex::new(Analyzer::new(Some(Language::English)));
            self.read_payloads(reader, &mut |slot, payload| index.insert(slot, texts(field, payload)))?;
            Ok(index)
        })
    }

    /// The values of a field of all payloads; `None` if too many fields have an index.
    pub(crate) fn field(&self, key: &JsonPath, reader: &Reader<'_>) -> Result<Option<Arc<FieldIndex>>> {
        let _building = locked(&self.building);
        let known = locked(&self.fields).get(key).cloned();
        if known.is_some() || locked(&self.fields).len() >= FIELDS_MAX {
            return Ok(known);
        }
        let mut index = FieldIndex::new(key.clone());
        self.read_payloads(reader, &mut |slot, payload| index.insert(slot, payload))?;
        let index = Arc::new(index);
        locked(&self.fields).insert(key.clone(), Arc::clone(&index));
        Ok(Some(index))
    }

    /// Takes over what the store has committed.
    pub(crate) fn apply(&mut self, edit: Edit, text_field: Option<&JsonPath>) {
        let slot = edit.slot;
        if self.heads.len() <= slot as usize {
            self.free.insert_range(self.heads.len() as u32..slot);
            self.heads.resize(slot as usize + 1, None);
        }
        if let Some(old) = self.heads[slot as usize].take().filter(|old| edit.head.is_none_or(|new| new.id != old.id)) {
            self.ids.remove(&old.id);
        }
        self.heads[slot as usize] = edit.head;
        match edit.head {
            Some(head) => {
                self.ids.insert(head.id, slot);
                self.live.insert(slot);
                self.free.remove(slot);
                locked(&self.damage).remove(&slot);
            }
            None => {
                self.live.remove(slot);
                self.free.insert(slot);
            }
        }
        for (number, vector) in edit.vectors {
            self.vectors[number].apply(slot, vector);
        }
        if let Some((before, after)) = edit.payload {
            for index in self.fields.get_mut().unwrap_or_else(PoisonError::into_inner).values_mut() {
                let index = Arc::make_mut(index);
                index.remove(slot, &before);
                if edit.head.is_some() {
                    index.insert(slot, &after);
                }
            }
            if let (Some(words), Some(field)) = (self.words.get_mut(), text_field) {
                words.remove(slot);
                words.insert(slot, texts(field, &after));
            }
        }
    }

    fn built<'s, T>(&'s self, cell: &'s OnceLock<T>, build: impl FnOnce() -> Result<T>) -> Result<&'s T> {
        if let Some(built) = cell.get() {
            return Ok(built);
        }
        let _building = locked(&self.building);
        match cell.get() {
            Some(built) => Ok(built),
            None => {
                let built = build()?;
                Ok(cell.get_or_init(|| built))
            }
        }
    }

    fn read_vectors(
        &self,
        number: usize,
        schema: &Schema,
        reader: &Reader<'_>,
        take: &mut dyn FnMut(u32, &[u8]) -> bool,
    ) -> Result<()> {
        let name = &schema.vectors()[number].name;
        let mut found = RoaringBitmap::new();
        reader.vectors(number, self.slots(), &mut |slot, bytes| {
            if self.head(slot).is_none_or(|head| head.vectors >> number & 1 == 0) {
                // Vectors are deleted together with their points: the head is what was lost.
                return self.note_damage(slot, format!("a vector '{name}' at slot {slot} has lost its point"));
            }
            found.insert(slot);
            if !bytes.is_ok_and(|bytes| take(slot, bytes)) {
                self.note_unreadable(slot, name);
            }
        })?;
        for slot in &self.live - found {
            if let Some(head) = self.head(slot).filter(|head| head.vectors >> number & 1 == 1) {
                self.note_damage(slot, format!("vector '{name}' of point {} is missing", head.id));
            }
        }
        Ok(())
    }

    fn read_payloads(&self, reader: &Reader<'_>, take: &mut dyn FnMut(u32, &Payload)) -> Result<()> {
        let mut found = RoaringBitmap::new();
        let damaged = |slot: u32, head: Head| {
            self.note_damage(slot, format!("the payload of point {} is not readable", head.id));
        };
        reader.payloads(self.slots(), &mut |slot, payload| {
            found.insert(slot);
            match (self.head(slot), payload) {
                (Some(_), Ok(payload)) => take(slot, &payload),
                (Some(head), Err(_)) => damaged(slot, head),
                (None, _) => {}
            }
        })?;
        for slot in &self.live - found {
            if let Some(head) = self.head(slot).filter(|head| head.has_payload) {
                damaged(slot, head);
            }
        }
        Ok(())
    }
}

impl VectorIndex {
    fn empty(kind: &Kind) -> Self {
        match kind {
            Kind::Dense(_) => Self::Dense(OnceLock::new()),
            Kind::Multi(_) => Self::Multi(OnceLock::new()),
            Kind::Sparse(_) => Self::Sparse(OnceLock::new()),
        }
    }

    /// An index that is not built yet finds the vector in the store.
    fn apply(&mut self, slot: u32, vector: Option<Vector>) {
        match (self, vector) {
            (Self::Dense(cell), vector) => {
                if let Some(index) = cell.get_mut() {
                    match vector {
                        // The schema has refused vectors that cannot be searched.
                        Some(Vector::Dense(values)) if index.set(slot, &values) => {}
                        _ => index.clear(slot),
                    }
                }
            }
            (Self::Multi(cell), vector) => {
                if let Some(index) = cell.get_mut() {
                    match vector {
                        Some(Vector::Multi(rows)) => index.set(slot, rows.concat()),
                        _ => index.clear(slot),
                    }
                }
            }
            (Self::Sparse(cell), vector) => {
                if let Some(index) = cell.get_mut() {
                    match vector {
                        Some(Vector::Sparse { indices, values }) => index.insert(slot, &indices, &values),
                        _ => {
                            index.remove(slot);
                        }
                    }
                }
            }
        }
    }
}

/// The texts that BM25 reads of a payload.
fn texts<'p>(field: &JsonPath, payload: &'p Payload) -> Vec<&'p str> {
    let mut texts = Vec::new();
    field.visit_flat(payload, &mut |value| texts.extend(value.as_str()));
    texts
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
