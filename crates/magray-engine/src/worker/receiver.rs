//! What a worker says, one message after the other, and how it ended when it says nothing any more.
//! Decides nothing about it.

use super::channel::{ChannelError, Incoming};
use super::message::{Arrival, Origin, ToSupervisor, Trouble, take_new_tokens};
use super::process::{Exit, Process};
use super::wire::Garbled;
use crate::executors::NewTokens;
use crate::gpu::MemoryStats;
use magray_core::Precision;
use magray_core::schedule::Failure;
use std::sync::Arc;
use std::time::Duration;

/// Hears a worker. When it goes, the worker is killed and reaped.
#[derive(Debug)]
pub struct WorkerReceiver {
    process: Arc<Process>,
    incoming: Incoming,
    models: usize,
    /// Whether the worker said that its device is gone.
    is_lost: bool,
    exit: Option<Exit>,
}

/// What a worker says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromWorker {
    /// The answers of a batch lie in its slot.
    Finished {
        /// Which.
        batch: u64,
        /// Where.
        slot: usize,
        /// How long the device computed.
        compute: Duration,
    },
    /// Steps of sequences were computed.
    Turned {
        /// Which batch.
        batch: u64,
        /// Where it lay.
        slot: usize,
        /// How long the device computed.
        compute: Duration,
        /// What came of each step.
        new: Vec<NewTokens>,
    },
    /// A batch has no answers.
    Failed {
        /// Which.
        batch: u64,
        /// Where it lay.
        slot: usize,
        /// What went wrong.
        problem: Problem,
    },
    /// A model's weights are on the device.
    Loaded {
        /// Which.
        model: usize,
        /// How, and how they are there.
        arrived: Arrived,
    },
    /// They are not, and what was taken for them is free again.
    NotLoaded {
        /// Which.
        model: usize,
        /// What went wrong.
        problem: Problem,
    },
    /// A model's weights are not on the device any more.
    Offloaded {
        /// Which.
        model: usize,
        /// How long that took.
        took: Duration,
        /// The device's memory now.
        memory: MemoryStats,
    },
    /// An image holds all of a model's weights: other workers may have it.
    ImageFilled {
        /// Of which model.
        model: usize,
        /// Which image.
        image: u64,
        /// How much of it is in use.
        bytes: u64,
    },
    /// An image does not hold them, and never will.
    ImageSpoilt {
        /// Of which model.
        model: usize,
        /// Which image.
        image: u64,
        /// What went wrong.
        problem: Problem,
    },
    /// The process lives; whether it computes is another matter.
    Heartbeat {
        /// The device's memory.
        memory: MemoryStats,
    },
}

/// How a model's weights came to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The arithmetic it has there.
    pub precision: Precision,
    /// Numbers in a text's answer.
    pub outputs: usize,
    /// What the weights take of the device's memory.
    pub bytes: u64,
    /// How long it took the worker, without the wait for its turn.
    pub took: Duration,
    /// Where they came from.
    pub origin: Origin,
    /// The device's memory now.
    pub memory: MemoryStats,
}

/// What a worker says when something went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Sorted by what to do about it.
    pub kind: Failure,
    /// One word for programs.
    pub code: String,
    /// A sentence for people.
    pub message: String,
}

impl From<Trouble<'_>> for Problem {
    fn from(trouble: Trouble<'_>) -> Self {
        Self { kind: trouble.failure, code: trouble.code.to_owned(), message: trouble.message.to_owned() }
    }
}

impl WorkerReceiver {
    /// Hears a worker that knows so many models.
    pub(super) fn new(process: Arc<Process>, incoming: Incoming, models: usize) -> Self {
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
        let models = self.models;
        let known = |model: u32| match model as usize {
            model if model < models => Ok(model),
            _ => Err(Garbled("word of a model that nobody told it of")),
        };
        let frame = self.incoming.next()?;
        Ok(match ToSupervisor::decode(frame.kind, frame.payload)? {
            ToSupervisor::Finished { batch, slot, compute } => {
                FromWorker::Finished { batch, slot: slot as usize, compute }
            }
            ToSupervisor::Turned { batch, slot, compute, new } => {
                let new = take_new_tokens(new)?;
                FromWorker::Turned { batch, slot: slot as usize, compute, new }
            }
            ToSupervisor::Failed { batch, slot, trouble } => {
                self.is_lost |= trouble.failure == Failure::Lost;
                FromWorker::Failed { batch, slot: slot as usize, problem: trouble.into() }
            }
            ToSupervisor::Loaded(Arrival { model, precision, outputs, bytes, took, origin, memory }) => {
                let outputs = outputs as usize;
                let arrived = Arrived { precision, outputs, bytes, took, origin, memory };
                FromWorker::Loaded { model: known(model)?, arrived }
            }
            ToSupervisor::NotLoaded { model, trouble } => {
                self.is_lost |= trouble.failure == Failure::Lost;
                FromWorker::NotLoaded { model: known(model)?, problem: trouble.into() }
            }
            ToSupervisor::Offloaded { model, took, memory } => {
                FromWorker::Offloaded { model: known(model)?, took, memory }
            }
            ToSupervisor::ImageFilled { model, image, bytes } => {
                FromWorker::ImageFilled { model: known(model)?, image, bytes }
            }
            ToSupervisor::ImageSpoilt { model, image, trouble } => {
                FromWorker::ImageSpoilt { model: known(model)?, image, problem: trouble.into() }
            }
            ToSupervisor::Heartbeat(memory) => FromWorker::Heartbeat { memory },
            ToSupervisor::Hello { .. }
            | ToSupervisor::Ready { .. }
            | ToSupervisor::NotReady(_)
            | ToSupervisor::Surveyed(_)
            | ToSupervisor::Attempted(_) => {
                return Err(Garbled("a greeting after it was ready").into());
            }
        })
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
    use super::*;
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
        let mut receiver = WorkerReceiver::new(process, Incoming::new(here), 2);
        let first = receiver.next();
        (first.clone().ok(), first.and_then(|_| receiver.next()).unwrap_err())
    }

    #[test]
    fn a_worker_that_ends_after_its_device_is_lost_was_not_at_fault() {
        let mut bytes = Vec::new();
        let trouble = Trouble { failure: Failure::Lost, code: "lost", message: "it is gone" };
        ToSupervisor::Failed { batch: 7, slot: 1, trouble }.encode(&mut bytes);
        let (said, exit) = hear(&bytes, "exit 1");
        assert!(matches!(
            said,
            Some(FromWorker::Failed { batch: 7, slot: 1, problem: Problem { kind: Failure::Lost, .. } })
        ));
        assert_eq!(exit, Exit::Lost);
    }

    #[test]
    fn a_worker_that_talks_nonsense_is_ended_and_says_which() {
        let mut bytes = Vec::new();
        ToSupervisor::Hello { pid: 1 }.encode(&mut bytes);
        let mut unknown = Vec::new();
        ToSupervisor::ImageFilled { model: 2, image: 1, bytes: 1 }.encode(&mut unknown);
        for bytes in [&bytes[..], &unknown, b"no message at all"] {
            let (said, exit) = hear(bytes, "exec sleep 1000");
            assert_eq!(said, None);
            assert!(matches!(&exit, Exit::Crashed { how } if how.contains("the other process")), "{exit}");
        }
    }

    #[test]
    fn half_a_message_is_the_end() {
        let mut bytes = Vec::new();
        ToSupervisor::Heartbeat(MemoryStats::default()).encode(&mut bytes);
        assert_eq!(hear(&bytes[..bytes.len() - 1], "kill -KILL $$"), (None, Exit::Killed));
    }
}
