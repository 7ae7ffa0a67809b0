//! Cuts the power at random moments: whatever was not flushed is dropped, or kept in part, and what was acknowledged is there.
//! Needs no special file system: it follows the system calls of the child and knows what each flush has made durable.
//!
//! A file keeps what it held at its last `fsync`; of the sectors that were written since, any may be kept or lost. A folder
//! keeps the names of its last `fsync`, or those of any later moment, as file systems with a journal do.

use super::script::*;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

/// How many cuts; thousands for a long run.
const CUTS: &str = "MAGRAY_INDEX_POWER_CUTS";
const SECTOR: usize = 512;
/// One in so many moments is a cut.
const ONE_IN: u64 = 24;

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_half_done_by_a_power_cut() {
    let folder = tempfile::tempdir().unwrap();
    let cuts: u64 = std::env::var(CUTS).map_or(40, |cuts| cuts.parse().unwrap());
    let seed = RandomState::new().hash_one(cuts);
    println!("seed {seed}");
    let (child, said) = child(folder.path(), 0, Stdio::piped());
    let mut traced = match Traced::start(child, said) {
        Ok(traced) => traced,
        Err(reason) => return magray_skip::test(magray_skip::Need::Tracing, reason),
    };
    let mut disk = Disk::new(folder.path());
    let mut power = Power { chance: Chance(seed), contents: Contents::default(), steps: 0, cuts: 0 };
    while power.cuts < cuts {
        let call = traced.next_call();
        // A flush is not done before it has returned: the cut comes before its effect.
        if disk.note(&call, traced.pid()) && power.chance.below(ONE_IN) == 0 {
            power.cut(&disk, seed);
        }
        disk.note_flush(&call, traced.pid());
        if call.number == libc::SYS_write && call.arguments[0] == 1 {
            let number = traced.acknowledged();
            power.contents = std::mem::take(&mut power.contents).after(number);
            power.steps = number + 1;
            if power.chance.below(4) == 0 {
                power.cut(&disk, seed);
            }
        }
    }
    println!("{cuts} power cuts over {} steps", power.steps);
}

struct Power {
    chance: Chance,
    /// After the acknowledged steps.
    contents: Contents,
    steps: u64,
    cuts: u64,
}

impl Power {
    /// Makes a disk as the cut may leave it, opens it, and compares.
    fn cut(&mut self, disk: &Disk, seed: u64) {
        self.cuts += 1;
        let image = tempfile::tempdir().unwrap();
        disk.write_image(image.path(), &mut self.chance);
        let found = Contents::of(image.path(), &open(image.path()));
        let is_whole = found.has_all_of(&self.contents) || found.has_all_of(&self.contents.clone().after(self.steps));
        let what = format!("seed {seed}, cut {}: not what {} steps leave, nor one more", self.cuts, self.steps);
        assert!(is_whole, "{what}; the disk is in {}:\n{found:?}\n{:?}", image.keep().display(), self.contents);
    }
}

/// A system call that has returned.
struct Call {
    number: i64,
    arguments: [u64; 4],
    is_done: bool,
}

/// The child, one of whose threads stops at each system call.
struct Traced {
    child: Child,
    said: BufReader<ChildStdout>,
    thread: Pid,
}

impl Traced {
    fn start(child: Child, mut said: BufReader<ChildStdout>) -> Result<Self, String> {
        let mut line = String::new();
        while !line.starts_with("thread ") {
            line.clear();
            said.read_line(&mut line).unwrap();
        }
        let thread = line.trim().rsplit('/').next().and_then(|number| number.parse().ok());
        let mut traced = Self { child, said, thread: Pid::from_raw(thread.ok_or("there is no /proc")?) };
        let seized = ptrace::seize(traced.thread, Options::PTRACE_O_TRACESYSGOOD);
        seized.map_err(|error| format!("a child cannot be traced: {error}"))?;
        ptrace::interrupt(traced.thread).unwrap();
        waitpid(traced.thread, Some(WaitPidFlag::__WALL)).unwrap();
        traced.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        Ok(traced)
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs until a system call has returned.
    fn next_call(&mut self) -> Call {
        let mut number = None;
        loop {
            ptrace::syscall(self.thread, None).unwrap();
            match waitpid(self.thread, Some(WaitPidFlag::__WALL)).unwrap() {
                WaitStatus::PtraceSyscall(_) => {}
                WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(..) => continue,
                other => panic!("the child ended: {other:?}"),
            }
            let registers = ptrace::getregs(self.thread).unwrap();
            let is_entry = registers.rax as i64 == -i64::from(libc::ENOSYS) && number.is_none();
            if is_entry {
                number = Some(registers.orig_rax);
                continue;
            }
            let arguments = [registers.rdi, registers.rsi, registers.rdx, registers.r10];
            return Call { number: registers.orig_rax as i64, arguments, is_done: registers.rax as i64 >= 0 };
        }
    }

    /// The step that the child has just acknowledged.
    fn acknowledged(&mut self) -> u64 {
        let mut line = String::new();
        loop {
            line.clear();
            self.said.read_line(&mut line).unwrap();
            if let Some(number) = acknowledged(&line) {
                return number;
            }
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // The process ends when its tracer has seen the thread end.
        while waitpid(self.thread, Some(WaitPidFlag::__WALL)).is_ok_and(|status| status.pid().is_some()) {}
        let _ = self.child.wait();
    }
}

/// A file or a folder, however it is called.
type Id = u64;

/// The names in each folder.
type Names = HashMap<Id, BTreeMap<String, Id>>;

struct Disk {
    root: PathBuf,
    /// By number of inode, of what has a name; numbers are used again, ids are not.
    ids: HashMap<u64, Id>,
    next: Id,
    files: HashMap<Id, Contained>,
    /// At every moment at which they changed.
    names: Vec<Names>,
    /// The last moment whose names are durable, by folder.
    flushed: HashMap<Id, usize>,
}

/// The bytes of a file: as they are, and as they were at the last flush.
#[derive(Default)]
struct Contained {
    bytes: Vec<u8>,
    durable: Vec<u8>,
}

const ROOT: Id = 0;

impl Disk {
    fn new(root: &Path) -> Self {
        let ids = HashMap::from([(root.metadata().unwrap().ino(), ROOT)]);
        let root = root.to_owned();
        Self { root, ids, next: 1, files: HashMap::new(), names: vec![Names::new()], flushed: HashMap::new() }
    }

    /// Takes over what a call has changed. Returns whether it may have.
    fn note(&mut self, call: &Call, pid: u32) -> bool {
        let [first, _, count, offset] = call.arguments;
        match call.number {
            _ if !call.is_done => return false,
            libc::SYS_pwrite64 => self.reread(pid, first, Some((offset, count as usize))),
            libc::SYS_write | libc::SYS_ftruncate | libc::SYS_fallocate | libc::SYS_sendfile => {
                self.reread(pid, first, None);
            }
            libc::SYS_copy_file_range => self.reread(pid, count, None),
            libc::SYS_openat
            | libc::SYS_open
            | libc::SYS_rename
            | libc::SYS_renameat
            | libc::SYS_renameat2
            | libc::SYS_unlink
            | libc::SYS_unlinkat
            | libc::SYS_mkdir
            | libc::SYS_rmdir => self.list(),
            libc::SYS_fsync | libc::SYS_fdatasync => {}
            _ => return false,
        }
        true
    }

    fn note_flush(&mut self, call: &Call, pid: u32) {
        if !call.is_done || ![libc::SYS_fsync, libc::SYS_fdatasync].contains(&call.number) {
            return;
        }
        let Some(id) = self.id_of(pid, call.arguments[0]) else { return };
        match self.files.get_mut(&id) {
            Some(file) => file.durable.clone_from(&file.bytes),
            None => drop(self.flushed.insert(id, self.names.len() - 1)),
        }
    }

    /// What an open file is, if it has a name here.
    fn id_of(&self, pid: u32, descriptor: u64) -> Option<Id> {
        let file = fs::metadata(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
        self.ids.get(&file.ino()).copied()
    }

    /// Reads what was written: a part, or the whole file.
    fn reread(&mut self, pid: u32, descriptor: u64, part: Option<(u64, usize)>) {
        let path = format!("/proc/{pid}/fd/{descriptor}");
        let Some(file) = self.id_of(pid, descriptor).and_then(|id| self.files.get_mut(&id)) else { return };
        match part {
            Some((offset, count)) => {
                let end = offset as usize + count;
                file.bytes.resize(file.bytes.len().max(end), 0);
                File::open(path).unwrap().read_exact_at(&mut file.bytes[end - count..end], offset).unwrap();
            }
            None => file.bytes = fs::read(path).unwrap(),
        }
    }

    /// Lists all names again.
    fn list(&mut self) {
        let mut names = Names::new();
        let mut known = HashMap::from([(self.root.metadata().unwrap().ino(), ROOT)]);
        let mut folders = vec![(ROOT, self.root.clone())];
        while let Some((folder, path)) = folders.pop() {
            let mut entries = BTreeMap::new();
            for entry in fs::read_dir(path).unwrap() {
                let entry = entry.unwrap();
                let about = entry.metadata().unwrap();
                let id = self.ids.get(&about.ino()).copied().unwrap_or_else(|| {
                    self.next += 1;
                    self.next
                });
                known.insert(about.ino(), id);
                entries.insert(entry.file_name().into_string().unwrap(), id);
                if about.is_dir() {
                    folders.push((id, entry.path()));
                    continue;
                }
                let file = self.files.entry(id).or_default();
                if file.bytes.len() as u64 != about.len() {
                    file.bytes = fs::read(entry.path()).unwrap();
                }
            }
            names.insert(folder, entries);
        }
        self.ids = known;
        if self.names.last() != Some(&names) {
            self.names.push(names);
        }
    }

    /// Writes what may be left after a cut: everything that can be lost is, or nothing is, or chance decides.
    fn write_image(&self, to: &Path, chance: &mut Chance) {
        let (of_names, of_bytes) = (Loss::any(chance), Loss::any(chance));
        let last = self.names.len() - 1;
        let mut folders = vec![(ROOT, to.to_owned())];
        while let Some((folder, path)) = folders.pop() {
            let flushed = self.flushed.get(&folder).copied();
            // Before its first flush a new folder may be empty.
            let first = flushed.unwrap_or(0);
            let moment = match of_names {
                Loss::All => first,
                Loss::None => last,
                Loss::Some => first + chance.below((last - first + 1) as u64) as usize,
            };
            for (name, id) in self.names[moment].get(&folder).into_iter().flatten() {
                let path = path.join(name);
                match self.files.get(id) {
                    Some(file) => fs::write(path, file.left(of_bytes, chance)).unwrap(),
                    None => {
                        fs::create_dir(&path).unwrap();
                        folders.push((*id, path));
                    }
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Loss {
    All,
    Some,
    None,
}

impl Loss {
    fn any(chance: &mut Chance) -> Self {
        [Self::All, Self::Some, Self::None][chance.below(3) as usize]
    }
}

impl Contained {
    /// What may be left of a file.
    fn left(&self, loss: Loss, chance: &mut Chance) -> Vec<u8> {
        let mut left = match loss {
            Loss::All => return self.durable.clone(),
            Loss::None => return self.bytes.clone(),
            Loss::Some => self.durable.clone(),
        };
        let (short, long) = (left.len().min(self.bytes.len()), left.len().max(self.bytes.len()));
        left.resize(short + chance.below((long - short + 1) as u64) as usize, 0);
        for (sector, now) in left.chunks_mut(SECTOR).zip(self.bytes.chunks(SECTOR)) {
            if chance.below(2) == 0 {
                let count = sector.len().min(now.len());
                sector[..count].copy_from_slice(&now[..count]);
            }
        }
        left
    }
}
