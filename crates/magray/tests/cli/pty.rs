//! A terminal that a test writes to and reads from, with the binary behind it.
//! Waits for texts, never for times.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    process::{Child, Command},
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};

pub(crate) struct Terminal {
    child: Child,
    own: File,
    /// What was shown and not waited for yet.
    shown: String,
}

impl Terminal {
    pub(crate) fn start(mut command: Command) -> Self {
        let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&own).unwrap();
        unlockpt(&own).unwrap();
        let name = ptsname(&own, Vec::new()).unwrap();
        let theirs = || OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        command.env("TERM", "xterm").stdin(theirs()).stdout(theirs()).stderr(theirs());
        Self { child: command.spawn().unwrap(), own: own.into(), shown: String::new() }
    }

    pub(crate) fn send(&mut self, keys: &str) {
        self.own.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads until this text was shown.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) {
        loop {
            if let Some(at) = self.shown.find(text) {
                self.shown.drain(..at + text.len());
                return;
            }
            let mut bytes = [0; 4096];
            let read = self.own.read(&mut bytes).unwrap_or(0);
            assert!(read > 0, "it ended without {text:?}: {:?}", self.shown);
            self.shown.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }

    pub(crate) fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Reads to the end; the code that it ended with.
    pub(crate) fn end(mut self) -> Option<i32> {
        let mut bytes = [0; 4096];
        while self.own.read(&mut bytes).is_ok_and(|read| read > 0) {}
        self.child.wait().unwrap().code()
    }
}
