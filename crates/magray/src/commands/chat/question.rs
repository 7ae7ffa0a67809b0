//! The question of one answer, or another text: from the command line, a file or stdin.
//! Asks no model.

use std::{
    fs::File,
    io::{self, IsTerminal, Read},
    path::Path,
};

use super::ChatArgs;
use crate::exit::Failure;

/// Longer texts fit into no context.
const BYTES_MAX: u64 = 64 << 20;

/// Whether a person can answer at the terminal.
pub(super) fn is_asked_on_terminal() -> bool {
    io::stdin().is_terminal()
}

pub(super) fn read(args: &ChatArgs) -> Result<String, Failure> {
    read_from(args.file.as_deref(), args.question.as_deref(), "the question")
}

/// The text of a file behind what was given, or what stdin has; `what` it is to be.
pub(in crate::commands) fn read_from(file: Option<&Path>, given: Option<&str>, what: &str) -> Result<String, Failure> {
    let text = match (file, given) {
        (None, Some(given)) => given.to_owned(),
        (None, None) => read_text("stdin", io::stdin().lock())?,
        (Some(file), given) => {
            let text = read_file(file)?;
            given.map_or_else(|| text.clone(), |given| format!("{given}\n\n{text}"))
        }
    };
    match text.trim().is_empty() {
        true => Err(Failure::Usage(format!("{what} is empty: give one, or pipe one in"))),
        false => Ok(text),
    }
}

fn read_file(file: &Path) -> Result<String, Failure> {
    if file == Path::new("-") {
        return read_text("stdin", io::stdin().lock());
    }
    let name = file.display().to_string();
    let unreadable = |reason: io::Error| Failure::Usage(format!("cannot read {name}: {reason}"));
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(Failure::Usage(format!("cannot read {name}: it is not a regular file")));
    }
    read_text(&name, File::open(file).map_err(unreadable)?)
}

fn read_text(name: &str, from: impl Read) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = from.take(BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|reason| Failure::Usage(format!("cannot read {name}: {reason}")))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(Failure::Usage(format!("{name} has more than {BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::Usage(format!("{name} is not valid UTF-8 from byte {at} on"))
    })
}
