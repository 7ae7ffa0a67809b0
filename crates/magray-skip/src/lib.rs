//! Reports tests that cannot run on this machine, so that CI does not count them as passed.
//! Decides nothing: `cargo xtask ci` counts what is reported, and fails where the machine has what a test missed.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// Names the file that the reports are appended to; without it they are printed only.
const FILE: &str = "MAGRAY_SKIPPED_FILE";

/// What a test needs and the machine may not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// An NVIDIA GPU with its driver.
    Gpu,
    /// A machine without a GPU.
    NoGpu,
    /// A CPU path by its name, such as `amx`.
    CpuPath(String),
    /// NVIDIA's runtime compiler.
    Nvrtc,
    /// The default model in the store.
    Model,
    /// A user whom the system denies something: not root.
    OrdinaryUser,
    /// A device that is fast enough for the case.
    FastDevice,
    /// A kernel that confines a process to granted files.
    Landlock,
    /// A kernel that confines a process to granted system calls.
    Seccomp,
    /// A limit of open files of at least this many.
    OpenFiles(u64),
    /// An address other than loopback.
    OuterAddress,
    /// A `python3` with pip.
    Pip,
    /// ONNX Runtime's library.
    OnnxRuntime,
    /// A system that lets a process trace its child.
    Tracing,
    /// A system that lets a process mount what no other sees.
    OwnMounts,
}

/// The test that calls this runs nothing: it is skipped. The caller returns.
pub fn test(need: Need, reason: impl Display) {
    report("test", &need, &reason.to_string());
}

/// The test that calls this leaves a part out and runs the rest.
pub fn part(need: Need, reason: impl Display) {
    report("part", &need, &reason.to_string());
}

fn report(extent: &str, need: &Need, reason: &str) {
    // The harness names its threads after the tests.
    let thread = std::thread::current();
    let program = std::env::current_exe().ok().and_then(|path| path.file_stem().map(OsString::from));
    let program = program.unwrap_or_default();
    let test = format!("{}::{}", program.display(), thread.name().unwrap_or("main"));
    let line = format!("{extent}\t{}\t{test}\t{}\n", need.word(), reason.replace(['\t', '\n'], " "));
    let Some(file) = std::env::var_os(FILE) else {
        // Past the capture of the test harness: a skipped test must be seen.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {reason}");
        return;
    };
    // One write a line: tests of several processes append to the same file.
    let written =
        OpenOptions::new().create(true).append(true).open(&file).and_then(|mut to| to.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("{FILE}: cannot append to {}: {error}", file.display()));
}

impl Need {
    fn word(&self) -> Cow<'_, str> {
        Cow::Borrowed(match self {
            Self::Gpu => "gpu",
            Self::NoGpu => "no-gpu",
            Self::CpuPath(path) => path,
            Self::Nvrtc => "nvrtc",
            Self::Model => "model",
            Self::OrdinaryUser => "ordinary-user",
            Self::FastDevice => "fast-device",
            Self::Landlock => "landlock",
            Self::Seccomp => "seccomp",
            Self::OpenFiles(count) => return Cow::Owned(format!("open-files-{count}")),
            Self::OuterAddress => "outer-address",
            Self::Pip => "pip",
            Self::OnnxRuntime => "onnxruntime",
            Self::Tracing => "tracing",
            Self::OwnMounts => "own-mounts",
        })
    }
}
