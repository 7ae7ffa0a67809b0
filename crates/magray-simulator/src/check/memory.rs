//! The book of one device's memory: what was reported, what vectors were granted, and what that leaves for weights.
//! Counts independently; the machine's ledger is only compared with it.

use super::rule::{Rule, Verdict, holds};
use magray_core::ledger::{Budget, CollectionId, MemoryReport, Owner};
use magray_core::schedule::Moment;
use std::collections::BTreeMap;

#[derive(Debug)]
pub(crate) struct MemoryBook {
    budget: Budget,
    pub(crate) capacity: u64,
    context: u64,
    workspace: u64,
    vectors: BTreeMap<CollectionId, Vectors>,
}

/// Vectors of a collection.
#[derive(Clone, Copy, Debug)]
struct Vectors {
    bytes: u64,
    leaving_since: Option<Moment>,
}

impl MemoryBook {
    pub(crate) fn new(budget: Budget) -> Self {
        let capacity = budget.memory_max;
        Self { budget, capacity, context: budget.context, workspace: 0, vectors: BTreeMap::new() }
    }

    pub(crate) fn report(&mut self, report: &MemoryReport) {
        let held = report.held.iter().map(|(_, bytes)| u128::from(*bytes)).sum::<u128>();
        let all = u128::from(report.free) + u128::from(report.cached) + held;
        self.capacity = u64::try_from(all).unwrap_or(u64::MAX).min(self.budget.memory_max);
        let of = |owner| report.held.iter().find(|(held_by, _)| *held_by == owner).map_or(0, |(_, bytes)| *bytes);
        (self.context, self.workspace) = (of(Owner::Context), of(Owner::Workspace));
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.budget);
    }

    /// What weights and vectors may take.
    pub(crate) fn room(&self) -> u64 {
        self.room_at_most().saturating_sub(self.workspace.max(self.capacity / 16))
    }

    /// The same if passes take nothing: what exceeds it must be evicted.
    pub(crate) fn room_at_most(&self) -> u64 {
        self.capacity.saturating_sub(self.context).saturating_sub(self.budget.kv_max)
    }

    pub(crate) fn vectors(&self) -> u64 {
        self.vectors.values().map(|vectors| vectors.bytes).sum()
    }

    /// Vectors are granted more, beside weights of this many bytes.
    pub(crate) fn grant(&mut self, collection: CollectionId, bytes: u64, weights: u64) -> Verdict {
        let (taken, room) = (weights + self.vectors(), self.room());
        holds(taken.saturating_add(bytes) <= room, Rule::Room, || {
            format!("vectors of {collection:?} are granted {bytes} beside {taken} of {room}")
        })?;
        let vectors = self.vectors.entry(collection).or_insert(Vectors { bytes: 0, leaving_since: None });
        vectors.bytes += bytes;
        Ok(())
    }

    /// Vectors are to leave.
    pub(crate) fn begin_drop(&mut self, collection: CollectionId, now: Moment) -> Verdict {
        let vectors = self.vectors.get_mut(&collection).filter(|vectors| vectors.leaving_since.is_none());
        holds(vectors.is_some(), Rule::WeightsOrder, || format!("{collection:?} is to leave, and is not there"))?;
        vectors.into_iter().for_each(|vectors| vectors.leaving_since = Some(now));
        Ok(())
    }

    pub(crate) fn end_drop(&mut self, collection: CollectionId) {
        self.vectors.remove(&collection);
    }

    /// Since when vectors are leaving.
    pub(crate) fn leaving_since(&self) -> Option<Moment> {
        self.vectors.values().filter_map(|vectors| vectors.leaving_since).min()
    }

    /// All accounts but those of models.
    pub(crate) fn accounts(&self) -> BTreeMap<Owner, u64> {
        let vectors = self.vectors.iter().map(|(collection, vectors)| (Owner::Vectors(*collection), vectors.bytes));
        let fixed = [(Owner::Context, self.context), (Owner::Workspace, self.workspace)];
        fixed.into_iter().chain(vectors).filter(|(_, bytes)| *bytes > 0).collect()
    }
}
