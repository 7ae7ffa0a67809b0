//! Reads the files that tidy looks at. Leaves out what git ignores and what is not text.

use std::io;
use std::path::Path;
use std::process::Command;

/// What a file is written in, as far as rules differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Rust,
    Cuda,
    C,
    Python,
    TypeScript,
    Shell,
    Markdown,
    Toml,
    /// Text that people do not write by hand, such as data and lock files.
    Data,
}

#[derive(Debug)]
pub(super) struct SourceFile {
    /// Relative to the root, with `/` between the parts.
    pub(super) path: String,
    pub(super) kind: Kind,
    pub(super) text: String,
}

impl SourceFile {
    pub(super) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), kind: kind_of(path, text), text: text.to_owned() }
    }

    /// Whether people write this file by hand.
    pub(super) fn is_written(&self) -> bool {
        self.kind != Kind::Data
    }

    /// The lines with their numbers, from 1.
    pub(super) fn numbered_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.split('\n').enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// Every text file under `root` that git does not ignore; without git every file but build output.
pub(super) fn read(root: &Path) -> io::Result<Vec<SourceFile>> {
    let mut paths = match list_by_git(root) {
        Some(paths) => paths,
        None => list_by_walking(root)?,
    };
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        match std::fs::read(root.join(&path)) {
            Ok(bytes) => files.extend(String::from_utf8(bytes).ok().map(|text| SourceFile::new(&path, &text))),
            // Deleted, but not yet from git's index; or a link to a folder.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::IsADirectory) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(files)
}

fn kind_of(path: &str, text: &str) -> Kind {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("rs") => Kind::Rust,
        Some("cu" | "cuh") => Kind::Cuda,
        Some("c" | "h") => Kind::C,
        Some("py") => Kind::Python,
        Some("ts" | "tsx" | "mjs") => Kind::TypeScript,
        Some("sh") => Kind::Shell,
        Some("md") => Kind::Markdown,
        Some("toml") => Kind::Toml,
        _ => match text.lines().next() {
            Some(first) if first.starts_with("#!") && first.contains("python") => Kind::Python,
            Some(first) if first.starts_with("#!") => Kind::Shell,
            _ => Kind::Data,
        },
    }
}

fn list_by_git(root: &Path) -> Option<Vec<String>> {
    let listing = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").current_dir(root).args(listing).output().ok()?;
    let names = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<String> = names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

fn list_by_walking(root: &Path) -> io::Result<Vec<String>> {
    let mut paths = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let path = format!("{folder}{}", entry.file_name().to_string_lossy());
            match entry.file_type()? {
                kind if kind.is_dir() && !matches!(path.as_str(), "target" | ".git" | ".bench") => {
                    folders.push(format!("{path}/"));
                }
                kind if kind.is_file() => paths.push(path),
                _ => {}
            }
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_follows_the_name_or_the_first_line() {
        let cases = [
            ("a/b.rs", "", Kind::Rust),
            ("bench/compare", "#!/usr/bin/env python3\n", Kind::Python),
            (".ci/run", "#!/usr/bin/env bash\n", Kind::Shell),
            ("Cargo.lock", "version = 4\n", Kind::Data),
            ("README.md", "#!", Kind::Markdown),
        ];
        for (path, text, kind) in cases {
            assert_eq!(kind_of(path, text), kind, "{path}");
        }
    }

    #[test]
    fn git_and_walking_both_find_this_file() {
        let root = crate::repository_root();
        let here = "crates/xtask/src/tidy/tree.rs".to_owned();
        assert!(list_by_walking(root).unwrap().contains(&here));
        assert!(read(root).unwrap().iter().any(|file| file.path == here && file.kind == Kind::Rust));
    }
}
