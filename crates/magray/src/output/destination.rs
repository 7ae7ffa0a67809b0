//! A place that output goes to: stdout, a file that appears only when it is whole, or a device.
//! Knows nothing of what is written.

use std::{
    fs::{self, File},
    io::{self, BufWriter, IsTerminal, Write},
    path::{Path, PathBuf},
};

use tempfile::TempPath;

use super::{OutputError, create_error, write_error};
use crate::interrupt::RemoveOnInterrupt;

pub(crate) struct Destination {
    /// Its name in messages.
    name: String,
    kind: Kind,
}

enum Kind {
    Stdout(BufWriter<io::Stdout>),
    /// A pipe or device with a name: nothing to replace.
    Device(BufWriter<File>),
    Replacement(Replacement),
}

/// A file that takes its name when it is whole.
struct Replacement {
    file: BufWriter<File>,
    temporary: TempPath,
    path: PathBuf,
    _guard: RemoveOnInterrupt,
}

impl Destination {
    /// Opens a file, or stdout for none and for `-`.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, OutputError> {
        let Some(path) = path.filter(|path| *path != Path::new("-")) else {
            return Ok(Self { name: "standard output".to_owned(), kind: Kind::Stdout(BufWriter::new(io::stdout())) });
        };
        let create_error = |reason| create_error(path, reason);
        // Through a link the file it leads to is replaced, and the link stays.
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let kind = match fs::metadata(&real) {
            Ok(metadata) if metadata.is_dir() => return Err(OutputError::IsFolder { path: path.to_owned() }),
            Ok(metadata) if !metadata.is_file() => {
                let file = File::options().write(true).open(&real).map_err(create_error)?;
                Kind::Device(BufWriter::new(file))
            }
            // Replacing needs only the folder's permission; a file that may not be written is not to be replaced.
            Ok(metadata) => {
                File::options().append(true).open(&real).map_err(create_error)?;
                Kind::Replacement(Replacement::create(real, Some(metadata.permissions())).map_err(create_error)?)
            }
            Err(_) => Kind::Replacement(Replacement::create(real, None).map_err(create_error)?),
        };
        Ok(Self { name: path.display().to_string(), kind })
    }

    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self.kind, Kind::Stdout(_)) && io::stdout().is_terminal()
    }

    /// Writes, and turns a failure into one that names the place.
    pub(crate) fn checked(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), OutputError> {
        let out: &mut dyn Write = match &mut self.kind {
            Kind::Stdout(out) => out,
            Kind::Device(out) => out,
            Kind::Replacement(out) => &mut out.file,
        };
        write(out).map_err(|reason| write_error(&self.name, reason))
    }

    /// The file itself, where one can go back in it and it is not yet visible.
    pub(super) fn seekable(&mut self) -> Option<&mut BufWriter<File>> {
        match &mut self.kind {
            Kind::Replacement(out) => Some(&mut out.file),
            Kind::Stdout(_) | Kind::Device(_) => None,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Writes what is buffered and lets the file appear under its name.
    pub(crate) fn finish(mut self) -> Result<(), OutputError> {
        self.checked(|out| out.flush())?;
        match self.kind {
            Kind::Replacement(replacement) => replacement.finish().map_err(|reason| write_error(&self.name, reason)),
            Kind::Stdout(_) | Kind::Device(_) => Ok(()),
        }
    }
}

impl Replacement {
    fn create(path: PathBuf, permissions: Option<fs::Permissions>) -> io::Result<Self> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".magray-").suffix(".part");
        // Temporary files are private by default; this one becomes an ordinary file.
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        // The kind alone: the whole error would name the temporary file, which the user did not choose.
        let created = builder.tempfile_in(folder).map_err(|error| io::Error::from(error.kind()));
        let (file, temporary) = created?.into_parts();
        if let Some(permissions) = permissions {
            file.set_permissions(permissions)?;
        }
        let guard = RemoveOnInterrupt::new(&temporary);
        Ok(Self { file: BufWriter::new(file), temporary, path, _guard: guard })
    }

    fn finish(self) -> io::Result<()> {
        // Some disks report that they are full only when the data reaches them.
        self.file.get_ref().sync_data()?;
        self.temporary.persist(&self.path).map_err(|error| error.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_only_when_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.txt");
        fs::write(&path, "old").unwrap();
        let mut out = Destination::open(Some(&path)).unwrap();
        out.checked(|out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        out.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(names_in(folder.path()), ["out.txt"]);
    }

    #[test]
    fn what_is_dropped_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut out = Destination::open(Some(&folder.path().join("out.txt"))).unwrap();
        out.checked(|out| out.write_all(b"half")).unwrap();
        drop(out);
        assert!(names_in(folder.path()).is_empty());
    }

    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let mut out = Destination::open(Some(&link)).unwrap();
        out.checked(|out| out.write_all(b"new")).unwrap();
        out.finish().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    }
}
