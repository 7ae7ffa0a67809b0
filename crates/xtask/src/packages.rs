//! Builds the release for an old glibc and makes what is published of it: `cargo xtask package`.
//! Knows nothing of what is in them: `deploy/packages/make` lays them out.

use crate::old_glibc::{self, GLIBC};
use crate::step::{self, Lack, Outcome};
use crate::tally::{Tally, Told};
use std::path::Path;
use std::process::Command;

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
    let folder = step::target_folder(root);
    let built = match old_glibc::build(root, "magray", &[]) {
        Ok(release) => release.join("magray"),
        Err(outcome) => return outcome,
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
    packing.current_dir(root).args([
        "-B",
        "deploy/packages/make",
        "--target",
        &old_glibc::target(),
        "--newest-glibc",
        GLIBC,
    ]);
    packing.arg("--binary").arg(built).arg("--into").arg(folder.join("packages"));
    if kernels == Kernels::Packed {
        packing.arg("--cubins").arg(cubins);
    }
    step::passes(&mut packing, "mend what deploy/packages/make names above")
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
