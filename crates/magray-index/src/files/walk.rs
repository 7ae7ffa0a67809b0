//! Lists the files of folders, without what `.gitignore` files name, hidden files and links.
//! Opens none of them, and stops at the limit.

use std::path::{Path, PathBuf};

use ignore::WalkBuilder;

use super::{FileLimits, refused::Refused};

/// What a walk found.
#[derive(Debug, Default)]
pub struct Listed {
    /// Regular files, ordered by path, each once.
    pub files: Vec<PathBuf>,
    /// What could not be listed, and why.
    pub refused: Vec<(PathBuf, Refused)>,
    /// Whether there are more files than the limit.
    pub cut: bool,
}

/// The files below `root`; of a file, itself.
pub fn walk(root: &Path, limits: &FileLimits) -> Listed {
    let mut listed = Listed::default();
    // Links are not followed, so there are no loops. Rules of `.gitignore` hold also outside of repositories.
    let walker = WalkBuilder::new(root)
        .max_depth(Some(limits.depth))
        .require_git(false)
        .git_global(false)
        .sort_by_file_path(Path::cmp)
        .build();
    for entry in walker {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                let kind = error.io_error().map_or(std::io::ErrorKind::Other, std::io::Error::kind);
                listed.refused.push((path_of(&error).unwrap_or(root).to_owned(), Refused::Unreadable(kind)));
                continue;
            }
        };
        let Some(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            if entry.depth() == limits.depth {
                listed.refused.push((entry.into_path(), Refused::TooDeep(limits.depth)));
            }
        } else if !kind.is_file() && entry.depth() == 0 {
            listed.refused.push((entry.into_path(), Refused::NotAFile));
        } else if kind.is_file() {
            if listed.files.len() == limits.files {
                listed.cut = true;
                break;
            }
            listed.files.push(entry.into_path());
        }
    }
    listed
}

/// The path that an error is about.
fn path_of(error: &ignore::Error) -> Option<&Path> {
    match error {
        ignore::Error::WithPath { path, .. } => Some(path),
        ignore::Error::WithDepth { err, .. } | ignore::Error::WithLineNumber { err, .. } => path_of(err),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn tree() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        };
        write(".gitignore", "*.log\nbuild/\n");
        write("b.txt", "");
        write("a/deep/c.md", "");
        write("a/x.log", "");
        write("build/out.txt", "");
        write(".hidden/secret", "");
        folder
    }

    fn names(root: &Path, limits: FileLimits) -> (Vec<String>, Listed) {
        let listed = walk(root, &limits);
        let name = |path: &PathBuf| path.strip_prefix(root).expect("below").to_string_lossy().into_owned();
        (listed.files.iter().map(name).collect(), listed)
    }

    #[test]
    fn ignored_and_hidden_files_are_left_out() {
        let folder = tree();
        let (files, listed) = names(folder.path(), FileLimits::default());
        assert_eq!(files, ["a/deep/c.md", "b.txt"]);
        assert!(listed.refused.is_empty() && !listed.cut);
    }

    #[test]
    fn a_file_that_is_named_is_listed_even_if_it_is_ignored() {
        let folder = tree();
        let path = folder.path().join("a/x.log");
        assert_eq!(walk(&path, &FileLimits::default()).files, [path]);
    }

    #[test]
    fn a_walk_is_bounded() {
        let folder = tree();
        let (files, listed) = names(folder.path(), FileLimits { files: 1, ..FileLimits::default() });
        assert!(listed.cut && files == ["a/deep/c.md"]);
        let (files, listed) = names(folder.path(), FileLimits { depth: 1, ..FileLimits::default() });
        assert_eq!(files, ["b.txt"]);
        assert!(matches!(listed.refused.as_slice(), [(_, Refused::TooDeep(1))]), "{:?}", listed.refused);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_a_folder_above_is_no_loop() {
        let folder = tree();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("a/up")).expect("linked");
        assert_eq!(names(folder.path(), FileLimits::default()).0, ["a/deep/c.md", "b.txt"]);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let listed = walk(Path::new("/nowhere/at/all"), &FileLimits::default());
        assert!(listed.files.is_empty());
        assert!(matches!(listed.refused.as_slice(), [(path, _)] if path == Path::new("/nowhere/at/all")), "{listed:?}");
    }
}
