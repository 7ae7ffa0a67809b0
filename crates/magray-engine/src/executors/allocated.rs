//! Counts the bytes of weights in this process.
//! Allocates nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of weights.
#[derive(Debug, Default)]
pub(super) struct Allocated {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Allocated {
    /// Counts bytes until what is returned is dropped.
    pub(super) fn hold(of: &Arc<Self>, bytes: u64) -> Held {
        let before = of.now.fetch_add(bytes, Ordering::AcqRel);
        of.peak.fetch_max(before + bytes, Ordering::AcqRel);
        Held { of: Arc::clone(of), bytes }
    }

    pub(super) fn now(&self) -> u64 {
        self.now.load(Ordering::Acquire)
    }

    /// The most there were at once.
    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Acquire)
    }
}

/// Bytes that are counted.
pub(super) struct Held {
    of: Arc<Allocated>,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.now.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}
