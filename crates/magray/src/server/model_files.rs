//! The files of a model, as lists of models tell them: when they came, their size, their numbers, their hash.
//! Hashes in the background, once, at the first request for it; no request waits for it.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use magray_engine::{engine::ModelSource, spec::ModelSpec, store::WeightFiles};

#[derive(Clone, Debug, Default)]
pub(crate) struct ModelFiles(Arc<Facts>);

#[derive(Debug, Default)]
struct Facts {
    /// `None`: its weights are made up.
    files: Option<WeightFiles>,
    created_unix_s: u64,
    sha256: OnceLock<String>,
    is_hashed: AtomicBool,
}

impl ModelFiles {
    pub(super) fn of(source: &ModelSource, spec: &ModelSpec) -> Self {
        // What is wrong with them is told when they are loaded.
        let files = source.folder().and_then(|folder| WeightFiles::of(folder, spec).ok());
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let created_unix_s = files.as_ref().map_or_else(now, |files| files.created_unix_s);
        Self(Arc::new(Facts { files, created_unix_s, ..Facts::default() }))
    }

    pub(crate) fn created_unix_s(&self) -> u64 {
        self.0.created_unix_s
    }

    /// Bytes of the weights' files.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.0.files.as_ref().map(|files| files.bytes)
    }

    /// How its numbers are stored, such as `F32`.
    pub(crate) fn dtype(&self) -> &str {
        self.0.files.as_ref().map_or("F32", |files| &files.dtype)
    }

    /// The hash of the weights; `None` until it is known. The first call has it computed.
    pub(crate) fn sha256(&self) -> Option<&str> {
        if self.0.files.is_some() && !self.0.is_hashed.swap(true, Ordering::Relaxed) {
            let own = Arc::clone(&self.0);
            let hash = move || {
                if let Some(Ok(sha256)) = own.files.as_ref().map(WeightFiles::sha256) {
                    own.sha256.get_or_init(|| sha256);
                }
            };
            // Without a thread it is never known, and nothing else fails.
            let _ = std::thread::Builder::new().name("hash".to_owned()).spawn(hash);
        }
        self.0.sha256.get().map(String::as_str)
    }
}
