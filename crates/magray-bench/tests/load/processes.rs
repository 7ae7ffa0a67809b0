//! Looks for processes, shared memory and sockets that a run left behind, in `/proc`.

use std::{
    fmt, fs,
    os::unix::{ffi::OsStrExt, fs::FileTypeExt},
    path::Path,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::OwnedFd,
    process::{Pid, PidfdFlags, pidfd_open},
};

/// All processes that were started with a certain home folder: no other test has the same one, and workers inherit it.
#[derive(Debug)]
pub(crate) struct Family(Vec<Process>);

/// A process.
#[derive(Clone)]
pub(crate) struct Process {
    pid: i32,
    parent: i32,
    command: String,
}

/// A process whose end is waited for; a zombie counts as gone.
#[derive(Debug)]
pub(crate) struct Gone {
    process: Process,
    /// `None`: it had ended before.
    handle: Option<OwnedFd>,
}

impl Family {
    pub(crate) fn of_home(home: &Path) -> Self {
        let mark = [b"HOME=", home.as_os_str().as_bytes()].concat();
        let pids =
            fs::read_dir("/proc").expect("Linux").filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        // A zombie has no environment any more, and so is not found: it holds nothing but its number.
        let is_ours = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark)
        };
        Self(pids.filter(is_ours).filter_map(Process::read).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The children of the supervisor.
    pub(crate) fn workers(&self, supervisor: u32) -> Vec<Process> {
        self.0.iter().filter(|process| process.parent == supervisor as i32).cloned().collect()
    }
}

impl Process {
    /// `None` where it has just ended.
    fn read(pid: i32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        Some(Self { pid, parent, command })
    }

    /// Whether it maps memory that has no file, by which it speaks with its supervisor.
    pub(crate) fn has_shared_memory(&self) -> bool {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap_or_default();
        maps.lines().any(|line| line.contains("/memfd:"))
    }

    pub(crate) fn watch(&self) -> Gone {
        let pid = Pid::from_raw(self.pid).expect("a process has a number");
        Gone { process: self.clone(), handle: pidfd_open(pid, PidfdFlags::empty()).ok() }
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (child of {}): {}", self.pid, self.parent, self.command)
    }
}

impl Gone {
    /// Waits for its end.
    pub(crate) fn within(&self, most: Duration) -> bool {
        let Some(handle) = &self.handle else { return true };
        let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&most));
        ended.unwrap_or_else(|error| panic!("cannot wait for {:?}: {error}", self.process)) > 0
    }
}

/// Shared memory and sockets with names, of which there should be none.
pub(crate) fn named_leftovers(home: &Path) -> Vec<String> {
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect()
    };
    let mut left: Vec<String> =
        names(Path::new("/dev/shm")).into_iter().filter(|name| name.contains("magray")).collect();
    let bound = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let home_text = home.display().to_string();
    left.extend(bound.lines().filter(|line| line.contains(&home_text)).map(str::to_owned));
    let sockets = files_below(home).into_iter().filter(|path| {
        fs::symlink_metadata(path)
            .is_ok_and(|metadata| metadata.file_type().is_socket() || metadata.file_type().is_fifo())
    });
    left.extend(sockets.map(|path| path.display().to_string()));
    left
}

fn files_below(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}
