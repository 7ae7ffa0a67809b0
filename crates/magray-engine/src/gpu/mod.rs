//! The GPU as the engine sees it: how it may be used, what it is like, why it failed.
//! Launches nothing: that is the executor's.

mod error;
mod hardware;
mod memory;
mod sandbox;
mod survey;

pub use error::GpuError;
pub use hardware::find;
pub(crate) use hardware::free_bytes;
pub use magray_device::cuda::{
    ArchiveError, CONTEXT_BYTES, CONTEXT_BYTES_SEEN, CudaError, Declined, GpuInfo, GpuPath, KernelSources, Links,
    MemoryOptions, Peer, PoolProbe, ProbeBlock, Sample, SearchPath, Throttle, Visible,
};
pub use memory::{MemoryAccounts, MemoryStats};
pub use sandbox::{SandboxMode, UnknownMode};
pub use survey::{GpuStatus, Survey};

use magray_core::{PrecisionChoice, Rules};
use magray_device::cuda::ARCHIVE_FILE;
use std::path::PathBuf;

/// The archive of compiled kernels that lies beside this program; `None`: there is none.
pub fn carried_kernels() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.parent()?.join(ARCHIVE_FILE);
    // Messages to workers carry paths as UTF-8.
    (path.is_file() && path.to_str().is_some()).then_some(path)
}

/// How GPUs may be used.
#[derive(Clone, Debug)]
pub struct GpuOptions {
    /// When a GPU is used, and how much of it.
    pub rules: Rules,
    /// The GPU that is meant where none is named.
    pub device_id: usize,
    /// The arithmetic where the caller leaves it open.
    pub precision: PrecisionChoice,
    /// Streams that work side by side.
    pub streams: usize,
    /// Where the libraries are.
    pub search: SearchPath,
    /// Which GPUs may be seen.
    pub visible: Visible,
    /// The setting that hides GPUs, where it was no variable.
    pub visible_by: Option<&'static str>,
    /// The folder of compiled kernels; without it they are compiled in every process.
    pub kernel_cache: Option<PathBuf>,
    /// The archive of compiled kernels that came with the program; without it kernels that are not in the cache are compiled.
    pub kernel_archive: Option<PathBuf>,
    /// The file of measured speeds; without it they are measured in every process.
    pub score_cache: Option<PathBuf>,
    /// The file of GPUs that are out of service; without it none is.
    pub state_file: Option<PathBuf>,
    /// A file to write down what memory of the GPU is taken and given back, for comparisons of allocators.
    pub memory_trace: Option<PathBuf>,
    /// How far the processes that hold GPUs for an engine must be confined.
    pub sandbox: SandboxMode,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            device_id: 0,
            precision: PrecisionChoice::Auto,
            streams: 2,
            search: SearchPath::system(),
            visible: Visible::all(),
            visible_by: None,
            kernel_cache: None,
            kernel_archive: None,
            score_cache: None,
            state_file: None,
            memory_trace: None,
            sandbox: SandboxMode::default(),
        }
    }
}
