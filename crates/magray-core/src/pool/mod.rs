//! The arithmetic of a pool of memory: which bytes of one long range of addresses are taken, and what lies behind them.
//! Touches no memory and asks no driver: that is the upstream's.
//!
//! The range is reserved once and holds no memory of its own. Memory comes in handles, which are mapped into the range
//! and unmapped again; a handle is a multiple of the grain. Blocks are handed out of what is mapped, each in constant
//! time whatever the number of blocks. Small blocks and large ones live in different parts of the range, so that a small
//! one that stays cannot keep a large one's memory from going.
//!
//! Where nothing fits, handles that nobody uses are moved side by side before new ones are made, so what is reserved stays
//! near what is used. Handles that were unused for some epochs are given back. A block with handles of its own can be
//! parked: its memory goes, its addresses stay.

mod allocate;
mod forecast;
mod growth;
mod handles;
mod parking;
mod part;
mod quick;
mod simulated;
#[cfg(test)]
mod tests;
mod tlsf;
mod trim;

pub use allocate::Pool;
pub use forecast::Forecast;
pub use simulated::{SimulatedFailure, SimulatedHandle, SimulatedMemory};

use serde::{Deserialize, Serialize};

/// Where a pool's memory comes from: a driver, or a test.
pub trait Upstream {
    /// Memory that is not mapped anywhere, or at one place.
    type Handle;
    /// Why there is none.
    type Error;

    /// Memory of this many bytes, a multiple of the grain.
    fn create(&mut self, bytes: u64) -> Result<Self::Handle, Self::Error>;

    /// Puts a whole handle at a place of the range.
    fn map(&mut self, at: u64, bytes: u64, handle: &Self::Handle) -> Result<(), Self::Error>;

    /// Takes a whole handle from its place. Nobody uses what lies there.
    fn unmap(&mut self, at: u64, bytes: u64);

    /// Gives the memory back; it is mapped nowhere.
    fn release(&mut self, handle: Self::Handle);
}

/// How a pool is made. Grain and alignment are powers of two, and each size is a multiple of the one below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Bytes of the range of addresses; far more than there is memory, so that it never runs out of places.
    pub range_bytes: u64,
    /// Memory that may be mapped at once.
    pub limit_bytes: u64,
    /// What handles are multiples of.
    pub grain_bytes: u64,
    /// The largest handle.
    pub handle_bytes: u64,
    /// Blocks of at least this size are large: they begin and end at grains.
    pub large_bytes: u64,
    /// What small blocks begin at multiples of.
    pub align_bytes: u64,
}

impl PoolOptions {
    /// The options with sizes rounded to grains.
    ///
    /// # Panics
    /// If they contradict each other.
    fn checked(self) -> Self {
        let Self { grain_bytes: grain, align_bytes: align, .. } = self;
        assert!(grain.is_power_of_two() && align.is_power_of_two() && align <= grain, "{self:?}: grain, alignment");
        let whole = |bytes: u64| bytes & !(grain - 1);
        let options = Self {
            range_bytes: whole(self.range_bytes),
            limit_bytes: whole(self.limit_bytes),
            handle_bytes: whole(self.handle_bytes),
            ..self
        };
        assert!(options.handle_bytes >= grain, "{self:?}: a handle is a grain at least");
        assert!(options.large_bytes >= grain, "{self:?}: a large block is a grain at least");
        assert!(options.range_bytes >= 4 * grain, "{self:?}: the range is too short for two parts");
        options
    }

    /// The low part of the range, where small blocks live. Twice the limit: then there is a place even if what is
    /// trimmed leaves holes everywhere. But never more than a quarter of the range: a short one must still have a place
    /// for a block of most of the memory.
    fn small_part_bytes(&self) -> u64 {
        let grain = self.grain_bytes;
        let wanted = self.limit_bytes.saturating_mul(2).max(grain);
        // Blocks are counted in 32 bits.
        let countable = (u64::from(u32::MAX) - 1).saturating_mul(self.align_bytes);
        wanted.min(self.range_bytes / 4).min(countable) & !(grain - 1)
    }
}

/// A piece of a pool's memory that a caller has. It is given back by value, so it cannot be given back twice.
#[derive(Debug)]
#[must_use = "a block that is dropped stays used: give it back with `free`"]
pub struct Block {
    at: u64,
    bytes: u64,
    /// Of the record.
    index: u32,
    /// What it takes, in units of its part.
    units: u32,
    pool: u32,
    is_apart: bool,
}

impl Block {
    /// Where it begins, from the start of the range.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// What was asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Why there is no block; callers have what they had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateError<E> {
    /// The pool may not map so much, or has no place for it: free or park something, then try again.
    Limit {
        /// What was asked for.
        wanted: u64,
        /// What is reserved.
        reserved: u64,
        /// What may be.
        limit: u64,
    },
    /// The driver has no more memory: trim this pool or others, then try again.
    Upstream(E),
}

impl<E: std::fmt::Display> std::fmt::Display for AllocateError<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Limit { wanted, reserved, limit } => write!(
                f,
                "no room for {wanted} bytes: {reserved} of at most {limit} are reserved; free memory or raise the limit"
            ),
            Self::Upstream(error) => write!(f, "the driver gave no memory: {error}"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for AllocateError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Limit { .. } => None,
            Self::Upstream(error) => Some(error),
        }
    }
}

/// A stream of work that uses blocks in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// How a pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStats {
    /// Memory that is mapped or kept in handles.
    pub reserved: u64,
    /// What callers asked for and have.
    pub used: u64,
    /// The most that was ever reserved.
    pub peak_reserved: u64,
    /// The most that was ever used.
    pub peak_used: u64,
    /// Of what callers have, the part whose memory was taken away for now.
    pub parked: u64,
    /// The largest block that could be handed out without a call to the driver.
    pub largest_free: u64,
    /// Blocks that callers have.
    pub blocks: u64,
    /// Blocks that were handed out without a call to the driver.
    pub hits: u64,
    /// Blocks for which the driver was called.
    pub misses: u64,
    /// Calls to the driver, of every kind.
    pub driver_calls: u64,
    /// Handles given back because nobody used them.
    pub trims: u64,
    /// Handles that were moved to make one large place of several small ones.
    pub stitches: u64,
    /// What history says that callers need at most.
    pub predicted: u64,
}

impl PoolStats {
    /// The part of the reserved memory that was not needed, at the peaks: from 0 to 1.
    pub fn fragmentation(&self) -> f64 {
        if self.peak_reserved == 0 { 0.0 } else { 1.0 - (self.peak_used as f64 / self.peak_reserved as f64).min(1.0) }
    }
}
