//! Builds the release for an old glibc and makes what is published of it: `cargo xtask package`.
//! Installs nothing outside of the build folder: pip fetches the linker's sysroot and cargo-zigbuild, pinned, into it.

use crate::step::{self, Lack, Outcome};
use crate::tally::{Tally, Told};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A C compiler and linker that has the symbols of every glibc.
const ZIG: &str = "ziglang==0.15.2";
const ZIGBUILD: &str = "cargo-zigbuild==0.24.0";
/// Debian 10, RHEL 8, and manylinux_2_28.
const GLIBC: &str = "2.28";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernels {
    Packed,
    /// NVRTC compiles them on the user's machine.
    LeftOut,
}

/// Builds the program, and writes all packages into `target/packages`.
pub(crate) fn make(root: &Path, kernels: Kernels) -> Outcome {
    let Some(python) = step::python().filter(|_| cfg!(target_os = "linux")) else {
        return Outcome::LeftOut(Lack::Tool("packages are made on Linux, with python3"));
    };
    let architecture = std::env::consts::ARCH;
    let (target, folder) = (format!("{architecture}-unknown-linux-gnu"), step::target_folder(root));
    let tools = [("zig", ZIG), ("zigbuild", ZIGBUILD)].map(|(name, package)| (folder.join(name), package));
    for (packages, package) in &tools {
        if !packages.exists() {
            let fetched = step::fetch(package, packages);
            if !matches!(fetched, Outcome::Done) {
                return fetched;
            }
        }
    }
    let built = folder.join(&target).join("release/magray");
    let built = match build(root, &target, &tools.map(|(packages, _)| packages)) {
        Outcome::Done => built,
        other => return other,
    };
    let cubins = folder.join("packages/magray.cubins");
    if kernels == Kernels::Packed {
        if let Err(error) = std::fs::create_dir_all(folder.join("packages")) {
            return Outcome::Failed(format!("cannot make '{}': {error}", folder.join("packages").display()));
        }
        let packed = crate::kernels::pack(root, &cubins);
        if !matches!(packed, Outcome::Done) {
            return packed;
        }
    }
    let mut packing = Command::new(python);
    packing.current_dir(root).args(["-B", "deploy/packages/make", "--target", &target, "--newest-glibc", GLIBC]);
    packing.arg("--binary").arg(built).arg("--into").arg(folder.join("packages"));
    if kernels == Kernels::Packed {
        packing.arg("--cubins").arg(cubins);
    }
    step::passes(&mut packing, "mend what deploy/packages/make names above")
}

fn build(root: &Path, target: &str, [zig, zigbuild]: &[PathBuf; 2]) -> Outcome {
    let mut cargo = Command::new(zigbuild.join("bin/cargo-zigbuild"));
    cargo.current_dir(root).args(["zigbuild", "--release", "--locked", "--package", "magray"]);
    cargo.args(["--target", &format!("{target}.{GLIBC}")]);
    // Else it looks for a zig of the user's.
    cargo.env("CARGO_ZIGBUILD_ZIG_PATH", zig.join("ziglang/zig"));
    step::passes(&mut cargo, "mend the errors above")
}

/// The programs that make packages, on a script in place of the binary.
pub(crate) fn test(root: &Path, tally: &mut Tally) -> Outcome {
    let Some(python) = step::python() else { return Outcome::LeftOut(Lack::Tool("no python3")) };
    let mut tests = Command::new(python);
    tests.current_dir(root).args(["-B", "-m", "unittest", "discover", "--quiet", "tests/packages"]);
    match tally.count(&mut tests, Told::Stderr) {
        Ok(status) if status.success() => Outcome::Done,
        _ => Outcome::Failed("mend the tests named above (tests/packages)".to_owned()),
    }
}

/// The Helm chart, by helm itself, which is fetched once into the user's cache.
pub(crate) fn test_chart(root: &Path, tally: &mut Tally) -> Outcome {
    /// Exit code of the program where it cannot fetch helm.
    const NOT_FETCHED: i32 = 77;
    let Some(python) = step::python().filter(|_| cfg!(target_os = "linux")) else {
        return Outcome::LeftOut(Lack::Tool("no python3, or not Linux"));
    };
    let mut tests = Command::new(python);
    tests.current_dir(root).args(["-B", "tests/helm/run"]);
    match tally.count(&mut tests, Told::Stderr).map(|status| status.code()) {
        Ok(Some(0)) => Outcome::Done,
        Ok(Some(NOT_FETCHED)) => Outcome::LeftOut(Lack::Network("helm cannot be fetched here")),
        _ => Outcome::Failed("mend what the tests of the chart name above (tests/helm)".to_owned()),
    }
}
