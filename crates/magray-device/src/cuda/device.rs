//! One GPU as a device: holds its context and kernels, packs layers, hands out operations.
//! Computes nothing itself.

use super::arch::Arch;
use super::compile::KernelSpec;
use super::context::{Context, MemoryOptions};
use super::cubin_cache::CubinCache;
use super::cubin_sources::{CubinSources, KernelError};
use super::device_error::DeviceError;
use super::driver;
use super::function::{Function, LaunchShape};
use super::gpu_info::GpuInfo;
use super::kernels::Kernels;
use super::libraries::SearchPath;
use super::memory::Number;
use super::stream::{Stream, Urgency};
use super::variants::{self, CLUSTERS};
use magray_core::Precision;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

/// Shared memory that leaves no room for a second block on a multiprocessor.
const FILLING_BYTES: u32 = 160 * 1024;

/// Unused memory is kept for this many calls of [`Cuda::tend`]: half a minute.
const KEEP_EPOCHS: u32 = 30;

/// How a GPU is used.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Where compiled kernels are kept; `None`: nowhere, each process compiles its own.
    pub kernel_cache: Option<PathBuf>,
    /// The archive of compiled kernels that came with the program; `None`: none did.
    pub kernel_archive: Option<PathBuf>,
    /// Where the kernels' compiler is looked for.
    pub search: SearchPath,
    /// Uses the kernels that run on every GPU also where faster ones exist: for tests and comparisons.
    pub portable_kernels: bool,
    /// The most that this process may take of the GPU's memory, its context included; `None`: all there is.
    pub memory_limit_bytes: Option<u64>,
    /// Leaves memory to the driver's pool also where it could be mapped: for tests and comparisons.
    pub memory_by_driver: bool,
    /// A file to write down what memory is taken and given back, for comparisons.
    pub trace: Option<PathBuf>,
    /// Keep host weights page-locked (`cuMemHostRegister`); `None`: where that pays.
    pub keeps_registered: Option<bool>,
}

/// A GPU.
#[derive(Debug)]
pub struct Cuda {
    context: Arc<Context>,
    /// Brings weights to the GPU, beside all passes.
    copies: Arc<Mutex<Stream>>,
    kernels: Kernels,
    has_wgmma: bool,
    is_portable: bool,
    overlaps: bool,
    /// How many clusters of 1, 2, ... blocks that each fill a multiprocessor run at once.
    clusters_at_once: OnceLock<Vec<usize>>,
    /// The form of 16-bit activations of models in this GPU's best precision.
    sixteen: Number,
}

impl Cuda {
    /// Opens a GPU that [`super::probe`] found. Nothing is compiled yet.
    pub fn open(gpu: &GpuInfo, options: CudaOptions) -> Result<Arc<Self>, DeviceError> {
        let memory = MemoryOptions {
            limit_bytes: options.memory_limit_bytes,
            by_driver: options.memory_by_driver,
            trace: options.trace,
            keeps_registered: options.keeps_registered,
        };
        let context = Context::open_with(gpu, &memory)?;
        let copies = Arc::new(Mutex::new(Stream::new(&context, Urgency::Usual)?));
        let cache = options.kernel_cache.map(CubinCache::new);
        // Recordings know such an order since this driver.
        let overlaps = gpu.capability >= (9, 0) && driver::start(&options.search).is_ok_and(|found| found >= (12, 3));
        let sources = CubinSources::new(Arch::of(gpu.capability), options.search, cache, options.kernel_archive);
        let kernels = Kernels::new(Arc::clone(&context), sources);
        let is_portable = options.portable_kernels;
        let has_wgmma = gpu.capability == (9, 0) && !is_portable;
        let sixteen = if gpu.capability >= (8, 0) { Number::Bf16 } else { Number::F16 };
        Ok(Arc::new(Self {
            context,
            copies,
            kernels,
            has_wgmma,
            is_portable,
            overlaps,
            clusters_at_once: OnceLock::new(),
            sixteen,
        }))
    }

    /// The GPU.
    pub fn gpu(&self) -> &GpuInfo {
        self.context.gpu()
    }

    /// Its context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Maintenance, to be called about once a second: unused memory goes back to the driver, and scattered memory is joined.
    /// Cheap where there is nothing to do; may run beside all other work.
    pub fn tend(&self) {
        self.context.tend(KEEP_EPOCHS);
    }

    /// Compiles and loads kernels on this many threads.
    pub fn prepare(&self, specs: &[KernelSpec], threads: usize) -> Result<(), DeviceError> {
        Ok(self.kernels.prepare(specs, threads)?)
    }

    /// The stream that weights are brought in.
    pub(super) fn copies(&self) -> &Arc<Mutex<Stream>> {
        &self.copies
    }

    pub(super) fn function(&self, spec: &KernelSpec) -> Result<Function, KernelError> {
        self.kernels.function(spec)
    }

    /// Whether products may use Hopper's own instructions.
    pub(super) fn has_wgmma(&self) -> bool {
        self.has_wgmma
    }

    /// Whether only kernels that run on every GPU are used.
    pub(super) fn is_portable(&self) -> bool {
        self.is_portable
    }

    /// Whether a kernel of a pass may be brought onto the GPU while the one ahead of it still runs.
    pub(super) fn overlaps(&self) -> bool {
        self.overlaps
    }

    pub(super) fn multiprocessors(&self) -> usize {
        self.gpu().multiprocessors as usize
    }

    /// How many clusters of this many blocks run at once, if each block fills a multiprocessor. They stay inside the GPU's
    /// groups of multiprocessors, whose sizes differ from chip to chip: only the driver knows.
    pub(super) fn clusters_at_once(&self, blocks: usize) -> usize {
        let counts = self.clusters_at_once.get_or_init(|| {
            let ask = |blocks: usize| {
                // Any kernel will do; this one is in every model.
                let function = self.function(&variants::finish()).ok()?;
                let shape = LaunchShape::new([(blocks * self.multiprocessors()) as u32, 1, 1], [384, 1, 1])
                    .with_shared_bytes(FILLING_BYTES)
                    .with_cluster(blocks as u32);
                function.clusters_at_once(&shape).ok()
            };
            CLUSTERS.map(|blocks| ask(blocks).map_or(self.multiprocessors() / blocks, |count| count as usize)).collect()
        });
        counts.get(blocks.wrapping_sub(1)).copied().unwrap_or(0)
    }

    /// How the activations of a model of this precision lie in memory.
    pub(super) fn number(&self, precision: Precision) -> Number {
        match precision {
            Precision::F32 | Precision::Tf32 => Number::F32,
            Precision::F16 => Number::F16,
            Precision::Bf16 | Precision::Int8 => self.sixteen,
        }
    }
}
