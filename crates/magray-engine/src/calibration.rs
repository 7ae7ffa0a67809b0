//! The file of speeds that were measured with a model on CPU and GPU.
//! Measures nothing; a file that is missing, damaged or of another machine only means measuring again.

use magray_core::Scores;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// All that a speed depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) version: String,
    pub(crate) gpu: String,
    pub(crate) cpu: String,
    pub(crate) cpu_path: String,
    pub(crate) threads: usize,
    /// Architecture and sizes: a speed does not depend on the weights.
    pub(crate) model: String,
    pub(crate) cpu_precision: String,
    pub(crate) gpu_precision: String,
}

/// The file of measured speeds.
#[derive(Clone, Debug)]
pub(crate) struct ScoreCache<'a> {
    file: Option<&'a Path>,
}

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    key: Key,
    cpu_texts_per_s: f64,
    gpu_texts_per_s: f64,
}

impl<'a> ScoreCache<'a> {
    /// More machines and models than one user has; the oldest go first.
    const ENTRIES_MAX: usize = 64;
    const BYTES_MAX: u64 = 1 << 20;

    pub(crate) fn new(file: Option<&'a Path>) -> Self {
        Self { file }
    }

    /// The speeds that were measured for this key.
    pub(crate) fn find(&self, key: &Key) -> Option<Scores> {
        let entry = self.read().into_iter().find(|entry| entry.key == *key)?;
        Scores::new(entry.cpu_texts_per_s, entry.gpu_texts_per_s)
    }

    /// Keeps a measurement. Where that fails it is made again next time, so it is not reported.
    pub(crate) fn keep(&self, key: &Key, scores: Scores) {
        let Some(file) = self.file else { return };
        let mut entries = self.read();
        entries.retain(|entry| entry.key != *key);
        entries.insert(
            0,
            Entry {
                key: key.clone(),
                cpu_texts_per_s: scores.cpu_texts_per_s(),
                gpu_texts_per_s: scores.gpu_texts_per_s(),
            },
        );
        entries.truncate(Self::ENTRIES_MAX);
        let _ = write_whole(file, &entries);
    }

    fn read(&self) -> Vec<Entry> {
        let Some(file) = self.file.and_then(|path| fs::File::open(path).ok()) else { return Vec::new() };
        let mut bytes = Vec::new();
        match file.take(Self::BYTES_MAX).read_to_end(&mut bytes) {
            Ok(_) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }
}

/// Writes beside the file and renames, so that a reader never sees half of it.
fn write_whole(file: &Path, entries: &[Entry]) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let half: PathBuf = folder.join(name);
    let written = fs::File::create(&half)
        .and_then(|mut out| out.write_all(&serde_json::to_vec_pretty(entries)?))
        .and_then(|()| fs::rename(&half, file));
    if written.is_err() {
        let _ = fs::remove_file(&half);
    }
    written
}

/// What the system calls its processor; empty where it does not say.
pub(crate) fn cpu_name() -> String {
    let described = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = described.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    named.map(|(_, name)| name.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(gpu: &str) -> Key {
        Key {
            version: "1".to_owned(),
            gpu: gpu.to_owned(),
            cpu: "a CPU".to_owned(),
            cpu_path: "amx".to_owned(),
            threads: 2,
            model: "bert".to_owned(),
            cpu_precision: "bf16".to_owned(),
            gpu_precision: "bf16".to_owned(),
        }
    }

    fn scores(gpu: f64) -> Scores {
        Scores::new(10.0, gpu).unwrap()
    }

    #[test]
    fn what_was_measured_is_found_again_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep/er/scores.json");
        let cache = ScoreCache::new(Some(&file));
        assert_eq!(cache.find(&key("GPU-1")), None);
        cache.keep(&key("GPU-1"), scores(100.0));
        cache.keep(&key("GPU-2"), scores(200.0));
        cache.keep(&key("GPU-1"), scores(300.0));
        assert_eq!(cache.find(&key("GPU-1")), Some(scores(300.0)));
        assert_eq!(cache.find(&key("GPU-2")), Some(scores(200.0)));
        assert_eq!(cache.find(&Key { threads: 3, ..key("GPU-1") }), None);
        assert_eq!(cache.read().len(), 2);
        let names: Vec<_> = fs::read_dir(file.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["scores.json"], "no half-written file is left");
    }

    #[test]
    fn the_file_stays_small() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("scores.json");
        let cache = ScoreCache::new(Some(&file));
        for at in 0..ScoreCache::ENTRIES_MAX + 5 {
            cache.keep(&key(&at.to_string()), scores(1.0));
        }
        assert_eq!(cache.read().len(), ScoreCache::ENTRIES_MAX);
        assert_eq!(cache.find(&key("0")), None);
        assert!(cache.find(&key(&(ScoreCache::ENTRIES_MAX + 4).to_string())).is_some());
    }

    #[test]
    fn a_damaged_file_and_a_folder_that_cannot_be_written_are_no_failure() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("scores.json");
        for content in ["", "{", "[{\"key\": 3}]", "[1, 2]"] {
            fs::write(&file, content).unwrap();
            assert_eq!(ScoreCache::new(Some(&file)).find(&key("x")), None, "{content}");
        }
        ScoreCache::new(Some(&file)).keep(&key("x"), scores(5.0));
        assert!(ScoreCache::new(Some(&file)).find(&key("x")).is_some());
        // A file in the place of the folder.
        let below = file.join("scores.json");
        ScoreCache::new(Some(&below)).keep(&key("x"), scores(5.0));
        assert_eq!(ScoreCache::new(Some(&below)).find(&key("x")), None);
        ScoreCache::new(None).keep(&key("x"), scores(5.0));
    }
}
