//! Checks what the compiler does not: sizes, first lines, names, layers, circles, links, words that give a machine away.
//! Reads the tree only; never mends anything.

mod circles;
mod layers;
mod links;
mod modules;
mod rust_rules;
mod scan;
mod text_rules;
mod tree;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use tree::SourceFile;

/// A file that may break a rule, with the reason. The list only shrinks: an entry that is not needed any more is an
/// error as well.
struct Exception {
    rule: &'static str,
    path: &'static str,
    reason: &'static str,
}

const EXCEPTIONS: &[Exception] = &[];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    /// From 1; 0 speaks of the whole file.
    line: usize,
    rule: &'static str,
    message: String,
}

impl Finding {
    fn new(file: &SourceFile, line: usize, rule: &'static str, message: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line, rule, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: [{}] {}", self.path, self.line, self.rule, self.message)
    }
}

pub(crate) fn check_tree(root: &Path) -> ExitCode {
    let files = match tree::read(root) {
        Ok(files) => files,
        Err(error) => {
            eprintln!("tidy: cannot read the tree: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut findings: Vec<Finding> = files.iter().flat_map(check_file).collect();
    findings.extend(files.iter().flat_map(|file| links::broken_links(file, |target| root.join(target).exists())));
    findings.extend(circles::check(&files));
    let mut complaints = without_excepted(findings, EXCEPTIONS);
    complaints.sort();
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if complaints.is_empty() {
        println!("tidy: {} files, nothing to mend", files.len());
        return ExitCode::SUCCESS;
    }
    eprintln!("tidy: {} things to mend", complaints.len());
    ExitCode::FAILURE
}

/// All rules that look at one file alone.
fn check_file(file: &SourceFile) -> Vec<Finding> {
    let mut findings = text_rules::check(file);
    findings.extend(rust_rules::check(file));
    findings.extend(layers::check(file));
    findings
}

/// Removes what the exceptions cover, and reports exceptions that cover nothing.
fn without_excepted(findings: Vec<Finding>, exceptions: &[Exception]) -> Vec<Finding> {
    let covers =
        |exception: &Exception, finding: &Finding| exception.rule == finding.rule && exception.path == finding.path;
    let stale = exceptions.iter().filter(|exception| !findings.iter().any(|finding| covers(exception, finding)));
    let stale: Vec<Finding> = stale
        .map(|exception| Finding {
            path: exception.path.to_owned(),
            line: 0,
            rule: "exceptions",
            message: format!(
                "takes no exception from '{}' any more ({}): remove it from the list",
                exception.rule, exception.reason
            ),
        })
        .collect();
    let kept = findings.into_iter().filter(|finding| !exceptions.iter().any(|exception| covers(exception, finding)));
    kept.chain(stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(path: &str) -> Finding {
        Finding { path: path.to_owned(), line: 0, rule: "length", message: "long".to_owned() }
    }

    #[test]
    fn an_exception_covers_one_rule_of_one_file() {
        let exceptions = [Exception { rule: "length", path: "a.rs", reason: "a table" }];
        assert_eq!(without_excepted(vec![long("a.rs"), long("b.rs")], &exceptions), [long("b.rs")]);
    }

    #[test]
    fn an_exception_that_is_not_needed_is_an_error() {
        let exceptions = [Exception { rule: "head", path: "a.rs", reason: "a table" }];
        let findings = without_excepted(vec![long("a.rs")], &exceptions);
        assert_eq!(findings.iter().map(|f| f.rule).collect::<Vec<_>>(), ["length", "exceptions"]);
    }

    #[test]
    fn a_finding_reads_like_a_compiler_message() {
        assert_eq!(long("a.rs").to_string(), "a.rs:0: [length] long");
    }
}
