//! Compiles the CUDA kernels for every architecture they are made for, by NVIDIA's runtime compiler and without a GPU.
//! Installs nothing outside the build folder: where no compiler is found, pip fetches a pinned one into it.

use crate::step::{self, Outcome};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// The least that is supported, then one of each generation that the kernels have a path or a table for.
const ARCHS: [&str; 4] = ["sm_75", "sm_80", "sm_89", "sm_90a"];
/// A version that knows all of these.
const COMPILER: &str = "nvidia-cuda-nvrtc==13.0.88";
/// Every generation that kernels are carried for.
const PACKED_ARCHS: [&str; 7] = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"];
/// The newest of CUDA 12: what it compiles runs with every driver for CUDA 12 or newer.
const PACKED_COMPILER: &str = "nvidia-cuda-nvrtc-cu12==12.9.86";
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
    let mut arguments: Vec<OsString> = if forms == Forms::All { vec!["--all".into()] } else { Vec::new() };
    arguments.extend(ARCHS.map(OsString::from));
    // Of the whole workspace, so that its dependencies have the features that they have in tests and are built once.
    compile(root, Compiler { package: COMPILER, folder: "nvrtc" }, &["--workspace"], &arguments)
}

/// Compiles all forms of all kernels for all generations of GPUs into one archive.
pub(crate) fn pack(root: &Path, file: &Path) -> Outcome {
    let mut arguments: Vec<OsString> = vec!["--all".into(), "--pack".into(), file.into()];
    arguments.extend(PACKED_ARCHS.map(OsString::from));
    let build = ["--release", "--package", "magray-device"];
    compile(root, Compiler { package: PACKED_COMPILER, folder: "nvrtc-packed" }, &build, &arguments)
}

/// A compiler that pip can fetch, and the folder of it below the build folder.
#[derive(Clone, Copy)]
struct Compiler {
    package: &'static str,
    folder: &'static str,
}

fn compile(root: &Path, compiler: Compiler, build: &[&str], arguments: &[OsString]) -> Outcome {
    let target = step::target_folder(root);
    let packages = target.join(compiler.folder);
    let run = || run(root, &target, &packages, build, arguments);
    let outcome = |code: Option<i32>| match code {
        Some(0) => Outcome::Done,
        Some(NO_COMPILER) => Outcome::Failed(format!("{} was fetched and does not load here", compiler.package)),
        _ => Outcome::Failed("mend the kernels named above".to_owned()),
    };
    match run() {
        Some(NO_COMPILER) => {}
        code => return outcome(code),
    }
    match step::fetch(compiler.package, &packages) {
        Outcome::Done => outcome(run()),
        other => other,
    }
}

/// Runs the program that compiles; its exit code.
fn run(root: &Path, target: &Path, packages: &Path, build: &[&str], arguments: &[OsString]) -> Option<i32> {
    let mut cargo = Command::new(step::cargo_program());
    cargo.current_dir(root).args(["build", "--quiet", "--locked", "--example", PROGRAM]).args(build);
    println!("   {cargo:?}");
    if !cargo.status().ok()?.success() {
        return None;
    }
    let profile = if build.contains(&"--release") { "release" } else { "debug" };
    let program = format!("{PROGRAM}{}", std::env::consts::EXE_SUFFIX);
    let mut command = Command::new(target.join(profile).join("examples").join(program));
    command.current_dir(root);
    command.arg("--python").arg(packages).arg("--keep").arg(target.join("cubins")).args(arguments);
    println!("   {command:?}");
    command.status().ok()?.code()
}
