//! The primary context of one GPU, and all memory that is handed out in it.
//! Owns no stream and no kernel.

use super::device_memory::{DeviceMemory, MemoryPlan, Taken};
use super::driver;
use super::error::CudaError;
use super::gpu_info::GpuInfo;
use super::libraries::SearchPath;
use super::pinned::{self, PinnedMemory};
use super::progress::Progress;
use super::sys::{self, CUresult};
use super::trace::Trace;
use magray_core::pool::{PoolStats, StreamId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a context and the kernels in it may take of a GPU beside the memory that is handed out: [`CONTEXT_BYTES_SEEN`], and room for more
/// kernels and for the stack of those few that spill registers.
pub const CONTEXT_BYTES: u64 = 400 << 20;
/// What they took on an H200 (driver 580), by what the driver tells of the whole GPU while language models and embedders were served.
/// A process cannot ask for its own.
pub const CONTEXT_BYTES_SEEN: u64 = 264 << 20;

/// How a context's memory may be used.
#[derive(Debug, Default)]
pub struct MemoryOptions {
    /// The most that this process may take of the GPU, the context included; `None`: all there is.
    pub limit_bytes: Option<u64>,
    /// Leaves memory to the driver's pool also where it could be mapped: for tests and comparisons.
    pub by_driver: bool,
    /// Where to write down what is taken and given back, for comparisons.
    pub trace: Option<std::path::PathBuf>,
    /// Keep host weights page-locked (`cuMemHostRegister`); `None`: where that pays.
    pub keeps_registered: Option<bool>,
}

/// A GPU ready for work. Costs some hundred MiB of its memory while it lives.
#[derive(Debug)]
pub struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
    gpu: GpuInfo,
    keeps_registered: Option<bool>,
    /// Gone only while the context is dropped.
    memory: Mutex<Option<DeviceMemory>>,
    pinned: Mutex<PinnedMemory>,
    streams: Mutex<Streams>,
    /// Whether memory waits for a stream: if not, streams need not be queried. Changed under the memory's own lock only.
    memory_rests: AtomicBool,
    pinned_rests: AtomicBool,
}

/// Every stream that there is, by how far it has come.
#[derive(Debug, Default)]
struct Streams {
    live: Vec<Arc<Progress>>,
    /// Ids of streams that are gone, with the points they had reached: the next stream with an id goes on from there.
    spare: Vec<(StreamId, u64)>,
    named: u32,
}

// SAFETY: a context may be used from any thread that has made it current; the driver locks what it shares.
unsafe impl Send for Context {}
// SAFETY: as above; what changes after `open` is atomic or locked.
unsafe impl Sync for Context {}

/// The memory of a GPU in bytes, free and all of it, by its place in the driver's order. `None`: the driver does not tell.
///
/// For a process whose libraries have the GPU's primary context already: else one is made for the moment.
pub fn memory_of(ordinal: usize, search: &SearchPath) -> Option<(u64, u64)> {
    driver::start(search).ok()?;
    let (mut device, mut raw) = (0, std::ptr::null_mut());
    // SAFETY: the driver is started; writes one number, and refuses an ordinal out of range.
    CudaError::check(unsafe { sys::cuDeviceGet(&mut device, i32::try_from(ordinal).ok()?) }).ok()?;
    // SAFETY: the device is one of the driver's; writes one handle, given back below.
    CudaError::check(unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, device) }).ok()?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: the context is retained; with it current, two numbers are written, and then no context is current.
    let told = unsafe {
        let bound = CudaError::check(sys::cuCtxSetCurrent(raw));
        let told = bound.and_then(|()| CudaError::check(sys::cuMemGetInfo_v2(&mut free, &mut total)));
        let _ = sys::cuCtxSetCurrent(std::ptr::null_mut());
        let _ = sys::cuDevicePrimaryCtxRelease_v2(device);
        told
    };
    told.ok().map(|()| (free as u64, total as u64))
}

impl Context {
    /// Takes the primary context of a GPU that [`super::probe`] found, and makes it current on this thread.
    pub fn open(gpu: &GpuInfo) -> Result<Arc<Self>, CudaError> {
        Self::open_with(gpu, &MemoryOptions::default())
    }

    /// As [`Context::open`], with bounds for its memory. A trace that cannot be written is left out.
    pub fn open_with(gpu: &GpuInfo, options: &MemoryOptions) -> Result<Arc<Self>, CudaError> {
        // Without a driver the bindings would panic; a GPU that was not probed can only be a wrong one.
        if !driver::is_started() {
            CudaError::check(CUresult::CUDA_ERROR_NOT_INITIALIZED)?;
        }
        let mut device = 0;
        let ordinal = i32::try_from(gpu.ordinal).unwrap_or(i32::MAX);
        // SAFETY: the driver is started; writes one number, and refuses an ordinal out of range.
        CudaError::check(unsafe { sys::cuDeviceGet(&mut device, ordinal) })?;
        let (mut flags, mut is_active) = (0, 0);
        // SAFETY: the device is one of the driver's; writes two numbers.
        CudaError::check(unsafe { sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut is_active) })?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: as above; writes one handle, given back in `drop`.
        CudaError::check(unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, device) })?;
        let context = Self {
            device,
            raw,
            gpu: gpu.clone(),
            keeps_registered: options.keeps_registered,
            memory: Mutex::new(None),
            pinned: Mutex::new(PinnedMemory::new()),
            streams: Mutex::default(),
            memory_rests: AtomicBool::new(false),
            pinned_rests: AtomicBool::new(false),
        };
        context.bind()?;
        // By default the driver holds a stack of 1 KiB for every thread that the GPU can run at once: 264 MiB on an H200.
        // Our kernels need none, or a few bytes (`cargo xtask kernels` checks it); the driver adds those at their launch. A context that
        // others of this process have already may be running such a kernel, which would lose its stack.
        if is_active == 0 {
            // SAFETY: the context is current; takes two numbers. A driver that refuses keeps its own size.
            let _ = unsafe { sys::cuCtxSetLimit(sys::CUlimit::CU_LIMIT_STACK_SIZE, 0) };
        }
        let limit = options.limit_bytes.map(|limit| limit.saturating_sub(CONTEXT_BYTES));
        let plan = MemoryPlan {
            limit_bytes: limit.unwrap_or(gpu.memory_bytes).min(gpu.memory_bytes),
            total_bytes: gpu.memory_bytes,
            by_driver: options.by_driver,
        };
        let trace = options.trace.as_deref().and_then(|path| Trace::create(path).ok());
        let memory = DeviceMemory::open(raw, device, plan, trace)?;
        *context.memory.lock().unwrap_or_else(PoisonError::into_inner) = Some(memory);
        Ok(Arc::new(context))
    }

    /// Makes this context current on the calling thread; cheap when it is already.
    pub fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as `self` lives.
        CudaError::check(unsafe { sys::cuCtxSetCurrent(self.raw) })
    }

    /// Keep host weights page-locked; `None`: where that pays.
    pub(super) fn keeps_registered(&self) -> Option<bool> {
        self.keeps_registered
    }

    /// The GPU.
    pub fn gpu(&self) -> &GpuInfo {
        &self.gpu
    }

    /// The driver's number of the GPU.
    pub(super) fn device(&self) -> sys::CUdevice {
        self.device
    }

    /// Whether kernels on this GPU can read memory of another one that is opened to them.
    pub(super) fn reads(&self, other: &Self) -> Result<bool, CudaError> {
        if self.device == other.device {
            return Ok(true);
        }
        let mut able = 0;
        // SAFETY: both devices are the driver's; writes one number.
        CudaError::check(unsafe { sys::cuDeviceCanAccessPeer(&mut able, self.device, other.device) })?;
        Ok(able != 0)
    }

    /// The memory of the GPU in bytes: free, and all of it. What other processes use is not free.
    pub fn memory_bytes(&self) -> Result<(u64, u64), CudaError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current; writes two numbers.
        CudaError::check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Memory of the GPU that buffers of this context hold; weights that were taken away are not counted.
    pub fn allocated_bytes(&self) -> u64 {
        let stats = self.device_pool_stats();
        stats.used.saturating_sub(stats.parked)
    }

    /// The most that they ever held at once.
    pub fn peak_allocated_bytes(&self) -> u64 {
        self.device_pool_stats().peak_used
    }

    /// Statistics of the pool of GPU memory.
    pub fn device_pool_stats(&self) -> PoolStats {
        self.with_memory(|memory| memory.stats())
    }

    /// Statistics of the pool of page-locked host memory.
    pub fn pinned_pool_stats(&self) -> PoolStats {
        self.pinned().stats()
    }

    /// Gives all unused memory back to the driver.
    pub fn trim(&self) {
        self.trim_device();
        if self.bind().is_ok() {
            self.pinned().trim_all();
        }
    }

    /// The same of GPU memory alone: page-locked memory takes longer to come by again.
    pub(super) fn trim_device(&self) {
        self.with_memory(|memory| memory.trim_all());
    }

    /// Maintenance, to be called about once a second: gives back what was unused for this many calls, and joins scattered
    /// memory. Cheap where there is nothing to do.
    pub fn tend(&self, keep_epochs: u32) {
        self.with_memory(|memory| memory.tend(keep_epochs));
        if self.bind().is_ok() {
            self.pinned().tend(keep_epochs);
        }
    }

    #[inline]
    pub(super) fn take(&self, bytes: usize, stream: StreamId) -> Result<Taken, CudaError> {
        // Nearly always there is memory at hand: that way is kept short.
        match self.with_memory(|memory| memory.take_at_hand(bytes as u64, stream)) {
            Some(taken) => Ok(taken),
            None => self.or_after_a_look(|memory| memory.take(bytes as u64, stream)),
        }
    }

    /// Allocates GPU memory that can be unmapped from its addresses as a whole.
    pub(super) fn take_parkable(&self, bytes: usize) -> Result<Taken, CudaError> {
        self.or_after_a_look(|memory| memory.take_parkable(bytes as u64))
    }

    /// Tries it; where no memory is free but some waits for streams, queries the streams and tries once more.
    #[cold]
    fn or_after_a_look<T>(&self, attempt: impl Fn(&mut DeviceMemory) -> Result<T, CudaError>) -> Result<T, CudaError> {
        match self.with_memory(&attempt) {
            Err(CudaError::OutOfMemory) if self.memory_rests.load(Ordering::SeqCst) => {
                self.bind()?;
                for progress in &self.streams().live {
                    progress.look();
                }
                self.wake_memory();
                self.with_memory(attempt)
            }
            result => result,
        }
    }

    /// Frees memory. Its owner alone may still use it, or any stream if it has none.
    #[inline]
    pub(super) fn give_back(&self, taken: Taken, owner: Option<&Arc<Progress>>) {
        match owner {
            Some(owner) if owner.pending().is_none() => self.with_memory(|memory| memory.give_back_idle(taken)),
            owner => self.give_back_later(taken, owner),
        }
    }

    /// Frees memory that a stream may still use.
    fn give_back_later(&self, taken: Taken, owner: Option<&Arc<Progress>>) {
        let rest = |until: Vec<_>| {
            self.with_memory(|memory| {
                let is_free = until.is_empty();
                memory.give_back(taken, until);
                if is_free {
                    return;
                }
                // Said before it is looked at once more: a stream that comes further meanwhile sees one or the other.
                self.memory_rests.swap(true, Ordering::SeqCst);
                memory.reached();
                self.memory_rests.swap(memory.rests(), Ordering::SeqCst);
            });
        };
        match owner {
            Some(owner) => rest(until_point(owner).into_iter().collect()),
            None => {
                let streams = self.streams();
                rest(streams.live.iter().filter_map(until_point).collect());
            }
        }
    }

    pub(super) fn give_back_pinned(&self, piece: pinned::Piece) {
        let streams = self.streams();
        let until = streams.live.iter().filter_map(until_point).collect();
        let mut pinned = self.pinned();
        pinned.give_back(piece, until);
        // As above.
        self.pinned_rests.swap(true, Ordering::SeqCst);
        pinned.reached();
        self.pinned_rests.swap(pinned.rests(), Ordering::SeqCst);
    }

    /// Frees memory whose streams have reached their points.
    fn wake_memory(&self) {
        self.with_memory(|memory| {
            memory.reached();
            self.memory_rests.swap(memory.rests(), Ordering::SeqCst);
        });
    }

    /// Whether memory can be unmapped from its addresses.
    pub(super) fn can_park(&self) -> bool {
        self.with_memory(|memory| memory.can_park())
    }

    /// Lets other GPUs read and write memory that was taken as parkable.
    pub(super) fn open_to(&self, taken: &Taken, others: &[sys::CUdevice]) -> Result<(), CudaError> {
        self.with_memory(|memory| memory.open_to(taken, others))
    }

    /// Unmaps the memory and keeps the addresses. No stream may be using it.
    pub(super) fn park(&self, taken: &Taken) {
        self.with_memory(|memory| memory.park(taken));
    }

    /// Maps memory at the addresses again.
    pub(super) fn restore(&self, taken: &Taken) -> Result<(), CudaError> {
        self.with_memory(|memory| memory.restore(taken))
    }

    /// Registers a stream; `raw` is null where nothing is ever put into it.
    pub(super) fn new_progress(&self, raw: sys::CUstream) -> Arc<Progress> {
        let mut streams = self.streams();
        let (id, point) = streams.spare.pop().unwrap_or_else(|| {
            streams.named += 1;
            (StreamId(streams.named), 0)
        });
        let progress = Arc::new(Progress::new(id, point, raw));
        streams.live.push(Arc::clone(&progress));
        progress
    }

    /// A stream has reached a point.
    pub(super) fn reached(&self, progress: &Progress, point: u64) {
        progress.note_reached(point);
        if self.memory_rests.load(Ordering::SeqCst) {
            self.wake_memory();
        }
        if self.pinned_rests.load(Ordering::SeqCst) {
            let mut pinned = self.pinned();
            pinned.reached();
            self.pinned_rests.swap(pinned.rests(), Ordering::SeqCst);
        }
    }

    /// A stream starts or ends recording: it must not be queried meanwhile.
    pub(super) fn records(&self, progress: &Progress, records: bool) {
        let _alone = self.streams();
        progress.note_recording(records);
    }

    /// Removes a stream of which nothing runs any more. `destroy` is called while it cannot be queried.
    pub(super) fn ended(&self, progress: &Arc<Progress>, destroy: impl FnOnce()) {
        let mut streams = self.streams();
        streams.live.retain(|known| !Arc::ptr_eq(known, progress));
        destroy();
        drop(streams);
        let last = progress.last();
        self.reached(progress, last);
        self.streams().spare.push((progress.id(), last));
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pinned(&self) -> MutexGuard<'_, PinnedMemory> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_memory<T>(&self, act: impl FnOnce(&mut DeviceMemory) -> T) -> T {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        act(memory.as_mut().expect("a context has memory as long as it lives"))
    }
}

/// A stream and the point that it must reach before it is done, if it is not.
fn until_point(progress: &Arc<Progress>) -> Option<(Arc<Progress>, u64)> {
    progress.pending().map(|point| (Arc::clone(progress), point))
}

impl Drop for Context {
    fn drop(&mut self) {
        // Memory goes before the context that it is mapped in; whatever used it held an `Arc` of this.
        if self.bind().is_ok() {
            self.pinned().close();
        }
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = None;
        // SAFETY: retained once in `open`; whatever was made in the context holds an `Arc` of it, so nothing is left.
        // A failure means that the context is gone already.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::gpu::tests::gpu;
    use super::*;

    #[test]
    fn a_gpu_that_is_not_there_is_refused() {
        let none = gpu(4711, "GPU-none", "0000:00:00.0");
        assert!(Context::open(&none).is_err());
    }
}
