//! A worker's process as the supervisor holds it: ends it, reaps it, says how it ended.
//! Knows nothing of what the worker computes.

use magray_core::schedule::Ending;
use std::fmt;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How a worker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// As it was told to, after it had answered everything.
    Stopped,
    /// By itself.
    Crashed {
        /// What is known of it, for people.
        how: String,
    },
    /// By a signal from outside.
    Killed,
    /// By force, on our own order.
    Ordered,
    /// It said that its device is gone.
    Lost,
}

impl Exit {
    /// What the decisions are told.
    pub fn ending(&self) -> Ending {
        match self {
            Self::Stopped | Self::Ordered => Ending::Ordered,
            Self::Crashed { .. } => Ending::Crashed,
            Self::Killed => Ending::Killed,
            Self::Lost => Ending::Lost,
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("it was stopped"),
            Self::Crashed { how } => write!(f, "it crashed ({how})"),
            Self::Killed => f.write_str("another program killed it"),
            Self::Ordered => f.write_str("it was ended by force"),
            Self::Lost => f.write_str("its GPU is gone"),
        }
    }
}

/// Ends a worker from any thread, also while it starts.
#[derive(Clone, Debug)]
pub struct KillSwitch(Arc<Process>);

impl KillSwitch {
    /// Ends it by force. Does nothing where it has ended already.
    pub fn kill(&self) {
        self.0.kill();
    }
}

/// A child process, from its start until it was reaped.
#[derive(Debug)]
pub(super) struct Process {
    pid: u32,
    /// None once another thread reaps it.
    child: Mutex<Option<Child>>,
    /// Our end of its socket.
    stream: UnixStream,
    is_ordered: AtomicBool,
    is_stopping: AtomicBool,
}

/// A process that was killed is gone at once, unless it hangs in the kernel; then it is not waited for any longer.
const REAP_MAX: Duration = Duration::from_secs(5);

impl Process {
    pub(super) fn new(child: Child, stream: UnixStream) -> Arc<Self> {
        Arc::new(Self {
            pid: child.id(),
            child: Mutex::new(Some(child)),
            stream,
            is_ordered: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn switch(self: &Arc<Self>) -> KillSwitch {
        KillSwitch(Arc::clone(self))
    }

    /// Notes that the worker was told to end.
    pub(super) fn note_stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Ends the process by force, as the supervisor decided.
    pub(super) fn kill(&self) {
        self.is_ordered.store(true, Ordering::Release);
        self.strike();
        // A thread that waits for a message sees the end now, also where the process hangs in the kernel.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Ends the process by force as another program would: it counts as killed from outside.
    pub(super) fn strike(&self) {
        if let Some(child) = &mut *self.lock() {
            // A child that was reaped is not signalled: its number may belong to another process by now.
            let _ = child.kill();
        }
    }

    /// Waits for the end of a process that is ending, and says how it ended.
    pub(super) fn reap(&self) -> Exit {
        let status = self.wait();
        if self.is_ordered.load(Ordering::Acquire) {
            return Exit::Ordered;
        }
        match status {
            Some(status) if status.success() && self.is_stopping() => Exit::Stopped,
            Some(status) if is_signal_from_outside(status) => Exit::Killed,
            Some(status) => Exit::Crashed { how: status.to_string() },
            None => Exit::Crashed { how: "it closed its channel and does not end".to_owned() },
        }
    }

    fn wait(&self) -> Option<ExitStatus> {
        let began = Instant::now();
        let mut pause = Duration::from_micros(20);
        loop {
            let mut child = self.lock();
            if let Some(status) = child.as_mut()?.try_wait().ok()? {
                return Some(status);
            }
            if began.elapsed() > REAP_MAX {
                let mut child = child.take()?;
                let _ = child.kill();
                // It becomes a zombie when the kernel lets go of it, and this thread removes that.
                let _ = std::thread::Builder::new().name("reap".to_owned()).spawn(move || child.wait());
                return None;
            }
            drop(child);
            // Nothing tells a thread of a child's end without a handler of signals, which belongs to the program.
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        self.wait();
    }
}

/// Signals that come from outside and not from what it computed.
fn is_signal_from_outside(status: ExitStatus) -> bool {
    use rustix::process::Signal;
    let outside = [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
    status.signal().is_some_and(|signal| outside.iter().any(|known| known.as_raw() == signal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn process(command: &mut Command) -> Arc<Process> {
        let (here, _) = UnixStream::pair().unwrap();
        Process::new(command.spawn().unwrap(), here)
    }

    fn shell(line: &str) -> Arc<Process> {
        process(Command::new("sh").args(["-c", line]))
    }

    #[test]
    fn ends_are_told_apart() {
        assert!(matches!(shell("exit 3").reap(), Exit::Crashed { how } if how.contains('3')));
        assert!(matches!(shell("kill -SEGV $$").reap(), Exit::Crashed { .. }));
        assert_eq!(shell("kill -KILL $$").reap(), Exit::Killed);
        // It was not told to: a worker that leaves is no worker.
        assert!(matches!(shell("exit 0").reap(), Exit::Crashed { .. }));
        let stopped = shell("exit 0");
        stopped.note_stop();
        assert_eq!(stopped.reap(), Exit::Stopped);
    }

    #[test]
    fn an_order_is_told_apart_from_a_stranger() {
        let ordered = shell("exec sleep 1000");
        ordered.kill();
        assert_eq!(ordered.reap(), Exit::Ordered);
        ordered.kill();
        let struck = shell("exec sleep 1000");
        struck.strike();
        assert_eq!(struck.reap(), Exit::Killed);
        assert_eq!(struck.reap(), Exit::Killed, "asked again it says the same");
    }

    #[test]
    fn who_lets_go_of_a_process_leaves_no_zombie() {
        let process = shell("exec sleep 1000");
        let pid = rustix::process::Pid::from_raw(process.pid().cast_signed()).unwrap();
        drop(process);
        // No child has this number any more.
        let found = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
        assert_eq!(found.unwrap_err(), rustix::io::Errno::CHILD);
    }
}
