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
/// Debian 10, RHEL 8, and manylinux_2_28.
pub(crate) const GLIBC: &str = "2.28";

pub(crate) fn target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Builds the crates at once, so that what they share is compiled once, and tells the folder that they are in.
pub(crate) fn build(root: &Path, crates: &[&str]) -> Result<PathBuf, Outcome> {
    let folder = step::target_folder(root);
    let [zig, zigbuild] = [("zig", ZIG), ("zigbuild", ZIGBUILD)].map(|(name, package)| (folder.join(name), package));
    for (into, package) in [&zig, &zigbuild] {
        if !into.exists() {
            done(step::fetch(package, into))?;
        }
    }
    let mut cargo = Command::new(zigbuild.0.join("bin/cargo-zigbuild"));
    cargo.current_dir(root).args(["zigbuild", "--release", "--locked"]);
    for name in crates {
        cargo.args(["--package", name]);
    }
    cargo.args(["--target", &format!("{}.{GLIBC}", target())]);
    for name in SMALL {
        cargo.args(["--config", &format!(r#"profile.release.package."{name}".opt-level="s""#)]);
    }
    for name in crates {
        cargo.args(["--config", &format!(r#"profile.release.package."{name}".strip="symbols""#)]);
    }
    // Else it looks for a zig of the user's.
    cargo.env("CARGO_ZIGBUILD_ZIG_PATH", zig.0.join("ziglang/zig"));
    done(step::passes(&mut cargo, "mend the errors above"))?;
    Ok(folder.join(target()).join("release"))
}

fn done(outcome: Outcome) -> Result<(), Outcome> {
    match outcome {
        Outcome::Done => Ok(()),
        other => Err(other),
    }
}
