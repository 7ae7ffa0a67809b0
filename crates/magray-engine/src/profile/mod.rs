//! A log of what an engine does and how long it takes, as a Chrome trace: requests, batches, steps, loads, offloads, memory.
//! Never delays what it watches: what its writer has no room for is counted and left out.

mod writing;

use magray_core::DeviceName;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use writing::TraceFile;

/// Entries that wait to be written; each takes about a hundred bytes.
const WAITING_MAX: usize = 16_384;
/// A file does not grow beyond this; what comes later is counted.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// Clones of the [`Arc`] around it write into one file, which ends with [`Profile::finish`].
#[derive(Debug)]
pub struct Profile {
    entries: SyncSender<Message>,
    lost: Arc<AtomicU64>,
    started: Instant,
    writer: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

/// Something that happened. Times are those at its end.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// A request of HTTP was answered, or refused.
    Http {
        /// The name of its route.
        route: String,
        /// Its status.
        status: u16,
        /// From its head to its answer.
        took: Duration,
        /// In which its texts became tokens.
        read: Duration,
    },
    /// The engine has answered a request.
    Request {
        /// Its number in the engine.
        id: u64,
        /// Whose.
        model: usize,
        /// How many; 0: it was generated.
        texts: usize,
        /// Of them.
        tokens: usize,
        /// That it waited.
        queued: Duration,
        /// That it was computed.
        computed: Duration,
        /// How often it was started again after a failure.
        replays: u32,
        /// Why the CPU computed it in place of a GPU.
        fallback: Option<&'static str>,
    },
    /// The engine has refused a request.
    Refused {
        /// Why.
        reason: &'static str,
    },
    /// A device has computed a batch of whole texts.
    Batch {
        /// Where.
        at: Place,
        /// Whose.
        model: usize,
        /// Those that it belongs to.
        requests: usize,
        /// In it.
        texts: usize,
        /// Of them.
        tokens: usize,
        /// To compute it.
        took: Duration,
    },
    /// A device has computed a step of sequences.
    Step {
        /// Where.
        at: Place,
        /// Whose.
        model: usize,
        /// That went on.
        sequences: usize,
        /// Of prompts and of what was generated before.
        tokens: usize,
        /// That were generated.
        new_tokens: usize,
        /// To compute it.
        took: Duration,
    },
    /// A model's weights came to a device.
    Load {
        /// Where.
        at: Place,
        /// Which.
        model: usize,
        /// Of the device's memory.
        bytes: u64,
        /// From the order on.
        took: Duration,
        /// Whether they were copied from memory and not read from files.
        from_host: bool,
    },
    /// A model's weights left a device.
    Offload {
        /// Where.
        at: Place,
        /// Which.
        model: usize,
        /// From the order on.
        took: Duration,
    },
    /// A model's weights were copied into the host's memory, as GPUs load them, or are there no more.
    Image {
        /// Which.
        model: usize,
        /// Whether they are there.
        is_there: bool,
    },
    /// A device, or its worker, did something at once: it started, ended or failed.
    Note {
        /// Where.
        at: Place,
        /// What.
        what: &'static str,
    },
    /// What a device's memory is used for.
    Memory {
        /// Where.
        at: Place,
        /// In use by models and passes.
        used: u64,
        /// Taken from the device.
        held: u64,
    },
    /// The name of a model.
    Model {
        /// Its number in the engine.
        number: usize,
        /// As people call it.
        name: String,
    },
}

/// A device of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number.
    pub device: usize,
    /// What it is called.
    pub name: DeviceName,
}

enum Message {
    Happened(Duration, Entry),
    End(Duration),
}

impl Profile {
    /// Creates the file, in place of an old one.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::create_bounded(path, FILE_BYTES_MAX)
    }

    fn create_bounded(path: &Path, bytes_max: u64) -> io::Result<Self> {
        let file = TraceFile::begin(File::create(path)?, bytes_max)?;
        let (entries, received) = sync_channel(WAITING_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        let writer = std::thread::Builder::new().name("profile".to_owned());
        let writer = writer.spawn(move || write(file, &received, &counted))?;
        Ok(Self { entries, lost, started: Instant::now(), writer: Mutex::new(Some(writer)) })
    }

    /// Notes what has just happened.
    pub fn note(&self, entry: Entry) {
        if self.entries.try_send(Message::Happened(self.started.elapsed(), entry)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes what waits and ends the file. What is noted later is lost. The error is that of the disk, if it took no more.
    pub fn finish(&self) -> io::Result<()> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(writer) = writer else { return Ok(()) };
        // A writer that has ended takes no end, and says why.
        let _ = self.entries.send(Message::End(self.started.elapsed()));
        writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Writes entries until the end. Whole entries are handed to the system, so that a program that is killed leaves a file that
/// lacks only its last bracket.
fn write(mut file: TraceFile, entries: &Receiver<Message>, lost: &AtomicU64) -> io::Result<()> {
    /// How long an entry waits in memory at most.
    const FLUSH_AFTER: Duration = Duration::from_millis(250);
    loop {
        let message = match entries.recv_timeout(FLUSH_AFTER) {
            Ok(message) => message,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                file.flush()?;
                continue;
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return file.flush(),
        };
        match message {
            Message::Happened(at, entry) => {
                if !file.add(at, &entry)? {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            Message::End(at) => return file.end(at, lost.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const CPU: Place = Place { device: 0, name: DeviceName::Cpu };

    fn batch(took_ms: u64) -> Entry {
        let took = Duration::from_millis(took_ms);
        Entry::Batch { at: CPU, model: 0, requests: 1, texts: 2, tokens: 8, took }
    }

    fn read(path: &Path) -> Vec<Value> {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn a_file_is_json_with_what_happened_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let profile = Profile::create(&path).unwrap();
        profile.note(Entry::Model { number: 0, name: "a \"model\"\n".to_owned() });
        profile.note(batch(0));
        profile.note(Entry::Memory { at: CPU, used: 5, held: 7 });
        profile.finish().unwrap();
        profile.note(batch(0));
        profile.finish().unwrap();
        let events = read(&path);
        let named = |name: &str| events.iter().find(|event| event["name"] == name).unwrap().clone();
        assert_eq!(named("batch")["args"]["model"], "a \"model\"\n");
        assert_eq!(named("batch")["ph"], "X");
        assert_eq!(named("memory of cpu")["args"]["used"], 5);
        assert_eq!(named("end of the profile")["args"]["lost"], 0);
    }

    #[test]
    fn a_file_that_is_full_takes_no_more_and_says_how_much_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let profile = Profile::create_bounded(&path, 4_000).unwrap();
        (0..1_000).for_each(|_| profile.note(batch(0)));
        profile.finish().unwrap();
        let events = read(&path);
        let batches = events.iter().filter(|event| event["name"] == "batch").count();
        let lost = events.last().unwrap()["args"]["lost"].as_u64().unwrap() as usize;
        assert_eq!(batches + lost, 1_000);
        assert!(batches > 5 && std::fs::metadata(&path).unwrap().len() < 5_000);
    }

    #[test]
    fn what_is_on_the_disk_lacks_only_its_last_bracket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let profile = Profile::create(&path).unwrap();
        profile.note(batch(0));
        let has_batch = || std::fs::read_to_string(&path).unwrap().contains("batch");
        while !has_batch() {
            std::thread::yield_now();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(serde_json::from_str::<Value>(&text).is_err());
        assert!(serde_json::from_str::<Value>(&(text + "]")).is_ok());
    }
}
