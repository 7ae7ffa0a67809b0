//! What workers leave behind: nothing.
#![cfg(target_os = "linux")]

use crate::rig::{HOLDER, Rig, expected, images, spec, texts};
use magray_engine::internals::Exit;
use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

/// The open files of a process, by what they are.
fn open_files(process: &str) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let name = |entry: fs::DirEntry| fs::read_link(entry.path()).ok()?.into_os_string().into_string().ok();
    entries.filter_map(|entry| name(entry.unwrap())).collect()
}

fn shared_memory() -> BTreeSet<std::ffi::OsString> {
    fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

/// Runs as a process of its own, started by the test below: other tests would open files meanwhile.
#[test]
#[ignore = "a part that another test plays"]
fn rounds() {
    let round = |number: u32| {
        let images = images(1);
        let mut rig = Rig::open(&spec());
        rig.load_with(&images, HOLDER, 0).unwrap();
        rig.hear_filled(&images, HOLDER);
        let texts = texts(2, number);
        assert_eq!(rig.compute(1, &texts).unwrap(), expected(&texts));
        let pid = rig.handle.pid();
        assert!(number.is_multiple_of(2) || rig.offload(0) == 0);
        // Of the supervisor's files it has one end of one socket, the memory of batches and the image, and no other.
        let files = open_files(&pid.to_string());
        let of = |kind: &str| files.iter().filter(|file| file.starts_with(kind)).collect::<BTreeSet<_>>().len();
        assert_eq!(of("socket:"), 1, "{files:?}");
        assert_eq!(files.iter().filter(|file| file.starts_with("/memfd:")).count(), 2, "{files:?}");
        match number % 3 {
            0 => assert_eq!(rig.stop(), Exit::Stopped),
            1 => {
                rig.handle.strike();
                assert_eq!(rig.end(), Exit::Killed);
            }
            _ => drop(rig),
        }
        // Who is not waited for stays in this list as a zombie.
        assert!(fs::metadata(format!("/proc/{pid}")).is_err(), "worker {pid} was not reaped");
    };
    round(0);
    let files = open_files("self").len();
    (1..=20).for_each(round);
    assert_eq!(open_files("self").len(), files, "{:?}", open_files("self"));
}

#[test]
fn rounds_of_starting_and_ending_leave_no_file_no_memory_and_no_zombie() {
    let before = shared_memory();
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "leftovers::rounds", "--ignored", "--nocapture"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(String::from_utf8_lossy(&ran.stdout).contains("1 passed"), "the part was played");
    let after = shared_memory();
    let new: Vec<_> = after.difference(&before).filter(|name| name.to_string_lossy().contains("magray")).collect();
    assert!(new.is_empty(), "{new:?}");
}
