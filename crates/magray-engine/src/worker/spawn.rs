//! Starts a worker process and talks to it until it is ready.
//! Restarts nothing: what follows from a failure is decided elsewhere.

use super::channel::{ChannelError, Incoming, Outgoing};
use super::handle::WorkerHandle;
use super::message::{Layout, ToSupervisor, ToWorker};
use super::process::{Exit, KillSwitch, Process};
use super::receiver::WorkerReceiver;
use super::slots::Slots;
use super::spec::{NOT_CONFINED, Ready, ReadyMessage, WorkerSpec};
use super::wire::{FIELD_BYTES_MAX, Garbled, decode, field_of};
use crate::executors::{Failure, FailureKind};
use magray_core::schedule::Ending;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

/// Why there is no worker.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The program does not start.
    #[error("a worker cannot be started from '{}': {source}", exe.display())]
    Start {
        /// The program.
        exe: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system gives no socket or no memory to share.
    #[error("the system refused what a worker needs: {0}")]
    System(#[source] io::Error),
    /// What the worker is to do cannot be written down.
    #[error("a worker cannot be told what to do: {0}")]
    Spec(String),
    /// It took too long.
    #[error("the worker was not ready within {} s", .0.as_secs_f64())]
    Overdue(Duration),
    /// It talks nonsense, or is of another version.
    #[error("the worker cannot be talked to: {0}")]
    Channel(#[source] ChannelError),
    /// It could not open its device.
    #[error("the worker could not start: {0}")]
    NotReady(#[source] Failure),
    /// It ended before it was ready.
    #[error("the worker ended before it was ready: {0}")]
    Ended(Exit),
}

impl SpawnError {
    /// What the decisions are told.
    pub fn ending(&self) -> Ending {
        match self {
            Self::NotReady(failure) if failure.kind == FailureKind::Lost => Ending::Lost,
            _ => Ending::NotStarted,
        }
    }

    /// Whether it says anything of the device, as against this program, its files, or what else is on the device.
    pub fn blames_device(&self) -> bool {
        match self {
            Self::NotReady(Failure { code, kind, .. }) => {
                *kind != FailureKind::OutOfMemory && code != "not_understood" && code != NOT_CONFINED
            }
            Self::Overdue(_) | Self::Ended(Exit::Crashed { .. } | Exit::Lost) => true,
            Self::Ended(_) | Self::Start { .. } | Self::System(_) | Self::Spec(_) | Self::Channel(_) => false,
        }
    }
}

/// A worker that is not heard within this time when it is spoken to is stuck: the messages to it are few and small.
const SEND_MAX: Duration = Duration::from_secs(1);

/// Starts `exe worker` and waits until its device is open; it has no model then. `started` gets a switch as soon as there is a process, so
/// that another thread can end a start that hangs.
pub fn spawn(
    exe: &Path,
    spec: &WorkerSpec,
    ready_within: Duration,
    started: impl FnOnce(KillSwitch),
) -> Result<(WorkerHandle, WorkerReceiver, Ready), SpawnError> {
    let field = written(spec)?;
    let mut meeting = Meeting::new(exe, ready_within)?;
    started(meeting.process.switch());
    let (ready, slots) = meeting.hold(|meeting| meeting.open(&field, spec))?;
    let Meeting { process, incoming, outgoing, .. } = meeting;
    let models = Arc::new(AtomicUsize::new(spec.models.len()));
    let handle = WorkerHandle::new(Arc::clone(&process), outgoing, slots, Arc::clone(&models));
    Ok((handle, WorkerReceiver::new(process, incoming, models), ready))
}

/// A process and the first words with it. When it goes, the process is ended and reaped.
pub(super) struct Meeting {
    process: Arc<Process>,
    incoming: Incoming,
    outgoing: Outgoing,
    within: Duration,
    deadline: Instant,
}

impl Meeting {
    /// Starts a process; all that is said to it must be answered within this time.
    pub(super) fn new(exe: &Path, within: Duration) -> Result<Self, SpawnError> {
        let deadline = Instant::now() + within;
        let (here, there) = UnixStream::pair().map_err(SpawnError::System)?;
        here.set_write_timeout(Some(SEND_MAX)).map_err(SpawnError::System)?;
        let clone = || here.try_clone().map_err(SpawnError::System);
        let (incoming, outgoing, own) = (Incoming::new(clone()?), Outgoing::new(clone()?), clone()?);
        let child =
            command(exe, there.into()).spawn().map_err(|source| SpawnError::Start { exe: exe.to_owned(), source })?;
        Ok(Self { process: Process::new(child, own), incoming, outgoing, within, deadline })
    }

    /// Has the talk; where the process ended meanwhile, says how.
    pub(super) fn hold<T>(&mut self, talk: impl FnOnce(&mut Self) -> Result<T, SpawnError>) -> Result<T, SpawnError> {
        talk(self).map_err(|error| match error {
            SpawnError::Channel(ChannelError::Closed) => SpawnError::Ended(self.process.reap()),
            SpawnError::Channel(ChannelError::Timeout) => SpawnError::Overdue(self.within),
            error => error,
        })
    }

    fn open(&mut self, field: &[u8], spec: &WorkerSpec) -> Result<(Ready, Slots), SpawnError> {
        let ready = self.open_device(field)?;
        let slots = Slots::create(layout(spec)?).map_err(SpawnError::System)?;
        let sent = self.outgoing.send_along(slots.memory().fd(), &ToWorker::Memory(slots.layout()));
        sent.map_err(SpawnError::Channel)?;
        self.incoming.set_timeout(None).map_err(SpawnError::Channel)?;
        Ok((ready, slots))
    }

    /// Greets it and lets it open its device: a [`WorkerSpec`] that was [`written`].
    pub(super) fn open_device(&mut self, spec: &[u8]) -> Result<Ready, SpawnError> {
        self.greet()?;
        let pid = self.process.pid();
        match self.ask(ToWorker::Open(spec))? {
            ToSupervisor::Ready { memory, message } => {
                let ReadyMessage { name, uuid, sandbox } = read(message)?;
                Ok(Ready { pid, name, uuid, memory, sandbox })
            }
            ToSupervisor::NotReady(failure) => Err(SpawnError::NotReady(failure)),
            _ => Err(garbled("something else than whether it is ready")),
        }
    }

    /// Waits for the greeting and sees that it is from the process that was started.
    pub(super) fn greet(&mut self) -> Result<(), SpawnError> {
        let pid = self.process.pid();
        match self.hear()? {
            ToSupervisor::Hello { pid: said } if said == pid => Ok(()),
            ToSupervisor::Hello { .. } => Err(garbled("the greeting of another process")),
            _ => Err(garbled("no greeting")),
        }
    }

    /// Says something and waits for the answer.
    pub(super) fn ask(&mut self, message: ToWorker<'_>) -> Result<ToSupervisor<'_>, SpawnError> {
        self.outgoing.send(&message).map_err(SpawnError::Channel)?;
        self.hear()
    }

    fn hear(&mut self) -> Result<ToSupervisor<'_>, SpawnError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.incoming.set_timeout(Some(left)).map_err(SpawnError::Channel)?;
        self.incoming.next().map_err(SpawnError::Channel)
    }
}

/// What a field of a message to a worker holds.
pub(super) fn written(content: &impl Serialize) -> Result<Vec<u8>, SpawnError> {
    let field = field_of(content).map_err(|_| SpawnError::Spec("a path in it is not UTF-8".to_owned()))?;
    if field.len() > FIELD_BYTES_MAX {
        return Err(SpawnError::Spec("it has too many models, or their names are too long".to_owned()));
    }
    Ok(field)
}

/// Reads a field of a message from a worker.
pub(super) fn read<'a, T: Deserialize<'a>>(field: &'a [u8]) -> Result<T, SpawnError> {
    decode(field).map_err(|error| SpawnError::Channel(error.into()))
}

pub(super) fn garbled(what: &'static str) -> SpawnError {
    SpawnError::Channel(Garbled(what).into())
}

fn layout(spec: &WorkerSpec) -> Result<Layout, SpawnError> {
    let number = |n: usize| u32::try_from(n).map_err(|_| SpawnError::Spec("a slot is larger than can be".to_owned()));
    Ok(Layout {
        slots: number(spec.slots)?,
        tokens_max: number(spec.slot_tokens_max)?,
        texts_max: number(spec.slot_texts_max)?,
        outputs_max: number(spec.outputs_max)?,
        token_numbers_max: number(spec.token_numbers_max)?,
    })
}

fn command(exe: &Path, socket: OwnedFd) -> Command {
    let mut command = Command::new(exe);
    command.arg("worker").stdin(Stdio::from(socket)).stdout(Stdio::null()).stderr(Stdio::inherit());
    // Ctrl-C in a terminal goes to its whole process group: what becomes of the worker is for the supervisor to decide.
    command.process_group(0);
    command.env_clear().envs(DRIVER_DEFAULTS).envs(std::env::vars_os().filter(|(name, _)| is_needed(name)));
    command
}

/// What the driver is told, unless the user's own environment says otherwise.
///
/// Work queues to the GPU: the driver's default of 8 makes a context take twice as long. Two, because with one a stream
/// waits for kernels of another that it does not depend on. Kernels are put on the GPU when they are first used, which is
/// the default of newer drivers only.
const DRIVER_DEFAULTS: [(&str, &str); 2] = [("CUDA_DEVICE_MAX_CONNECTIONS", "2"), ("CUDA_MODULE_LOADING", "LAZY")];

/// What the loader, the driver and its compiler look at. The settings of magray itself are not among them: a worker is
/// told everything.
fn is_needed(name: &OsString) -> bool {
    const NAMES: [&str; 9] =
        ["PATH", "HOME", "USER", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ", "RUST_BACKTRACE"];
    const BEGINNINGS: [&str; 4] = ["CUDA_", "NVIDIA_", "XDG_", "LC_"];
    let is_one_of = |name: &str| NAMES.contains(&name) || BEGINNINGS.iter().any(|start| name.starts_with(start));
    OsStr::to_str(name).is_some_and(is_one_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_is_told_defaults_that_a_user_can_change() {
        let command = command(Path::new("magray"), UnixStream::pair().unwrap().0.into());
        let value = |name: &str| command.get_envs().find(|(known, _)| *known == name).and_then(|(_, value)| value);
        for (name, default) in DRIVER_DEFAULTS {
            let expected = std::env::var_os(name).unwrap_or_else(|| default.into());
            assert_eq!(value(name), Some(expected.as_os_str()));
            assert!(is_needed(&name.into()), "a user's own value of {name} must come after it");
        }
    }

    #[test]
    fn a_worker_gets_what_the_driver_needs_and_no_secret() {
        for name in ["PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_CACHE_PATH", "NVIDIA_VISIBLE_DEVICES"] {
            assert!(is_needed(&name.into()), "{name}");
        }
        for name in ["HF_TOKEN", "LD_PRELOAD", "MAGRAY_FAULTS", "AWS_SECRET_ACCESS_KEY", "CUDA"] {
            assert!(!is_needed(&name.into()), "{name}");
        }
    }
}
