//! Rules for Rust, and the first lines of Python: what the file says of itself, lints, unsafe code, names.
//! Looks at code only where a comment or a string could mislead.

use super::Finding;
use super::scan::code_only;
use super::text_rules::has_word;
use super::tree::{Kind, SourceFile};

/// Where unsafe code may stand: a folder ends with `/`.
const UNSAFE_PLACES: [&str; 6] = [
    "crates/magray-device/src/cpu/",
    "crates/magray-device/src/cuda/",
    "crates/magray-device/src/scan/kernels/",
    "/mapped.rs",
    "crates/magray-device/src/shared_memory.rs",
    "crates/magray-python/src/program.rs",
];

const EMPTY_NAMES: [&str; 8] = ["util", "utils", "helper", "helpers", "manager", "common", "misc", "stuff"];

pub(super) fn check(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    match file.kind {
        Kind::Rust => {
            let code = code_only(&file.text);
            findings.extend(head(file));
            findings.extend(empty_names(file, &code));
            findings.extend(attributes(file, &code));
            findings.extend(forbidden_code(file, &code));
        }
        Kind::Python => {
            let body =
                file.text.strip_prefix("#!").map_or(&*file.text, |rest| rest.split_once('\n').map_or("", |s| s.1));
            if !body.is_empty() && !body.starts_with("\"\"\"") {
                findings.push(Finding::new(file, 1, "head", "begin with a docstring that says what the file is"));
            }
        }
        _ => {}
    }
    findings
}

/// The file must begin with `//!` lines that say what it is and what it refuses; tests refuse nothing.
fn head(file: &SourceFile) -> Option<Finding> {
    let lines: Vec<&str> = file.text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
    // A stop within a word, as in `.npy`, ends no sentence.
    let ends_sentence = |word: &&str| word.ends_with(['.', ':', ';', '!', '?']);
    let sentences = lines.iter().flat_map(|line| line.split_whitespace()).filter(ends_sentence).count();
    let filled = lines.iter().filter(|line| !line.is_empty()).count();
    let is_test = file.path.ends_with("/tests.rs") || file.path.contains("/tests/");
    let wanted = if is_test { 1 } else { 2 };
    (filled.max(sentences) < wanted).then(|| {
        let message = "begin with `//!` and two sentences: what the file is, and what it refuses or leaves to others";
        Finding::new(file, 1, "head", message)
    })
}

fn empty_names(file: &SourceFile, code: &str) -> Vec<Finding> {
    let says_nothing = |name: &str| name.split('_').any(|part| EMPTY_NAMES.contains(&part));
    let mut findings = Vec::new();
    let mut report = |line, name: &str| {
        findings.push(Finding::new(file, line, "names", format!("'{name}' says nothing: name the thing it is")));
    };
    for part in file.path.split('/').map(|part| part.strip_suffix(".rs").unwrap_or(part)) {
        if says_nothing(part) {
            report(0, part);
        }
    }
    for (index, line) in code.lines().enumerate() {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        if let Some(name) = words.by_ref().skip_while(|word| *word != "mod").nth(1)
            && says_nothing(name)
        {
            report(index + 1, name);
        }
    }
    findings
}

/// `allow` and `expect` must give a reason.
fn attributes(file: &SourceFile, code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for opening in ["#[allow(", "#![allow(", "#[expect(", "#![expect("] {
        for (at, _) in code.match_indices(opening) {
            let attribute = code[at..].split(")]").next().unwrap_or_default();
            if !has_word(attribute, "reason") {
                let line = code[..at].matches('\n').count() + 1;
                let message = "say why: `#[expect(lint, reason = \"...\")]`, which also notices when it is not needed";
                findings.push(Finding::new(file, line, "reasons", message));
            }
        }
    }
    findings
}

fn forbidden_code(file: &SourceFile, code: &str) -> Vec<Finding> {
    let may_be_unsafe = UNSAFE_PLACES
        .iter()
        .any(|place| if place.ends_with('/') { file.path.starts_with(place) } else { file.path.ends_with(place) });
    let mut findings = Vec::new();
    for (index, line) in code.lines().enumerate() {
        for name in ["todo", "unimplemented"] {
            if has_word(line, name) && line.contains(&format!("{name}!")) {
                findings.push(Finding::new(file, index + 1, "unfinished", format!("{name}!: write the code")));
            }
        }
        if !may_be_unsafe && has_word(line, "unsafe") {
            let message = format!("unsafe code may stand only in {}", UNSAFE_PLACES.join(", "));
            findings.push(Finding::new(file, index + 1, "unsafe", message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "//! Forms batches. Never waits.\n";

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        check(&SourceFile::new(path, text)).into_iter().map(|finding| (finding.line, finding.rule)).collect()
    }

    fn rules_of_body(body: &str) -> Vec<(usize, &'static str)> {
        rules("crates/magray/src/a.rs", &format!("{HEAD}{body}\n"))
    }

    #[test]
    fn the_head_wants_two_sentences_or_two_lines() {
        assert_eq!(rules("a.rs", HEAD), []);
        assert_eq!(rules("a.rs", "//! Forms batches\n//! and never waits\n"), []);
        assert_eq!(rules("a.rs", "//! Forms batches.\nfn f() {}\n"), [(1, "head")]);
        assert_eq!(rules("a.rs", "//! Writes .npy and so on.\n"), [(1, "head")]);
        assert_eq!(rules("a.rs", "// Forms batches. Never waits.\n"), [(1, "head")]);
        assert_eq!(rules("a.rs", ""), [(1, "head")]);
    }

    #[test]
    fn tests_need_not_say_what_they_refuse() {
        assert_eq!(rules("crates/a/src/b/tests.rs", "//! Tests of b.\n"), []);
        assert_eq!(rules("crates/a/tests/b.rs", "//! Tests of b.\n"), []);
        assert_eq!(rules("crates/a/tests/b.rs", "fn f() {}\n"), [(1, "head")]);
    }

    #[test]
    fn python_begins_with_a_docstring() {
        assert_eq!(rules("a.py", "\"\"\"Says what it is.\"\"\"\n"), []);
        assert_eq!(rules("bench/x", "#!/usr/bin/env python3\n\"\"\"Says.\"\"\"\n"), []);
        assert_eq!(rules("bench/x", "#!/usr/bin/env python3\nimport os\n"), [(1, "head")]);
        assert_eq!(rules("a/__init__.py", ""), []);
    }

    #[test]
    fn names_that_say_nothing_are_found_in_paths_and_modules() {
        assert_eq!(rules("crates/a/src/model_manager.rs", HEAD), [(0, "names")]);
        assert_eq!(rules("crates/a/tests/common/mod.rs", HEAD), [(0, "names")]);
        assert_eq!(rules_of_body("pub(crate) mod utils;"), [(2, "names")]);
        assert_eq!(rules_of_body("mod helper {\n}"), [(2, "names")]);
        assert_eq!(rules_of_body("mod commonplace; // mod utils"), []);
    }

    #[test]
    fn an_attribute_without_a_reason_is_found() {
        assert_eq!(rules_of_body("#[allow(dead_code)]"), [(2, "reasons")]);
        assert_eq!(rules_of_body("#![expect(\n  dead_code\n)]"), [(2, "reasons")]);
        assert_eq!(rules_of_body("#[expect(dead_code, reason = \"later\")]"), []);
        assert_eq!(rules_of_body("// #[allow(dead_code)]"), []);
    }

    #[test]
    fn unfinished_code_is_found() {
        assert_eq!(rules_of_body("fn f() { todo!() }"), [(2, "unfinished")]);
        assert_eq!(rules_of_body("fn f() {\n    unimplemented!(\"x\")\n}"), [(3, "unfinished")]);
        assert_eq!(rules_of_body("let s = \"todo!()\";"), []);
    }

    #[test]
    fn unsafe_code_has_its_places() {
        let text = format!("{HEAD}unsafe fn f() {{}}\n");
        assert_eq!(rules("crates/magray-engine/src/weights.rs", &text), [(2, "unsafe")]);
        assert_eq!(rules("crates/magray-device/src/cpu/gemm.rs", &text), []);
        assert_eq!(rules("crates/magray-device/src/mapped.rs", &text), []);
        assert_eq!(rules("crates/magray-device/src/cpu.rs", &text), [(2, "unsafe")]);
        assert_eq!(rules_of_body("#![forbid(unsafe_code)] // unsafe"), []);
    }
}
