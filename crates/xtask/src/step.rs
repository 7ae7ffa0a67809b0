//! A step of the checks: how it went, and the programs that steps run.
//! Knows no step.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// A step's outcome: done, left out (wholly or in part) for a reason, or failed with what to do about it.
pub(crate) enum Outcome {
    Done,
    LeftOut(Lack),
    Failed(String),
}

#[derive(Clone, Copy)]
pub(crate) enum Lack {
    /// A program that could be installed. Where `CI=true`, the machine is meant to have it, and the step fails.
    Tool(&'static str),
    /// Something that cannot be fetched from here.
    Network(&'static str),
}

impl Outcome {
    /// Where everything is meant to be there, a step that lacks a program fails.
    pub(crate) fn strict(self, is_ci: bool) -> Self {
        match self {
            Self::LeftOut(Lack::Tool(reason)) if is_ci => Self::Failed(format!("{reason}: install it, or unset CI")),
            other => other,
        }
    }
}

pub(crate) fn alone(name: &str, outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Done => ExitCode::SUCCESS,
        Outcome::LeftOut(Lack::Tool(reason) | Lack::Network(reason)) => {
            println!("{name}: SKIPPED: {reason}");
            ExitCode::SUCCESS
        }
        Outcome::Failed(advice) => {
            eprintln!("{name}: FAILED: {advice}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the machine is made for the checks, and its system theirs to change.
pub(crate) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

pub(crate) fn passes(command: &mut Command, advice: &str) -> Outcome {
    println!("   {command:?}");
    match command.status() {
        Ok(status) if status.success() => Outcome::Done,
        Ok(_) => Outcome::Failed(advice.to_owned()),
        Err(error) => Outcome::Failed(format!("{} does not run: {error}", command.get_program().to_string_lossy())),
    }
}

pub(crate) fn runs(program: &str, arguments: &[&str]) -> bool {
    let quiet = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

pub(crate) fn python() -> Option<&'static str> {
    // 3.10 is the first that reads the bench programs.
    let new_enough = "import sys; sys.exit(sys.version_info < (3, 10))";
    ["python3", "python"].into_iter().find(|name| runs(name, &["-c", new_enough]))
}

pub(crate) fn cargo_program() -> std::ffi::OsString {
    // The very cargo that runs xtask, so that a chosen toolchain is kept.
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

pub(crate) fn target_folder(root: &Path) -> PathBuf {
    root.join(std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from))
}

/// Fetches a Python package by the user's own pip, without what it asks for, into this folder.
pub(crate) fn fetch(package: &str, packages: &Path) -> Outcome {
    let Some(python) = python().filter(|python| runs(python, &["-m", "pip", "--version"])) else {
        return Outcome::LeftOut(Lack::Tool("it is not installed, and there is no python3 with pip to fetch it"));
    };
    // Under another name until it is whole.
    let unfinished = packages.with_extension("part");
    let gone = |folder: &Path| !folder.exists() || std::fs::remove_dir_all(folder).is_ok();
    if !gone(&unfinished) || !gone(packages) {
        return Outcome::Failed(format!("remove '{}' and '{}'", unfinished.display(), packages.display()));
    }
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    pip.args(["--only-binary", ":all:", "--target"]).arg(&unfinished).arg(package);
    match passes(&mut pip, "it could not be fetched: the network is needed once") {
        Outcome::Done => match std::fs::rename(&unfinished, packages) {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Failed(format!("'{}' cannot be made: {error}", packages.display())),
        },
        other => other,
    }
}
