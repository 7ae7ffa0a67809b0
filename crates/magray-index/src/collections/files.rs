//! Files of the folder: names that any collection can have, replacing files whole, making renames durable.
//! Knows nothing of what is in them.

use crate::store::io_failure;
use crate::{Error, Result};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// The longest name; escaped it must fit into a file's name.
const NAME_BYTES_MAX: usize = 80;

/// Refuses names that cannot be a folder's, or that clients cannot put into an address.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    let wrong = ['/', '\\', '<', '>', ':', '"', '|', '?', '*', '\0', '\u{1f}'];
    let is_wrong = name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(wrong) || name.starts_with('.');
    if is_wrong || name.chars().any(char::is_control) {
        return Err(Error::bad(format!(
            "'{name}' cannot be the name of {what}: use 1 to {NAME_BYTES_MAX} bytes without / \\ < > : \" | ? * and control \
             characters, not starting with a point"
        )));
    }
    Ok(())
}

/// Replaces a file by one with these bytes: there is always the old one or the new one.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    let write = || {
        let mut file = File::create(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        sync_folder(path.parent().unwrap_or(Path::new(".")))
    };
    write().map_err(|error| io_failure("writing a file of the collections", &error))
}

/// Makes a folder and those around it, and their names durable.
pub(crate) fn make_folder(folder: &Path) -> std::io::Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.is_dir()).collect();
    fs::create_dir_all(folder)?;
    let outer = |folder: &Path| folder.parent().filter(|outer| !outer.as_os_str().is_empty()).map(Path::to_owned);
    missing.into_iter().try_for_each(|folder| sync_folder(&outer(folder).unwrap_or(".".into())))
}

/// Makes renames and new names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> std::io::Result<()> {
    // Windows has no such thing: names are durable with the files.
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// Makes a whole file durable, and then its name.
pub(crate) fn sync_file(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}
