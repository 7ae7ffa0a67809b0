//! How much of the input is embedded, as a bar shows it.
//! Draws only on a terminal.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use indicatif::ProgressBar;

use super::resume::Start;
use crate::{console::Console, input::Texts};

/// What is computed, as the bar shows it.
#[derive(Clone)]
pub(super) struct Progress {
    pub(super) bar: ProgressBar,
    pub(super) texts: Arc<AtomicU64>,
}

impl Progress {
    /// A bar for long inputs: a short one is done before a bar could be read.
    pub(super) fn of(texts: &Texts, start: &Start, shows_rows: bool, console: &Console) -> Self {
        const LONG_BYTES: u64 = 256 << 10;
        let is_short = texts.bytes_total().is_some_and(|bytes| bytes < LONG_BYTES);
        let done = Arc::new(AtomicU64::new(start.texts_before));
        // Rows that scroll by are progress enough, and a bar between them would garble both.
        let bar = match is_short || shows_rows {
            true => ProgressBar::hidden(),
            false => console.texts_bar(texts.bytes_total(), start.bytes_before, done.clone()),
        };
        Self { bar, texts: done }
    }

    pub(super) fn add(&self, texts: usize, bytes: u64) {
        self.texts.fetch_add(texts as u64, Ordering::Relaxed);
        self.bar.inc(bytes);
    }
}
