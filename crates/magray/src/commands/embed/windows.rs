//! Reads texts ahead and hands them to where they are embedded, a window at a time, in a thread of its own.
//! Never holds more than a few windows.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::{
    backend::{Request, Submitter},
    progress::Progress,
    resume::InputDigest,
};
use crate::{
    exit::Failure,
    input::{Skipped, Text, Texts},
};

/// Windows that are read and computed while another is written. What is read ahead is bounded by it, and the devices are
/// never without work.
const WINDOWS_AHEAD: usize = 1;
pub(super) struct Window {
    pub(super) texts: Vec<Text>,
    pub(super) requests: Vec<Request>,
    /// Of all texts of the input up to and with these.
    pub(super) digest: String,
    pub(super) skipped: Skipped,
}

pub(super) struct Reading {
    pub(super) to: Submitter,
    pub(super) texts: Texts,
    pub(super) digest: InputDigest,
    pub(super) progress: Progress,
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
        let requests = self.to.submit(&texts, bytes, &self.progress)?;
        Ok(self.window(texts, requests))
    }

    fn window(&mut self, texts: Vec<Text>, requests: Vec<Request>) -> Window {
        Window { texts, requests, digest: self.digest.hex(), skipped: self.texts.take_skipped() }
    }
}
