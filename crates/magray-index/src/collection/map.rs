//! A collection as a picture: its vectors along the few directions in which they differ most, and the values of a field.
//! Holds no more than a sample of the vectors: each is read, reduced and let go of.

use super::Collection;
use crate::filter::Source;
use crate::principal::{Axes, Fit};
use crate::store::floats_into;
use crate::{Error, JsonPath, PointId, Result};
use serde_json::Value;
use std::collections::HashMap;

/// Vectors that the directions are found from.
const SAMPLE: usize = 6_000;
/// More values of a field than this are one: colours that can be told from each other are few.
const VALUES_MAX: usize = 24;
/// The value of points that have none, and of those whose value is one of too many.
pub const NO_VALUE: u16 = u16::MAX;

/// Which points of a collection are shown: all, or every n-th where there are more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapRequest {
    /// The name of a vector; "" is the one without.
    pub vector: String,
    /// At most this number of points.
    pub limit: usize,
    /// Directions.
    pub axes: usize,
}

/// Points along the directions in which they differ most.
#[derive(Clone, Debug, PartialEq)]
pub struct PointMap {
    /// Points that have the vector, shown or not.
    pub total: usize,
    /// Those that are shown.
    pub ids: Vec<PointId>,
    /// How many numbers a point has.
    pub axes: usize,
    /// Point by point, the direction first in which they differ most.
    pub places: Vec<f32>,
    /// The part of the differences that each direction shows.
    pub shares: Vec<f32>,
}

/// What the points of a map have in a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapValues {
    /// The most frequent first.
    pub names: Vec<String>,
    /// One for each point of the map: the place of its name, or [`NO_VALUE`].
    pub values: Vec<u16>,
}

impl Collection {
    /// The points of a collection as a picture of their vectors.
    pub fn map(&self, request: &MapRequest) -> Result<PointMap> {
        let shown = self.shown(request)?;
        let mut sample = Fit::new(shown.dims);
        let stride = shown.slots.len().div_ceil(SAMPLE).max(1);
        self.each_dense(&shown, &mut |at, vector| {
            if at.is_multiple_of(stride) {
                sample.add(vector);
            }
        })?;
        let axes: Axes = sample.finish(request.axes);
        let mut ids = Vec::with_capacity(shown.slots.len());
        let mut places = Vec::with_capacity(shown.slots.len() * axes.len());
        self.each_dense(&shown, &mut |at, vector| {
            ids.push(shown.slots[at].1);
            axes.place(vector, &mut places);
        })?;
        Ok(PointMap { total: shown.total, ids, axes: axes.len(), places, shares: axes.shares().to_vec() })
    }

    /// What the points of a map have in a field, in their order. The request is that of the map.
    pub fn map_values(&self, request: &MapRequest, field: &JsonPath) -> Result<MapValues> {
        let shown = self.shown(request)?;
        // The map leaves out what cannot be read.
        let mut readable = Vec::with_capacity(shown.slots.len());
        self.each_dense(&shown, &mut |at, _| readable.push(shown.slots[at].0))?;
        let mut found = vec![None; readable.len()];
        self.store.reader()?.payloads(shown.slots_end, &mut |slot, payload| {
            if let (Ok(at), Ok(payload)) = (readable.binary_search(&slot), payload) {
                field.visit_flat(&payload, &mut |one| {
                    found[at] = found[at].take().or_else(|| name_of(one));
                });
            }
        })?;
        Ok(numbered(&found))
    }

    /// Which points are shown. Changes wait for this alone: a point that changes while it is drawn is drawn as it was or as it is.
    fn shown(&self, request: &MapRequest) -> Result<Shown> {
        let number = self.schema.number(&request.vector)?;
        let Some(dims) = self.schema.dense_dims(number) else {
            return Err(Error::bad("only a vector with one row of numbers a point can be drawn: name another"));
        };
        let view = self.view()?;
        let all = view.with_vector(&request.vector);
        let total = all.len() as usize;
        let stride = total.div_ceil(request.limit.max(1)).max(1);
        let slots = all.into_iter().step_by(stride).filter_map(|slot| Some((slot, view.id_of(slot)?))).collect();
        Ok(Shown { number, dims, total, slots, slots_end: view.state().slots() })
    }

    /// Reads the vectors that are shown, in their order; those that are not readable are left out.
    fn each_dense(&self, shown: &Shown, each: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        let mut vector = vec![0.0; shown.dims];
        self.store.reader()?.vectors(shown.number, shown.slots_end, &mut |slot, bytes| {
            let at = shown.slots.binary_search_by_key(&slot, |(slot, _)| *slot);
            if let (Ok(at), Ok(bytes)) = (at, bytes)
                && floats_into(bytes, &mut vector)
            {
                each(at, &vector);
            }
        })
    }
}

/// The points of a map.
struct Shown {
    /// Of the vector.
    number: usize,
    dims: usize,
    total: usize,
    /// In order.
    slots: Vec<(u32, PointId)>,
    /// Behind the last.
    slots_end: u32,
}

/// A value that can be a colour.
fn name_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn numbered(found: &[Option<String>]) -> MapValues {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for name in found.iter().flatten() {
        *counts.entry(name).or_default() += 1;
    }
    let mut names: Vec<(&str, usize)> = counts.into_iter().collect();
    names.sort_unstable_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then(a.cmp(b)));
    names.truncate(VALUES_MAX);
    let numbers: HashMap<&str, u16> = names.iter().zip(0..).map(|((name, _), number)| (*name, number)).collect();
    let value = |name: &Option<String>| name.as_ref().and_then(|name| numbers.get(&**name)).copied();
    MapValues {
        values: found.iter().map(|name| value(name).unwrap_or(NO_VALUE)).collect(),
        names: names.into_iter().map(|(name, _)| name.to_owned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbered_by_how_often_they_are_there() {
        let found = ["b", "a", "b", "", "c"].map(|name| (!name.is_empty()).then(|| name.to_owned()));
        let of = numbered(&found);
        assert_eq!((of.names, of.values), (vec!["b".into(), "a".into(), "c".into()], vec![0, 1, 0, NO_VALUE, 2]));
        let many: Vec<_> = (0..100).map(|number| Some(format!("{number:03}"))).collect();
        let of = numbered(&many);
        assert_eq!((of.names.len(), of.values[23], of.values[24]), (VALUES_MAX, 23, NO_VALUE));
    }
}
