//! The field by which the chat APIs are told to answer from a collection.
//! None of the APIs has it of its own.

use serde::Deserialize;
use serde_json::{Map, Value};

/// A collection by its name, or by its name and how it is searched.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = CollectionField)]
#[serde(untagged)]
pub(crate) enum CollectionField {
    Name(String),
    Search(CollectionSearch),
}

/// A collection, and how it is searched.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = CollectionSearch)]
pub(crate) struct CollectionSearch {
    pub(crate) name: String,
    /// Passages at most; without it, 5.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 100)]
    pub(crate) limit: Option<usize>,
    /// By words too, and both fused; without it, where the collection knows which field is its text.
    #[serde(default)]
    pub(crate) hybrid: Option<bool>,
    /// In the order of a model that reads question and passage together; without it, where such a model is served.
    #[serde(default)]
    pub(crate) rerank: Option<bool>,
    /// A filter of Qdrant's.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(crate) filter: Option<Map<String, Value>>,
}

impl From<CollectionField> for CollectionSearch {
    fn from(field: CollectionField) -> Self {
        match field {
            CollectionField::Name(name) => Self { name, ..Self::default() },
            CollectionField::Search(search) => search,
        }
    }
}
