//! What a worker has measured of its device's memory, account by account.
//! Facts of one moment; what they mean for what was granted, the ledger decides.

use super::Owner;

/// Memory of a device as its worker sees it, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// What no process has taken.
    pub free: u64,
    /// What the worker has taken and gives up by itself when it needs memory.
    pub cached: u64,
    /// What it holds, by owner. Weights that are on their way may be missing or counted in part.
    pub held: Vec<(Owner, u64)>,
}

impl MemoryReport {
    /// All that the worker has or could have: what is neither free nor its own belongs to other processes.
    pub fn capacity(&self) -> u64 {
        self.held.iter().fold(self.free.saturating_add(self.cached), |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// What an owner holds.
    pub fn held_by(&self, owner: Owner) -> u64 {
        self.held.iter().filter(|(held_by, _)| *held_by == owner).fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }
}
