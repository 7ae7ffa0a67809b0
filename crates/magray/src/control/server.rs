//! The socket of an engine: reads one request a connection and answers it; removed with the engine.
//! No client can hold it up: each has a thread of its own, their number is bounded, and their time too.

use std::{
    fs, io,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, poll};

use super::{
    folder::{self, Names},
    line,
    subject::{Controlled, ServedChange, answer, change_of},
    wire::{self, Refusal, RefusalCode, Reply, Request},
};
use crate::interrupt::RemoveOnInterrupt;

const CLIENTS_MAX: usize = 16;
/// Of these, the ones that wait for models to move: others can still ask for the status.
const WAITING_MAX: usize = 8;
/// The time for a client to send its request, and to take the answer.
const CLIENT_MAX: Duration = Duration::from_secs(5);
/// No client waits longer for a model.
pub(super) const WITHIN_MAX: Duration = Duration::from_secs(600);
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// A control socket. Once it is dropped no request is read; requests that were read are still answered.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    path: PathBuf,
    _removed: RemoveOnInterrupt,
    /// Closed to end the thread that listens.
    stop: Option<UnixStream>,
    listening: Option<JoinHandle<()>>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("there is no folder for its control socket: set XDG_RUNTIME_DIR, HOME or control.folder")]
    NoFolder,
    #[error("its control socket cannot be made in {}: {reason}; set control.folder", folder.display())]
    Refused { folder: PathBuf, reason: io::Error },
}

impl ControlSocket {
    /// Opens a socket of this process in the first of these folders that can be used.
    pub(crate) fn open(folders: &[PathBuf], subject: Arc<dyn Controlled>) -> Result<Self, OpenError> {
        let mut failure = OpenError::NoFolder;
        for folder in folders {
            match listen(folder) {
                Ok((listener, path)) => {
                    return Self::start(listener, path, subject)
                        .map_err(|reason| OpenError::Refused { folder: folder.clone(), reason });
                }
                Err(reason) => failure = OpenError::Refused { folder: folder.clone(), reason },
            }
        }
        Err(failure)
    }

    fn start(listener: UnixListener, path: PathBuf, subject: Arc<dyn Controlled>) -> io::Result<Self> {
        let removed = RemoveOnInterrupt::new(&path);
        let (stop, stopped) = UnixStream::pair()?;
        let acceptor = Acceptor { listener, stopped, subject, counts: Counts::default() };
        let listening = thread::Builder::new().name("control".to_owned()).spawn(move || acceptor.run())?;
        Ok(Self { path, _removed: removed, stop: Some(stop), listening: Some(listening) })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // The name goes first: a client that still finds it is answered.
        let _ = fs::remove_file(&self.path);
        self.stop = None;
        if let Some(listening) = self.listening.take() {
            // A panic of it has been printed.
            let _ = listening.join();
        }
    }
}

fn listen(folder: &Path) -> io::Result<(UnixListener, PathBuf)> {
    folder::prepare(folder)?;
    // Also removes what a process of the same number left behind.
    folder::list(folder);
    let Names { pending, listening } = Names::of(folder, std::process::id());
    let _ = fs::remove_file(&pending);
    let listener = UnixListener::bind(&pending)?;
    let named = fs::rename(&pending, &listening);
    if named.is_err() {
        let _ = fs::remove_file(&pending);
    }
    named?;
    listener.set_nonblocking(true)?;
    Ok((listener, listening))
}

struct Acceptor {
    listener: UnixListener,
    stopped: UnixStream,
    subject: Arc<dyn Controlled>,
    counts: Counts,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    clients: Arc<AtomicUsize>,
    waiting: Arc<AtomicUsize>,
}

struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(count: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        // Dropped, and so given back, where all are taken.
        let slot = Self(Arc::clone(count));
        (count.fetch_add(1, Ordering::Relaxed) < max).then_some(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Acceptor {
    /// A listener that fails, for want of file descriptors perhaps, may work again.
    const RETRY_AFTER: Duration = Duration::from_millis(100);

    fn run(self) {
        loop {
            let mut events = [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.stopped, PollFlags::IN)];
            let polled = poll(&mut events, None);
            let is_stopped = !events[1].revents().is_empty();
            match (polled, is_stopped) {
                (Ok(_), true) => return,
                (Ok(_), false) | (Err(rustix::io::Errno::INTR), _) => {}
                (Err(_), _) => thread::sleep(Self::RETRY_AFTER),
            }
            match self.listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => thread::sleep(Self::RETRY_AFTER),
            }
        }
    }

    fn admit(&self, stream: UnixStream) {
        // On some systems an accepted socket takes this over from the one that listens.
        if stream.set_nonblocking(false).is_err() {
            return;
        }
        let Some(slot) = Slot::take(&self.counts.clients, CLIENTS_MAX) else {
            // So short a line always fits into the buffer of a new connection.
            return send(&stream, &busy());
        };
        let (subject, counts) = (Arc::clone(&self.subject), self.counts.clone());
        let serve = move || {
            let _slot = slot;
            let reply = respond(&stream, subject.as_ref(), &counts);
            send(&stream, &reply);
        };
        // Without a thread the connection is closed.
        let _ = thread::Builder::new().name("control-client".to_owned()).spawn(serve);
    }
}

fn respond(stream: &UnixStream, subject: &dyn Controlled, counts: &Counts) -> Reply {
    if !is_same_user(stream) {
        return Reply::Refused(Refusal::new(RefusalCode::NotYours, "it belongs to another user"));
    }
    let request: Request = match read_request(stream) {
        Ok(request) => request,
        Err(refusal) => return Reply::Refused(refusal),
    };
    let is_slow = change_of(&request).is_some_and(|(change, ..)| change.is_slow())
        || ServedChange::of(&request).is_some()
        || request == (Request::ClearCache {});
    let slot = if is_slow { Slot::take(&counts.waiting, WAITING_MAX).map(Some) } else { Some(None) };
    match slot {
        Some(_slot) => answer(subject, &request, WITHIN_MAX),
        None => busy(),
    }
}

fn read_request(stream: &UnixStream) -> Result<Request, Refusal> {
    let line = line::read(stream, REQUEST_BYTES_MAX, Instant::now() + CLIENT_MAX)
        .map_err(|error| Refusal::new(RefusalCode::NotUnderstood, error.to_string()))?;
    wire::read(&line)
}

fn send(stream: &UnixStream, reply: &Reply) {
    // The client may have left.
    let _ = line::write(stream, &wire::write(reply), Instant::now() + CLIENT_MAX);
}

fn busy() -> Reply {
    Reply::Refused(Refusal::new(RefusalCode::Busy, "too many clients at once: try again"))
}

/// For folders whose permissions were widened.
#[cfg(target_os = "linux")]
fn is_same_user(stream: &UnixStream) -> bool {
    let mine = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == mine || peer.uid.is_root())
}

/// The permissions of the folder decide.
#[cfg(not(target_os = "linux"))]
fn is_same_user(_: &UnixStream) -> bool {
    true
}
