//! Rules for every file that people write: length, blanks, marks of unfinished work, words of a machine.
//! Knows no language.

use super::Finding;
use super::tree::{Kind, SourceFile};

/// A longer file is to be split.
const MOST_LINES: usize = 600;

/// Marks of unfinished work. Written in halves, so that this file may stand in the tree that it checks.
const MARKS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// How git marks two versions of a place that could not be merged.
const CONFLICTS: [&str; 2] = [concat!("<<<<", "<<< "), concat!(">>>>", ">>> ")];

/// The roots of paths that exist on one machine only.
const MACHINE_ROOTS: [&str; 4] =
    [concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];

/// Hosts of package registries: the user's own tools know theirs, which may be another.
const REGISTRIES: [&str; 5] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("npmjs", ".org"),
    concat!("npmjs", ".com"),
];

pub(super) fn check(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    // A lock file is written by its tool, which names its registry.
    if !file.path.ends_with(".lock") {
        findings.extend(machine_words(file));
    }
    if file.is_written() {
        findings.extend(blanks(file));
        findings.extend(marks(file));
    }
    if file.kind == Kind::TypeScript && !file.text.starts_with("// ") {
        findings.push(Finding::new(file, 1, "head", "the first line says what the file is: `// ...`"));
    }
    if matches!(file.kind, Kind::Rust | Kind::Cuda | Kind::C | Kind::Python | Kind::TypeScript) {
        let lines = file.text.lines().count();
        if lines > MOST_LINES {
            let message = format!("{lines} lines, at most {MOST_LINES}: split it by what it does");
            findings.push(Finding::new(file, 0, "length", message));
        }
    }
    findings
}

fn blanks(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in file.numbered_lines() {
        if line.ends_with([' ', '\t', '\r']) {
            findings.push(Finding::new(file, number, "blanks", "the line ends with a blank"));
        }
        if file.kind == Kind::Rust && line.contains('\t') {
            findings.push(Finding::new(file, number, "tabs", "indent with spaces; write \\t inside strings"));
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        findings.push(Finding::new(file, file.text.lines().count(), "blanks", "the last line does not end"));
    }
    findings
}

fn marks(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in file.numbered_lines() {
        for mark in MARKS.iter().filter(|mark| has_word(line, mark)) {
            findings.push(Finding::new(file, number, "unfinished", format!("{mark}: do it, or open an issue for it")));
        }
        if CONFLICTS.iter().any(|mark| line.starts_with(mark)) {
            findings.push(Finding::new(file, number, "conflict", "two versions that were not merged"));
        }
    }
    findings
}

fn machine_words(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in file.numbered_lines() {
        if let Some(root) = MACHINE_ROOTS.iter().find(|root| names_a_path(line, root)) {
            let message = format!("names a path under {root}, which exists on one machine only");
            findings.push(Finding::new(file, number, "machine", message));
        }
        if let Some(host) = REGISTRIES.iter().find(|host| line.contains(*host)) {
            findings.push(Finding::new(file, number, "registry", format!("names the registry {host}")));
        }
    }
    findings
}

/// Whether `word` stands in `line` with no letter, digit or underscore beside it.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Whether an absolute path under `root` stands in `line`; `../x/` and `$X/x/` are none.
fn names_a_path(line: &str, root: &str) -> bool {
    line.match_indices(root).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + root.len()..].chars().next();
        let is_absolute = !before.is_some_and(|c| c.is_alphanumeric() || "._-/})$*~".contains(c));
        is_absolute && after.is_some_and(|c| c.is_alphanumeric() || c == '.' || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        check(&SourceFile::new(path, text)).into_iter().map(|finding| (finding.line, finding.rule)).collect()
    }

    #[test]
    fn a_file_of_601_lines_is_too_long_unless_it_is_prose() {
        let text = "x\n".repeat(601);
        assert_eq!(rules("a.rs", &text), [(0, "length")]);
        assert_eq!(rules("a.py", &text), [(0, "length")]);
        assert_eq!(rules("a.cu", &text), [(0, "length")]);
        assert_eq!(rules("a.md", &text), []);
        assert_eq!(rules("a.rs", &"x\n".repeat(600)), []);
    }

    #[test]
    fn blanks_at_the_end_of_a_line_and_a_missing_end_are_found() {
        assert_eq!(rules("a.toml", "a \nb\t\nc\r\n"), [(1, "blanks"), (2, "blanks"), (3, "blanks")]);
        assert_eq!(rules("a.md", "a\nb"), [(2, "blanks")]);
        assert_eq!(rules("a.csv", "a \r\nb"), []);
    }

    #[test]
    fn tabs_are_found_in_rust_only() {
        assert_eq!(rules("a.rs", "\tx\n"), [(1, "tabs")]);
        assert_eq!(rules("a.sh", "\tx\n"), []);
    }

    #[test]
    fn marks_of_unfinished_work_are_found_as_words() {
        for mark in MARKS {
            assert_eq!(rules("a.py", &format!("# {mark}: x\n")), [(1, "unfinished")]);
            assert_eq!(rules("a.py", &format!("a{mark} {mark}_B\n")), []);
        }
    }

    #[test]
    fn conflicts_are_found() {
        for mark in CONFLICTS {
            assert_eq!(rules("a.md", &format!("{mark}HEAD\n")), [(1, "conflict")]);
        }
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        for root in MACHINE_ROOTS {
            assert_eq!(rules("a.md", &format!("in `{root}x/y`\n")), [(1, "machine")], "{root}");
            assert_eq!(rules("a.csv", &format!("{root}x\n")), [(1, "machine")], "{root}");
            assert_eq!(rules("a.md", &format!("in ..{root}x, $DIR{root}x and {root} alone\n")), [], "{root}");
        }
    }

    #[test]
    fn registries_are_found_but_in_lock_files() {
        for host in REGISTRIES {
            assert_eq!(rules("a.toml", &format!("url = \"https://{host}/x\"\n")), [(1, "registry")]);
            assert_eq!(rules("Cargo.lock", &format!("source = \"{host}\"\n")), []);
        }
    }
}
