//! Full disks, read-only disks, a second process, values that do not fit: refused with a reason, and nothing is lost.

use super::damage::filled;
use super::script::*;
use magray_index::*;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn a_full_store_refuses_the_change_and_keeps_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { collection_bytes_max: 1 << 20, ..Options::default() };
    let collections = Collections::open(folder.path(), options).unwrap();
    collections.create("c", CollectionConfig::dense(DIMS, Distance::Dot)).unwrap();
    let collection = collections.get("c").unwrap();
    let mut stored = 0;
    let error = loop {
        match collection.upsert((stored..stored + 100).map(|id| point(id, 1)).collect()) {
            Ok(()) => stored += 100,
            Err(error) => break error,
        }
        assert!(stored < 100_000, "a store of 1 MiB is never full");
    };
    assert!(matches!(error, Error::Full), "{error}");
    assert_eq!(everything(&collection).len() as u64, stored);
    // Deleting makes room again.
    collection.delete(&Selector::Ids((0..200).map(PointId::Number).collect())).unwrap();
    collection.upsert((0..50).map(|id| point(id, 2)).collect()).unwrap();
    assert_eq!(everything(&collection).len() as u64, stored - 150);
}

#[test]
fn a_second_process_is_told_who_has_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 10);
    let first = open(folder.path());
    let error = Collections::open(folder.path(), Options::default()).err().expect("the folder is locked");
    assert!(matches!(&error, Error::Locked { by } if *by == format!("process {}", std::process::id())), "{error}");
    let (mut other, _said) = child(folder.path(), 1, Stdio::null());
    assert!(!other.wait().unwrap().success(), "another process has changed the folder");
    assert_eq!(everything(&first.get("c").unwrap()).len(), 10);
    drop(first);
    open(folder.path());
}

#[test]
fn vectors_of_another_dimension_are_refused_and_nothing_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 10);
    let collections = open(folder.path());
    let collection = collections.get("c").unwrap();
    let before = everything(&collection);
    let wrong = Vector::Dense(vec![1.0; DIMS + 1]);
    let mut points = vec![point(3, 2), point(4, 2)];
    points[1].vectors.insert(String::new(), wrong.clone());
    let error = collection.upsert(points).unwrap_err().to_string();
    assert!(error.contains("expected dim: 8, got 9"), "{error}");
    assert!(collection.query(&Query::new(QueryKind::Nearest(Example::Vector(wrong)), 1)).is_err());
    assert_eq!(everything(&collection), before);
}

#[test]
fn a_payload_of_a_gigabyte_is_refused_and_nothing_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 10);
    let collections = open(folder.path());
    let collection = collections.get("c").unwrap();
    let mut large = point(3, 2);
    large.payload.insert("blob".to_owned(), "x".repeat(1 << 30).into());
    let error = collection.upsert(vec![point(2, 2), large]).unwrap_err().to_string();
    assert!(error.contains("larger than 64 MiB"), "{error}");
    assert!(everything(&collection).iter().all(|record| record.payload.as_ref().unwrap()["batch"] == 1));
}

/// Tells the child where its small disk is.
const DISK: &str = "MAGRAY_INDEX_SMALL_DISK";

/// On a disk of 4 MiB that no other process sees.
#[test]
fn child_on_a_small_disk() {
    let Ok(disk) = std::env::var(DISK) else {
        return;
    };
    let (folder, copied) = (Path::new(&disk).join("small"), Path::new(&disk).join("copy"));
    let mount = |options: &str, at: &Path| {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(at).status();
        assert!(mounted.unwrap().success());
    };
    [&folder, &copied].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
    mount("size=4m", &folder);
    let collections = open(&folder);
    collections.create("c", config()).unwrap();
    let collection = collections.get("c").unwrap();
    let mut stored = 0;
    let error = loop {
        match collection.upsert((stored..stored + 100).map(|id| point(id, 1)).collect()) {
            Ok(()) => stored += 100,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full), "{error}");
    let error = collections.create_snapshot("c").unwrap_err();
    assert!(matches!(error, Error::Full), "{error}");
    let is_there = |collections: &Collections| everything(&collections.get("c").unwrap()).len() as u64 == stored;
    assert!(is_there(&collections));
    // As a process that was killed leaves it: the log is not written back.
    mount("size=16m", &copied);
    assert!(Command::new("cp").arg("-r").arg(folder.join(".")).arg(&copied).status().unwrap().success());
    drop((collection, collections));
    assert!(is_there(&open(&folder)), "after a start on the full disk");
    for folder in [&folder, &copied] {
        let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(folder).status();
        assert!(remounted.unwrap().success());
        let collections = open(folder);
        assert!(is_there(&collections), "on a read-only disk");
        let error = collections.get("c").unwrap().upsert(vec![point(1, 2)]).unwrap_err();
        assert!(matches!(error, Error::ReadOnly), "{error}");
        let error = collections.create("d", config()).unwrap_err();
        assert!(matches!(error, Error::ReadOnly), "{error}");
        let error = collections.create_snapshot("c").unwrap_err();
        assert!(matches!(error, Error::ReadOnly), "{error}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn full_and_read_only_disks_are_told_and_lose_nothing() {
    let probe = Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        return magray_skip::test(magray_skip::Need::OwnMounts, "a process cannot mount a disk for itself alone");
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .arg("-rm")
        .arg(std::env::current_exe().unwrap())
        .args(["refusals::child_on_a_small_disk", "--exact", "--nocapture"])
        .env(DISK, folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[cfg(unix)]
fn a_read_only_folder_is_read_and_says_why_it_is_not_written() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 10);
    let set = |mode: u32| {
        for path in [folder.path().to_owned(), folder.path().join("lock"), folder.path().join("collections")] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    set(0o555);
    if fs::write(folder.path().join("probe"), "").is_ok() {
        set(0o755);
        return magray_skip::test(magray_skip::Need::OrdinaryUser, "the superuser writes to read-only folders");
    }
    let collections = open(folder.path());
    let collection = collections.get("c").unwrap();
    assert_eq!(everything(&collection).len(), 10);
    assert!(matches!(collection.upsert(vec![point(1, 1)]), Err(Error::ReadOnly)));
    assert!(matches!(collections.create("d", CollectionConfig::dense(2, Distance::Dot)), Err(Error::ReadOnly)));
    set(0o755);
}
