//! What there is of the host's memory for this process: of the machine's, and of that of the control groups that it is in.
//! Sets no limit. What the system does not tell limits nothing.

use std::path::{Path, PathBuf};

/// Where control groups are, and those of memory where each resource has its own.
const GROUPS: &str = "/sys/fs/cgroup";
const MEMORY_GROUPS: &str = "/sys/fs/cgroup/memory";

/// What is free for programs now; 0 where the system does not say.
pub(crate) fn available_bytes() -> u64 {
    least(of_machine("MemAvailable:"), limits().map(Limit::available).min())
}

/// All that there is; 0 where the system does not say.
pub(crate) fn total_bytes() -> u64 {
    least(of_machine("MemTotal:"), limits().map(|limit| limit.most).min())
}

/// What the machine and its groups leave. Nothing left is told as a byte, since 0 means that it is not known.
fn least(of_machine: u64, of_groups: Option<u64>) -> u64 {
    match (of_machine, of_groups) {
        (known, None) => known,
        (0, Some(left)) => left.max(1),
        (known, Some(left)) => known.min(left).max(1),
    }
}

fn of_machine(name: &str) -> u64 {
    let told = read(Path::new("/proc/meminfo")).unwrap_or_default();
    let line = told.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.and_then(|kib| kib.checked_mul(1024)).unwrap_or(0)
}

fn limits() -> impl Iterator<Item = Limit> {
    limits_of(&read(Path::new("/proc/self/cgroup")).unwrap_or_default(), read).into_iter()
}

fn read(file: &Path) -> Option<String> {
    std::fs::read_to_string(file).ok()
}

/// What a control group may use, and uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    most: u64,
    used: u64,
}

impl Limit {
    fn available(self) -> u64 {
        self.most.saturating_sub(self.used)
    }
}

/// How the files of a control group are called.
struct Names {
    most: &'static str,
    used: &'static str,
    /// Of what is used, what the system takes back when it is short of memory: pages of files.
    files: [&'static str; 2],
}

const UNIFIED: Names = Names { most: "memory.max", used: "memory.current", files: ["inactive_file", "active_file"] };
const BY_RESOURCE: Names = Names {
    most: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    files: ["total_inactive_file", "total_active_file"],
};

/// The limits of the groups that `/proc/self/cgroup` tells of, and of those that they are in.
fn limits_of(told: &str, read: impl Fn(&Path) -> Option<String>) -> Vec<Limit> {
    let group = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        match (fields.next()?, fields.next()?) {
            ("", path) => Some((GROUPS, path.to_owned(), UNIFIED)),
            (names, path) if names.split(',').any(|name| name == "memory") => {
                Some((MEMORY_GROUPS, path.to_owned(), BY_RESOURCE))
            }
            _ => None,
        }
    };
    let limits = |(root, path, names): (&'static str, String, Names)| -> Vec<Limit> {
        // In a container the path may be that of the host, which is not to be seen: then it is the root that limits.
        let own: PathBuf = Path::new(root).join(path.trim_start_matches('/'));
        let all = own.ancestors().take_while(|folder| folder.starts_with(root));
        all.filter_map(|folder| limit_in(folder, &names, &read)).collect()
    };
    told.lines().filter_map(group).flat_map(limits).collect()
}

fn limit_in(folder: &Path, names: &Names, read: &impl Fn(&Path) -> Option<String>) -> Option<Limit> {
    // "max" is no number: nothing is limited.
    let number = |name| read(&folder.join(name))?.trim().parse::<u64>().ok();
    let (most, used) = (number(names.most)?, number(names.used)?);
    let told = read(&folder.join("memory.stat")).unwrap_or_default();
    let pages = |line: &str| {
        let (name, bytes) = line.split_once(' ')?;
        names.files.contains(&name).then(|| bytes.trim().parse::<u64>().ok())?
    };
    let files = told.lines().filter_map(pages).fold(0, u64::saturating_add);
    Some(Limit { most, used: used.saturating_sub(files) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limits of a process that `told` is of, where there are these files.
    fn limits(told: &str, files: &[(&str, &str)]) -> Vec<(u64, u64)> {
        let read = |path: &Path| {
            let known = files.iter().find(|(known, _)| Path::new(known) == path);
            known.map(|(_, content)| (*content).to_owned())
        };
        limits_of(told, read).into_iter().map(|limit| (limit.most, limit.available())).collect()
    }

    #[test]
    fn a_group_and_those_that_it_is_in_limit_a_process() {
        let files = [
            ("/sys/fs/cgroup/a.slice/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a.slice/b/memory.current", "70\n"),
            ("/sys/fs/cgroup/a.slice/memory.max", "100\n"),
            ("/sys/fs/cgroup/a.slice/memory.current", "80\n"),
            ("/sys/fs/cgroup/a.slice/memory.stat", "anon 50\ninactive_file 20\nactive_file 5\nslab 1\n"),
        ];
        // 25 of the 80 are pages of files, which can be had.
        assert_eq!(limits("0::/a.slice/b\n", &files), [(100, 45)]);
        assert_eq!(limits("0::/elsewhere\n", &files), []);
        assert_eq!(limits("", &files), []);
    }

    #[test]
    fn a_container_is_limited_by_the_root_that_it_sees() {
        let files = [("/sys/fs/cgroup/memory.max", "1000"), ("/sys/fs/cgroup/memory.current", "1200")];
        for told in ["0::/\n", "0::/kubepods/pod1/c2\n", "0::/../c2\n"] {
            assert_eq!(limits(told, &files), [(1000, 0)], "{told}");
        }
    }

    #[test]
    fn groups_of_the_first_version_have_other_names() {
        let told = "12:cpu,cpuacct:/docker/1\n5:memory:/docker/1\n1:name=systemd:/docker/1\n0::/docker/1\n";
        let files = [
            ("/sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "500\n"),
            ("/sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes", "300\n"),
            ("/sys/fs/cgroup/memory/docker/1/memory.stat", "inactive_file 1\ntotal_inactive_file 100\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "7\n"),
        ];
        assert_eq!(limits(told, &files), [(500, 300), (9_223_372_036_854_771_712, 9_223_372_036_854_771_705)]);
    }

    #[test]
    fn a_full_group_is_not_taken_for_one_that_is_not_known() {
        assert_eq!([least(0, None), least(7, None), least(0, Some(5))], [0, 7, 5]);
        assert_eq!([least(7, Some(5)), least(7, Some(9)), least(7, Some(0)), least(0, Some(0))], [5, 7, 1, 1]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_tells_what_it_has() {
        let (available, total) = (available_bytes(), total_bytes());
        assert!(0 < available && available <= total, "{available} of {total}");
    }
}
