//! Which GPUs are out of service until they are reset: a small file that outlives the process.
//! Never half written and never an obstacle: what cannot be read counts as empty, with a warning.

use magray_core::schedule::Fallback;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The file, and how it was when it was last looked at.
#[derive(Debug)]
pub struct Ledger {
    /// None where there is no folder to keep it in: nothing is ever out then.
    file: Option<PathBuf>,
    seen: Option<Stamp>,
}

/// A GPU that is out of service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    /// Which.
    pub uuid: String,
    /// Since when, in seconds since 1970.
    pub since_unix_s: u64,
    /// Why, as a word for programs.
    pub code: String,
    /// Why, as a phrase for people.
    pub message: String,
}

/// Why the file could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The disk refused: free space, or name another file.
    #[error("cannot write {}: {reason}; gpu.state_file names another file", path.display())]
    Disk {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// Another process holds it far longer than a change takes: try again.
    #[error("{} is held by another process: try again in a moment", path.display())]
    Busy {
        /// The lock.
        path: PathBuf,
    },
}

impl Ledger {
    const BYTES_MAX: u64 = 1 << 20;
    /// More GPUs than a machine has; the oldest go first.
    const OUTAGES_MAX: usize = 256;

    /// The ledger in this file, which need not exist.
    pub fn open(file: Option<PathBuf>) -> Self {
        let mut ledger = Self { file, seen: None };
        ledger.seen = ledger.stamp();
        ledger
    }

    /// The GPUs that are out.
    pub fn outages(&self) -> Vec<Outage> {
        self.file.as_deref().map_or_else(Vec::new, |file| read(file).outages())
    }

    /// Since when and why a GPU is out; `None` where it is not.
    pub fn is_out(&self, uuid: &str) -> Option<Outage> {
        self.outages().into_iter().find(|outage| outage.is_of(uuid))
    }

    /// Takes a GPU out of service, in every process and until it is reset. One that is out already keeps its date.
    pub fn give_up(&mut self, uuid: &str, reason: Fallback) -> Result<(), LedgerError> {
        let since_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.change(|outages| {
            let known = outages.iter().position(|outage| outage.is_of(uuid)).map(|at| outages.remove(at));
            outages.push(Outage {
                uuid: uuid.to_owned(),
                since_unix_s: known.map_or(since_unix_s, |known| known.since_unix_s),
                code: reason.code().to_owned(),
                message: reason.to_string(),
            });
            let surplus = outages.len().saturating_sub(Self::OUTAGES_MAX);
            outages.drain(..surplus);
        })
    }

    /// Returns a GPU, or all of them, to service; what they were out for.
    pub fn reset(&mut self, uuid: Option<&str>) -> Result<Vec<Outage>, LedgerError> {
        let is_meant = |outage: &Outage| uuid.is_none_or(|uuid| outage.is_of(uuid));
        // Nothing to do must not fail for want of a folder that can be written.
        if !self.outages().iter().any(is_meant) {
            return Ok(Vec::new());
        }
        let mut returned = Vec::new();
        self.change(|outages| returned.extend(outages.extract_if(.., |outage| is_meant(outage))))?;
        Ok(returned)
    }

    /// Whether another process has changed the file since it was last asked. Reads nothing but its date and size.
    pub fn changed(&mut self) -> bool {
        let now = self.stamp();
        std::mem::replace(&mut self.seen, now) != now
    }

    fn stamp(&self) -> Option<Stamp> {
        Stamp::of(self.file.as_deref()?)
    }

    fn change(&mut self, change: impl FnOnce(&mut Vec<Outage>)) -> Result<(), LedgerError> {
        let Some(file) = self.file.clone() else { return Ok(()) };
        let disk = |reason| LedgerError::Disk { path: file.clone(), reason };
        fs::create_dir_all(folder_of(&file)).map_err(disk)?;
        let _lock = lock(&beside(&file, "lock"))?;
        let was_seen = self.seen == self.stamp();
        let content = read(&file);
        if content == Content::Damaged {
            // It is kept to be looked at.
            let _ = fs::rename(&file, beside(&file, "damaged"));
        }
        let mut outages = content.outages();
        change(&mut outages);
        write(&file, &outages).map_err(disk)?;
        // Still locked: what is there now is what was written here. A change of somebody else's before it, which nobody
        // has asked for yet, stays to be noticed.
        if was_seen {
            self.seen = self.stamp();
        }
        Ok(())
    }
}

impl Outage {
    fn is_of(&self, uuid: &str) -> bool {
        self.uuid.eq_ignore_ascii_case(uuid)
    }
}

/// What tells two versions of a file apart without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    /// A file that is replaced has another number, even within one tick of the file system's clock.
    number: u64,
}

impl Stamp {
    fn of(file: &Path) -> Option<Self> {
        let metadata = fs::metadata(file).ok()?;
        #[cfg(unix)]
        let number = std::os::unix::fs::MetadataExt::ino(&metadata);
        #[cfg(not(unix))]
        let number = 0;
        Some(Self { modified: metadata.modified().ok(), length: metadata.len(), number })
    }
}

/// The file as it is written.
#[derive(Debug, Serialize, Deserialize)]
struct Page {
    format: u32,
    out_of_service: Vec<Outage>,
}

const FORMAT: u32 = 1;

#[derive(Debug, PartialEq)]
enum Content {
    Absent,
    Damaged,
    Whole(Vec<Outage>),
}

impl Content {
    fn outages(self) -> Vec<Outage> {
        match self {
            Self::Whole(outages) => outages,
            Self::Absent | Self::Damaged => Vec::new(),
        }
    }
}

fn read(file: &Path) -> Content {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|open| open.take(Ledger::BYTES_MAX).read_to_end(&mut bytes));
    let trouble = match read {
        Ok(_) => match serde_json::from_slice::<Page>(&bytes) {
            Ok(page) if page.format == FORMAT => return Content::Whole(page.out_of_service),
            Ok(page) => format!("it has format {}, and {FORMAT} is known", page.format),
            Err(error) => error.to_string(),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Content::Absent,
        Err(error) => error.to_string(),
    };
    tracing::warn!(
        target: "magray::health",
        "{}: the list of GPUs that are out of service cannot be read and counts as empty: {trouble}",
        file.display()
    );
    Content::Damaged
}

/// Writes beside the file and renames, so that a reader never sees half of it.
fn write(file: &Path, outages: &[Outage]) -> io::Result<()> {
    let page = Page { format: FORMAT, out_of_service: outages.to_vec() };
    let half = beside(file, "half");
    let written = File::create(&half)
        .and_then(|mut out| {
            out.write_all(&serde_json::to_vec_pretty(&page)?)?;
            out.sync_all()
        })
        .and_then(|()| fs::rename(&half, file));
    if written.is_err() {
        let _ = fs::remove_file(&half);
    }
    written
}

/// The right to change the file; given back when dropped, or by the system when the process dies.
fn lock(path: &Path) -> Result<File, LedgerError> {
    /// A change takes milliseconds.
    const TRIES: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(10);
    let disk = |reason| LedgerError::Disk { path: path.to_owned(), reason };
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(disk)?;
    for _ in 0..TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
            Err(TryLockError::Error(reason)) => return Err(disk(reason)),
        }
    }
    Err(LedgerError::Busy { path: path.to_owned() })
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(ending);
    folder_of(file).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use magray_core::schedule::Fault;

    fn ledger(folder: &tempfile::TempDir) -> Ledger {
        Ledger::open(Some(folder.path().join("state").join("gpus.json")))
    }

    #[test]
    fn a_gpu_that_is_given_up_is_out_in_the_next_process_too_until_it_is_reset() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = ledger(&folder);
        assert_eq!(first.is_out("GPU-aa"), None);
        first.give_up("GPU-aa", Fallback::Ruled(Fault::Memory)).unwrap();
        first.give_up("GPU-bb", Fallback::WrongAnswers).unwrap();
        let mut second = ledger(&folder);
        let outage = second.is_out("gpu-AA").unwrap();
        assert_eq!((outage.code.as_str(), outage.message.contains("memory errors")), ("unhealthy", true));
        assert!(outage.since_unix_s > 1_700_000_000);
        assert_eq!(second.is_out("GPU-cc"), None);
        assert_eq!(second.reset(Some("GPU-aa")).unwrap(), [outage]);
        assert_eq!((second.is_out("GPU-aa"), second.is_out("GPU-bb").is_some()), (None, true));
        assert_eq!(second.reset(Some("GPU-aa")).unwrap(), []);
        assert_eq!(second.reset(None).unwrap().len(), 1);
        assert_eq!(first.outages(), []);
        let names: Vec<_> =
            fs::read_dir(folder.path().join("state")).unwrap().map(|at| at.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "the file and its lock: {names:?}");
    }

    #[test]
    fn a_gpu_that_is_given_up_again_keeps_its_date_and_has_the_newest_reason() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = ledger(&folder);
        ledger.give_up("GPU-aa", Fallback::Unhealthy).unwrap();
        ledger.change(|outages| outages[0].since_unix_s = 7).unwrap();
        ledger.give_up("GPU-aa", Fallback::Lost).unwrap();
        let outages = ledger.outages();
        assert_eq!((outages.len(), outages[0].since_unix_s, outages[0].code.as_str()), (1, 7, "lost"));
    }

    #[test]
    fn changes_of_others_are_noticed_and_ones_own_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let (mut ours, mut theirs) = (ledger(&folder), ledger(&folder));
        assert!(!ours.changed());
        ours.give_up("GPU-aa", Fallback::Unhealthy).unwrap();
        assert!(!ours.changed());
        theirs.reset(None).unwrap();
        assert!(ours.changed());
        assert!(!ours.changed(), "told once");
        theirs.give_up("GPU-aa", Fallback::Unhealthy).unwrap();
        theirs.reset(None).unwrap();
        assert!(ours.changed(), "the same content, written anew");
    }

    #[test]
    fn a_damaged_file_counts_as_empty_and_is_kept_aside() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gpus.json");
        for content in ["", "{", "[]", "{\"format\": 2, \"out_of_service\": []}", "\u{0}\u{1}"] {
            fs::write(&file, content).unwrap();
            let mut ledger = Ledger::open(Some(file.clone()));
            assert_eq!(ledger.outages(), [], "{content}");
            assert_eq!(ledger.reset(None).unwrap(), []);
            assert_eq!(fs::read_to_string(&file).unwrap(), content, "reading changes nothing");
            ledger.give_up("GPU-aa", Fallback::Unhealthy).unwrap();
            assert!(ledger.is_out("GPU-aa").is_some());
            assert_eq!(fs::read_to_string(beside(&file, "damaged")).unwrap(), content);
        }
    }

    #[test]
    fn two_writers_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let mut ledger = ledger(&folder);
                scope.spawn(move || {
                    for gpu in 0..8 {
                        ledger.give_up(&format!("GPU-{writer}-{gpu}"), Fallback::Unhealthy).unwrap();
                    }
                });
            }
        });
        assert_eq!(ledger(&folder).outages().len(), 32);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error_that_names_the_setting() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("state"), "a file in its place").unwrap();
        let mut ledger = ledger(&folder);
        let error = ledger.give_up("GPU-aa", Fallback::Unhealthy).unwrap_err().to_string();
        assert!(error.contains("gpu.state_file"), "{error}");
        let mut nowhere = Ledger::open(None);
        nowhere.give_up("GPU-aa", Fallback::Unhealthy).unwrap();
        assert!(nowhere.is_out("GPU-aa").is_none() && !nowhere.changed());
    }
}
