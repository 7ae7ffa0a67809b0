//! Changes of points: checked as a whole, written in one transaction each, then taken over into memory.
//! A change that is refused leaves nothing behind; one that returned is on the disk.

use super::state::{Edit, State};
use super::{Collection, View};
use crate::store::{self, Head};
use crate::types::merge;
use crate::{Error, JsonPath, Payload, Point, PointId, Result, Selector, Vector};
use std::collections::{BTreeMap, HashMap};
use std::sync::PoisonError;

/// One change of a collection. Ids that are not there make payload and vector changes fail with `NotFound`, after
/// the other points of that change were changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Inserts points, or replaces them wholly.
    Upsert(Vec<Point>),
    /// Deletes points; ids that are not there are left out.
    Delete(Selector),
    /// Merges fields into payloads, or into the object at `key`. A null removes a field.
    SetPayload {
        /// Of these points.
        points: Selector,
        /// The fields.
        payload: Payload,
        /// Where they go; the payload itself if there is none.
        key: Option<JsonPath>,
    },
    /// Replaces payloads.
    OverwritePayload {
        /// Of these points.
        points: Selector,
        /// The payload of each.
        payload: Payload,
    },
    /// Removes fields of payloads.
    DeletePayload {
        /// Of these points.
        points: Selector,
        /// What is removed.
        keys: Vec<JsonPath>,
    },
    /// Empties payloads.
    ClearPayload(Selector),
    /// Sets some vectors of points and keeps the others.
    UpdateVectors(Vec<(PointId, BTreeMap<String, Vector>)>),
    /// Removes vectors of points.
    DeleteVectors {
        /// Of these points.
        points: Selector,
        /// The names of the vectors.
        names: Vec<String>,
    },
}

impl Collection {
    /// Inserts points, or replaces them wholly.
    pub fn upsert(&self, points: Vec<Point>) -> Result<()> {
        self.change(vec![Change::Upsert(points)])
    }

    /// Deletes points; ids that are not there are left out.
    pub fn delete(&self, points: &Selector) -> Result<()> {
        self.change(vec![Change::Delete(points.clone())])
    }

    /// Changes in order. All are checked before the first is made; each is durable when the next begins.
    pub fn change(&self, mut changes: Vec<Change>) -> Result<()> {
        changes.iter_mut().try_for_each(|change| self.prepare(change))?;
        changes.into_iter().try_for_each(|change| self.make(change))
    }

    fn prepare(&self, change: &mut Change) -> Result<()> {
        match change {
            Change::Upsert(points) if points.is_empty() => Err(Error::bad("Empty update request")),
            Change::Upsert(points) => points.iter_mut().try_for_each(|point| {
                self.check_payload(&point.payload)?;
                self.schema.prepare(point)
            }),
            Change::SetPayload { payload, .. } | Change::OverwritePayload { payload, .. } => {
                self.check_payload(payload)
            }
            Change::UpdateVectors(points) if points.is_empty() => Err(Error::bad("must specify points to update")),
            Change::UpdateVectors(points) => {
                points.iter_mut().try_for_each(|(_, vectors)| self.schema.prepare_vectors(vectors))
            }
            Change::DeleteVectors { names, .. } if names.is_empty() => {
                Err(Error::bad("must specify vector names to delete"))
            }
            Change::DeleteVectors { names, .. } => names.iter().try_for_each(|name| self.schema.number(name).map(drop)),
            Change::Delete(_) | Change::DeletePayload { .. } | Change::ClearPayload(_) => Ok(()),
        }
    }

    /// Writes one change, and takes it over into memory when it is durable.
    fn make(&self, change: Change) -> Result<()> {
        let state = self.state()?;
        let mut rows = self.hold()?;
        let (edits, missing, needs_payloads) = {
            let view = self.view()?;
            let mut plan = Plan::new(self, &view, &rows);
            plan.change(change)?;
            (plan.edits, plan.missing, plan.needs_payloads)
        };
        // Readers see either everything before the change or everything after it, in memory and in the store.
        let mut state = state.write().unwrap_or_else(PoisonError::into_inner);
        rows.commit()?;
        edits.into_iter().for_each(|edit| state.apply(edit, self.text_field.as_ref()));
        if !needs_payloads {
            // A reader may have built one since: it does not know this change.
            state.forget_payload_indexes();
        }
        drop(state);
        match missing {
            Some(id) => Err(Error::NotFound { what: format!("No point with id {id} found") }),
            None => Ok(()),
        }
    }
}

/// The rows of a change, written as it is thought out.
struct Plan<'a> {
    collection: &'a Collection,
    view: &'a View<'a>,
    rows: &'a store::Change<'a>,
    /// Whether the payloads before must be known.
    needs_payloads: bool,
    /// Slots of points that this change inserts.
    inserted: HashMap<PointId, u32>,
    heads: HashMap<u32, Head>,
    free: roaring::bitmap::IntoIter,
    next: u32,
    edits: Vec<Edit>,
    missing: Option<PointId>,
}

impl<'a> Plan<'a> {
    fn new(collection: &'a Collection, view: &'a View<'a>, rows: &'a store::Change<'a>) -> Self {
        let state: &State = view.state();
        Self {
            collection,
            view,
            rows,
            needs_payloads: state.needs_payloads(),
            inserted: HashMap::new(),
            heads: HashMap::new(),
            free: state.free().clone().into_iter(),
            next: state.slots(),
            edits: Vec::new(),
            missing: None,
        }
    }

    fn change(&mut self, change: Change) -> Result<()> {
        match change {
            Change::Upsert(points) => points.into_iter().try_for_each(|point| self.upsert(point)),
            Change::Delete(points) => {
                let vectors = self.collection.schema.vectors().len();
                for slot in self.selected(&points, false)? {
                    let before = self.before(slot)?;
                    self.rows.remove_point(slot, vectors)?;
                    let payload = before.map(|before| (before, Payload::new()));
                    let vectors = (0..vectors).map(|number| (number, None)).collect();
                    self.edits.push(Edit { slot, head: None, payload, vectors });
                }
                Ok(())
            }
            Change::SetPayload { points, payload, key } => self.payloads(&points, |old| match &key {
                Some(key) => key.merge_into(old, &payload),
                None => merge(old, &payload),
            }),
            Change::OverwritePayload { points, payload } => self.payloads(&points, |old| old.clone_from(&payload)),
            Change::DeletePayload { points, keys } => {
                self.payloads(&points, |old| keys.iter().for_each(|key| key.remove_from(old)))
            }
            Change::ClearPayload(points) => self.payloads(&points, Payload::clear),
            Change::UpdateVectors(points) => {
                points.into_iter().try_for_each(|(id, vectors)| match self.view.state().ids().get(&id).copied() {
                    Some(slot) => {
                        let vectors = vectors.into_iter().map(|(name, vector)| (name, Some(vector)));
                        self.vectors(slot, vectors.collect())
                    }
                    None => {
                        self.missing.get_or_insert(id);
                        Ok(())
                    }
                })
            }
            Change::DeleteVectors { points, names } => {
                let slots = self.selected(&points, true)?;
                slots.into_iter().try_for_each(|slot| {
                    let vectors = names.iter().map(|name| (name.clone(), None)).collect();
                    self.vectors(slot, vectors)
                })
            }
        }
    }

    /// The slots of points, each once. Ids that are not there are noted if they count as missing.
    fn selected(&mut self, points: &Selector, must_be_there: bool) -> Result<Vec<u32>> {
        let ids = match points {
            Selector::Filter(filter) => {
                let slots = self.view.meeting(filter)?;
                // The filter may have built an index.
                self.needs_payloads = self.view.state().needs_payloads();
                return Ok(slots.into_iter().collect());
            }
            Selector::Ids(ids) => ids,
        };
        let mut slots = roaring::RoaringBitmap::new();
        for id in ids {
            if let Some(slot) = self.view.state().ids().get(id) {
                slots.insert(*slot);
            } else if must_be_there {
                self.missing.get_or_insert(*id);
            }
        }
        Ok(slots.into_iter().collect())
    }

    fn upsert(&mut self, mut point: Point) -> Result<()> {
        let known = self.view.state().ids().get(&point.id).or_else(|| self.inserted.get(&point.id)).copied();
        let slot = match known {
            Some(slot) => slot,
            None => {
                let slot = match self.free.next() {
                    Some(slot) => slot,
                    None => {
                        let slot = self.next;
                        self.next =
                            slot.checked_add(1).ok_or_else(|| Error::bad("a collection holds 4 billion points"))?;
                        slot
                    }
                };
                self.inserted.insert(point.id, slot);
                slot
            }
        };
        let before = self.before(slot)?;
        let old = self.head(slot).map_or(0, |head| head.vectors);
        let mut head = Head { id: point.id, vectors: 0, has_payload: !point.payload.is_empty() };
        let mut vectors = Vec::new();
        for (number, named) in self.collection.schema.vectors().iter().enumerate() {
            let vector = point.vectors.remove(&named.name);
            head.vectors |= u64::from(vector.is_some()) << number;
            if vector.is_some() || old >> number & 1 == 1 {
                self.rows.put_vector(slot, number, vector.as_ref())?;
                vectors.push((number, vector));
            }
        }
        self.put_head(slot, head)?;
        self.rows.put_payload(slot, &point.payload)?;
        let payload = before.map(|before| (before, point.payload));
        self.edits.push(Edit { slot, head: Some(head), payload, vectors });
        Ok(())
    }

    /// Changes payloads one by one.
    fn payloads(&mut self, points: &Selector, change: impl Fn(&mut Payload)) -> Result<()> {
        for slot in self.selected(points, true)? {
            let Some(mut head) = self.head(slot) else {
                continue;
            };
            let before = self.stored_payload(slot)?;
            let mut after = before.clone();
            change(&mut after);
            self.collection.check_payload(&after)?;
            self.rows.put_payload(slot, &after)?;
            head.has_payload = !after.is_empty();
            self.put_head(slot, head)?;
            let payload = self.needs_payloads.then_some((before, after));
            self.edits.push(Edit { slot, head: Some(head), payload, vectors: Vec::new() });
        }
        Ok(())
    }

    fn vectors(&mut self, slot: u32, named: Vec<(String, Option<Vector>)>) -> Result<()> {
        let Some(mut head) = self.head(slot) else {
            return Ok(());
        };
        let mut vectors = Vec::new();
        for (name, vector) in named {
            let number = self.collection.schema.number(&name)?;
            head.vectors = head.vectors & !(1 << number) | u64::from(vector.is_some()) << number;
            self.rows.put_vector(slot, number, vector.as_ref())?;
            vectors.push((number, vector));
        }
        self.put_head(slot, head)?;
        self.edits.push(Edit { slot, head: Some(head), payload: None, vectors });
        Ok(())
    }

    fn head(&self, slot: u32) -> Option<Head> {
        self.heads.get(&slot).copied().or_else(|| self.view.state().head(slot))
    }

    fn put_head(&mut self, slot: u32, head: Head) -> Result<()> {
        if self.head(slot) != Some(head) {
            self.rows.put_head(slot, head)?;
            self.heads.insert(slot, head);
        }
        Ok(())
    }

    /// The payload before, if something in memory is derived from it.
    fn before(&self, slot: u32) -> Result<Option<Payload>> {
        self.needs_payloads.then(|| self.stored_payload(slot)).transpose()
    }

    /// A damaged payload counts as empty: indexes do not have it either.
    fn stored_payload(&self, slot: u32) -> Result<Payload> {
        let has_payload = self.head(slot).is_some_and(|head| head.has_payload);
        if has_payload { Ok(self.rows.payload(slot)?.unwrap_or_default()) } else { Ok(Payload::new()) }
    }
}
