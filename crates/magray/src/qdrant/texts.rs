//! Collections of texts, as magray makes them itself: settings, points of documents, and searches by meaning and by words.
//! Says it in the JSON of Qdrant's API, so that a folder and a server are told the same.

use magray_index::PointId;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// The field of payloads that holds the text, unless another is named.
pub(crate) const TEXT_FIELD: &str = "text";
/// Of reciprocal ranks; as in most of what is published about them.
const RRF_K: u32 = 60;
/// What each part of a hybrid search finds, and what is reranked.
const CANDIDATES_MIN: usize = 50;

/// One vector of a model, and the words of the texts.
pub(crate) fn settings(model: &str, dimensions: usize, text_field: &str) -> Value {
    json!({
        "vectors": {"size": dimensions, "distance": "Cosine"},
        "text_field": text_field,
        "metadata": {"model": model},
    })
}

/// A document as a point whose vector is its text: all fields but the id are its payload. An id that no point can have stays
/// among them.
pub(crate) fn point(mut fields: Map<String, Value>, text_field: &str, model: &str) -> Result<Value, String> {
    let Some(text) = fields.get(text_field).and_then(Value::as_str).map(str::to_owned) else {
        return Err(format!("an object without a text in \"{text_field}\""));
    };
    let id = match fields.remove("id") {
        None | Some(Value::Null) => json!(id_of(&text)),
        Some(id) if serde_json::from_value::<PointId>(id.clone()).is_ok() => id,
        Some(other) => {
            let id = id_of(&other.to_string());
            fields.insert("id".to_owned(), other);
            json!(id)
        }
    };
    Ok(json!({"id": id, "vector": {"text": text, "model": model}, "payload": fields}))
}

/// The id of what has none that a point can have: the same for the same text.
pub(crate) fn id_of(text: &str) -> PointId {
    let digest = Sha256::digest(text.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    // A UUID of version 8: its bits are the maker's.
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    PointId::Uuid(u128::from_be_bytes(bytes))
}

/// A search for texts.
#[derive(Clone, Debug)]
pub(crate) struct TextSearch<'a> {
    pub(crate) query: &'a str,
    /// That embedded the texts.
    pub(crate) model: Option<&'a str>,
    pub(crate) text_field: &'a str,
    /// By words too, and both fused.
    pub(crate) is_hybrid: bool,
    /// More than the limit is found, to be put in another order.
    pub(crate) is_reranked: bool,
    pub(crate) limit: usize,
    pub(crate) filter: Option<Value>,
}

impl TextSearch<'_> {
    pub(crate) fn body(&self) -> Value {
        let candidates = self.limit.saturating_mul(4).max(CANDIDATES_MIN);
        let mut text = json!({ "text": self.query });
        if let Some(model) = self.model {
            text["model"] = model.into();
        }
        let by_meaning = json!({ "nearest": text });
        let mut body = match self.is_hybrid {
            false => json!({ "query": by_meaning }),
            true => json!({
                "prefetch": [
                    {"query": by_meaning, "limit": candidates},
                    {"query": {"text": {"query": self.query}}, "using": self.text_field, "limit": candidates},
                ],
                "query": {"rrf": {"k": RRF_K}},
            }),
        };
        body["limit"] = if self.is_reranked { candidates } else { self.limit }.into();
        body["with_payload"] = true.into();
        if let Some(filter) = &self.filter {
            body["filter"] = filter.clone();
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qdrant::query::QueryRequest;

    #[test]
    fn a_document_is_a_point_with_all_of_its_fields() {
        let read = |fields: Value| point(fields.as_object().unwrap().clone(), "text", "m");
        let expected =
            json!({"id": 7, "vector": {"text": "a", "model": "m"}, "payload": {"text": "a", "author": "Ann"}});
        assert_eq!(read(json!({"id": 7, "text": "a", "author": "Ann"})).unwrap(), expected);
        let by_name = read(json!({"id": "doc-1", "text": "a"})).unwrap();
        assert_eq!(by_name["payload"]["id"], json!("doc-1"));
        assert_eq!(by_name["id"], read(json!({"id": "doc-1", "text": "b"})).unwrap()["id"]);
        assert!(serde_json::from_value::<PointId>(by_name["id"].clone()).is_ok());
        assert!(read(json!({})).is_err() && read(json!({"text": 1})).is_err());
    }

    #[test]
    fn every_search_is_a_query() {
        for (is_hybrid, is_reranked) in [(false, false), (true, false), (false, true), (true, true)] {
            let filter = Some(json!({"must": []}));
            let search = TextSearch {
                query: "a",
                model: Some("m"),
                text_field: "text",
                is_hybrid,
                is_reranked,
                limit: 3,
                filter,
            };
            let body = search.body();
            assert_eq!(body["limit"], json!(if is_reranked { 50 } else { 3 }));
            serde_json::from_value::<QueryRequest>(body).unwrap();
        }
    }
}
