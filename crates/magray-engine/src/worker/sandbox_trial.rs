//! Starts a worker that tries what its sandbox must refuse, and ends it.
//! Computes nothing.

use super::message::{ToSupervisor, ToWorker};
use super::sandbox::{Attempt, SECRET, SOCKET, Targets};
use super::spawn::{Meeting, SpawnError, garbled, read, written};
use super::spec::{Sandbox, WorkerSpec};
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Starts a worker as an engine does, lets it try what it must not do, and ends it.
pub fn try_sandbox(
    exe: &Path,
    spec: &WorkerSpec,
    ready_within: Duration,
) -> Result<(Sandbox, Vec<Attempt>), SpawnError> {
    let bait = Bait::lay().map_err(SpawnError::System)?;
    let (spec, targets) = (written(spec)?, written(&bait.targets)?);
    Meeting::new(exe, ready_within)?.hold(|meeting| {
        let sandbox = meeting.open_device(&spec)?.sandbox;
        match meeting.ask(ToWorker::Attempt(&targets))? {
            ToSupervisor::Attempted(attempts) => Ok((sandbox, read(attempts)?)),
            _ => Err(garbled("something else than what it tried")),
        }
    })
}

/// The things that a worker reaches for; they go with this.
struct Bait {
    targets: Targets,
    _tcp: TcpListener,
    _unix: UnixListener,
}

impl Bait {
    fn lay() -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let (number, pid) = (NUMBER.fetch_add(1, Ordering::Relaxed), std::process::id());
        let folder = std::env::temp_dir().join(format!("magray-sandbox-{pid}-{number}"));
        // Fails where the folder exists already.
        fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let lay = || {
            fs::write(folder.join(SECRET), b"secret")?;
            let (tcp, unix) = (TcpListener::bind("127.0.0.1:0")?, UnixListener::bind(folder.join(SOCKET))?);
            let targets = Targets { address: tcp.local_addr()?, folder: folder.clone(), supervisor: pid };
            Ok(Self { targets, _tcp: tcp, _unix: unix })
        };
        lay().inspect_err(|_: &io::Error| {
            let _ = fs::remove_dir_all(&folder);
        })
    }
}

impl Drop for Bait {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.targets.folder);
    }
}
