//! The CUDA side: finds the driver and its GPUs, compiles kernels for them, launches these.
//! Starts on machines without a driver, and never panics for want of one.
//!
//! Only functions of the driver that exist since CUDA 12.0 may be called through `sys`: the bindings look a function up
//! when it is first called, and panic where the driver lacks it. So nothing of `sys` is called before
//! [`probe`] has found a driver that is new enough.

mod arch;
mod arithmetic;
mod batch;
mod compile;
mod context;
mod cubin;
mod cubin_archive;
mod cubin_cache;
mod cubin_sources;
mod declined;
mod decoder;
mod decoder_kernels;
mod device;
mod device_error;
mod device_memory;
mod driver;
mod error;
mod fault;
mod function;
mod gpu;
mod gpu_info;
mod history;
mod kernels;
mod layers;
mod libraries;
mod listed;
mod matrix;
mod memory;
mod nvrtc;
mod ops;
mod packing;
mod pinned;
mod pinned_buffers;
mod pool_probe;
mod progress;
mod scan_plan;
mod sources;
mod stream;
mod telemetry;
mod threads;
mod tiles;
mod topology;
mod trace;
mod variants;
mod vector_signs;
mod vectors;
mod visible;
mod vmm;
mod weights;
mod xids;

pub(crate) use cudarc::driver::sys;

pub use arch::Arch;
pub use compile::{KernelSpec, Needs, compile};
pub use context::{CONTEXT_BYTES, CONTEXT_BYTES_SEEN, Context, MemoryOptions, memory_of};
pub use cubin::stack_bytes;
pub use cubin_archive::{ARCHIVE_FILE, ArchiveError, CubinArchive};
pub use cubin_cache::{CubinCache, CubinKey};
pub use cubin_sources::{KernelError, KernelSources};
pub use declined::{Declined, LEAST_CAPABILITY, LEAST_DRIVER};
pub use decoder::{
    CudaDecoderOps, DecoderActs, DecoderLinear, DecoderNorm, DecoderPages, DecoderRope, decoder_linear_bytes,
};
pub use device::{Cuda, CudaOptions};
pub use device_error::DeviceError;
pub use error::CudaError;
pub use fault::InjectedFault;
pub use function::{Function, LaunchShape};
pub use gpu::{probe, resolve, shown, usable};
pub use gpu_info::GpuInfo;
pub use kernels::Kernels;
pub use layers::{DeviceBias, DeviceEmbedding, DeviceNorm, Linear};
pub use libraries::SearchPath;
pub use listed::may_have_gpu;
pub use matrix::Acts;
pub use nvrtc::{CompileError, Nvrtc};
pub use ops::CudaOps;
pub use pool_probe::{PoolProbe, ProbeBlock};
pub use telemetry::{Sample, Telemetry, Throttle};
pub use topology::{GpuPath, Links, Peer};
pub use variants::{all_specs, covering_specs};
pub use vectors::{Near, Scan, Vectors};
pub use visible::Visible;
pub use weights::{Arriving, OnFilled, Site, WeightsBlock};
pub use xids::XidWatch;
