//! The folder that the sockets of a user's engines are in, one a process, named by its number.
//! Trusts no folder that others may write to.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    time::Duration,
};

/// The extension of a socket that a process listens at.
const LISTENING: &str = "sock";
/// The extension before that: a socket that is not listened at yet must not be taken for one that was left behind.
const PENDING: &str = "new";
/// From making a socket to listening at it takes far less.
const PENDING_MAX: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) pid: u32,
    pub(super) path: PathBuf,
}

#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) pending: PathBuf,
    pub(super) listening: PathBuf,
}

impl Names {
    pub(super) fn of(folder: &Path, pid: u32) -> Self {
        let name = |ending| folder.join(format!("{pid}.{ending}"));
        Self { pending: name(PENDING), listening: name(LISTENING) }
    }
}

/// Creates the folder if it is missing, and makes it accessible to its user only.
pub(super) fn prepare(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    if !is_own(folder) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the folder belongs to another user"));
    }
    if fs::metadata(folder)?.mode() & 0o077 != 0 {
        fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// The sockets of a folder, by pid. Those that no process listens at any more are removed.
pub(super) fn list(folder: &Path) -> Vec<Found> {
    // Another owner may have put anything there.
    if !is_own(folder) {
        return Vec::new();
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<Found> = Vec::new();
    for path in entries {
        let pid = path.file_stem().and_then(OsStr::to_str).and_then(|stem| stem.parse().ok());
        let (Some(pid), Some(ending)) = (pid, path.extension().and_then(OsStr::to_str)) else { continue };
        match ending {
            LISTENING if is_left_behind(&path) => remove(&path),
            LISTENING => found.push(Found { pid, path }),
            PENDING if is_old(&path) && is_left_behind(&path) => remove(&path),
            _ => {}
        }
    }
    found.sort_by_key(|found| found.pid);
    found
}

/// A process that was killed cannot remove its socket, and no other can listen at it.
fn is_left_behind(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn is_old(path: &Path) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|metadata| metadata.modified()).ok();
    modified.and_then(|modified| modified.elapsed().ok()).is_some_and(|age| age > PENDING_MAX)
}

fn remove(path: &Path) {
    // Another process may have removed it.
    let _ = fs::remove_file(path);
}

fn is_own(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|found| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_folder_is_accessible_to_its_user_only_also_where_it_was_open_before() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("a").join("b");
        for before in [None, Some(0o777)] {
            if let Some(mode) = before {
                fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
            }
            prepare(&folder).unwrap();
            assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        }
        assert!(prepare(Path::new("/proc/nowhere")).is_err());
    }

    #[test]
    fn sockets_of_ended_processes_are_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let names = |pid| Names::of(folder.path(), pid);
        let _listens = UnixListener::bind(names(30).listening).unwrap();
        drop(UnixListener::bind(names(4).listening).unwrap());
        drop(UnixListener::bind(names(5).pending).unwrap());
        fs::write(folder.path().join("notes.txt"), "mine").unwrap();
        fs::write(folder.path().join("x.sock"), "mine").unwrap();
        assert_eq!(list(folder.path()), [Found { pid: 30, path: names(30).listening }]);
        let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["30.sock", "5.new", "notes.txt", "x.sock"], "a socket that is being made is kept");
        assert_eq!(list(&folder.path().join("nowhere")), []);
    }
}
