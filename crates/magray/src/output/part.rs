//! A file that is written in one run or in several: `NAME.part` beside its name, with a journal, until it is whole.
//! What a crash leaves is continued or replaced; nothing that is not whole takes the name.

use std::{
    fs::{self, File, Permissions, TryLockError},
    io::{self, BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{
    OutputError, create_error,
    journal::{Group, Journal, Recipe, Record, hex},
    write_error,
};
use crate::interrupt::{self, RemoveOnInterrupt};

pub(crate) struct Part {
    /// The output's name in messages.
    name: String,
    paths: Paths,
    file: BufWriter<Hashed>,
    journal: Journal,
    /// What an earlier run left and this one continues.
    found: Option<(Recipe, Vec<Group>)>,
    last: Record,
    /// As long as nothing is worth keeping.
    guards: Option<[RemoveOnInterrupt; 2]>,
}

/// Where a file is to be, and with which permissions if it replaces one.
pub(super) struct Target {
    pub(super) real: PathBuf,
    pub(super) permissions: Option<Permissions>,
}

struct Paths {
    real: PathBuf,
    part: PathBuf,
    journal: PathBuf,
}

/// Hashes what passes.
struct Hashed {
    file: File,
    hash: Sha256,
    position: u64,
}

impl Part {
    /// Opens the files beside the output. Without `resumes`, what an earlier run left is dropped.
    pub(super) fn open(path: &Path, target: Target, prefix_bytes: u64, resumes: bool) -> Result<Self, OutputError> {
        let paths = Paths::of(target.real);
        let error = |reason| create_error(path, reason);
        let open = |path: &Path| File::options().read(true).write(true).create(true).truncate(false).open(path);
        let journal = open(&paths.journal).map_err(error)?;
        match journal.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(OutputError::Busy { path: path.to_owned() }),
            // A file system without locks is used without them.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let mut journal = Journal::new(journal);
        // The earlier run was killed between taking the name and removing the journal: the checksums decide.
        if resumes && !paths.part.exists() && paths.real.is_file() {
            fs::copy(&paths.real, &paths.part).map_err(error)?;
        }
        let mut file = open(&paths.part).map_err(error)?;
        if let Some(permissions) = target.permissions {
            file.set_permissions(permissions).map_err(error)?;
        }
        let found = if resumes { journal.read(&mut file, prefix_bytes).map_err(error)? } else { None };
        let (found, last) = match found {
            Some(found) => (Some((found.recipe, found.groups)), found.last),
            None => (None, Record::default()),
        };
        file.set_len(last.bytes).and_then(|()| file.seek(SeekFrom::End(0))).map_err(error)?;
        let hashed = Hashed { file, hash: Sha256::new(), position: last.bytes };
        let guards = found.is_none().then(|| [&paths.part, &paths.journal].map(|path| RemoveOnInterrupt::new(path)));
        let name = path.display().to_string();
        let part = Self { name, paths, file: BufWriter::with_capacity(1 << 16, hashed), journal, found, last, guards };
        part.tell_interrupt();
        Ok(part)
    }

    /// How far an earlier run, or this one, has come.
    pub(crate) fn last(&self) -> Option<&Record> {
        self.is_kept().then_some(&self.last)
    }

    pub(super) fn groups(&self) -> &[Group] {
        self.found.as_ref().map_or(&[], |(_, groups)| groups)
    }

    pub(super) fn dimensions(&self) -> usize {
        self.last.dimensions
    }

    /// Begins to write by this recipe. One that an earlier run did not have is refused.
    pub(crate) fn begin(&mut self, recipe: &Recipe) -> Result<(), OutputError> {
        match &self.found {
            None => self.journal.start(recipe).map_err(|reason| write_error(&self.name, reason)),
            Some((was, _)) => match was.difference(recipe) {
                None => Ok(()),
                Some((what, was, now)) => {
                    Err(OutputError::OtherRecipe { part: self.paths.part.clone(), what, was, now })
                }
            },
        }
    }

    /// Writes what stands before all rows and is written again when their count is known.
    pub(super) fn write_prefix(&mut self, prefix: &[u8]) -> Result<(), OutputError> {
        let bytes = prefix.len() as u64;
        let mut write = || {
            let file = &mut self.file.get_mut().file;
            file.rewind()?;
            file.write_all(prefix)?;
            file.seek(SeekFrom::End(0))
        };
        write().map_err(|reason| write_error(&self.name, reason))?;
        let hashed = self.file.get_mut();
        hashed.position = hashed.position.max(bytes);
        Ok(())
    }

    pub(super) fn checked(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), OutputError> {
        write(&mut self.file).map_err(|reason| write_error(&self.name, reason))
    }

    /// Everything up to here is whole: a later run continues after it.
    pub(super) fn commit(&mut self, at: Record) -> Result<(), OutputError> {
        let write = || {
            self.file.flush()?;
            let hashed = self.file.get_mut();
            let output_digest = hex(std::mem::take(&mut hashed.hash));
            self.last = Record { bytes: hashed.position, output_digest, ..at };
            self.journal.write(&self.last)
        };
        write().map_err(|reason| write_error(&self.name, reason))?;
        self.guards = None;
        self.tell_interrupt();
        Ok(())
    }

    /// Gives the file its name.
    pub(super) fn finish(mut self) -> Result<(), OutputError> {
        let mut finish = || {
            self.file.flush()?;
            // Some disks report that they are full only when the data reaches them.
            self.file.get_ref().file.sync_data()?;
            fs::rename(&self.paths.part, &self.paths.real)?;
            fs::remove_file(&self.paths.journal)
        };
        let finished = finish().map_err(|reason| write_error(&self.name, reason));
        if finished.is_ok() {
            interrupt::say_at_the_end(None);
        }
        finished
    }

    fn is_kept(&self) -> bool {
        self.last.texts > 0
    }

    fn tell_interrupt(&self) {
        if let Some(message) = self.kept_message() {
            interrupt::say_at_the_end(Some(message));
        }
    }

    fn kept_message(&self) -> Option<String> {
        self.is_kept().then(|| {
            let Record { texts, .. } = self.last;
            format!("{texts} texts are kept in {}: the same command with --resume goes on", self.paths.part.display())
        })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_kept() {
            let _ = fs::remove_file(&self.paths.part);
            let _ = fs::remove_file(&self.paths.journal);
        }
    }
}

impl Paths {
    fn of(real: PathBuf) -> Self {
        let beside = |ending: &str| {
            let mut name = real.clone().into_os_string();
            name.push(ending);
            PathBuf::from(name)
        };
        Self { part: beside(".part"), journal: beside(".part.journal"), real }
    }
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.position += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
