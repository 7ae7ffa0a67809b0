//! Ctrl-C and termination: removes the files that are half-written, says what is kept, then ends with the code for it.
//! Does not try to finish anything.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{console::Console, exit_code::Exit};

static HALF_WRITTEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static LAST_WORD: Mutex<Option<String>> = Mutex::new(None);

/// Takes over the signals. Called once, before anything is written.
pub(crate) fn install() {
    // Where the system refuses, the signal ends the process as it does everywhere: without the tidying, but safely.
    let _ = ctrlc::set_handler(|| {
        for path in lock().drain(..) {
            let _ = fs::remove_file(path);
        }
        if let Some(message) = last_word() {
            Console::new(false, false).note(message);
        }
        process::exit(Exit::Interrupted.code().into());
    });
}

/// Takes over the signals and does nothing about them. Called instead of [`install`].
pub(crate) fn ignore() {
    // Where the system refuses, a signal ends the process, and its supervisor starts another.
    let _ = ctrlc::set_handler(|| {});
}

/// What a command that ends early has to say of its work.
pub(crate) fn say_at_the_end(message: Option<String>) {
    *LAST_WORD.lock().unwrap_or_else(PoisonError::into_inner) = message;
}

pub(crate) fn last_word() -> Option<String> {
    LAST_WORD.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Removes a file on interruption, until this is dropped.
#[derive(Debug)]
pub(crate) struct RemoveOnInterrupt(PathBuf);

impl RemoveOnInterrupt {
    pub(crate) fn new(path: &Path) -> Self {
        lock().push(path.to_owned());
        Self(path.to_owned())
    }
}

impl Drop for RemoveOnInterrupt {
    fn drop(&mut self) {
        lock().retain(|path| *path != self.0);
    }
}

fn lock() -> MutexGuard<'static, Vec<PathBuf>> {
    HALF_WRITTEN.lock().unwrap_or_else(PoisonError::into_inner)
}
