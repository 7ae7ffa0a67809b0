//! Where rows go: once through a pipe, device or terminal, or into a file that can be continued.
//! Knows nothing of formats.

use std::{fs, io, io::Write, path::Path};

use super::{
    Destination, OutputError, create_error,
    journal::{Recipe, Record},
    part::{Part, Target},
};

pub(crate) enum Sink {
    Once(Destination),
    Part(Box<Part>),
}

impl Sink {
    /// Opens a file, or stdout for none and for `-`. `prefix_bytes` of a file are written again at its end.
    pub(crate) fn open(path: Option<&Path>, prefix_bytes: u64, resumes: bool) -> Result<Self, OutputError> {
        let Some(path) = path.filter(|path| *path != Path::new("-")) else {
            return Ok(Self::Once(Destination::open(None)?));
        };
        // Through a link the file it leads to is replaced, and the link stays.
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let permissions = match fs::metadata(&real) {
            Ok(metadata) if !metadata.is_file() => return Ok(Self::Once(Destination::open(Some(path))?)),
            // Replacing needs only the folder's permission; a file that may not be written is not to be replaced.
            Ok(metadata) => {
                fs::File::options().append(true).open(&real).map_err(|reason| create_error(path, reason))?;
                Some(metadata.permissions())
            }
            Err(_) => None,
        };
        Ok(Self::Part(Box::new(Part::open(path, Target { real, permissions }, prefix_bytes, resumes)?)))
    }

    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self, Self::Once(destination) if destination.is_terminal())
    }

    /// How far an earlier run has come.
    pub(crate) fn last(&self) -> Option<&Record> {
        match self {
            Self::Once(_) => None,
            Self::Part(part) => part.last(),
        }
    }

    pub(crate) fn begin(&mut self, recipe: &Recipe) -> Result<(), OutputError> {
        match self {
            Self::Once(_) => Ok(()),
            Self::Part(part) => part.begin(recipe),
        }
    }

    pub(super) fn checked(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), OutputError> {
        match self {
            Self::Once(destination) => destination.checked(write),
            Self::Part(part) => part.checked(write),
        }
    }

    /// Everything up to here is whole.
    pub(super) fn commit(&mut self, at: Record) -> Result<(), OutputError> {
        match self {
            // A reader of a pipe gets each window as soon as it is there.
            Self::Once(destination) => destination.checked(|out| out.flush()),
            Self::Part(part) => part.commit(at),
        }
    }

    pub(super) fn finish(self) -> Result<(), OutputError> {
        match self {
            Self::Once(destination) => destination.finish(),
            Self::Part(part) => part.finish(),
        }
    }
}
