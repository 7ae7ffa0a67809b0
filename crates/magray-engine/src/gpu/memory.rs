//! How much memory of a device is in use.
//! Frees nothing.

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
    /// Of what is allocated, what models hold that are not on the device: it is given up when others need it.
    pub spare: u64,
    /// The most that was ever allocated at once.
    pub peak_allocated: u64,
    /// What nobody has taken, neither this program nor another.
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
}
