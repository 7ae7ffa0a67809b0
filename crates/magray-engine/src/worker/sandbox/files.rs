//! Limits the files that the calling thread, and what it starts, can reach: Landlock's rules.
//! Which files those are is said by the grants.

use super::grants::Grants;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope, make_bitflags, path_beneath_rules,
};

/// The newest version whose rights are known here; an older kernel gets those that it has.
const NEWEST: ABI = ABI::V6;
const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
const DEVICE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile | IoctlDev});
const WRITE: BitFlags<AccessFs> =
    make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile | Truncate | MakeReg | RemoveFile});
const RENAME_THREAD: BitFlags<AccessFs> = make_bitflags!(AccessFs::{WriteFile | Truncate});

/// Puts everything but the grants out of reach; gives the version of Landlock, or why it is not in force.
pub(super) fn limit(grants: &Grants) -> Result<u32, String> {
    let status = restrict(grants).map_err(|error| format!("Landlock: {error}"))?;
    match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, LandlockStatus::NotEnabled) => {
            Err("Landlock is switched off in this kernel".to_owned())
        }
        (RulesetStatus::NotEnforced, _) => Err("this kernel has no Landlock".to_owned()),
        (_, LandlockStatus::Available { effective_abi, kernel_abi }) => {
            Ok(kernel_abi.unwrap_or(effective_abi as i32).unsigned_abs())
        }
        (_, status) => Err(format!("Landlock: {status:?}")),
    }
}

fn restrict(grants: &Grants) -> Result<landlock::RestrictionStatus, RulesetError> {
    Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        // No rule follows for ports: none may be used.
        .handle_access(AccessNet::from_all(NEWEST))?
        // Neither signals to other processes nor abstract sockets of theirs.
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rules(path_beneath_rules(&grants.read, READ))?
        .add_rules(path_beneath_rules(&grants.devices, DEVICE))?
        .add_rules(path_beneath_rules(&grants.write, WRITE))?
        .add_rules(
            grants.threads.iter().map(|threads| Ok::<_, RulesetError>(PathBeneath::new(threads, RENAME_THREAD))),
        )?
        .restrict_self()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::io::ErrorKind::PermissionDenied;

    /// Landlock holds for a thread: this one ends with the test.
    #[test]
    fn what_was_not_granted_cannot_be_read_and_what_may_be_read_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for folder in ["read", "write", "other"] {
            fs::create_dir(path(folder)).unwrap();
            fs::write(path(folder).join("file"), b"text").unwrap();
        }
        let grants =
            Grants { read: vec![path("read"), path("missing")], write: vec![path("write")], ..Grants::default() };
        let limited = std::thread::spawn({
            let root = dir.path().to_owned();
            move || {
                limit(&grants)?;
                let path = |name: &str| root.join(name);
                assert_eq!(fs::read(path("read/file")).unwrap(), b"text");
                assert_eq!(fs::read_dir(path("read")).unwrap().count(), 1);
                assert_eq!(File::create(path("read/file")).unwrap_err().kind(), PermissionDenied);
                assert_eq!(File::create(path("read/new")).unwrap_err().kind(), PermissionDenied);
                assert_eq!(fs::remove_file(path("read/file")).unwrap_err().kind(), PermissionDenied);
                assert_eq!(fs::read(path("other/file")).unwrap_err().kind(), PermissionDenied);
                assert_eq!(fs::read_dir(path("other")).unwrap_err().kind(), PermissionDenied);
                // As a cache is written: under another name, then renamed.
                fs::write(path("write/part"), b"new").unwrap();
                fs::rename(path("write/part"), path("write/file")).unwrap();
                assert_eq!(fs::read(path("write/file")).unwrap(), b"new");
                assert!(fs::rename(path("write/file"), path("other/file")).is_err());
                Ok(())
            }
        });
        if let Err::<(), String>(why) = limited.join().unwrap() {
            return magray_skip::test(magray_skip::Need::Landlock, why);
        }
        assert_eq!(fs::read(path("read/file")).unwrap(), b"text");
        assert_eq!(fs::read(path("other/file")).unwrap(), b"text");
    }
}
