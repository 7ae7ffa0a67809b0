//! Dense vectors of one name by slot, and the best of them for a query.
//! Scores are larger for better vectors, whatever the distance; `shown` makes them what callers expect.

use super::{Hardware, SearchCounts};
use crate::text::{Hit, Scope};
use crate::{DenseConfig, Distance, Error, Result, Storage};
use magray_device::cpu::Cpu;
use magray_device::scan::{self, Metric, MirroredRows, Wanted, is_set};
use std::sync::Arc;

pub(crate) struct Dense {
    rows: MirroredRows,
    cpu: Arc<Cpu>,
    searches: Arc<SearchCounts>,
}

impl Dense {
    pub(crate) fn new(config: &DenseConfig, hardware: &Hardware) -> Self {
        let metric = match config.distance {
            Distance::Cosine => Metric::Cosine,
            Distance::Dot => Metric::Dot,
            Distance::Euclid => Metric::Euclid,
            Distance::Manhattan => Metric::Manhattan,
        };
        let storage = match config.storage {
            Storage::F32 => scan::Storage::F32,
            Storage::F16 => scan::Storage::F16,
            Storage::Int8 => scan::Storage::Int8,
        };
        let Hardware { cpu, host, searches } = hardware.clone();
        Self { rows: MirroredRows::new(config.size, storage, metric, host), cpu, searches }
    }

    /// Returns whether the vector can be searched; the schema has refused those that cannot.
    pub(crate) fn set(&mut self, slot: u32, vector: &[f32]) -> bool {
        self.rows.set(slot, vector).is_ok()
    }

    /// Sets the vectors of slots, which ascend. Returns those that cannot be searched.
    pub(crate) fn set_all(&mut self, slots: &[u32], vectors: &[f32]) -> Vec<u32> {
        self.rows.set_all(&self.cpu, slots, vectors)
    }

    pub(crate) fn clear(&mut self, slot: u32) {
        self.rows.clear(slot);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.rows.bytes()
    }

    /// The device that the vectors are on beside the CPU.
    pub(crate) fn device(&self) -> Option<String> {
        self.rows.device()
    }

    /// The best slots for a query; with `exact`, never fewer of the best to save time.
    pub(crate) fn top(&self, query: &[f32], scope: &Scope<'_>, exact: bool) -> Result<Vec<Hit>> {
        let wanted = Wanted { k: scope.limit.min(self.rows.len()), allowed: scope.allowed, threshold: None, exact };
        let found = self.rows.top(&self.cpu, query, &wanted);
        let (found, is_elsewhere) = found.map_err(|error| Error::bad(error.to_string()))?;
        self.searches.note(is_elsewhere);
        let found = found.into_iter().flatten();
        Ok(found.map(|found| Hit { slot: found.slot, score: found.score }).collect())
    }
}

pub(crate) fn is_allowed(scope: &Scope<'_>, slot: u32) -> bool {
    scope.allowed.is_none_or(|bits| is_set(bits, slot))
}

/// Scales to length 1; zeros stay.
pub(crate) fn normalise(vector: &mut [f32]) {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > f64::from(f32::EPSILON) {
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
}

/// Larger is better: dot products, and negative distances (squared for Euclid).
pub(crate) fn similarity(distance: Distance, one: &[f32], other: &[f32]) -> f64 {
    let pairs = one.iter().zip(other).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    match distance {
        Distance::Cosine | Distance::Dot => pairs.map(|(a, b)| a * b).sum(),
        Distance::Euclid => -pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>(),
        Distance::Manhattan => -pairs.map(|(a, b)| (a - b).abs()).sum::<f64>(),
    }
}

/// A similarity as callers read it: distances are not negative.
pub(crate) fn shown(distance: Distance, similarity: f32) -> f32 {
    match distance {
        Distance::Cosine | Distance::Dot => similarity,
        Distance::Euclid => similarity.abs().sqrt(),
        Distance::Manhattan => similarity.abs(),
    }
}
