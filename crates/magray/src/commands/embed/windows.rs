//! Reads texts ahead and hands them to the engine, a window at a time, in a thread of its own.
//! Never holds more than a few windows.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
    mpsc::{Receiver, SyncSender, sync_channel},
};

use indicatif::ProgressBar;
use magray_engine::engine::{Answer, Engine, EngineError, Work};

use super::resume::InputDigest;
use crate::{
    exit::Failure,
    input::{Skipped, Text, Texts},
};

/// Windows that are read and computed while another is written. What is read ahead is bounded by it, and the devices are
/// never without work.
const WINDOWS_AHEAD: usize = 1;
/// Texts of a request. Their answers come one after the other, so that progress shows within a window.
const REQUEST_TEXTS: usize = 64;

pub(super) struct Window {
    pub(super) texts: Vec<Text>,
    pub(super) requests: Vec<Request>,
    /// Of all texts of the input up to and with these.
    pub(super) digest: String,
    pub(super) skipped: Skipped,
}

/// Some texts of a window, in their order.
pub(super) struct Request {
    pub(super) texts: usize,
    /// Indices of those that were longer than the model reads and were cut.
    pub(super) truncated: Vec<usize>,
    pub(super) answer: Receiver<Result<Answer, EngineError>>,
}

pub(super) struct Reading {
    pub(super) engine: Engine,
    pub(super) threads: usize,
    pub(super) prompt: Option<String>,
    pub(super) texts: Texts,
    pub(super) digest: InputDigest,
    pub(super) progress: Progress,
}

/// What is computed, as the bar shows it.
#[derive(Clone)]
pub(super) struct Progress {
    pub(super) bar: ProgressBar,
    pub(super) texts: Arc<AtomicU64>,
}

impl Progress {
    fn add(&self, texts: usize, bytes: u64) {
        self.texts.fetch_add(texts as u64, Ordering::Relaxed);
        self.bar.inc(bytes);
    }
}

impl Reading {
    /// Starts a thread that is never joined: it may be waiting for an input that never ends.
    pub(super) fn start(
        self,
        first: Vec<Text>,
        bytes_before: u64,
    ) -> Result<Receiver<Result<Window, Failure>>, Failure> {
        let (sender, windows) = sync_channel(WINDOWS_AHEAD);
        let thread = std::thread::Builder::new().name("input".to_owned());
        thread.spawn(move || self.run(first, bytes_before, &sender)).map_err(Failure::Thread)?;
        Ok(windows)
    }

    fn run(mut self, first: Vec<Text>, bytes_before: u64, windows: &SyncSender<Result<Window, Failure>>) {
        let (mut texts, mut read_before) = (first, bytes_before);
        while !texts.is_empty() {
            let read = self.texts.bytes_read();
            let window = self.submit(texts, read - read_before);
            read_before = read;
            let is_over = window.is_err();
            if windows.send(window).is_err() || is_over {
                return;
            }
            texts = match self.texts.next_window() {
                Ok(texts) => {
                    self.digest.add(&texts);
                    texts
                }
                Err(error) => {
                    // A receiver that is gone has failed with an error of its own.
                    let _ = windows.send(Err(error.into()));
                    return;
                }
            };
        }
        // Lines that were skipped after the last text.
        let _ = windows.send(Ok(self.window(texts, Vec::new())));
    }

    fn submit(&mut self, texts: Vec<Text>, bytes: u64) -> Result<Window, Failure> {
        let mut work = self.engine.read_by(self.threads, 0, &texts, self.prompt.as_deref())?;
        let mut requests = Vec::with_capacity(texts.len().div_ceil(REQUEST_TEXTS));
        let mut rest = std::mem::take(&mut work.texts).into_iter();
        loop {
            let some: Vec<_> = rest.by_ref().take(REQUEST_TEXTS).collect();
            if some.is_empty() {
                break;
            }
            let cut = some.iter().enumerate().filter(|(_, text)| text.truncated);
            let (count, truncated) = (some.len(), cut.map(|(at, _)| at).collect());
            let share = bytes * count as u64 / texts.len() as u64;
            let (sender, answer) = sync_channel(1);
            let progress = self.progress.clone();
            let work = Work { texts: some, ..work.clone() };
            self.engine.submit(work, move |answer| {
                progress.add(count, share);
                let _ = sender.send(answer);
            });
            requests.push(Request { texts: count, truncated, answer });
        }
        Ok(self.window(texts, requests))
    }

    fn window(&mut self, texts: Vec<Text>, requests: Vec<Request>) -> Window {
        Window { texts, requests, digest: self.digest.hex(), skipped: self.texts.take_skipped() }
    }
}
