//! Builds the Python package for an old glibc: `cargo xtask wheel`.
//! Installs nothing outside of the build folder: pip fetches the linker's C library and cargo-zigbuild, pinned, into it.

use crate::step::{self, Lack, Outcome};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Its C library is that of any glibc; the newest of the series that cargo-zigbuild was made for.
const ZIG: &str = "ziglang==0.15.2";
const ZIGBUILD: &str = "cargo-zigbuild==0.24.0";
/// Debian 10, RHEL 8, and manylinux_2_28.
const GLIBC: &str = "2.28";

/// Builds the native part and the program at once, so that what both need is compiled once, and packs them.
pub(crate) fn make(root: &Path) -> Outcome {
    let Some(python) = step::python().filter(|_| cfg!(target_os = "linux")) else {
        return Outcome::LeftOut(Lack::Tool("wheels are made on Linux, with python3"));
    };
    let (target, folder) = (format!("{}-unknown-linux-gnu", std::env::consts::ARCH), step::target_folder(root));
    let tools = [("zig", ZIG), ("zigbuild", ZIGBUILD)].map(|(name, package)| (folder.join(name), package));
    for (packages, package) in &tools {
        if !packages.exists() {
            let fetched = step::fetch(package, packages);
            if !matches!(fetched, Outcome::Done) {
                return fetched;
            }
        }
    }
    let built = build(root, &target, &tools.map(|(packages, _)| packages));
    if !matches!(built, Outcome::Done) {
        return built;
    }
    let release = folder.join(&target).join("release");
    let mut packing = Command::new(python);
    packing.current_dir(root).args(["-B", "crates/magray-python/pack"]);
    packing.arg("--library").arg(release.join("lib_magray.so")).arg("--program").arg(release.join("magray"));
    packing.args(["--glibc", GLIBC]).arg("--into").arg(folder.join("wheels"));
    step::passes(&mut packing, "mend what crates/magray-python/pack names above")
}

fn build(root: &Path, target: &str, [zig, zigbuild]: &[PathBuf; 2]) -> Outcome {
    let mut cargo = Command::new(zigbuild.join("bin/cargo-zigbuild"));
    cargo.current_dir(root).args(["zigbuild", "--release", "--locked", "-p", "magray", "-p", "magray-python"]);
    cargo.args(["--target", &format!("{target}.{GLIBC}")]);
    // The program is asked for where it is looked up first.
    cargo.env("CARGO_ZIGBUILD_ZIG_PATH", zig.join("ziglang/zig"));
    step::passes(&mut cargo, "mend the errors above")
}
