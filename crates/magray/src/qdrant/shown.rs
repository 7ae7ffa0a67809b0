//! Points as Qdrant's clients are shown them.
//! Writes results alone, without what stands around them.

use std::collections::BTreeMap;

use magray_index::{Group, PointId, Record, Scored, Vector};
use serde::{Serialize, Serializer, ser::SerializeMap};

pub(crate) struct ShownScored<'a>(pub(crate) &'a Scored);
pub(crate) struct ShownRecord<'a>(pub(crate) &'a Record);

/// A group, with the point of another collection that has its name, where that was asked for.
pub(crate) struct ShownGroup<'a>(pub(crate) &'a Group, pub(crate) &'a BTreeMap<PointId, Record>);

struct ShownVectors<'a>(&'a BTreeMap<String, Vector>);
struct ShownVector<'a>(&'a Vector);

impl Serialize for ShownScored<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Scored { id, score, payload, vectors, order_value } = self.0;
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("id", id)?;
        map.serialize_entry("version", &0)?;
        map.serialize_entry("score", score)?;
        write_some(&mut map, "payload", payload.as_ref())?;
        write_some(&mut map, "vector", vectors.as_ref().map(ShownVectors).as_ref())?;
        write_some(&mut map, "order_value", order_value.as_ref())?;
        map.end()
    }
}

impl Serialize for ShownRecord<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Record { id, payload, vectors, order_value } = self.0;
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("id", id)?;
        write_some(&mut map, "payload", payload.as_ref())?;
        write_some(&mut map, "vector", vectors.as_ref().map(ShownVectors).as_ref())?;
        write_some(&mut map, "order_value", order_value.as_ref())?;
        map.end()
    }
}

fn write_some<M: SerializeMap, T: Serialize>(map: &mut M, name: &str, value: Option<&T>) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| map.serialize_entry(name, value))
}

impl Serialize for ShownGroup<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Group { id, hits } = self.0;
        let found = serde_json::from_value(id.clone()).ok().and_then(|id: PointId| self.1.get(&id));
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("id", id)?;
        map.serialize_entry("hits", &hits.iter().map(ShownScored).collect::<Vec<_>>())?;
        write_some(&mut map, "lookup", found.map(ShownRecord).as_ref())?;
        map.end()
    }
}

/// A single vector without a name stands alone; others have names.
impl Serialize for ShownVectors<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match (self.0.get(""), self.0.len()) {
            (Some(only), 1) => ShownVector(only).serialize(to),
            _ => to.collect_map(self.0.iter().map(|(name, vector)| (name, ShownVector(vector)))),
        }
    }
}

impl Serialize for ShownVector<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Vector::Dense(numbers) => numbers.serialize(to),
            Vector::Multi(rows) => rows.serialize(to),
            Vector::Sparse { indices, values } => {
                let mut map = to.serialize_map(Some(2))?;
                map.serialize_entry("indices", indices)?;
                map.serialize_entry("values", values)?;
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn vectors_have_names_unless_there_is_one_without() {
        let dense = Vector::Dense(vec![0.5, 1.0]);
        let sparse = Vector::Sparse { indices: vec![7], values: vec![0.25] };
        let shown = |vectors: &[(&str, &Vector)]| {
            let vectors = vectors.iter().map(|(name, vector)| ((*name).to_owned(), (*vector).clone())).collect();
            json!(ShownVectors(&vectors))
        };
        assert_eq!(shown(&[("", &dense)]), json!([0.5, 1.0]));
        assert_eq!(shown(&[("a", &dense)]), json!({"a": [0.5, 1.0]}));
        assert_eq!(
            shown(&[("", &dense), ("b", &sparse)]),
            json!({"": [0.5, 1.0], "b": {"indices": [7], "values": [0.25]}})
        );
    }

    #[test]
    fn only_what_was_asked_for_is_shown() {
        let mut point = Scored { id: PointId::Number(1), score: 0.5, payload: None, vectors: None, order_value: None };
        assert_eq!(json!(ShownScored(&point)), json!({"id": 1, "version": 0, "score": 0.5}));
        point.payload = json!({"a": 1}).as_object().cloned();
        point.order_value = Some(3.into());
        let shown = json!({"id": 1, "version": 0, "score": 0.5, "payload": {"a": 1}, "order_value": 3});
        assert_eq!(json!(ShownScored(&point)), shown);
    }
}
