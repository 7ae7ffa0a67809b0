//! Changes of points as Qdrant's clients send them: each has a route of its own, and all of them go into a batch.
//! Changes nothing; texts to embed are put in by the server before points are made of them.

use std::collections::BTreeMap;

use magray_index::{Change, Error, Filter, Payload, Point, PointId, Result, Selector, Vector};
use serde::Deserialize;

use super::{
    forms::{WithPayload, WithVector},
    vectors::{BatchVectors, VectorInput, VectorsInput},
};

/// One change, by the names that a batch has for them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Operation {
    Upsert(Upsert),
    Delete(Selected),
    SetPayload(SetPayload),
    OverwritePayload(SetPayload),
    DeletePayload(DeletePayload),
    ClearPayload(Selected),
    UpdateVectors(UpdateVectors),
    DeleteVectors(DeleteVectors),
}

#[derive(Debug, Deserialize)]
pub(crate) struct Operations {
    pub(crate) operations: Vec<Operation>,
}

/// Points, one by one or as columns.
#[derive(Debug, Deserialize)]
pub(crate) struct Upsert {
    #[serde(default)]
    points: Option<Vec<PointInput>>,
    #[serde(default)]
    batch: Option<Columns>,
    #[serde(default)]
    update_filter: Option<Filter>,
    #[serde(default)]
    update_mode: Option<UpdateMode>,
}

/// Whether points that are there are replaced, and others added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UpdateMode {
    Upsert,
    InsertOnly,
    UpdateOnly,
}

#[derive(Debug, Deserialize)]
struct PointInput {
    id: PointId,
    #[serde(default)]
    vector: Option<VectorsInput>,
    #[serde(default)]
    payload: Option<Payload>,
}

#[derive(Debug, Deserialize)]
struct Columns {
    ids: Vec<PointId>,
    vectors: BatchVectors,
    #[serde(default)]
    payloads: Option<Vec<Option<Payload>>>,
}

/// Points by their ids, or those that meet a filter.
#[derive(Debug, Deserialize)]
pub(crate) struct Selected {
    #[serde(default)]
    points: Option<Vec<PointId>>,
    #[serde(default)]
    filter: Option<Filter>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct SetPayload {
    payload: Payload,
    #[serde(flatten)]
    selected: Selected,
    /// Where in the payloads it is put.
    #[serde(default)]
    key: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct DeletePayload {
    keys: Vec<String>,
    #[serde(flatten)]
    selected: Selected,
}

#[derive(Debug, Deserialize)]
pub(crate) struct UpdateVectors {
    points: Vec<PointVectors>,
    #[serde(default)]
    update_filter: Option<Filter>,
}

#[derive(Debug, Deserialize)]
struct PointVectors {
    id: PointId,
    vector: VectorsInput,
}

#[derive(Debug, Deserialize)]
pub(crate) struct DeleteVectors {
    vector: Vec<String>,
    #[serde(flatten)]
    selected: Selected,
}

/// Points by their ids.
#[derive(Debug, Deserialize)]
pub(crate) struct Retrieve {
    pub(crate) ids: Vec<PointId>,
    #[serde(default)]
    pub(crate) with_payload: Option<WithPayload>,
    #[serde(default)]
    pub(crate) with_vector: Option<WithVector>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Count {
    pub(crate) filter: Option<Filter>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Facet {
    pub(crate) key: String,
    #[serde(default)]
    pub(crate) limit: Option<usize>,
    #[serde(default)]
    pub(crate) filter: Option<Filter>,
}

impl Operation {
    /// Visits every vector that comes with it.
    pub(crate) fn visit_vectors(&mut self, visit: &mut impl FnMut(&mut VectorInput)) {
        match self {
            Self::Upsert(upsert) => {
                let points = upsert.points.iter_mut().flatten().filter_map(|point| point.vector.as_mut());
                points.flat_map(|vectors| vectors.0.values_mut()).for_each(&mut *visit);
                let columns = upsert.batch.iter_mut().flat_map(|columns| columns.vectors.0.values_mut());
                columns.flatten().for_each(visit);
            }
            Self::UpdateVectors(update) => {
                update.points.iter_mut().flat_map(|point| point.vector.0.values_mut()).for_each(visit);
            }
            _ => {}
        }
    }
}

impl Operation {
    /// Whether it looks at the points that are there before it changes them.
    pub(crate) fn condition(&mut self) -> Option<(UpdateMode, Option<Filter>)> {
        let (mode, filter) = match self {
            Self::Upsert(upsert) => (upsert.update_mode.unwrap_or(UpdateMode::Upsert), upsert.update_filter.take()),
            Self::UpdateVectors(update) => (UpdateMode::Upsert, update.update_filter.take()),
            _ => return None,
        };
        (mode != UpdateMode::Upsert || filter.is_some()).then_some((mode, filter))
    }

    pub(crate) fn into_change(self) -> Result<Change> {
        Ok(match self {
            Self::Upsert(Upsert { points: Some(points), batch: None, .. }) => {
                Change::Upsert(points.into_iter().map(PointInput::into_point).collect::<Result<_>>()?)
            }
            Self::Upsert(Upsert { points: None, batch: Some(columns), .. }) => Change::Upsert(columns.into_points()?),
            Self::Upsert(_) => return Err(Error::bad("an upsert has points, or a batch of ids, vectors and payloads")),
            Self::Delete(selected) => Change::Delete(selected.into_selector()?),
            Self::SetPayload(SetPayload { payload, selected, key }) => {
                let key = key.as_deref().map(str::parse).transpose()?;
                Change::SetPayload { points: selected.into_selector()?, payload, key }
            }
            Self::OverwritePayload(SetPayload { payload, selected, .. }) => {
                Change::OverwritePayload { points: selected.into_selector()?, payload }
            }
            Self::DeletePayload(DeletePayload { keys, selected }) => {
                let keys = keys.iter().map(|key| key.parse()).collect::<Result<_>>()?;
                Change::DeletePayload { points: selected.into_selector()?, keys }
            }
            Self::ClearPayload(selected) => Change::ClearPayload(selected.into_selector()?),
            Self::UpdateVectors(update) => {
                let point = |point: PointVectors| Ok((point.id, vectors(point.vector)?));
                Change::UpdateVectors(update.points.into_iter().map(point).collect::<Result<_>>()?)
            }
            Self::DeleteVectors(DeleteVectors { vector, selected }) => {
                Change::DeleteVectors { points: selected.into_selector()?, names: vector }
            }
        })
    }
}

impl PointInput {
    fn into_point(self) -> Result<Point> {
        let vectors = vectors(self.vector.unwrap_or_default())?;
        Ok(Point { id: self.id, vectors, payload: self.payload.unwrap_or_default() })
    }
}

impl Columns {
    fn into_points(self) -> Result<Vec<Point>> {
        let count = self.ids.len();
        let is_short = |length: usize| length != count;
        if self.vectors.0.values().any(|column| is_short(column.len()))
            || self.payloads.as_ref().is_some_and(|payloads| is_short(payloads.len()))
        {
            return Err(Error::bad(format!("a batch of {count} ids has as many vectors and payloads")));
        }
        let mut payloads = self.payloads.unwrap_or_default().into_iter();
        let mut columns: Vec<_> = self.vectors.0.into_iter().map(|(name, column)| (name, column.into_iter())).collect();
        let point = |id| {
            let own = columns.iter_mut().filter_map(|(name, column)| Some((name.clone(), column.next()?)));
            let payload = payloads.next().flatten().unwrap_or_default();
            Ok(Point { id, vectors: vectors(VectorsInput(own.collect()))?, payload })
        };
        self.ids.into_iter().map(point).collect()
    }
}

fn vectors(inputs: VectorsInput) -> Result<BTreeMap<String, Vector>> {
    let vector = |(name, input)| match input {
        VectorInput::Vector(vector) => Ok((name, vector)),
        VectorInput::Id(id) => Err(Error::bad(format!("a vector of a point is no id ({id})"))),
        VectorInput::Document(_) => unreachable!("texts are embedded before"),
    };
    inputs.0.into_iter().map(vector).collect()
}

impl Selected {
    fn into_selector(self) -> Result<Selector> {
        match (self.points, self.filter) {
            (Some(ids), _) => Ok(Selector::Ids(ids)),
            (None, Some(filter)) => Ok(Selector::Filter(filter)),
            (None, None) => Err(Error::bad("name the points that are meant: points, or a filter")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_points() {
        let upsert: Upsert = serde_json::from_str(
            r#"{"batch": {"ids": [1, 2], "vectors": {"a": [[1], [2]]}, "payloads": [{"x": 1}, null]}}"#,
        )
        .unwrap();
        let points_of = |upsert| match Operation::Upsert(upsert).into_change()? {
            Change::Upsert(points) => Ok::<_, Error>(points),
            other => panic!("{other:?}"),
        };
        let points = points_of(upsert).unwrap();
        assert_eq!(points[1].vectors["a"], Vector::Dense(vec![2.0]));
        assert_eq!((points[0].payload.len(), points[1].payload.len()), (1, 0));
        let short: Upsert = serde_json::from_str(r#"{"batch": {"ids": [1, 2], "vectors": [[1]]}}"#).unwrap();
        assert!(points_of(short).is_err());
        let none: Upsert = serde_json::from_str("{}").unwrap();
        assert!(points_of(none).is_err());
    }

    #[test]
    fn operations_are_read_by_their_names() {
        let read = |json: &str| serde_json::from_str::<Operations>(json);
        let operations = read(
            r#"{"operations": [
                {"upsert": {"points": [{"id": 1, "vector": [1], "payload": null}]}},
                {"delete": {"filter": {"must": [{"has_id": [1]}]}}},
                {"set_payload": {"payload": {"a": 1}, "points": [1], "filter": null, "key": "b.c"}},
                {"delete_vectors": {"vector": ["a"], "points": [1]}}
            ]}"#,
        );
        assert_eq!(operations.unwrap().operations.len(), 4);
        assert!(read(r#"{"operations": [{"drop": {}}]}"#).is_err());
        let nothing: Selected = serde_json::from_str("{}").unwrap();
        assert!(nothing.into_selector().is_err());
    }
}
