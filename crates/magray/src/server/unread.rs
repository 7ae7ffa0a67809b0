//! Counts what a connection of HTTP/2 has sent and no handler has taken yet: it lies in the connection's buffers.
//! Refuses nothing: the connection's window is the bound, and what is counted leaves less room for others' requests.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{admission::Admission, connections::Connection};

/// Bytes of one connection that nobody has read. They count among what the server holds until it is dropped.
#[derive(Debug)]
pub(crate) struct Unread {
    admission: Arc<Admission>,
    bytes: AtomicU64,
}

impl Unread {
    pub(crate) fn new(admission: &Arc<Admission>) -> Self {
        Self { admission: Arc::clone(admission), bytes: AtomicU64::new(0) }
    }

    fn arrived(&self, bytes: u64) {
        // In this order: what is taken at the same time was added before.
        self.admission.add_unread(bytes);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A handler has them now, and counts them itself.
    fn taken(&self, bytes: u64) {
        let less = |known: u64| Some(known.saturating_sub(bytes));
        let Ok(before) = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) else { return };
        self.admission.remove_unread(before.min(bytes));
    }

    /// No request is left on the connection: whatever else came was heads and frames.
    pub(crate) fn clear(&self) {
        self.admission.remove_unread(self.bytes.swap(0, Ordering::Relaxed));
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The transport of a connection, whose bytes are counted as they arrive.
pub(crate) struct Metered<S> {
    pub(crate) stream: S,
    pub(crate) connection: Arc<Connection>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.connection.unread().arrived((buffer.filled().len() - before) as u64);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The body of a request, whose bytes are no longer unread once they are taken.
pub(crate) struct Arriving {
    pub(crate) incoming: Incoming,
    pub(crate) connection: Arc<Connection>,
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.incoming).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.connection.unread().taken(frame.data_ref().map_or(0, Bytes::len) as u64);
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

    #[test]
    fn what_is_unread_counts_until_it_is_taken_or_its_connection_ends() {
        let admission = Arc::new(Admission::new(100_000));
        let (one, other) = (Unread::new(&admission), Unread::new(&admission));
        one.arrived(60_000);
        other.arrived(500);
        assert_eq!(admission.held(), 60_500);
        one.taken(20_000);
        // Bodies are taken whole though some of their bytes were forgotten with the last request.
        other.clear();
        other.taken(500);
        assert_eq!(admission.held(), 40_000);
        drop(one);
        assert_eq!(admission.held(), 0);
    }

    #[test]
    fn unread_bytes_leave_less_room_but_lock_nobody_out() {
        let admission = Arc::new(Admission::new(100_000));
        let unread = Unread::new(&admission);
        unread.arrived(200_000);
        let alone = admission.enter().unwrap();
        assert!(admission.enter().is_err());
        drop(alone);
        drop(unread);
        let _some = [admission.enter().unwrap(), admission.enter().unwrap()];
    }
}
