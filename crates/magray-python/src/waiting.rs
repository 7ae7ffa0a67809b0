//! Waits for what is polled: a thread sleeps without the interpreter and hears of signals, an event loop is told through a socket.
//! Computes nothing.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::failure::Failure;
use crate::leaving::detached;

/// From one look for signals to the next.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);
/// A wait of more than this is one for ever.
const LONG_S: f64 = 1e9;

/// Polls until it is ready, at most for so many seconds; `None`: it is not. A signal ends the wait with its exception.
pub(crate) fn wait<T: Send>(
    python: Python<'_>,
    seconds: Option<f64>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T> + Send,
) -> PyResult<Option<T>> {
    let finite = seconds.filter(|seconds| *seconds < LONG_S).map(|seconds| seconds.max(0.0));
    let deadline = finite.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    loop {
        let look = Instant::now() + SIGNALS_EVERY;
        let until = deadline.map_or(look, |deadline| deadline.min(look));
        let ready = detached(python, || park_until(until, &mut poll))?;
        if ready.is_some() {
            return Ok(ready);
        }
        python.check_signals()?;
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(None);
        }
    }
}

fn park_until<T>(until: Instant, poll: &mut impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(ready) = poll(&mut context) {
            return Some(ready);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Tells an event loop which of the things it polls may be ready: its end of a socket can then be read.
#[pyclass(frozen, module = "magray._magray")]
pub(crate) struct Wakeups {
    reader: UnixStream,
    shared: Arc<Shared>,
}

struct Shared {
    writer: UnixStream,
    keys: Mutex<Vec<u64>>,
}

struct WakeLoop {
    shared: Arc<Shared>,
    key: u64,
}

impl Wake for WakeLoop {
    fn wake(self: Arc<Self>) {
        let mut keys = self.shared.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.push(self.key);
        if keys.len() == 1 {
            // Where the socket is full, the loop has been told already.
            let _ = (&self.shared.writer).write(&[0]);
        }
    }
}

impl Wakeups {
    /// Tells the loop of this key.
    pub(crate) fn waker(&self, key: u64) -> Waker {
        Waker::from(Arc::new(WakeLoop { shared: Arc::clone(&self.shared), key }))
    }
}

#[pymethods]
impl Wakeups {
    #[new]
    fn new() -> Result<Self, Failure> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        Ok(Self { reader, shared: Arc::new(Shared { writer, keys: Mutex::default() }) })
    }

    fn fileno(&self) -> i32 {
        self.reader.as_raw_fd()
    }

    /// The keys that were told since the last call.
    fn drain(&self) -> Vec<u64> {
        let mut bytes = [0; 64];
        let mut keys = self.shared.keys.lock().unwrap_or_else(PoisonError::into_inner);
        // An error says that there is nothing more.
        while (&self.reader).read(&mut bytes).is_ok_and(|read| read == bytes.len()) {}
        std::mem::take(&mut *keys)
    }
}
