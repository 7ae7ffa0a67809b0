//! Fuzzes what reads requests, files and messages for a short time, led by coverage, with the stable compiler.
//! Keeps what it found in the build folder only; bytes that break something stay there and are named.

use crate::step::{self, Lack, Outcome};
use std::path::Path;
use std::process::Command;

const TARGETS: [Target; 8] = [
    Target { name: "texts", words: Some("json.dict"), bytes_max: 4096 },
    Target { name: "bodies", words: Some("json.dict"), bytes_max: 4096 },
    Target { name: "safetensors", words: Some("json.dict"), bytes_max: 4096 },
    Target { name: "gguf", words: None, bytes_max: 4096 },
    Target { name: "tokenizer", words: Some("json.dict"), bytes_max: 8192 },
    Target { name: "worker", words: None, bytes_max: 4096 },
    Target { name: "chat", words: None, bytes_max: 2048 },
    Target { name: "config", words: Some("config.dict"), bytes_max: 8192 },
];

struct Target {
    name: &'static str,
    /// A dictionary for its input.
    words: Option<&'static str>,
    bytes_max: u32,
}

/// What `cargo fuzz` asks of the compiler for coverage. Its sanitizers need a nightly one, and would find little here:
/// the readers have no unsafe code.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Ccodegen-units=1";

/// Builds the targets and runs each for this many seconds.
pub(crate) fn check(root: &Path, seconds: u32) -> Outcome {
    if !cfg!(unix) || !step::runs("c++", &["--version"]) {
        return Outcome::LeftOut(Lack::Tool("the fuzzer needs Unix and a C++ compiler (`c++`)"));
    }
    let Some(host) = host() else {
        return Outcome::Failed("`rustc -vV` does not tell its host: is rustc installed?".to_owned());
    };
    let target = step::target_folder(root).join("fuzz");
    let mut build = Command::new(step::cargo_program());
    // With a target named, what runs while building is built without the counters.
    build.current_dir(root).args(["build", "--locked", "--release", "--manifest-path", "fuzz/Cargo.toml"]);
    build.arg("--target-dir").arg(&target).args(["--target", &host]).env("RUSTFLAGS", COVERAGE);
    let built = step::passes(&mut build, "mend the errors above");
    if !matches!(built, Outcome::Done) {
        return built;
    }
    let programs = target.join(host).join("release");
    for one in TARGETS {
        let fuzzed = one.fuzz(root, &Folders { programs: &programs, kept: &target }, seconds);
        if !matches!(fuzzed, Outcome::Done) {
            return fuzzed;
        }
    }
    Outcome::Done
}

/// Folders of the built programs, and of what they find.
struct Folders<'a> {
    programs: &'a Path,
    kept: &'a Path,
}

impl Target {
    fn fuzz(&self, root: &Path, folders: &Folders<'_>, seconds: u32) -> Outcome {
        let name = self.name;
        let corpus = folders.kept.join("corpus").join(name);
        if let Err(error) = std::fs::create_dir_all(&corpus) {
            return Outcome::Failed(format!("cannot make {}: {error}", corpus.display()));
        }
        let mut fuzzer = Command::new(folders.programs.join(name));
        fuzzer.current_dir(root).env("TMPDIR", folders.kept).arg(&corpus).arg(Path::new("fuzz/seeds").join(name));
        // The seed is fixed, and so are the bounds of one run: a change that breaks something does so for everybody.
        fuzzer.args(["-seed=1", "-timeout=10", "-rss_limit_mb=1024", "-verbosity=0", "-print_final_stats=1"]);
        fuzzer.arg(format!("-max_len={}", self.bytes_max)).arg(format!("-max_total_time={seconds}"));
        fuzzer.args(self.words.map(|words| format!("-dict=fuzz/{words}")));
        fuzzer.arg(format!("-artifact_prefix={}/{name}-", folders.kept.display()));
        println!("   {fuzzer:?}");
        let done = match fuzzer.output() {
            Ok(done) => done,
            Err(error) => return Outcome::Failed(format!("the fuzzer {name} does not run: {error}")),
        };
        // It advises at length which words it would like to have; that is for people who look for more.
        let said = String::from_utf8_lossy(&done.stderr);
        if done.status.success() {
            said.lines().filter(|line| line.starts_with("stat::")).for_each(|line| println!("   {line}"));
            return Outcome::Done;
        }
        eprintln!("{said}");
        Outcome::Failed(
            "the bytes that break it stand in the file named above: make them a test, and mend it".to_owned(),
        )
    }
}

/// The target triple of this machine.
fn host() -> Option<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let told = Command::new(rustc).arg("-vV").output().ok()?;
    let told = String::from_utf8(told.stdout).ok()?;
    told.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned)
}
