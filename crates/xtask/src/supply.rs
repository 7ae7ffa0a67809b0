//! Checks what comes from others by `deny.toml`: licences, bans, sources and advisories, of both lock files.
//! Installs nothing outside the build folder; advisories are checked where their database can be had, and never in silence.

use crate::step::{self, Lack, Outcome};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Built without optimisation: 100 seconds of one core, where an optimised one takes several times as long.
const VERSION: &str = "0.20.2";
const MANIFESTS: [&str; 2] = ["Cargo.toml", "fuzz/Cargo.toml"];

/// Checks both lock files; fetches the tool first where there is none.
pub(crate) fn check(root: &Path) -> Outcome {
    let program = match find(root) {
        Ok(program) => program,
        Err(failed) => return failed,
    };
    let advice = "mend what is named above, or say in deny.toml why it may stay";
    for manifest in MANIFESTS {
        let mut command = deny(root, &program, manifest);
        command.args(["check", "licenses", "bans", "sources"]);
        let outcome = step::passes(&mut command, advice);
        if !matches!(outcome, Outcome::Done) {
            return outcome;
        }
    }
    // A copy that was fetched before serves where the network does not.
    let fetched =
        deny(root, &program, MANIFESTS[0]).args(["fetch", "db"]).status().is_ok_and(|status| status.success());
    if !fetched && !has_database() {
        return Outcome::LeftOut(Lack::Network(
            "the database of advisories cannot be fetched, and there is no copy of it",
        ));
    }
    for manifest in MANIFESTS {
        let mut command = deny(root, &program, manifest);
        if !fetched {
            command.arg("--offline");
        }
        let outcome = step::passes(command.args(["check", "advisories"]), advice);
        if !matches!(outcome, Outcome::Done) {
            return outcome;
        }
    }
    if fetched {
        Outcome::Done
    } else {
        Outcome::LeftOut(Lack::Network(
            "advisories were checked by an older copy of their database: it cannot be fetched",
        ))
    }
}

fn deny(root: &Path, program: &Path, manifest: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root).args(["--locked", "--config", "deny.toml", "--manifest-path", manifest]);
    command
}

/// The user's cargo-deny if it is of the same series, else one in the build folder.
fn find(root: &Path) -> Result<PathBuf, Outcome> {
    let series = VERSION.rsplit_once('.').map_or(VERSION, |(series, _)| series);
    let told = Command::new("cargo-deny").arg("--version").output();
    // Older ones do not read what today's cargo tells, or know other settings.
    if told.is_ok_and(|told| String::from_utf8_lossy(&told.stdout).starts_with(&format!("cargo-deny {series}."))) {
        return Ok(PathBuf::from("cargo-deny"));
    }
    let folder = step::target_folder(root).join("cargo-deny").join(VERSION);
    let program = folder.join("bin").join(format!("cargo-deny{}", std::env::consts::EXE_SUFFIX));
    if program.is_file() {
        return Ok(program);
    }
    let mut install = Command::new(step::cargo_program());
    install.current_dir(root).args(["install", "--quiet", "--locked", "--debug", "cargo-deny", "--version", VERSION]);
    // Built in a folder that is removed, and without what only debuggers read.
    install.arg("--root").arg(&folder).env_remove("CARGO_TARGET_DIR").env("CARGO_PROFILE_DEV_DEBUG", "0");
    match step::passes(&mut install, "cargo-deny cannot be installed: the network is needed once") {
        Outcome::Done => Ok(program),
        other => Err(other),
    }
}

fn has_database() -> bool {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let copies = home.and_then(|home| std::fs::read_dir(home.join("advisory-dbs")).ok());
    copies.into_iter().flatten().flatten().any(|entry| entry.path().join("crates").is_dir())
}
