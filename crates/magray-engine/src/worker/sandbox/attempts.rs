//! Tries from inside a worker what its sandbox must refuse, and says what came of it.
//! Harms nothing where it succeeds: it touches only what was made for it, and leaves model folders as they were.

use super::super::spec::WorkerSpec;
use crate::executors::ModelSource;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// What the worker is to reach for.
#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) struct Targets {
    /// A server on loopback.
    pub(in super::super) address: SocketAddr,
    /// A folder that the worker does not need: with a file and a socket in it.
    pub(in super::super) folder: PathBuf,
    /// The supervisor's process.
    pub(in super::super) supervisor: u32,
}

pub(in super::super) const SECRET: &str = "secret";
pub(in super::super) const SOCKET: &str = "socket";
/// A file that attempts make and remove again.
const MADE: &str = "magray-sandbox-attempt";

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
