//! What this process holds of the system: file descriptors, shared memory, children; before and after.
//! Linux tells it in `/proc`; elsewhere nothing is found.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use serde::Serialize;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Counted by what they refer to: descriptor numbers are reused.
    descriptors: BTreeMap<String, usize>,
    shared_memory_bytes: u64,
    processes: Vec<u32>,
}

/// What is held at the end and was not before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Left {
    pub(super) file_descriptors: usize,
    pub(super) shared_memory_bytes: u64,
    pub(super) processes: usize,
    /// What the descriptors stand for, of the first ones.
    pub(super) examples: Vec<String>,
}

impl Held {
    pub(super) fn now() -> Self {
        let links = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
        let mut descriptors = BTreeMap::new();
        for target in targets.map(|target| kind_of(&target)).filter(|target| !target.ends_with("/fd")) {
            *descriptors.entry(target).or_default() += 1;
        }
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let shared = maps.lines().filter(|line| is_shared(line)).filter_map(length_of);
        Self { descriptors, shared_memory_bytes: shared.sum(), processes: children() }
    }

    /// What is held now beyond this. Waits for what is being freed.
    pub(super) fn left(&self, wait: Duration) -> Left {
        let until = Instant::now() + wait;
        loop {
            let left = Self::now().beyond(self);
            if left == Left::default() || Instant::now() >= until {
                return left;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn beyond(&self, before: &Self) -> Left {
        const EXAMPLES_MAX: usize = 5;
        let more = |(target, count): (&String, &usize)| {
            let known = before.descriptors.get(target).copied().unwrap_or(0);
            (target.clone(), count.saturating_sub(known))
        };
        let more: Vec<(String, usize)> = self.descriptors.iter().map(more).filter(|(_, count)| *count > 0).collect();
        Left {
            file_descriptors: more.iter().map(|(_, count)| count).sum(),
            shared_memory_bytes: self.shared_memory_bytes.saturating_sub(before.shared_memory_bytes),
            processes: self.processes.iter().filter(|pid| !before.processes.contains(pid)).count(),
            examples: more
                .into_iter()
                .take(EXAMPLES_MAX)
                .map(|(target, count)| format!("{target} ({count})"))
                .collect(),
        }
    }
}

impl Left {
    /// For people; empty where nothing is left.
    pub(super) fn words(&self) -> Vec<String> {
        let Self { file_descriptors, shared_memory_bytes, processes, examples } = self;
        let mut words = Vec::new();
        if *file_descriptors > 0 {
            words.push(format!("{file_descriptors} file descriptors ({})", examples.join(", ")));
        }
        if *shared_memory_bytes > 0 {
            words.push(format!("{shared_memory_bytes} bytes of shared memory"));
        }
        if *processes > 0 {
            words.push(format!("{processes} processes"));
        }
        words
    }
}

/// `socket:[4711]` is one of the sockets; which one does not matter. `anon_inode:[eventpoll]` says what it is.
fn kind_of(target: &Path) -> String {
    let text = target.display().to_string();
    match text.split_once(":[") {
        Some((kind, number)) if number.starts_with(|first: char| first.is_ascii_digit()) => kind.to_owned(),
        _ => text,
    }
}

fn is_shared(map: &str) -> bool {
    ["/memfd:", "/dev/shm/"].iter().any(|mark| map.contains(mark))
}

/// The length of a line such as `7f00-7f10 rw-s ...`.
fn length_of(map: &str) -> Option<u64> {
    let (start, end) = map.split_whitespace().next()?.split_once('-')?;
    u64::from_str_radix(end, 16).ok()?.checked_sub(u64::from_str_radix(start, 16).ok()?)
}

/// Child processes, zombies included.
fn children() -> Vec<u32> {
    let own = std::process::id();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = |pid: u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name stands in brackets and may hold anything; behind it come the state and the parent.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let mut children: Vec<u32> = pids.filter(|pid| parent(*pid) == Some(own)).collect();
    children.sort_unstable();
    children
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn what_is_kept_is_found_and_what_is_given_back_is_not() {
        let before = Held::now();
        // A name that no other test opens meanwhile.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        let kept = fs::File::create(&path).unwrap();
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let left = Held::now().beyond(&before);
        assert!(left.file_descriptors >= 1 && left.processes >= 1, "{left:?}");
        assert!(left.words().iter().any(|words| words.contains("processes")), "{left:?}");
        let name = path.display().to_string();
        assert!(Held::now().descriptors.contains_key(&name));
        drop(kept);
        child.kill().unwrap();
        assert!(Held::now().processes.contains(&child.id()), "one that ended and was not waited for is still there");
        child.wait().unwrap();
        assert!(!Held::now().descriptors.contains_key(&name) && !Held::now().processes.contains(&child.id()));
    }

    #[test]
    fn lines_of_maps_are_measured() {
        assert_eq!(length_of("7f0000-7f2000 rw-s 00000000 00:01 5 /memfd:magray (deleted)"), Some(0x2000));
        assert_eq!(length_of("garbage"), None);
        assert!(is_shared("x rw-s /memfd:magray (deleted)") && !is_shared("x r--p /usr/lib/libc.so"));
        assert_eq!(Left::default().words(), Vec::<String>::new());
    }
}
