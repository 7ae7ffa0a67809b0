//! Rows that threads share, with a copy on another device where one has room for it.
//! The copy is asked for one query at a time; several at once, and what it cannot answer, are searched here.

use super::mirror::{Ask, Mirror, read};
use super::{Found, Metric, Rows, RowsHost, ScanError, Storage, Wanted};
use crate::cpu::Cpu;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

/// Rows, and perhaps a copy of them elsewhere.
pub struct MirroredRows {
    rows: Arc<RwLock<Rows>>,
    mirror: Option<Mirror>,
}

impl MirroredRows {
    /// No rows yet; devices of the host may hold a copy of them.
    pub fn new(dims: usize, storage: Storage, metric: Metric, host: Option<Arc<dyn RowsHost>>) -> Self {
        let rows = Arc::new(RwLock::new(Rows::new(dims, storage, metric)));
        let mirror = host.map(|host| Mirror::new(host, &rows));
        Self { rows, mirror }
    }

    /// As [`Rows::set`].
    pub fn set(&self, slot: u32, vector: &[f32]) -> Result<(), ScanError> {
        self.change(slot).set(slot, vector)
    }

    /// As [`Rows::set_all`].
    pub fn set_all(&self, cpu: &Cpu, slots: &[u32], vectors: &[f32]) -> Vec<u32> {
        let mut rows = self.write();
        self.mirror.iter().for_each(|mirror| slots.iter().for_each(|slot| mirror.note(*slot)));
        rows.set_all(cpu, slots, vectors)
    }

    /// As [`Rows::clear`].
    pub fn clear(&self, slot: u32) {
        self.change(slot).clear(slot);
    }

    /// The best rows for each of the queries, which lie end to end, and whether another device has found them.
    pub fn top(&self, cpu: &Cpu, queries: &[f32], wanted: &Wanted<'_>) -> Result<(Vec<Vec<Found>>, bool), ScanError> {
        let rows = read(&self.rows);
        let Wanted { k, allowed, threshold, exact } = *wanted;
        let ask = Ask { query: queries, k: k.min(rows.len()), allowed, exact };
        let is_one = queries.len() == rows.dims() && threshold.is_none();
        let mirror = self.mirror.as_ref().filter(|_| is_one);
        if let Some(found) = mirror.and_then(|mirror| mirror.top(&rows, cpu, &ask)) {
            return Ok((vec![found], true));
        }
        Ok((rows.top(cpu, queries, wanted)?, false))
    }

    /// How many slots have a vector.
    pub fn len(&self) -> usize {
        read(&self.rows).len()
    }

    /// Whether no slot has a vector.
    pub fn is_empty(&self) -> bool {
        read(&self.rows).is_empty()
    }

    /// Memory that the rows take here.
    pub fn bytes(&self) -> usize {
        read(&self.rows).bytes()
    }

    /// The device that has a copy.
    pub fn device(&self) -> Option<String> {
        self.mirror.as_ref()?.device()
    }

    fn change(&self, slot: u32) -> RwLockWriteGuard<'_, Rows> {
        let rows = self.write();
        self.mirror.iter().for_each(|mirror| mirror.note(slot));
        rows
    }

    fn write(&self) -> RwLockWriteGuard<'_, Rows> {
        self.rows.write().unwrap_or_else(PoisonError::into_inner)
    }
}
