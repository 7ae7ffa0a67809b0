//! The arithmetic of a pool of memory: which bytes of one long range of addresses are taken, and what lies behind them.
//! Touches no memory and asks no driver: that is the upstream's.
//!
//! The range is reserved once and holds no memory of its own. Memory comes in handles, which are mapped into the range
//! and unmapped again; a handle is a multiple of the grain. Blocks are handed out of what is mapped, each in constant
//! time whatever the number of blocks. Small blocks and large ones live in different parts of the range, so that a small
//! one that stays cannot keep a large one's memory from going.

/// Where a pool's memory comes from: a driver, or a test.
pub trait Upstream {
    /// Memory that is not mapped anywhere, or at one place.
    type Handle;
    /// Why there is none.
    type Error;

    /// Memory of so many bytes, a multiple of the grain.
    fn create(&mut self, bytes: u64) -> Result<Self::Handle, Self::Error>;

    /// Puts a whole handle at a place of the range.
    fn map(&mut self, at: u64, bytes: u64, handle: &Self::Handle) -> Result<(), Self::Error>;

    /// Takes a whole handle from its place. Nobody uses what lies there.
    fn unmap(&mut self, at: u64, bytes: u64);

    /// Gives the memory back; it is mapped nowhere.
    fn release(&mut self, handle: Self::Handle);
}

/// How a pool is made.
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

/// A stream of work that uses blocks in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// How a pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
