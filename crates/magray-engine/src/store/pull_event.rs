//! What a pull reports while it works, and what a source brings.
//! Shows nothing itself.

use super::manifest::{Origin, Source, StoredFile};
use std::path::Path;
use std::time::Duration;

/// What a pull reports while it works. A model that is already there reports nothing.
#[derive(Clone, Copy, Debug)]
pub enum PullEvent<'a> {
    /// Another process is pulling the same model; this one waits for it.
    Waiting {
        /// The model's name.
        model: &'a str,
    },
    /// The model is there but damaged, so it is pulled again.
    Replacing {
        /// The model's name.
        model: &'a str,
        /// What is wrong with it.
        reason: &'a str,
    },
    /// A source is asked.
    Started {
        /// The model's name.
        model: &'a str,
        /// The source.
        source: Source,
    },
    /// What comes next is known; a second listing starts a new count (a package is downloaded, then unpacked).
    Listed {
        /// How many files.
        files: usize,
        /// Their size together, if the source says.
        bytes: Option<u64>,
    },
    /// A file has grown.
    File {
        /// The file's name.
        name: &'a str,
        /// The bytes that are here.
        done: u64,
        /// The bytes that it will have, if known.
        total: Option<u64>,
    },
    /// Something failed that may well work in a moment.
    Retrying {
        /// The file's or listing's name.
        what: &'a str,
        /// Which retry this is, from 1.
        retry: u32,
        /// How long the pull waits first.
        delay: Duration,
        /// What failed.
        reason: &'a str,
    },
    /// A source failed; the next one is asked.
    SourceFailed {
        /// The source.
        source: Source,
        /// What failed.
        reason: &'a str,
    },
    /// The model is in its place.
    Finished {
        /// Where it lies.
        dir: &'a Path,
        /// The size of its files.
        bytes: u64,
    },
}

/// Where events go.
pub(super) type OnEvent<'a> = &'a mut dyn FnMut(PullEvent<'_>);

/// What a source brought.
pub(super) struct Delivery {
    pub(super) origin: Origin,
    pub(super) files: Vec<StoredFile>,
}
