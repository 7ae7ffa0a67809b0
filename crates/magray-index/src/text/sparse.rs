//! Exact search over sparse vectors by dot product, with weights by rarity if asked for.
//! Does not check vectors: indices that repeat and values that are not finite are refused before they come here.

use super::{
    inverted::Inverted,
    top::{Hit, Scope},
};

/// Sparse vectors by their indices.
#[derive(Debug)]
pub struct SparseIndex {
    inverted: Inverted<u32>,
    idf: bool,
}

impl SparseIndex {
    /// An empty one; with `idf`, a query's values are multiplied by how rare their indices are (Qdrant's `idf` modifier).
    pub fn new(idf: bool) -> Self {
        Self { inverted: Inverted::new(), idf }
    }

    /// How many vectors it has, also such without values.
    pub fn len(&self) -> usize {
        self.inverted.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replaces the vector of a slot. Of an index that repeats the first value counts.
    pub fn insert(&mut self, slot: u32, indices: &[u32], values: &[f32]) {
        assert_eq!(indices.len(), values.len(), "a value for each index");
        self.inverted.remove(slot);
        let number = |(index, value): (&u32, &f32)| (self.inverted.number(index, |index| *index), *value);
        let mut numbered: Vec<_> = indices.iter().zip(values).map(number).collect();
        numbered.sort_by_key(|(number, _)| *number);
        numbered.dedup_by_key(|(number, _)| *number);
        self.inverted.insert(slot, &numbered, 1);
    }

    /// Whether there was a vector.
    pub fn remove(&mut self, slot: u32) -> bool {
        self.inverted.remove(slot)
    }

    /// The vectors with the largest dot products, of those that share an index with the query.
    pub fn search(&self, indices: &[u32], values: &[f32], scope: &Scope<'_>) -> Vec<Hit> {
        let corpus = self.inverted.corpus(scope.corpus);
        let mut query: Vec<_> = indices.iter().zip(values).map(|(index, value)| (*index, f64::from(*value))).collect();
        // Sums are taken in the order of the indices, so that the order of a query's values changes no digit.
        query.sort_by_key(|(index, _)| *index);
        let weigh = |(index, value)| {
            let number = self.inverted.find(&index)?;
            Some((number, if self.idf { value * self.inverted.rarity(number, &corpus) } else { value }))
        };
        let weighted: Vec<_> = query.into_iter().filter_map(weigh).collect();
        self.inverted.top_by_product(&weighted, scope)
    }

    /// Memory that it holds, about.
    pub fn bytes(&self) -> usize {
        self.inverted.bytes()
    }
}
