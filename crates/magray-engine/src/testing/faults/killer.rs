//! Kills workers by plan, as another program would.
//! Does nothing that the plan does not name.

use super::{Clock, FaultPlan, Place, Script};
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The thread that kills; it ends when this is dropped.
pub(crate) struct WorkerKiller {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl WorkerKiller {
    /// `kill` is called with the place of a device in the list of names; a group has several.
    pub(crate) fn start(
        plan: &FaultPlan,
        devices: impl Iterator<Item = Vec<String>>,
        started: Instant,
        kill: impl Fn(usize) + Send + 'static,
    ) -> io::Result<Self> {
        let script = |names: Vec<String>| Script::new(&plan.of_device(&names), Place::Supervisor, Duration::ZERO);
        let mut scripts: Vec<Script> = devices.map(script).collect();
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::Builder::new().name("faults".to_owned()).spawn(move || {
            loop {
                let clock = Clock { now: started.elapsed(), batch: 0 };
                for (device, script) in scripts.iter_mut().enumerate() {
                    while script.next_due(clock).is_some() {
                        kill(device);
                    }
                }
                let next = scripts.iter().filter_map(Script::next_at).min().unwrap_or(Duration::MAX);
                let rest = next.saturating_sub(started.elapsed()).min(Duration::from_secs(3600));
                if stopped.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for WorkerKiller {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
