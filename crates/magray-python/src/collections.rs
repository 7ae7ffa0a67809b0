//! Collections in a folder of this process: points with a vector, a text and a payload, found by meaning and by words.
//! Embeds nothing: vectors come from the package. What is stored is what the commands `index` and `search` store.

use std::path::PathBuf;

use magray_index::{
    CollectionConfig, Distance, Example, Filter, Fusion, Options, Payload, PayloadSelector, Point, PointId, Query,
    QueryKind, ScrollRequest, Selector, Vector, VectorSelector,
};
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::leaving::{Home, detached, is_left_alone};

/// Of reciprocal ranks, as the command `search` has it.
const RRF_K: f32 = 60.0;
/// What each part of a hybrid search finds at least.
const CANDIDATES_MIN: usize = 50;

#[pyclass(frozen, module = "magray._magray")]
pub(crate) struct Collections {
    /// `None` only while it is dropped.
    all: Option<magray_index::Collections>,
    home: Home,
}

impl Collections {
    fn with<T: Send>(
        &self,
        python: Python<'_>,
        job: impl FnOnce(&magray_index::Collections) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        self.home.check()?;
        let Some(all) = &self.all else { return Err(Failure::Closing.into()) };
        Ok(detached(python, || job(all))??)
    }
}

#[pymethods]
impl Collections {
    #[new]
    fn new(python: Python<'_>, folder: PathBuf) -> PyResult<Self> {
        let opened = detached(python, || magray_index::Collections::open(&folder, Options::default()))?;
        Ok(Self { all: Some(opened.map_err(Failure::from)?), home: Home::here() })
    }

    fn names(&self, python: Python<'_>) -> PyResult<Vec<String>> {
        self.with(python, |all| Ok(all.list()))
    }

    /// Makes a collection of one vector and the words of a text.
    fn create(
        &self,
        python: Python<'_>,
        name: &str,
        dimensions: usize,
        distance: &str,
        text_field: &str,
        model: Option<&str>,
    ) -> PyResult<()> {
        self.with(python, |all| {
            let distance = match distance {
                "cosine" => Distance::Cosine,
                "dot" => Distance::Dot,
                "euclid" => Distance::Euclid,
                "manhattan" => Distance::Manhattan,
                other => {
                    return Err(Failure::input(format!("no distance '{other}': cosine, dot, euclid or manhattan")));
                }
            };
            let text_field = Some(text_field.to_owned());
            let metadata = remembered(model, dimensions, distance);
            let config = CollectionConfig { text_field, metadata, ..CollectionConfig::dense(dimensions, distance) };
            Ok(all.create(name, config)?)
        })
    }

    fn delete(&self, python: Python<'_>, name: &str) -> PyResult<bool> {
        self.with(python, |all| Ok(all.delete(name)?))
    }

    /// What a collection is, as JSON; `None`: there is none.
    fn info(&self, python: Python<'_>, name: &str) -> PyResult<Option<String>> {
        self.with(python, |all| {
            let collection = match all.get(name) {
                Err(magray_index::Error::NotFound { .. }) => return Ok(None),
                found => found?,
            };
            let config = collection.config();
            let dense = config.dense.get("");
            let shown = json!({
                "dimensions": dense.map(|dense| dense.size),
                "distance": dense.map(|dense| format!("{:?}", dense.distance).to_lowercase()),
                "text_field": config.text_field,
                "model": config.metadata.get("metadata").and_then(|own| own.get("model")),
            });
            Ok(Some(shown.to_string()))
        })
    }

    /// Adds or replaces points: ids and payloads as JSON, vectors as the bytes of f32 end to end.
    fn upsert(
        &self,
        python: Python<'_>,
        name: &str,
        ids: Vec<String>,
        vectors: &[u8],
        payloads: Vec<String>,
    ) -> PyResult<()> {
        self.with(python, |all| {
            let values = numbers(vectors);
            let columns = values.len() / ids.len().max(1);
            if ids.len() != payloads.len() || columns == 0 || columns * ids.len() != values.len() {
                return Err(Failure::input("points need an id, a vector and a payload each"));
            }
            let point = |((id, payload), row): ((&String, &String), &[f32])| {
                let vectors = [(String::new(), Vector::Dense(row.to_vec()))].into();
                Ok(Point { id: point_id(id)?, vectors, payload: serde_json::from_str(payload)? })
            };
            let points = ids.iter().zip(&payloads).zip(values.chunks_exact(columns)).map(point);
            let points = points.collect::<Result<Vec<_>, Failure>>()?;
            Ok(all.get(name)?.upsert(points)?)
        })
    }

    /// The points that fit best, the best first, as JSON: by a vector, by words, or by both.
    fn query(
        &self,
        python: Python<'_>,
        name: &str,
        vector: Option<&[u8]>,
        words: Option<&str>,
        limit: usize,
        filter: Option<&str>,
    ) -> PyResult<String> {
        self.with(python, |all| {
            let collection = all.get(name)?;
            let meaning = vector.map(|bytes| QueryKind::Nearest(Example::Vector(Vector::Dense(numbers(bytes)))));
            let words = words.map(|words| QueryKind::Text(words.to_owned()));
            let text_field = collection.config().text_field.clone().unwrap_or_default();
            let by_words = |words, limit| Query { using: text_field.clone(), ..Query::new(words, limit) };
            let query = match (meaning, words) {
                (Some(meaning), Some(words)) => {
                    let candidates = limit.saturating_mul(4).max(CANDIDATES_MIN);
                    let prefetch = vec![Query::new(meaning, candidates), by_words(words, candidates)];
                    let fusion = Fusion::Rrf { k: RRF_K, weights: Vec::new() };
                    Query { prefetch, ..Query::new(QueryKind::Fusion(fusion), limit) }
                }
                (Some(meaning), None) => Query::new(meaning, limit),
                (None, Some(words)) => by_words(words, limit),
                (None, None) => return Err(Failure::input("a search needs a vector, words, or both")),
            };
            let filter = filter.map(read_filter).transpose()?;
            let found = collection.query(&Query { filter, with_payload: PayloadSelector::All, ..query })?;
            let shown = found.iter().map(|one| json!({"id": one.id, "score": one.score, "payload": one.payload}));
            Ok(Value::from_iter(shown).to_string())
        })
    }

    /// Points by their ids, as JSON; those that are not there are left out.
    fn get(&self, python: Python<'_>, name: &str, ids: Vec<String>) -> PyResult<String> {
        self.with(python, |all| {
            let ids = ids.iter().map(|id| point_id(id)).collect::<Result<Vec<_>, _>>()?;
            let found = all.get(name)?.retrieve(&ids, &PayloadSelector::All, &VectorSelector::None)?;
            let shown = found.iter().map(|one| json!({"id": one.id, "payload": one.payload}));
            Ok(Value::from_iter(shown).to_string())
        })
    }

    /// A page of points in the order of their ids, and where the next begins, as JSON.
    fn scroll(
        &self,
        python: Python<'_>,
        name: &str,
        filter: Option<&str>,
        offset: Option<&str>,
        limit: usize,
    ) -> PyResult<String> {
        self.with(python, |all| {
            let (filter, offset) = (filter.map(read_filter).transpose()?, offset.map(point_id).transpose()?);
            let with_payload = PayloadSelector::All;
            let page = ScrollRequest { filter, offset, limit, with_payload, ..ScrollRequest::default() };
            let page = all.get(name)?.scroll(&page)?;
            let points: Vec<_> = page.points.iter().map(|one| json!({"id": one.id, "payload": one.payload})).collect();
            Ok(json!({"points": points, "next": page.next}).to_string())
        })
    }

    /// Removes points by their ids, or by a filter.
    fn remove(&self, python: Python<'_>, name: &str, ids: Option<Vec<String>>, filter: Option<&str>) -> PyResult<()> {
        self.with(python, |all| {
            let selector = match (ids, filter) {
                (Some(ids), None) => Selector::Ids(ids.iter().map(|id| point_id(id)).collect::<Result<Vec<_>, _>>()?),
                (None, Some(filter)) => Selector::Filter(read_filter(filter)?),
                _ => return Err(Failure::input("name ids or a filter: one of them")),
            };
            Ok(all.get(name)?.delete(&selector)?)
        })
    }

    fn count(&self, python: Python<'_>, name: &str, filter: Option<&str>) -> PyResult<usize> {
        self.with(python, |all| {
            let filter = filter.map(read_filter).transpose()?;
            Ok(all.get(name)?.count(filter.as_ref())?)
        })
    }
}

impl Drop for Collections {
    fn drop(&mut self) {
        if is_left_alone(self.home) {
            std::mem::forget(self.all.take());
        }
    }
}

/// What the program keeps beside a collection (`Kept` of its module `qdrant`): the user's own metadata, where the model is, and the
/// settings as they were given.
fn remembered(model: Option<&str>, dimensions: usize, distance: Distance) -> Payload {
    let own = model.map_or_else(|| json!({}), |model| json!({"model": model}));
    let given = json!({"vectors": {"size": dimensions, "distance": distance}});
    Payload::from_iter([("metadata".to_owned(), own), ("given".to_owned(), given)])
}

/// An id as JSON has it.
fn point_id(json: &str) -> Result<PointId, Failure> {
    Ok(serde_json::from_str(json)?)
}

fn read_filter(json: &str) -> Result<Filter, Failure> {
    Ok(Filter::from_json(&serde_json::from_str(json)?)?)
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_ne_bytes([four[0], four[1], four[2], four[3]])).collect()
}
