//! What a worker says, one message after the other, and how it ended when it says nothing any more.
//! Decides nothing about it.

use super::channel::{ChannelError, Incoming};
use super::message::{FromWorker, ToSupervisor};
use super::process::{Exit, Process};
use super::wire::Garbled;
use crate::executors::FailureKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Hears a worker. When it goes, the worker is killed and reaped.
#[derive(Debug)]
pub struct WorkerReceiver {
    process: Arc<Process>,
    incoming: Incoming,
    /// How many models the worker was told of.
    models: Arc<AtomicUsize>,
    /// Whether the worker said that its device is gone.
    is_lost: bool,
    exit: Option<Exit>,
}

impl WorkerReceiver {
    /// Hears a worker that knows this many models, or more later.
    pub(super) fn new(process: Arc<Process>, incoming: Incoming, models: Arc<AtomicUsize>) -> Self {
        Self { process, incoming, models, is_lost: false, exit: None }
    }

    /// The next message; waits for it. At the end the process is reaped, and every later call says the same of it.
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot say how it ended")]
    pub fn next(&mut self) -> Result<FromWorker, Exit> {
        if let Some(exit) = &self.exit {
            return Err(exit.clone());
        }
        let error = match self.hear() {
            Ok(message) => return Ok(message),
            Err(error) => error,
        };
        let exit = match error {
            ChannelError::Closed => self.process.reap(),
            // A process that talks nonsense is not heard any longer, and what it computes is not to be trusted.
            error => {
                self.process.strike();
                match self.process.reap() {
                    Exit::Ordered => Exit::Ordered,
                    _ => Exit::Crashed { how: error.to_string() },
                }
            }
        };
        let exit = match exit {
            Exit::Crashed { .. } | Exit::Killed if self.is_lost => Exit::Lost,
            exit => exit,
        };
        self.exit = Some(exit.clone());
        Err(exit)
    }

    fn hear(&mut self) -> Result<FromWorker, ChannelError> {
        let ToSupervisor::Event(event) = self.incoming.next()? else {
            return Err(Garbled("a greeting after it was ready").into());
        };
        match &event {
            FromWorker::Loaded { model, .. }
            | FromWorker::NotLoaded { model, .. }
            | FromWorker::Offloaded { model, .. }
            | FromWorker::ImageFilled { model, .. }
            | FromWorker::ImageSpoilt { model, .. }
                if *model >= self.models.load(Ordering::Acquire) =>
            {
                return Err(Garbled("an event of a model that it was not told of").into());
            }
            FromWorker::Failed { problem, .. } | FromWorker::NotLoaded { problem, .. } => {
                self.is_lost |= problem.kind == FailureKind::Lost;
            }
            _ => {}
        }
        Ok(event)
    }
}

impl Drop for WorkerReceiver {
    fn drop(&mut self) {
        if self.exit.is_none() {
            self.process.kill();
            self.process.reap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::encode;
    use super::*;
    use crate::executors::Failure;
    use crate::gpu::MemoryStats;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    /// Hears these bytes from a process that then ends as `line` says.
    fn hear(bytes: &[u8], line: &str) -> (Option<FromWorker>, Exit) {
        let (here, there) = UnixStream::pair().unwrap();
        (&there).write_all(bytes).unwrap();
        drop(there);
        let child = Command::new("sh").args(["-c", line]).spawn().unwrap();
        let process = Process::new(child, here.try_clone().unwrap());
        let mut receiver = WorkerReceiver::new(process, Incoming::new(here), Arc::new(AtomicUsize::new(2)));
        let first = receiver.next();
        (first.clone().ok(), first.and_then(|_| receiver.next()).unwrap_err())
    }

    fn bytes_of(message: &ToSupervisor<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(message, &mut bytes);
        bytes
    }

    #[test]
    fn a_worker_that_ends_after_its_device_is_lost_was_not_at_fault() {
        let problem = Failure::new(FailureKind::Lost, "lost", "it is gone");
        let event = FromWorker::Failed { batch: 7, slot: 1, problem };
        let (said, exit) = hear(&bytes_of(&ToSupervisor::Event(event.clone())), "exit 1");
        assert_eq!(said, Some(event));
        assert_eq!(exit, Exit::Lost);
    }

    #[test]
    fn a_worker_that_talks_nonsense_is_ended_and_says_which() {
        let hello = bytes_of(&ToSupervisor::Hello { pid: 1 });
        let unknown = bytes_of(&ToSupervisor::Event(FromWorker::ImageFilled { model: 2, image: 1, bytes: 1 }));
        for bytes in [&hello[..], &unknown, b"no message at all"] {
            let (said, exit) = hear(bytes, "exec sleep 1000");
            assert_eq!(said, None);
            assert!(matches!(&exit, Exit::Crashed { how } if how.contains("the other process")), "{exit}");
        }
    }

    #[test]
    fn half_a_message_is_the_end() {
        let bytes =
            bytes_of(&ToSupervisor::Event(FromWorker::Heartbeat { memory: MemoryStats::default(), accounts: None }));
        assert_eq!(hear(&bytes[..bytes.len() - 1], "kill -KILL $$"), (None, Exit::Killed));
    }
}
