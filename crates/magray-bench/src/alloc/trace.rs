//! A trace of what a load took and gave back, and its replay.
//! Refuses a trace that gives back what it does not have, before anything is taken.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use super::subject::Subject;
use crate::failure::Failure;

/// Calls of a trace that are read at most: a file without end is a mistake.
const CALLS_MAX: usize = 50_000_000;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum TraceError {
    #[error("{}, line {line}: {wrong}; write `a ID BYTES` to take and `f ID` to give back", path.display())]
    Line { path: PathBuf, line: usize, wrong: &'static str },
    #[error("{}: it takes nothing", path.display())]
    Empty { path: PathBuf },
    #[error("{}: more than {CALLS_MAX} calls; cut it", path.display())]
    TooLong { path: PathBuf },
}

/// A call; blocks are named by their indices in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Take { block: usize, bytes: u64 },
    GiveBack { block: usize },
}

#[derive(Debug)]
pub(super) struct Trace {
    pub(super) name: String,
    calls: Vec<Call>,
    blocks: usize,
}

impl Trace {
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string(path).map_err(|reason| Failure::File { path: path.to_owned(), reason })?;
        Self::parse(path, &text).map_err(|error| Failure::Trace(error.to_string()))
    }

    /// Takes and gives back as the trace says, then gives back what it kept.
    pub(super) fn replay(&self, subject: &mut impl Subject) -> Result<(), Failure> {
        let mut blocks: Vec<_> = (0..self.blocks).map(|_| None).collect();
        for call in &self.calls {
            match *call {
                Call::Take { block, bytes } => blocks[block] = Some(subject.allocate(bytes)?),
                Call::GiveBack { block } => {
                    if let Some(block) = blocks[block].take() {
                        subject.free(block);
                    }
                }
            }
        }
        blocks.into_iter().flatten().for_each(|block| subject.free(block));
        Ok(())
    }

    fn parse(path: &Path, text: &str) -> Result<Self, TraceError> {
        let mut live = HashMap::new();
        // Freed indices are used again, so that the table is as long as what is alive at once.
        let mut spare = Vec::new();
        let mut blocks = 0;
        let mut calls = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let wrong = |wrong| TraceError::Line { path: path.to_owned(), line: number + 1, wrong };
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let call = match words[..] {
                [] => continue,
                ["a", id, bytes] => {
                    let bytes = bytes.parse().ok().filter(|bytes| *bytes > 0);
                    let bytes = bytes.ok_or_else(|| wrong("the bytes are no number above 0"))?;
                    let block = spare.pop().unwrap_or_else(|| {
                        blocks += 1;
                        blocks - 1
                    });
                    if live.insert(id, block).is_some() {
                        return Err(wrong("this ID is taken already"));
                    }
                    Call::Take { block, bytes }
                }
                ["f", id] => {
                    let block = live.remove(id).ok_or_else(|| wrong("this ID was not taken"))?;
                    spare.push(block);
                    Call::GiveBack { block }
                }
                _ => return Err(wrong("this is no call")),
            };
            if calls.len() == CALLS_MAX {
                return Err(TraceError::TooLong { path: path.to_owned() });
            }
            calls.push(call);
        }
        if blocks == 0 {
            return Err(TraceError::Empty { path: path.to_owned() });
        }
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Self { name, calls, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::subject::{Device, Simulated},
        *,
    };

    fn parse(text: &str) -> Result<Trace, String> {
        Trace::parse(Path::new("folder/x.trace"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_trace_is_replayed() {
        let trace = parse("a 1 1000\na two 5000\nf 1\n\na 1 3000\nf two\n").unwrap();
        assert_eq!((trace.name.as_str(), trace.blocks, trace.calls.len()), ("x.trace", 2, 5));
        let mut subject = Simulated.open().unwrap();
        trace.replay(&mut subject).unwrap();
        let stats = subject.stats();
        assert_eq!((stats.peak_used, stats.used, stats.blocks), (8000, 0, 0));
    }

    #[test]
    fn a_bad_trace_is_refused_with_its_line() {
        for (text, says) in [
            ("a 1 1000\nf 2\n", "line 2: this ID was not taken"),
            ("a 1 1000\nf 1\nf 1\n", "line 3: this ID was not taken"),
            ("a 1 1000\na 1 1000\n", "line 2: this ID is taken already"),
            ("a 1 0\n", "line 1: the bytes are no number above 0"),
            ("a 1 -5\n", "line 1: the bytes are no number above 0"),
            ("a 1\n", "line 1: this is no call"),
            ("hello\n", "line 1: this is no call"),
            ("\n\n", "it takes nothing"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
