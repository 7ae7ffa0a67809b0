//! Counts what a connection of HTTP/2 has sent and no request has read yet: it lies in the connection's buffers.
//! Refuses nothing: the connection's window is the bound, and what is counted leaves less room to others' requests.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::admission::Admission;

#[derive(Debug)]
pub(crate) struct UnreadBytes {
    admission: Arc<Admission>,
    bytes: AtomicU64,
    /// Whether they count among what the server holds: those of HTTP/2.
    is_held: AtomicBool,
}

impl UnreadBytes {
    pub(crate) fn new(admission: &Arc<Admission>) -> Self {
        Self { admission: Arc::clone(admission), bytes: AtomicU64::new(0), is_held: AtomicBool::new(false) }
    }

    /// From now on they count among what the server holds, also those that have arrived. No other thread may read or write
    /// to the connection meanwhile.
    pub(crate) fn hold(&self) {
        if !self.is_held.swap(true, Ordering::Relaxed) {
            self.admission.add_unread(self.bytes.load(Ordering::Relaxed));
        }
    }

    fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Relaxed)
    }

    pub(super) fn arrived(&self, bytes: u64) {
        // In this order: what is read at the same time was added before.
        if self.is_held() {
            self.admission.add_unread(bytes);
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A handler has them now, and counts them itself.
    fn read(&self, bytes: u64) {
        let less = |known: u64| Some(known.saturating_sub(bytes));
        let before = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or_default();
        if self.is_held() {
            self.admission.remove_unread(before.min(bytes));
        }
    }

    /// The connection has no request left: what else arrived was heads and frames.
    pub(crate) fn clear(&self) {
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        if self.is_held() {
            self.admission.remove_unread(bytes);
        }
    }
}

impl Drop for UnreadBytes {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The body of a request, whose bytes are no longer unread once a handler has them.
pub(crate) struct CountedBody {
    pub(crate) incoming: Incoming,
    pub(crate) unread: Arc<UnreadBytes>,
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.incoming).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.unread.read(frame.data_ref().map_or(0, Bytes::len) as u64);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(admission: &Arc<Admission>) -> UnreadBytes {
        let unread = UnreadBytes::new(admission);
        unread.hold();
        unread
    }

    #[test]
    fn unread_bytes_count_until_they_are_read_or_the_connection_ends() {
        let admission = Arc::new(Admission::new(100_000));
        let (one, other) = (UnreadBytes::new(&admission), held(&admission));
        one.arrived(60_000);
        assert_eq!(admission.held(), 0, "it may be HTTP/1.1");
        one.hold();
        other.arrived(500);
        assert_eq!(admission.held(), 60_500);
        one.read(20_000);
        // A body is read whole though some of its bytes were cleared with the last request.
        other.clear();
        other.read(500);
        assert_eq!(admission.held(), 40_000);
        drop(one);
        assert_eq!(admission.held(), 0);
    }

    #[test]
    fn unread_bytes_leave_less_room_but_the_only_request_is_taken() {
        let admission = Arc::new(Admission::new(100_000));
        let unread = held(&admission);
        unread.arrived(200_000);
        let only = admission.enter().unwrap();
        assert!(admission.enter().is_err());
        drop(only);
        drop(unread);
        let _some = [admission.enter().unwrap(), admission.enter().unwrap()];
    }
}
