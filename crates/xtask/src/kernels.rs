//! Compiles the CUDA kernels for every architecture they are made for, by NVIDIA's runtime compiler and without a GPU.
//! Installs nothing outside the build folder: where no compiler is found, pip fetches a pinned one into it.

use crate::step::{self, Lack, Outcome};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The least that is supported, then one of each generation that the kernels have a path or a table for.
const ARCHS: [&str; 4] = ["sm_75", "sm_80", "sm_89", "sm_90a"];
/// A version that knows all of these.
const COMPILER: &str = "nvidia-cuda-nvrtc==13.0.88";
/// An example of magray-device that compiles them.
const PROGRAM: &str = "compile_kernels";
/// Its exit code where it finds no compiler.
const NO_COMPILER: i32 = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forms {
    /// Enough that what is left out cannot fail alone.
    Covering,
    /// Every one; takes minutes.
    All,
}

/// Compiles all kernels; fetches the compiler first where there is none.
pub(crate) fn check(root: &Path, forms: Forms) -> Outcome {
    let target = step::target_folder(root);
    let packages = target.join("nvrtc");
    match compile(root, &target, &packages, forms) {
        Some(NO_COMPILER) => {}
        code => return outcome(code),
    }
    match fetch(&target, &packages) {
        Outcome::Done => outcome(compile(root, &target, &packages, forms)),
        other => other,
    }
}

fn outcome(code: Option<i32>) -> Outcome {
    match code {
        Some(0) => Outcome::Done,
        Some(NO_COMPILER) => Outcome::Failed(format!("{COMPILER} was fetched and does not load here")),
        _ => Outcome::Failed("mend the kernels named above".to_owned()),
    }
}

/// Runs the program; returns its exit code.
fn compile(root: &Path, target: &Path, packages: &Path, forms: Forms) -> Option<i32> {
    // Of the whole workspace, so that its dependencies have the features that they have in tests and are built once.
    let mut build = Command::new(step::cargo_program());
    build.current_dir(root).args(["build", "--quiet", "--locked", "--workspace", "--example", PROGRAM]);
    println!("   {build:?}");
    if !build.status().ok()?.success() {
        return None;
    }
    let program = format!("{PROGRAM}{}", std::env::consts::EXE_SUFFIX);
    let mut command = Command::new(target.join("debug").join("examples").join(program));
    command.current_dir(root);
    if forms == Forms::All {
        command.arg("--all");
    }
    command.arg("--python").arg(packages).arg("--keep").arg(target.join("cubins")).args(ARCHS);
    println!("   {command:?}");
    command.status().ok()?.code()
}

/// Fetches the compiler by the user's own pip: about 90 MB, once.
fn fetch(target: &Path, packages: &Path) -> Outcome {
    let Some(python) = step::python().filter(|python| step::runs(python, &["-m", "pip", "--version"])) else {
        return Outcome::LeftOut(Lack::Tool("no NVRTC, and no python3 with pip to fetch it"));
    };
    // Under another name until it is whole.
    let unfinished: PathBuf = target.join("nvrtc.part");
    let gone = |folder: &Path| !folder.exists() || std::fs::remove_dir_all(folder).is_ok();
    if !gone(&unfinished) || !gone(packages) {
        return Outcome::Failed(format!("remove '{}' and '{}'", unfinished.display(), packages.display()));
    }
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    pip.args(["--only-binary", ":all:", "--target"]).arg(&unfinished).arg(COMPILER);
    match step::passes(&mut pip, "the kernel compiler could not be fetched: the network is needed once") {
        Outcome::Done => match std::fs::rename(&unfinished, packages) {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Failed(format!("'{}' cannot be made: {error}", packages.display())),
        },
        other => other,
    }
}
