//! Builds a release that an old glibc runs. Packs nothing.
//! Installs nothing outside of the build folder: pip fetches zig and cargo-zigbuild, pinned, into it.

use crate::step::{self, Outcome};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A C compiler and linker that has the symbols of every glibc; the newest of the series that cargo-zigbuild was made for.
const ZIG: &str = "ziglang==0.15.2";
const ZIGBUILD: &str = "cargo-zigbuild==0.24.0";
/// Crates of what is published that compute nothing for long, and are most of its bytes: optimised for size.
const SMALL: &[&str] = &[
    "clap_builder",
    "clap_complete",
    "clap_mangen",
    "html5gum",
    "lopdf",
    "magray",
    "magray-python",
    "minijinja",
    "opentelemetry",
    "opentelemetry-otlp",
    "opentelemetry_sdk",
    "parquet",
    "ratatui-core",
    "ratatui-widgets",
    "rmcp",
    "rustyline",
    "saphyr-parser",
    "schemars",
    "utoipa",
];
/// What is linked whole. Both for both, so that they share what they are made of.
const PUBLISHED: &[&str] = &["magray", "magray-python"];
/// Debian 10, RHEL 8, and manylinux_2_28.
pub(crate) const GLIBC: &str = "2.28";

pub(crate) fn target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Builds a crate with these features of its own, and tells the folder that it is in.
pub(crate) fn build(root: &Path, name: &str, features: &[&str]) -> Result<PathBuf, Outcome> {
    let folder = step::target_folder(root);
    fetched(&folder)?;
    let mut cargo = Command::new(folder.join("zigbuild/bin/cargo-zigbuild"));
    cargo.current_dir(root).args(["zigbuild", "--release", "--locked", "--package", name]);
    cargo.args(["--features", &features.join(",")]);
    cargo.args(["--target", &format!("{}.{GLIBC}", target())]);
    // One unit a crate: less is there twice.
    cargo.args(["--config", "profile.release.codegen-units=1"]);
    // Of these alone: all others would be compiled anew.
    for name in PUBLISHED {
        cargo.args(["--config", &format!(r#"profile.release.package."{name}".strip="symbols""#)]);
    }
    for name in SMALL {
        cargo.args(["--config", &format!(r#"profile.release.package."{name}".opt-level="s""#)]);
    }
    // Else it looks for a zig of the user's.
    cargo.env("CARGO_ZIGBUILD_ZIG_PATH", zig(&folder));
    done(step::passes(&mut cargo, "mend the errors above"))?;
    Ok(folder.join(target()).join("release"))
}

/// Compiles a program of one file of C.
pub(crate) fn compile(root: &Path, source: &Path, into: &Path) -> Outcome {
    let folder = step::target_folder(root);
    if let Err(outcome) = fetched(&folder) {
        return outcome;
    }
    if let Some(Err(error)) = into.parent().map(std::fs::create_dir_all) {
        return Outcome::Failed(format!("cannot make the folder of '{}': {error}", into.display()));
    }
    let mut compiler = Command::new(zig(&folder));
    let architecture = std::env::consts::ARCH;
    compiler.args(["cc", "-target", &format!("{architecture}-linux-gnu.{GLIBC}"), "-O2", "-s"]);
    compiler.args(["-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]).arg(source).arg("-o").arg(into);
    step::passes(compiler.current_dir(root), "mend the errors above")
}

fn zig(folder: &Path) -> PathBuf {
    folder.join("zig/ziglang/zig")
}

/// Fetches both into the build folder, once.
fn fetched(folder: &Path) -> Result<(), Outcome> {
    for (name, package) in [("zig", ZIG), ("zigbuild", ZIGBUILD)] {
        let into = folder.join(name);
        if !into.exists() {
            done(step::fetch(package, &into))?;
        }
    }
    Ok(())
}

fn done(outcome: Outcome) -> Result<(), Outcome> {
    match outcome {
        Outcome::Done => Ok(()),
        other => Err(other),
    }
}
