//! What workers leave behind: nothing.

use crate::rig::{Rig, expected, spec, texts};
use magray_engine::testing::Exit;
use std::collections::BTreeSet;
use std::fs;

/// The open files of a process, by what they are.
#[cfg(target_os = "linux")]
fn open_files(process: &str) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let name = |entry: fs::DirEntry| fs::read_link(entry.path()).ok()?.into_os_string().into_string().ok();
    entries.filter_map(|entry| name(entry.unwrap())).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn rounds_of_starting_and_stopping_leave_no_file_no_memory_and_no_zombie() {
    // Other tests of this process have workers of their own: only what carries the mark of a worker is counted.
    let ours = |pid: u32| open_files(&pid.to_string());
    let before: BTreeSet<_> = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let mut pids = Vec::new();
    for round in 0..20 {
        let mut rig = Rig::start(&spec());
        let texts = texts(2, round);
        assert_eq!(rig.compute(1, &texts).unwrap(), expected(&texts));
        let files = ours(rig.handle.pid());
        // The socket as stdin and its copies, nothing for stdout, stderr, the memory.
        let strange = |file: &&String| !(file.starts_with("socket:") || file.starts_with("/memfd:magray"));
        let others: Vec<&String> = files.iter().filter(strange).collect();
        assert!(others.len() <= 8 && files.iter().filter(|file| file.starts_with("/memfd")).count() == 1, "{files:?}");
        pids.push(rig.handle.pid());
        match round % 3 {
            0 => assert_eq!(rig.stop(), Exit::Stopped),
            1 => {
                rig.handle.strike();
                assert_eq!(rig.end(), Exit::Killed);
            }
            _ => drop(rig),
        }
    }
    for pid in pids {
        assert!(fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| !stat.contains("magray")), "{pid}");
    }
    let after: BTreeSet<_> = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let new: Vec<_> = after.difference(&before).filter(|name| name.to_string_lossy().contains("magray")).collect();
    assert!(new.is_empty(), "{new:?}");
}
