//! Tells the program what it is built from and with.
//! Changes nothing in the program but the answer of `magray version`.

use std::{env, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let rustc = said(&variable("RUSTC"), &["-V"]).unwrap_or_default();
    let profile = variable("PROFILE");
    // A debug build is not made again for every commit.
    let commit = match profile.as_str() {
        "release" => {
            if let Some(log) = said("git", &["rev-parse", "--git-path", "logs/HEAD"]) {
                println!("cargo::rerun-if-changed={log}");
            }
            said("git", &["rev-parse", "HEAD"])
        }
        _ => None,
    };
    for (name, value) in [
        ("COMMIT", commit.unwrap_or_else(|| "unknown".to_owned())),
        ("TARGET", variable("TARGET")),
        ("PROFILE", profile),
        ("RUSTC", rustc),
    ] {
        println!("cargo::rustc-env=BUILT_MAGRAY_{name}={value}");
    }
}

/// What a program prints, if it can be run and succeeds.
fn said(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
