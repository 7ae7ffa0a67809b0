//! How far a stream has come, for those who wait for it.
//! Puts nothing into a stream.

use super::sys;
use magray_core::pool::StreamId;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How far a stream has come: counts what was put into it, and what is known to be done.
#[derive(Debug)]
pub(super) struct Progress {
    id: StreamId,
    put: AtomicU64,
    reached: AtomicU64,
    /// Valid as long as the context counts the stream.
    raw: sys::CUstream,
    is_recording: AtomicBool,
}

// SAFETY: the stream is only asked how far it is, which any thread may do.
unsafe impl Send for Progress {}
// SAFETY: as above.
unsafe impl Sync for Progress {}

impl Progress {
    /// For a stream without work, whose points go on from this one.
    pub(super) fn new(id: StreamId, point: u64, raw: sys::CUstream) -> Self {
        let (put, reached) = (AtomicU64::new(point), AtomicU64::new(point));
        Self { id, put, reached, raw, is_recording: AtomicBool::new(false) }
    }

    /// Queries the stream without waiting. The context is current, and counts the stream.
    pub(super) fn look(&self) {
        let Some(point) = self.pending() else { return };
        if self.raw.is_null() || self.is_recording.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: a stream that is counted lives, and one that records is not asked.
        if unsafe { sys::cuStreamQuery(self.raw) } == sys::CUresult::CUDA_SUCCESS {
            self.note_reached(point);
        }
    }

    pub(super) fn note_recording(&self, records: bool) {
        self.is_recording.store(records, Ordering::SeqCst);
    }

    /// Counts an operation that was put in.
    pub(super) fn note_put(&self) {
        self.put.fetch_add(1, Ordering::AcqRel);
    }

    /// The point behind everything that was put in so far.
    pub(super) fn last(&self) -> u64 {
        self.put.load(Ordering::Acquire)
    }

    pub(super) fn id(&self) -> StreamId {
        self.id
    }

    /// The point behind everything that was put in so far, if it is not known to be reached.
    pub(super) fn pending(&self) -> Option<u64> {
        let put = self.last();
        (put > self.reached.load(Ordering::Acquire)).then_some(put)
    }

    /// Whether everything up to a point is done.
    pub(super) fn has_reached(&self, point: u64) -> bool {
        self.reached.load(Ordering::SeqCst) >= point
    }

    pub(super) fn note_reached(&self, point: u64) {
        self.reached.fetch_max(point, Ordering::SeqCst);
    }
}
