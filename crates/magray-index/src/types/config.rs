//! The settings of a collection: which vectors its points may have, and how they are compared and stored.
//! Fixed when the collection is created, but for its metadata.

use crate::{Error, Payload, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The largest vector that is stored.
const DIMS_MAX: usize = 65_536;

/// What the points of a collection may have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CollectionConfig {
    /// Dense and multi-vectors by name; the unnamed one has the name "".
    pub dense: BTreeMap<String, DenseConfig>,
    /// Sparse vectors by name.
    pub sparse: BTreeMap<String, SparseConfig>,
    /// The field of the payload whose words BM25 finds (`QueryKind::Text`).
    pub text_field: Option<String>,
    /// What the caller wants to remember of the collection.
    pub metadata: Payload,
}

/// A dense vector, or several of them (`multi`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DenseConfig {
    /// Dimensions.
    pub size: usize,
    /// How two vectors are compared.
    pub distance: Distance,
    /// The form that is scanned. The store keeps 32 bits always.
    pub storage: Storage,
    /// Each point has a list of vectors, compared by the sum of the best matches.
    pub multi: bool,
}

/// A sparse vector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SparseConfig {
    /// Multiplies each dimension of a query by the inverse document frequency.
    pub idf: bool,
}

/// How two vectors are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Distance {
    /// The larger the better; vectors are scaled to length 1 when they are stored.
    Cosine,
    /// The larger the better.
    Dot,
    /// The smaller the better.
    Euclid,
    /// The smaller the better.
    Manhattan,
}

/// The form in which vectors are scanned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Storage {
    /// 32 bits for each value: exact.
    #[default]
    F32,
    /// 16 bits for each value.
    F16,
    /// 8 bits for each value, and exact again for the best.
    Int8,
}

impl Distance {
    /// Whether a larger score is the better one.
    pub fn larger_is_better(self) -> bool {
        matches!(self, Self::Cosine | Self::Dot)
    }
}

impl CollectionConfig {
    /// A collection of one unnamed dense vector.
    pub fn dense(size: usize, distance: Distance) -> Self {
        let vector = DenseConfig { size, distance, storage: Storage::F32, multi: false };
        Self { dense: BTreeMap::from([(String::new(), vector)]), ..Self::default() }
    }

    /// Refuses settings that no point could meet.
    pub fn check(&self) -> Result<()> {
        for (name, vector) in &self.dense {
            if vector.size == 0 || vector.size > DIMS_MAX {
                return Err(Error::bad(format!("vector '{name}' has size {}: use 1 to {DIMS_MAX}", vector.size)));
            }
            if self.sparse.contains_key(name) {
                return Err(Error::bad(format!("vector '{name}' is dense and sparse: choose another name for one")));
            }
        }
        if self.sparse.contains_key("") {
            return Err(Error::bad("a sparse vector needs a name"));
        }
        Ok(())
    }
}
