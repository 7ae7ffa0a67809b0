//! Counts the bytes of weights in this process.
//! Allocates nothing.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of weights.
#[derive(Debug, Default)]
pub(super) struct Allocated {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Allocated {
    pub(super) fn add(&self, bytes: u64) {
        let before = self.now.fetch_add(bytes, Ordering::AcqRel);
        self.peak.fetch_max(before + bytes, Ordering::AcqRel);
    }

    pub(super) fn take(&self, bytes: u64) {
        self.now.fetch_sub(bytes, Ordering::AcqRel);
    }

    pub(super) fn now(&self) -> u64 {
        self.now.load(Ordering::Acquire)
    }

    /// The most there were at once.
    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Acquire)
    }
}
