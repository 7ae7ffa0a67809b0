//! How much memory of a device is in use.
//! Frees nothing.

use magray_core::ledger::{CollectionId, MemoryReport, ModelId, Owner};
use magray_core::pool::PoolStats;
use serde::{Deserialize, Serialize};

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStats {
    /// In use by models and their passes.
    pub allocated: u64,
    /// Taken from the device since it was opened. What other programs took meanwhile is counted too: the driver does not
    /// tell them apart.
    pub reserved: u64,
    /// Of what is allocated, or lies unevenly, what models hold that are not on the device: it is given up when others need it.
    pub spare: u64,
    /// Of a group: what it would have taken beyond that if each GPU had as much as the fullest. Parts are equal, so no one can have it.
    pub uneven: u64,
    /// The most that was ever allocated at once.
    pub peak_allocated: u64,
    /// What neither this program nor another has taken.
    pub free: u64,
    /// All that the device has.
    pub total: u64,
    /// How the pool is that models and passes have their memory from.
    pub pool: PoolStats,
}

impl MemoryStats {
    /// The allocated part of the whole, from 0 to 100.
    pub fn utilisation_percent(&self) -> f64 {
        if self.total == 0 { 0.0 } else { (100.0 * self.allocated as f64 / self.total as f64).min(100.0) }
    }

    /// What models, their passes and the pool have.
    pub(crate) fn taken(&self) -> u64 {
        if self.pool.reserved > 0 { self.pool.reserved } else { self.reserved.max(self.allocated) }
    }
}

/// What a worker holds of its device's memory, by account, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryAccounts {
    /// Taken by the driver.
    pub context: u64,
    /// Taken by passes of models that are on the device.
    pub workspace: u64,
    /// Given up when it is needed: by models that are away, and by the pool.
    pub cached: u64,
    /// Taken by the weights of each model.
    pub weights: Vec<u64>,
    /// Taken by vectors, by their number.
    pub vectors: Vec<(u32, u64)>,
}

impl MemoryAccounts {
    /// Who has what was measured, where these weights and vectors are on the device and none arrive or leave.
    pub(crate) fn of(memory: &MemoryStats, context: u64, weights: Vec<u64>, vectors: Vec<(u32, u64)>) -> Self {
        let MemoryStats { allocated, spare, uneven, .. } = *memory;
        let tenants = weights.iter().chain(vectors.iter().map(|(_, bytes)| bytes));
        let tenants = tenants.fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        // What lies unevenly is of tenants first: they count as the fullest has them.
        let workspace = allocated.saturating_add(uneven).saturating_sub(tenants).saturating_sub(spare);
        let ours = memory.taken().saturating_add(uneven);
        let cached = ours.saturating_sub(workspace).saturating_sub(tenants);
        Self { context, workspace, cached, weights, vectors }
    }

    /// The same for the ledger, with what no process has taken.
    pub(crate) fn report(&self, free: u64) -> MemoryReport {
        let weights = (0..).map(ModelId).zip(&self.weights).map(|(model, bytes)| (Owner::Weights(model), *bytes));
        let mut held: Vec<(Owner, u64)> = weights.filter(|(_, bytes)| *bytes > 0).collect();
        held.extend(self.vectors.iter().map(|(vectors, bytes)| (Owner::Vectors(CollectionId(*vectors)), *bytes)));
        held.extend([(Owner::Context, self.context), (Owner::Workspace, self.workspace)]);
        MemoryReport { free, cached: self.cached, held }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilisation_is_a_part_of_the_whole() {
        let stats =
            MemoryStats { allocated: 25, reserved: 30, peak_allocated: 40, total: 200, ..MemoryStats::default() };
        assert_eq!(stats.utilisation_percent(), 12.5);
        assert_eq!(MemoryStats::default().utilisation_percent(), 0.0);
    }

    #[test]
    fn every_byte_is_of_the_driver_or_weights_or_passes_or_free() {
        let memory = MemoryStats { allocated: 60, reserved: 80, free: 70, total: 200, ..MemoryStats::default() };
        let report = MemoryAccounts::of(&memory, 10, vec![0, 40], Vec::new()).report(memory.free);
        assert_eq!((report.free, report.cached), (70, 20), "what is taken and not used can be had");
        let held = [(Owner::Weights(ModelId(1)), 40), (Owner::Context, 10), (Owner::Workspace, 20)];
        assert_eq!((report.held.as_slice(), report.capacity()), (held.as_slice(), 160));
        let parked = MemoryAccounts::of(&MemoryStats { spare: 20, ..memory }, 10, vec![0, 40], Vec::new());
        assert_eq!((parked.workspace, parked.cached), (0, 40), "what passes of models had that are away can be had");
        let shared = MemoryAccounts::of(&memory, 10, vec![0, 40], vec![(7, 15)]);
        assert_eq!((shared.workspace, shared.cached), (5, 20), "vectors are no workspace");
        assert!(shared.report(70).held.contains(&(Owner::Vectors(CollectionId(7)), 15)));
        let absurd = MemoryAccounts::of(&memory, 10, vec![u64::MAX, u64::MAX], vec![(1, u64::MAX)]);
        assert_eq!(absurd.report(u64::MAX).capacity(), u64::MAX);
    }
}
