//! Sends requests to the engines that run, each by its socket.
//! Starts no engine, and every wait is bounded.

use std::{
    io,
    os::unix::net::UnixStream,
    path::PathBuf,
    time::{Duration, Instant},
};

use super::{
    folder,
    line::{self, LineError},
    wire::{self, Refusal, Reply, Request},
};

/// The time for an answer, beside that of a move.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const REPLY_BYTES_MAX: usize = 8 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) pid: u32,
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("magray (pid {pid}) has ended")]
    Gone { pid: u32 },
    #[error("magray (pid {pid}) does not answer")]
    Silent { pid: u32 },
    #[error("magray (pid {pid}) cannot be asked: {reason}")]
    Unreachable { pid: u32, reason: String },
    #[error("magray (pid {pid}): {}", refusal.message)]
    Refused { pid: u32, refusal: Refusal },
}

pub(crate) fn running(folders: &[PathBuf]) -> Vec<Running> {
    let found = folders.iter().flat_map(|folder| folder::list(folder));
    let mut running: Vec<Running> = found.map(|found| Running { pid: found.pid, path: found.path }).collect();
    running.sort_by_key(|running| running.pid);
    running
}

impl Running {
    /// Asks and waits for the answer; what is refused is an error.
    pub(crate) fn ask(&self, request: &Request) -> Result<Reply, AskError> {
        let pid = self.pid;
        let until = Instant::now() + ANSWER_MAX + moving_time(request);
        let unreachable = |error: io::Error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => AskError::Gone { pid },
            _ => AskError::Unreachable { pid, reason: error.to_string() },
        };
        let failed = |error: LineError| match error {
            LineError::Silent => AskError::Silent { pid },
            LineError::Closed => AskError::Gone { pid },
            other => AskError::Unreachable { pid, reason: other.to_string() },
        };
        let stream = UnixStream::connect(&self.path).map_err(unreachable)?;
        // An engine with too many clients answers before it reads.
        let sent = line::write(&stream, &wire::write(request), until);
        let reply = line::read(&stream, REPLY_BYTES_MAX, until).map_err(|error| failed(sent.err().unwrap_or(error)))?;
        match wire::read(&reply) {
            Ok(Reply::Refused(refusal)) | Err(refusal) => Err(AskError::Refused { pid, refusal }),
            Ok(reply) => Ok(reply),
        }
    }
}

fn moving_time(request: &Request) -> Duration {
    match request {
        Request::Offload { within_ms, .. }
        | Request::Release { within_ms, .. }
        | Request::Preheat { within_ms, .. } => Duration::from_millis(*within_ms),
        // Requests that the model has taken are waited for.
        Request::Load { .. } | Request::Unload { .. } => Duration::from_secs(300),
        Request::Alias { .. }
        | Request::Status {}
        | Request::Metrics {}
        | Request::ClearCache {}
        | Request::Priority { .. }
        | Request::Timeout { .. }
        | Request::Pin { .. } => Duration::ZERO,
    }
}
