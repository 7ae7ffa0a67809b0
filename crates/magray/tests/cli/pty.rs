//! A terminal that a test writes to and reads from, with the binary behind it.
//! Waits for texts, never for times.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{Read, Write},
    process::{Child, Command},
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};

pub(crate) struct Terminal {
    child: Child,
    own: File,
    /// What was shown and not waited for yet.
    shown: String,
    screen: Screen,
    /// Bytes of a character that has not come whole.
    unread: Vec<u8>,
}

/// What a program that places its texts has drawn.
#[derive(Default)]
struct Screen {
    rows: BTreeMap<usize, Vec<char>>,
    row: usize,
    column: usize,
    /// A sequence of escape that is not complete.
    escape: String,
}

impl Screen {
    fn show(&mut self, text: &str) {
        for one in text.chars() {
            match (self.escape.is_empty(), one) {
                (true, '\u{1b}') => self.escape.push(one),
                (true, _) => self.put(one),
                (false, '[' | '?' | ';' | '0'..='9') => self.escape.push(one),
                (false, last) => self.obey(last),
            }
        }
    }

    fn put(&mut self, one: char) {
        let row = self.rows.entry(self.row).or_default();
        row.resize(row.len().max(self.column + 1), ' ');
        row[self.column] = one;
        self.column += 1;
    }

    fn obey(&mut self, last: char) {
        let escape = std::mem::take(&mut self.escape);
        match last {
            'H' => {
                let mut place = escape.trim_start_matches("\u{1b}[").split(';').map(|one| one.parse().unwrap_or(1));
                self.row = place.next().unwrap_or(1);
                self.column = place.next().map_or(0, |column: usize| column - 1);
            }
            'J' => self.rows.clear(),
            _ => {}
        }
    }

    fn has(&self, text: &str) -> bool {
        self.rows.values().any(|row| row.iter().collect::<String>().contains(text))
    }
}

impl Terminal {
    pub(crate) fn start(mut command: Command) -> Self {
        let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&own).unwrap();
        unlockpt(&own).unwrap();
        let name = ptsname(&own, Vec::new()).unwrap();
        let theirs = || OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        command.env("TERM", "xterm").stdin(theirs()).stdout(theirs()).stderr(theirs());
        tcsetwinsize(&own, Winsize { ws_col: 80, ws_row: 24, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        Self {
            child: command.spawn().unwrap(),
            own: own.into(),
            shown: String::new(),
            screen: Screen::default(),
            unread: Vec::new(),
        }
    }

    /// Gives it so many columns and lines, and tells the program.
    pub(crate) fn resize(&self, columns: u16, lines: u16) {
        let size = Winsize { ws_col: columns, ws_row: lines, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.own, size).unwrap();
        // It is no terminal that controls the program: the kernel does not tell it.
        kill_process(Pid::from_child(&self.child), Signal::WINCH).unwrap();
    }

    pub(crate) fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }

    /// What a terminal was told that it has: whether input is read by lines.
    pub(crate) fn reads_lines(&self) -> bool {
        tcgetattr(&self.own).unwrap().local_modes.contains(LocalModes::ICANON)
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
            assert!(self.read(), "it ended without {text:?}: {:?}", self.shown);
        }
    }

    /// Reads until this text is on the screen, whatever it was drawn over.
    #[track_caller]
    pub(crate) fn wait_for_on_screen(&mut self, text: &str) {
        while !self.screen.has(text) {
            assert!(self.read(), "it ended without {text:?}: {:?}", self.shown);
        }
    }

    /// Whether there was more.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let read = self.own.read(&mut bytes).unwrap_or(0);
        self.unread.extend_from_slice(&bytes[..read]);
        // A character may have come in part.
        let whole = match str::from_utf8(&self.unread) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let text: String = String::from_utf8(self.unread.drain(..whole).collect()).unwrap();
        self.screen.show(&text);
        self.shown.push_str(&text);
        read > 0
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
