//! Gives kernels that can be launched, and keeps them.
//! Launches nothing.

use super::arch::Arch;
use super::compile::KernelSpec;
use super::context::Context;
use super::cubin_sources::{CubinSources, KernelError};
use super::function::Function;
use super::threads::on_threads;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The kernels of one GPU.
#[derive(Debug)]
pub struct Kernels {
    context: Arc<Context>,
    sources: CubinSources,
    loaded: Mutex<HashMap<KernelSpec, Function>>,
}

impl Kernels {
    /// The kernels for a context's GPU; nothing is compiled yet.
    pub(super) fn new(context: Arc<Context>, sources: CubinSources) -> Self {
        Self { context, sources, loaded: Mutex::default() }
    }

    /// The context that the kernels are loaded in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// What they are compiled for.
    pub fn arch(&self) -> Arch {
        self.sources.arch()
    }

    /// A kernel, compiled and loaded if it is not yet.
    pub fn function(&self, spec: &KernelSpec) -> Result<Function, KernelError> {
        if let Some(function) = self.known(spec) {
            return Ok(function);
        }
        // Nothing is locked meanwhile: two threads that want the same kernel may both make it, and the first stays.
        let function = self.sources.load(spec, |cubin| Function::load(&self.context, cubin, spec.entry))?;
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
}
