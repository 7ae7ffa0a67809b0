//! Who holds which memory of a worker's device: the weights of which models, passes, the driver.
//! Reports no accounts while weights are arriving or leaving.

use crate::gpu::{MemoryAccounts, MemoryStats};
use crate::roster::{Roster, RosterFull};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What weights are on the device, and whether that is changing.
pub(super) struct Holdings {
    /// What the driver takes.
    context: u64,
    /// By model.
    weights: Roster<AtomicU64>,
    /// By the number of the vectors.
    vectors: Mutex<BTreeMap<u32, u64>>,
    /// Orders that change what weights are there.
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Holdings {
    /// A device without any of its models.
    pub(super) fn new(context: u64, models: usize) -> Self {
        let weights = (0..models).map(|_| AtomicU64::new(0)).collect();
        Self { context, weights, vectors: Mutex::default(), begun: AtomicU64::new(0), ended: AtomicU64::new(0) }
    }

    /// One model more.
    pub(super) fn add_model(&self) -> Result<(), RosterFull> {
        self.weights.push(AtomicU64::new(0)).map(drop)
    }

    /// A model's weights begin to come or go. Until the change is dropped no accounts are reported.
    pub(super) fn change(&self, model: usize) -> Change<'_> {
        self.begun.fetch_add(1, Ordering::AcqRel);
        Change { holdings: self, model, bytes: 0 }
    }

    /// Changes what vectors take of the memory: by `act`, which says what that is then.
    pub(super) fn change_vectors<T>(&self, vectors: u32, act: impl FnOnce() -> (T, u64)) -> T {
        self.begun.fetch_add(1, Ordering::AcqRel);
        let (done, bytes) = act();
        match bytes {
            0 => self.vectors().remove(&vectors),
            bytes => self.vectors().insert(vectors, bytes),
        };
        self.ended.fetch_add(1, Ordering::AcqRel);
        done
    }

    fn vectors(&self) -> MutexGuard<'_, BTreeMap<u32, u64>> {
        self.vectors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures the memory; and by account, if nothing changed meanwhile.
    pub(super) fn measure(&self, measure: impl FnOnce() -> MemoryStats) -> (MemoryStats, Option<MemoryAccounts>) {
        let before = self.settled();
        let memory = measure();
        let weights = self.weights.iter().map(|bytes| bytes.load(Ordering::Acquire)).collect();
        let vectors = self.vectors().iter().map(|(vectors, bytes)| (*vectors, *bytes)).collect();
        let is_settled = before.is_some() && before == self.settled();
        (memory, is_settled.then(|| MemoryAccounts::of(&memory, self.context, weights, vectors)))
    }

    /// How many changes there were, if none is unfinished.
    fn settled(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::Acquire);
        Some(ended).filter(|ended| self.begun.load(Ordering::Acquire) == *ended)
    }
}

/// Weights that arrive or leave, until this is dropped; then they take no memory, unless it was said how much.
pub(super) struct Change<'a> {
    holdings: &'a Holdings,
    model: usize,
    bytes: u64,
}

impl Change<'_> {
    /// They are there, and take so much.
    pub(super) fn came(&mut self, bytes: u64) {
        self.bytes = bytes;
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.holdings.weights[self.model].store(self.bytes, Ordering::Release);
        self.holdings.ended.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_memory_is_told_unless_weights_are_on_their_way() {
        let holdings = Holdings::new(7, 2);
        let memory = || MemoryStats { allocated: 50, reserved: 50, ..MemoryStats::default() };
        let mut change = holdings.change(1);
        change.came(30);
        assert_eq!(holdings.measure(memory), (memory(), None));
        drop(change);
        let accounts =
            MemoryAccounts { context: 7, workspace: 20, cached: 0, weights: vec![0, 30], vectors: Vec::new() };
        assert_eq!(holdings.measure(memory).1, Some(accounts));
        holdings.change_vectors(9, || {
            assert_eq!(holdings.measure(memory).1, None);
            ((), 12)
        });
        assert_eq!(holdings.measure(memory).1.map(|accounts| accounts.vectors), Some(vec![(9, 12)]));
        holdings.change_vectors(9, || ((), 0));
        // It came and went while it was measured.
        let measured = holdings.measure(|| {
            drop(holdings.change(1));
            memory()
        });
        assert_eq!(measured, (memory(), None));
        assert_eq!(holdings.measure(memory).1.map(|accounts| accounts.weights), Some(vec![0, 0]));
    }
}
