//! The threads that serve connections: each has a runtime of its own, and a connection stays with the thread that got it.
//! None takes work from another: where threads steal from each other, a batch of answers wakes them one after the other.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use tokio::{net::TcpStream, runtime::Handle, sync::oneshot};

pub(crate) struct ConnectionThreads(Vec<ConnectionThread>);

struct ConnectionThread {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
    /// Dropped to end the thread.
    _alive: oneshot::Sender<()>,
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionThreads {
    pub(crate) fn start(count: usize) -> io::Result<Self> {
        (0..count).map(|_| ConnectionThread::start()).collect::<io::Result<_>>().map(Self)
    }

    /// Serves a connection on the thread that has the fewest.
    pub(crate) fn serve<F: Future<Output = ()> + Send + 'static>(
        &self,
        stream: TcpStream,
        serve: impl FnOnce(TcpStream) -> F,
    ) -> io::Result<()> {
        let Some(thread) = self.0.iter().min_by_key(|thread| thread.connections.load(Ordering::Relaxed)) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let stream = stream.into_std()?;
        // Its readiness is told to the runtime that it is made in.
        let _inside = thread.runtime.enter();
        let serving = serve(TcpStream::from_std(stream)?);
        thread.connections.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(&thread.connections));
        thread.runtime.spawn(async move {
            serving.await;
            drop(counted);
        });
        Ok(())
    }
}

impl ConnectionThread {
    fn start() -> io::Result<Self> {
        /// For answers that are too large to be written between others, and for settings that are read again.
        const BLOCKING_MAX: usize = 8;
        let runtime =
            tokio::runtime::Builder::new_current_thread().max_blocking_threads(BLOCKING_MAX).enable_all().build()?;
        let handle = runtime.handle().clone();
        let (alive, ended) = oneshot::channel();
        thread::Builder::new().name("serve".into()).spawn(move || {
            magray_engine::register_latency_thread();
            let _ = runtime.block_on(ended);
            // Does not wait for threads that still write for clients that have left.
            runtime.shutdown_background();
        })?;
        Ok(Self { runtime: handle, connections: Arc::default(), _alive: alive })
    }
}
