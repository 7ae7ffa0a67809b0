//! Loads ONNX Runtime's library into this process, once: the first that can be used.
//! Never panics where it is missing, too old or broken: it says why, for each that was tried.

use crate::executors::{Failure, FailureKind, catching};
use magray_core::OnnxProvider;
use ort::LoadDynamicError;
use ort::environment::Environment;
use ort::ep::{self, ExecutionProvider};
use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The library of this process. A process can have one, whatever it is asked for later.
static LOADED: Mutex<Option<Library>> = Mutex::new(None);

/// A library that is loaded.
#[derive(Clone)]
pub struct Library {
    /// Where it was found: a path, or a name that the loader knew.
    pub path: PathBuf,
    pub(super) environment: Environment,
}

impl Library {
    /// Loads the first of these that can be used.
    pub fn load(candidates: &[PathBuf]) -> Result<Self, Failure> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = &*loaded {
            return Ok(library.clone());
        }
        let mut reasons = Vec::new();
        for path in candidates {
            match catching(|| open(path)) {
                Ok(environment) => {
                    let library = Self { path: path.clone(), environment };
                    *loaded = Some(library.clone());
                    return Ok(library);
                }
                Err(failure) => reasons.push(format!("{}: {}", path.display(), failure.message)),
            }
        }
        let tried = if reasons.is_empty() { "none was found".to_owned() } else { reasons.join("; ") };
        let message = format!(
            "ONNX Runtime's library cannot be used ({tried}): `pip install onnxruntime`, or name a library of {OLDEST} or newer by onnx.library or ORT_DYLIB_PATH"
        );
        Err(unusable(message))
    }

    /// Its version, as far as its name or its build tells.
    pub fn version(&self) -> String {
        let name = self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let by_name = name.rsplit_once(".so.").map(|(_, version)| version.to_owned());
        let by_build = || ort::info().split("git-branch=").nth(1)?.split([',', ' ']).next().map(str::to_owned);
        by_name.filter(|version| version.contains('.')).or_else(by_build).unwrap_or_else(|| "unknown".to_owned())
    }

    /// The providers that it was built with, the CPU among them. That a machine has their hardware is another matter.
    pub fn providers(&self) -> Vec<OnnxProvider> {
        OnnxProvider::ALL.into_iter().filter(|provider| is_built_in(*provider)).collect()
    }
}

/// The oldest version that has what is called here.
const OLDEST: &str = "1.17";

fn open(path: &Path) -> Result<Environment, Failure> {
    check_whole(path)?;
    let failed = |error: &dyn std::fmt::Display| unusable(error.to_string());
    let environment = ort::init_from(path).map_err(|error| match &error {
        // The loader's own words are its source.
        LoadDynamicError::Dlopen { error, .. } => failed(error.source().unwrap_or(error)),
        _ => failed(&error),
    })?;
    // What it would log by itself is returned as errors too.
    let environment = environment.with_name("magray").with_telemetry(false).build().map_err(|error| failed(&error))?;
    environment.set_log_level(ort::logging::LogLevel::Fatal);
    Ok(environment)
}

/// Refuses a file that ends before its segments do: the loader would map it, and the first use would end the process (SIGBUS).
///
/// Reads 64-bit ELF alone; other files, and names without a folder, are left to the loader.
fn check_whole(path: &Path) -> Result<(), Failure> {
    const MAGIC: &[u8] = b"\x7fELF\x02\x01";
    /// Enough for the header and about 70 segments.
    const READ_MAX: u64 = 4096;
    let Ok(file) = File::open(path) else { return Ok(()) };
    let mut start = Vec::new();
    let (Ok(length), Ok(_)) = (file.metadata().map(|data| data.len()), file.take(READ_MAX).read_to_end(&mut start))
    else {
        return Ok(());
    };
    let number = |at: u64, bytes: usize| {
        let from = start.get(usize::try_from(at).ok()?..)?.get(..bytes)?;
        Some(from.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    let end = || {
        let (table, entry, entries) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
        let segment = |at: u64| {
            let header = table.checked_add(at * entry)?;
            number(header.checked_add(0x08)?, 8)?.checked_add(number(header.checked_add(0x20)?, 8)?)
        };
        (0..entries).map(segment).try_fold(0, |end: u64, segment| Some(end.max(segment?)))
    };
    match end() {
        _ if !start.starts_with(MAGIC) => Ok(()),
        Some(end) if end <= length => Ok(()),
        _ => Err(unusable(format!("the file is truncated: it has {length} bytes"))),
    }
}

fn unusable(message: String) -> Failure {
    Failure::new(FailureKind::Transient, "onnx_library", message)
}

/// Whether the library was built with a provider.
pub(super) fn is_built_in(provider: OnnxProvider) -> bool {
    let is_there = match provider {
        OnnxProvider::TensorRt => ep::TensorRT::is_available(),
        OnnxProvider::Cuda => ep::CUDA::is_available(),
        OnnxProvider::DirectMl => ep::DirectML::is_available(),
        OnnxProvider::CoreMl => ep::CoreML::is_available(),
        OnnxProvider::OpenVino => ep::OpenVINO::is_available(),
        OnnxProvider::Cpu => Ok(true),
        OnnxProvider::Rust => Ok(false),
    };
    is_there.unwrap_or(false)
}
