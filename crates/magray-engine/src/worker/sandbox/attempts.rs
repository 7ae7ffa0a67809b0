//! Tries from inside a worker what its sandbox must refuse, and says what came of it.
//! Harms nothing where it succeeds: it touches only what was made for it, and leaves model folders as they were.

use super::super::message::{ToSupervisor, ToWorker};
use super::super::spawn::{Meeting, SpawnError, garbled, read, written};
use super::super::spec::WorkerSpec;
use super::Sandbox;
use crate::executors::ModelSource;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Something that a worker tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// What, as people say it.
    pub what: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The system did not permit it.
    Refused,
    /// It was done.
    Done,
    /// It was not done, for a reason that is none of the sandbox.
    Failed(String),
}

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

/// What the worker is to reach for.
#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) struct Targets {
    /// A server on loopback.
    address: SocketAddr,
    /// A folder that the worker does not need: with a file and a socket in it.
    folder: PathBuf,
    /// The supervisor's process.
    supervisor: u32,
}

const SECRET: &str = "secret";
const SOCKET: &str = "socket";
/// A file that attempts make and remove again.
const MADE: &str = "magray-sandbox-attempt";

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

/// The worker's side: tries everything and says what came of it.
pub(in super::super) fn attempt_all(targets: &Targets, spec: &WorkerSpec) -> Vec<Attempt> {
    let Targets { address, folder, supervisor } = targets;
    let (secret, made) = (folder.join(SECRET), folder.join(MADE));
    let mut attempts = vec![
        attempt("run a program", run_program),
        attempt("connect to a TCP port", || TcpStream::connect(address).map(drop)),
        attempt("listen on a TCP port", || TcpListener::bind("127.0.0.1:0").map(drop)),
        attempt("open a UDP port", || UdpSocket::bind("127.0.0.1:0").map(drop)),
        attempt("connect to a Unix socket", || UnixStream::connect(folder.join(SOCKET)).map(drop)),
        attempt("read a file of another folder", || fs::read(&secret).map(drop)),
        attempt("read /etc/shadow", || fs::read("/etc/shadow").map(drop)),
        attempt("list the root folder", || fs::read_dir("/").map(drop)),
        attempt("write into another folder", || make_and_remove(&made)),
        attempt("change the rights of a file", || fs::set_permissions(&secret, PermissionsExt::from_mode(0o644))),
        attempt("read the supervisor's environment", || fs::read(format!("/proc/{supervisor}/environ")).map(drop)),
        attempt("signal the supervisor", || signal(*supervisor)),
    ];
    for model in &spec.models {
        if let ModelSource::Folder(folder) = &model.source {
            attempts.push(attempt("write into a model's folder", || make_and_remove(&folder.join(MADE))));
        }
    }
    attempts
}

fn attempt(what: &str, act: impl FnOnce() -> io::Result<()>) -> Attempt {
    let outcome = match act() {
        Ok(()) => Outcome::Done,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Outcome::Refused,
        Err(error) => Outcome::Failed(error.to_string()),
    };
    Attempt { what: what.to_owned(), outcome }
}

/// Runs this program, which is there on every machine, to say its version.
fn run_program() -> io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().map(drop)
}

fn make_and_remove(path: &Path) -> io::Result<()> {
    File::create_new(path)?;
    fs::remove_file(path)
}

fn signal(process: u32) -> io::Result<()> {
    let pid = Pid::from_raw(process.cast_signed()).ok_or(ErrorKind::InvalidInput)?;
    // Asks whether it could be signalled, and sends nothing.
    Ok(test_kill_process(pid)?)
}
