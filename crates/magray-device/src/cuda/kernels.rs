//! Gives kernels that can be launched: from memory, from the cache on disk, or from the compiler.
//! Launches nothing.

use super::arch::Arch;
use super::compile::{KernelSpec, compile};
use super::context::Context;
use super::cubin_cache::{CubinCache, CubinKey};
use super::declined::Declined;
use super::driver;
use super::error::CudaError;
use super::function::Function;
use super::libraries::SearchPath;
use super::nvrtc::{CompileError, Nvrtc};
use super::threads::on_threads;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Why a kernel is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// It must be compiled, and there is no compiler that can.
    #[error(transparent)]
    Declined(#[from] Declined),
    /// The compiler refused it.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The driver refused it.
    #[error("the kernel '{entry}' cannot be loaded: {source}")]
    Load {
        /// The kernel.
        entry: &'static str,
        /// What the driver said.
        source: CudaError,
    },
}

/// The kernels of one GPU.
#[derive(Debug)]
pub struct Kernels {
    context: Arc<Context>,
    arch: Arch,
    search: SearchPath,
    cache: Option<CubinCache>,
    /// Looked for when the first kernel must be compiled: a machine with a full cache needs none.
    nvrtc: OnceLock<Result<Nvrtc, Declined>>,
    loaded: Mutex<HashMap<KernelSpec, Function>>,
}

impl Kernels {
    /// The kernels for a context's GPU; nothing is compiled yet. Without a cache everything is, in every process.
    pub fn new(context: Arc<Context>, search: SearchPath, cache: Option<CubinCache>) -> Self {
        let arch = Arch::of(context.gpu().capability);
        Self { context, arch, search, cache, nvrtc: OnceLock::new(), loaded: Mutex::default() }
    }

    /// The context that the kernels are loaded in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// What they are compiled for.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// A kernel, compiled and loaded if it is not yet.
    pub fn function(&self, spec: &KernelSpec) -> Result<Function, KernelError> {
        if let Some(function) = self.known(spec) {
            return Ok(function);
        }
        // Nothing is locked meanwhile: two threads that want the same kernel may both make it, and the first stays.
        let function = self.load(spec)?;
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(loaded.entry(spec.clone()).or_insert(function).clone())
    }

    /// Makes many kernels ready, on this many threads; the first failure is returned, after the others are done.
    pub fn prepare(&self, specs: &[KernelSpec], threads: usize) -> Result<(), KernelError> {
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(spec) = specs.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.function(spec)?;
            }
            Ok(())
        };
        on_threads(threads.min(specs.len()), work)
    }

    fn known(&self, spec: &KernelSpec) -> Option<Function> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).get(spec).cloned()
    }

    fn load(&self, spec: &KernelSpec) -> Result<Function, KernelError> {
        let load = |cubin: &[u8]| {
            let failed = |source| KernelError::Load { entry: spec.entry, source };
            Function::load(&self.context, cubin, spec.entry).map_err(failed)
        };
        let key = CubinKey::of(spec, self.arch);
        if let Some(cubin) = self.cache.as_ref().and_then(|cache| cache.get(&key)) {
            match load(&cubin) {
                // Made by a compiler that is too new for this driver, perhaps before a downgrade.
                Err(KernelError::Load { source, .. }) if source.is_bad_image() => {}
                result => return result,
            }
        }
        let nvrtc = self.nvrtc()?;
        let cubin = compile(nvrtc, spec, self.arch)?;
        let function = load(&cubin)?;
        if let Some(cache) = &self.cache {
            // A disk that takes no file costs time at the next start and nothing else.
            let _ = cache.put(&key, &cubin, nvrtc.version());
        }
        Ok(function)
    }

    fn nvrtc(&self) -> Result<&Nvrtc, Declined> {
        let found = self.nvrtc.get_or_init(|| find_compiler(&self.search, self.arch));
        found.as_ref().map_err(Clone::clone)
    }
}

/// A compiler for this architecture, or why there is none.
fn find_compiler(search: &SearchPath, arch: Arch) -> Result<Nvrtc, Declined> {
    let driver = driver::start(search).ok();
    if let Some(nvrtc) = Nvrtc::find(search, Some(arch), driver) {
        return Ok(nvrtc);
    }
    match Nvrtc::find(search, None, None) {
        Some(other) => Err(Declined::NvrtcTooOld { version: other.version(), arch: arch.to_string() }),
        None => Err(Declined::NoNvrtc),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_no_compiler_knows_is_told_apart_from_no_compiler() {
        let declined = find_compiler(&SearchPath::system(), Arch::of((99, 0))).unwrap_err();
        match Nvrtc::find(&SearchPath::system(), None, None) {
            Some(_) => assert_eq!(declined.code(), "nvrtc_too_old"),
            None => assert_eq!(declined.code(), "no_nvrtc"),
        }
    }
}
