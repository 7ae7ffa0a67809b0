//! Rows in the memory of another device, which looks for the best of them: what such a device does.
//! Moves nothing itself. Its numbers may have 16 bits: what it finds is ranked again by the rows themselves.

use super::Found;
use std::time::Duration;

/// Devices that may have room for rows.
pub trait RowsHost: Send + Sync {
    /// Takes memory for rows, and waits until it is there. Why there is none is told in words.
    fn hold(&self, shape: HeldShape) -> Result<Box<dyn HeldRows>, String>;

    /// Is told why rows are never asked to be held, as long as they are as they are.
    fn pass_over(&self, reason: &str);

    /// When rows are to be held.
    fn rules(&self) -> HostRules;
}

/// When rows are to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRules {
    /// Rows that take less, in numbers of 16 bits, are not: they are searched soon enough without.
    pub bytes_min: usize,
    /// Rows that were not searched for this long are let go of; `None`: they stay.
    pub idle_max: Option<Duration>,
}

/// How much is to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldShape {
    /// Numbers of a row.
    pub dims: usize,
    /// Rows that there is room for.
    pub room: usize,
    /// Whether signs are to be kept too, for scans that need not be exact.
    pub has_signs: bool,
}

/// The device has let go of rows, or failed. They are held anew, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device has let go of the rows")]
pub struct Gone;

/// Rows that a device holds until this is dropped.
pub trait HeldRows: Send + Sync {
    /// What the device is called.
    fn device(&self) -> String;

    /// Puts rows, which lie end to end, into slots. To the product of a query and a row its offset is added; a row with the
    /// offset minus infinity is never found.
    fn put(&self, slots: &[u32], rows: &[f32], offsets: &[f32]) -> Result<(), Gone>;

    /// Makes the signs of all rows, turned about a centre, and keeps them from then on.
    fn keep_signs(&self, centre: &[f32]) -> Result<(), Gone>;

    /// The best rows for a query, best first; of equal scores the lower slot is better.
    fn best(&self, scan: &HeldScan<'_>) -> Result<Vec<Found>, Gone>;
}

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub struct HeldScan<'a> {
    /// The query.
    pub query: &'a [f32],
    /// How many rows are looked at, from the first on.
    pub rows: usize,
    /// How many are wanted, at most [`HELD_BEST_MAX`].
    pub most: usize,
    /// A bit for each row that may be found; `None`: all may.
    pub allowed: Option<&'a [u64]>,
    /// Never miss one of the best for the sake of time.
    pub is_exact: bool,
}

/// The most rows that a scan finds.
pub const HELD_BEST_MAX: usize = 512;
