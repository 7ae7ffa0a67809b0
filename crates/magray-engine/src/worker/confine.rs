//! What a worker gives up when it starts, and the thread that ends it with its supervisor.
//! Gives up nothing that the driver of a GPU needs.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use std::io;
use std::os::unix::net::UnixStream;

/// Gives up what a worker does not need. Called before there are other threads, which inherit it.
pub(super) fn drop_privileges() {
    // A core of a worker is gigabytes of other people's texts. Where the system refuses, nothing else changes.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    // Neither this process nor one that a library starts can become another user.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_no_new_privs(true);
}

/// Starts a thread that ends this process when the other end of the socket is closed, whatever this process does then.
///
/// The system offers a signal for the death of a parent too. It is not used: it comes when the *thread* ends that started
/// the child, which need not be the end of the supervisor.
pub(super) fn end_with_supervisor(stream: &UnixStream) -> io::Result<()> {
    let stream = stream.try_clone()?;
    let watch = move || {
        loop {
            let mut fds = [PollFd::new(&stream, HANG_UP)];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) if !fds[0].revents().intersects(HANG_UP | PollFlags::HUP | PollFlags::ERR) => {}
                _ => end_at_once(),
            }
        }
    };
    std::thread::Builder::new().name("watch".to_owned()).spawn(watch)?;
    Ok(())
}

/// The other end is closed; data that can be read is none of the watcher's business.
#[cfg(target_os = "linux")]
const HANG_UP: PollFlags = PollFlags::RDHUP;
#[cfg(not(target_os = "linux"))]
const HANG_UP: PollFlags = PollFlags::HUP;

/// Ends this process at once: the driver's own tidying at exit would wait for a kernel that hangs.
fn end_at_once() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    // Only reached if the system refused.
    std::process::abort()
}
