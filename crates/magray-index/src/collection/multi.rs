//! Multi-vectors of one name by slot: a point's score is the sum over the query's vectors of the best match.
//! Plain loops: there are few of them for each point, and each is compared.

use super::dense::{is_allowed, normalise, similarity};
use crate::text::{Hit, Scope};
use crate::{DenseConfig, Distance};
use std::collections::BTreeMap;

pub(crate) struct Multi {
    dims: usize,
    distance: Distance,
    rows: BTreeMap<u32, Vec<f32>>,
}

impl Multi {
    pub(crate) fn new(config: &DenseConfig) -> Self {
        Self { dims: config.size, distance: config.distance, rows: BTreeMap::new() }
    }

    /// Vectors end to end.
    pub(crate) fn set(&mut self, slot: u32, vectors: Vec<f32>) {
        self.rows.insert(slot, vectors);
    }

    pub(crate) fn clear(&mut self, slot: u32) {
        self.rows.remove(&slot);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.rows.values().map(|vectors| 4 * vectors.len()).sum()
    }

    /// The best slots for a query.
    pub(crate) fn top(&self, query: &[Vec<f32>], scope: &Scope<'_>) -> Vec<Hit> {
        let mut query = query.to_vec();
        if self.distance == Distance::Cosine {
            query.iter_mut().for_each(|vector| normalise(vector));
        }
        let allowed = self.rows.iter().filter(|(slot, _)| is_allowed(scope, **slot));
        let score = |vectors: &Vec<f32>| {
            let best = |query: &Vec<f32>| {
                let similarities = vectors.chunks_exact(self.dims).map(|row| similarity(self.distance, query, row));
                similarities.fold(f64::NEG_INFINITY, f64::max)
            };
            query.iter().map(best).sum::<f64>() as f32
        };
        let mut hits: Vec<Hit> = allowed.map(|(slot, vectors)| Hit { slot: *slot, score: score(vectors) }).collect();
        hits.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.slot.cmp(&b.slot)));
        hits.truncate(scope.limit);
        hits
    }
}
