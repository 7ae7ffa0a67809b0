//! The ways out of the interpreter: threads that wait without it, its end, and a fork of its process.
//! Never lets a thread ask for an interpreter that is going: such a thread would be ended amid Rust's frames.

use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::failure::{Failure, Forked};

/// Set when the interpreter begins to end.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);
/// The thread that ends it. All others are daemons by then.
static CLOSER: OnceLock<ThreadId> = OnceLock::new();
/// Threads that are done and ask for the interpreter.
static ASKING: AtomicU32 = AtomicU32::new(0);
/// How long the end waits for threads that are asking.
const ASKING_MAX: Duration = Duration::from_secs(2);

/// Does something without the interpreter. When the interpreter has begun to end, the thread stays here until the process is
/// gone; the one that ends it gets an error.
pub(crate) fn detached<T: Send>(python: Python<'_>, job: impl FnOnce() -> T + Send) -> Result<T, Failure> {
    if IS_CLOSED.load(Ordering::SeqCst) {
        if CLOSER.get() != Some(&thread::current().id()) {
            python.detach(stay);
        }
        return Err(Failure::Closing);
    }
    let done = python.detach(|| {
        let done = job();
        ASKING.fetch_add(1, Ordering::SeqCst);
        if IS_CLOSED.load(Ordering::SeqCst) {
            ASKING.fetch_sub(1, Ordering::SeqCst);
            stay();
        }
        done
    });
    ASKING.fetch_sub(1, Ordering::SeqCst);
    Ok(done)
}

fn stay() -> ! {
    loop {
        thread::park();
    }
}

/// Called when the interpreter begins to end: from now on no thread comes back to it.
#[pyfunction]
pub(crate) fn close(python: Python<'_>) {
    CLOSER.get_or_init(|| thread::current().id());
    IS_CLOSED.store(true, Ordering::SeqCst);
    python.detach(|| {
        let began = Instant::now();
        // They need the interpreter, which this thread has just let go.
        while ASKING.load(Ordering::SeqCst) > 0 && began.elapsed() < ASKING_MAX {
            thread::yield_now();
        }
    });
}

/// Called in a process that was forked: the threads of its parent are not there.
#[pyfunction]
pub(crate) fn after_fork() {
    ASKING.store(0, Ordering::SeqCst);
}

/// The process that something was made in. Threads and sockets of an engine do not survive a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home(u32);

impl Home {
    pub(crate) fn here() -> Self {
        Self(process::id())
    }

    pub(crate) fn is_here(self) -> bool {
        self.0 == process::id()
    }

    pub(crate) fn check(self) -> PyResult<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(Forked::new_err("this was made in another process, before a fork: make it anew in this one"))
    }
}

/// Whether what is dropped now is better left alone: its process is another one, or is ending.
pub(crate) fn is_left_alone(home: Home) -> bool {
    !home.is_here() || IS_CLOSED.load(Ordering::SeqCst)
}
