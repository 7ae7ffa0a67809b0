//! Reads points: by id, by pages, counted, by the values of a field.
//! Ranks nothing: that is `query`.

use super::{Collection, View, selection};
use crate::filter::Source;
use crate::{
    Direction, Error, FacetHit, Filter, Group, GroupQuery, Instant, JsonPath, OrderBy, Payload, PayloadSelector,
    PointId, Query, Record, Result, Scored, ScrollPage, ScrollRequest, Vector, VectorSelector,
};
use roaring::RoaringBitmap;
use serde_json::{Number, Value};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

impl Collection {
    /// Points in the order of the ids; those that are not there are left out.
    pub fn retrieve(
        &self,
        ids: &[PointId],
        payload: &PayloadSelector,
        vectors: &VectorSelector,
    ) -> Result<Vec<Record>> {
        let view = self.view()?;
        let mut records = Vec::new();
        for id in ids {
            let Some(slot) = view.slot_of(*id) else {
                continue;
            };
            let record = view.record(slot, payload, vectors)?;
            if let Some(what) = record.damage {
                return Err(self.store.damaged(what));
            }
            records.push(record.record);
        }
        Ok(records)
    }

    /// A page of points by id, or by a value of the payload.
    pub fn scroll(&self, request: &ScrollRequest) -> Result<ScrollPage> {
        let view = self.view()?;
        let meeting = view.meeting_any(request.filter.as_ref())?;
        let record = |slot| Ok(view.record(slot, &request.with_payload, &request.with_vectors)?.record);
        if let Some(order) = &request.order_by {
            if request.offset.is_some() {
                return Err(Error::bad("offset does not go together with order_by: use start_from"));
            }
            let page = view.ordered(order, &meeting, request.limit)?.into_iter();
            let points = page.map(|(slot, value)| Ok(Record { order_value: Some(value), ..record(slot)? }));
            return Ok(ScrollPage { points: points.collect::<Result<_>>()?, next: None });
        }
        let from = request.offset.unwrap_or(PointId::Number(0));
        let mut ids = view.state().ids().range(from..).filter(|(_, slot)| meeting.contains(**slot));
        let points = ids.by_ref().take(request.limit).map(|(_, slot)| record(*slot)).collect::<Result<_>>()?;
        Ok(ScrollPage { points, next: ids.next().map(|(id, _)| *id) })
    }

    /// The best points for a query, best first.
    pub fn query(&self, query: &Query) -> Result<Vec<Scored>> {
        self.view()?.query(query)
    }

    /// The best points of each group, groups by their best point.
    pub fn query_groups(&self, request: &GroupQuery) -> Result<Vec<Group>> {
        self.view()?.query_groups(request)
    }

    /// How many points meet a filter.
    pub fn count(&self, filter: Option<&Filter>) -> Result<usize> {
        let view = self.view()?;
        Ok(view.meeting_any(filter)?.len() as usize)
    }

    /// The values of a field and how many points have each: most first, then by value.
    pub fn facet(&self, key: &JsonPath, filter: Option<&Filter>, limit: usize) -> Result<Vec<FacetHit>> {
        let view = self.view()?;
        let meeting = view.meeting_any(filter)?;
        let mut counts: BTreeMap<Facet, usize> = BTreeMap::new();
        match view.field(key)?.and_then(|index| index.counts(&meeting)) {
            Some(indexed) => {
                for (value, count) in indexed {
                    if let Some(value) = Facet::new(&value) {
                        *counts.entry(value).or_default() += count;
                    }
                }
            }
            None => {
                for slot in meeting {
                    let mut values = BTreeSet::new();
                    let payload = view.payload(slot)?.unwrap_or_default();
                    key.visit_flat(&payload, &mut |value| values.extend(Facet::new(value)));
                    values.into_iter().for_each(|value| *counts.entry(value).or_default() += 1);
                }
            }
        }
        let mut hits: Vec<(Facet, usize)> = counts.into_iter().collect();
        hits.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        hits.truncate(limit);
        Ok(hits.into_iter().map(|(value, count)| FacetHit { value: value.into(), count }).collect())
    }
}

/// A value that can be counted, in the order of results.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Facet {
    Bool(bool),
    Integer(i128),
    Text(String),
}

impl Facet {
    fn new(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(flag) => Some(Self::Bool(*flag)),
            Value::String(text) => Some(Self::Text(match serde_json::from_value::<PointId>(value.clone()) {
                Ok(uuid) => uuid.to_string(),
                Err(_) => text.clone(),
            })),
            Value::Number(number) => {
                number.as_i64().map(i128::from).or(number.as_u64().map(i128::from)).map(Self::Integer)
            }
            _ => None,
        }
    }
}

impl From<Facet> for Value {
    fn from(facet: Facet) -> Self {
        match facet {
            Facet::Bool(flag) => flag.into(),
            Facet::Text(text) => text.into(),
            Facet::Integer(number) => match u64::try_from(number) {
                Ok(number) => number.into(),
                Err(_) => (number as i64).into(),
            },
        }
    }
}

/// A point as it was asked for, and what of it could not be read.
pub(super) struct Found {
    pub(super) record: Record,
    damage: Option<String>,
}

impl View<'_> {
    pub(super) fn record(&self, slot: u32, payload: &PayloadSelector, vectors: &VectorSelector) -> Result<Found> {
        let id = self.id_of(slot).ok_or_else(|| Error::Store(format!("slot {slot} has no point")))?;
        let mut damage = None;
        let payload = match payload {
            PayloadSelector::None => None,
            selector => {
                let stored = self.payload(slot)?;
                if stored.is_none() {
                    damage = Some(format!("the payload of point {id} is not readable"));
                }
                selection::select(stored.unwrap_or_else(Payload::new), selector)
            }
        };
        let wanted = |name: &String| match vectors {
            VectorSelector::None => false,
            VectorSelector::All => true,
            VectorSelector::Names(names) => names.contains(name),
        };
        let mut found = BTreeMap::new();
        for (number, named) in
            self.collection.schema.vectors().iter().enumerate().filter(|(_, named)| wanted(&named.name))
        {
            if self.has_vector(slot, &named.name) {
                match self.stored_vector(slot, number)? {
                    Ok(vector) => drop(found.insert(named.name.clone(), vector)),
                    Err(what) => damage = Some(what),
                }
            }
        }
        let vectors = (*vectors != VectorSelector::None).then_some(found);
        Ok(Found { record: Record { id, payload, vectors, order_value: None }, damage })
    }

    /// A vector of a point, or what is wrong with it.
    pub(super) fn stored_vector(&self, slot: u32, number: usize) -> Result<Result<Vector, String>> {
        let schema = &self.collection.schema;
        let read = self.reader.vector(slot, number, schema.shape(number))?;
        Ok(read.map_err(|_| {
            let point = self.id_of(slot).map_or_else(String::new, |id| id.to_string());
            let what = format!("vector '{}' of point {point} is not readable", schema.vectors()[number].name);
            self.state().note_damage(slot, what.clone());
            what
        }))
    }

    /// Slots by a number or date of their payloads. A slot with several values comes several times.
    pub(super) fn ordered(&self, order: &OrderBy, slots: &RoaringBitmap, limit: usize) -> Result<Vec<(u32, Number)>> {
        let first = self.field(&order.key)?.map(|index| index.first(order, slots, limit));
        let mut found = Vec::new();
        for slot in first.as_ref().unwrap_or(slots) {
            let (Some(payload), Some(id)) = (self.payload(slot)?, self.id_of(slot)) else {
                continue;
            };
            let mut values: Vec<Number> = Vec::new();
            order.key.visit_flat(&payload, &mut |value| {
                let value = match value {
                    Value::Number(number) => Some(number.clone()),
                    Value::String(text) => Instant::parse(text).map(|instant| instant.0.into()),
                    _ => None,
                };
                values.extend(value.filter(|value| !values.contains(value)));
            });
            found.extend(values.into_iter().map(|value| (value, id, slot)));
        }
        let is_wanted = |value: &Number| {
            order.start_from.as_ref().is_none_or(|start| match order.direction {
                Direction::Ascending => compare(value, start) != Ordering::Less,
                Direction::Descending => compare(value, start) != Ordering::Greater,
            })
        };
        found.retain(|(value, _, _)| is_wanted(value));
        found.sort_by(|one, other| {
            let by_value = compare(&one.0, &other.0);
            let by_value = if order.direction == Direction::Descending { by_value.reverse() } else { by_value };
            by_value.then(one.1.cmp(&other.1))
        });
        found.truncate(limit);
        Ok(found.into_iter().map(|(value, _, slot)| (slot, value)).collect())
    }
}

/// Integers exactly, everything else as 64-bit floats.
fn compare(one: &Number, other: &Number) -> Ordering {
    let integer = |number: &Number| number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
    match (integer(one), integer(other)) {
        (Some(one), Some(other)) => one.cmp(&other),
        _ => one.as_f64().unwrap_or(0.0).total_cmp(&other.as_f64().unwrap_or(0.0)),
    }
}
