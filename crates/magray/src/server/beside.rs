//! Work that goes on in the process of a server while that listens, on a thread of its own: what a demonstration does.
//! The server outlives it: whatever it has sent is answered before the server stops.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use magray_engine::engine::Engine;
use tokio::sync::oneshot;

/// A server that listens.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    /// Once it is set, the work is to end.
    pub(crate) stop: Arc<AtomicBool>,
}

/// The work: when it ends by itself, the server stops.
pub(crate) type Work = Box<dyn FnOnce(Served) + Send>;

/// Work that was begun.
pub(super) struct Beside {
    stop: Arc<AtomicBool>,
    over: oneshot::Receiver<()>,
}

impl Beside {
    pub(super) fn start(work: Work, address: SocketAddr, engine: Engine) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let served = Served { address, engine, stop: Arc::clone(&stop) };
        let (ended, over) = oneshot::channel::<()>();
        thread::Builder::new().name("beside".to_owned()).spawn(move || {
            // Dropped at the end, also by a panic: the server stops then too.
            let _ended = ended;
            work(served);
        })?;
        Ok(Self { stop, over })
    }

    /// Waits until it is over.
    pub(super) async fn over(&mut self) {
        // That the other end is gone is the message.
        let _ = (&mut self.over).await;
    }

    /// Lets it end, and waits until it has.
    pub(super) async fn finish(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if !self.over.is_terminated() {
            self.over().await;
        }
    }
}
