//! All memory of a GPU that a context hands out: one pool behind one range of addresses.
//! Never waits for the GPU: what a stream may still use rests until the stream is known to be done with it.

use super::error::CudaError;
use super::progress::Progress;
use super::sys;
use super::trace::Trace;
use super::vmm::Vmm;
use magray_core::pool::{AllocateError, Block, Pool, PoolOptions, PoolStats, StreamId};
use std::collections::HashMap;
use std::sync::Arc;

/// The largest piece that is mapped at once. Mapping 16 GiB takes 13 ms with pieces of this size, 405 ms with 2 MiB ones.
const HANDLE_BYTES: u64 = 64 << 20;
/// Blocks from here on have pieces of their own.
const LARGE_BYTES: u64 = 8 << 20;
/// Where small blocks begin: enough for every load of a kernel and for the copy engine.
const ALIGN_BYTES: u64 = 256;

/// Memory that was unused for this many epochs is joined with other such memory.
const STITCH_EPOCHS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryPlan {
    pub(super) limit_bytes: u64,
    pub(super) total_bytes: u64,
    /// Leaves everything to the driver's own pool, as on GPUs whose memory cannot be mapped.
    pub(super) by_driver: bool,
}

#[derive(Debug)]
pub(super) struct DeviceMemory {
    backing: Backing,
    /// Memory that several streams may still use.
    resting: Vec<Resting<Taken>>,
    /// For each freed block that waits in the pool: the stream and the point that it waits for.
    resting_in_pool: Vec<(Arc<Progress>, u64)>,
    workspaces: Workspaces,
    trace: Option<Trace>,
}

/// Allocated bytes without weights, which come and go as a whole.
#[derive(Debug, Default)]
struct Workspaces {
    bytes: u64,
    /// The peak since the pool's last epoch.
    peak: u64,
}

enum Backing {
    Mapped { base: u64, pool: Box<Pool<Vmm>> },
    Driver(DriverPool),
}

impl std::fmt::Debug for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mapped { pool, .. } => write!(f, "Mapped({:?})", pool.stats()),
            Self::Driver(pool) => write!(f, "{pool:?}"),
        }
    }
}

#[derive(Debug)]
pub(super) struct Taken {
    origin: Origin,
    address: u64,
    /// Its bytes, if it is a workspace.
    workspace: u64,
    /// Its number in the trace.
    number: u64,
}

#[derive(Debug)]
enum Origin {
    Pool(Block),
    Driver,
}

impl Taken {
    pub(super) fn address(&self) -> u64 {
        self.address
    }
}

#[derive(Debug)]
pub(super) struct Resting<T> {
    pub(super) what: T,
    /// The points that must be reached first.
    pub(super) until: Vec<(Arc<Progress>, u64)>,
}

impl<T> Resting<T> {
    pub(super) fn is_over(&self) -> bool {
        self.until.iter().all(|(progress, point)| progress.has_reached(*point))
    }
}

impl DeviceMemory {
    pub(super) fn open(
        context: sys::CUcontext,
        device: sys::CUdevice,
        plan: MemoryPlan,
        trace: Option<Trace>,
    ) -> Result<Self, CudaError> {
        let maps = !plan.by_driver && Vmm::is_supported(device);
        // A system that gives no addresses still gives memory.
        let vmm = if maps { Vmm::reserve(context, device, plan.total_bytes).ok() } else { None };
        let backing = if let Some(vmm) = vmm {
            let options = PoolOptions {
                range_bytes: vmm.range_bytes(),
                limit_bytes: plan.limit_bytes,
                grain_bytes: vmm.grain_bytes(),
                handle_bytes: HANDLE_BYTES.max(vmm.grain_bytes()),
                large_bytes: LARGE_BYTES.max(vmm.grain_bytes()),
                align_bytes: ALIGN_BYTES,
            };
            Backing::Mapped { base: vmm.base(), pool: Box::new(Pool::new(options, vmm)) }
        } else {
            Backing::Driver(DriverPool::open(context, device, plan.limit_bytes)?)
        };
        Ok(Self { backing, resting: Vec::new(), resting_in_pool: Vec::new(), workspaces: Workspaces::default(), trace })
    }

    /// Allocates memory for work in a stream, with undefined content.
    pub(super) fn take(&mut self, bytes: u64, stream: StreamId) -> Result<Taken, CudaError> {
        let mut taken = self.take_by(bytes, |pool| pool.allocate(bytes, stream))?;
        taken.workspace = bytes;
        self.workspaces.bytes += bytes;
        self.workspaces.peak = self.workspaces.peak.max(self.workspaces.bytes);
        Ok(taken)
    }

    /// Allocates memory if the pool can without a call of the driver.
    #[inline]
    pub(super) fn take_at_hand(&mut self, bytes: u64, stream: StreamId) -> Option<Taken> {
        let (Backing::Mapped { base, pool }, None) = (&mut self.backing, &self.trace) else { return None };
        let block = pool.allocate_at_hand(bytes, stream)?;
        let address = *base + block.at();
        self.workspaces.bytes += bytes;
        self.workspaces.peak = self.workspaces.peak.max(self.workspaces.bytes);
        Some(Taken { origin: Origin::Pool(block), address, workspace: bytes, number: 0 })
    }

    /// Frees memory that no stream uses any more.
    #[inline]
    pub(super) fn give_back_idle(&mut self, taken: Taken) {
        match (&mut self.backing, &self.trace, taken) {
            (Backing::Mapped { pool, .. }, None, Taken { origin: Origin::Pool(block), workspace, .. }) => {
                self.workspaces.bytes -= workspace;
                pool.free(block);
            }
            (_, _, taken) => self.give_back(taken, Vec::new()),
        }
    }

    /// Allocates memory that can be unmapped from its addresses as a whole.
    pub(super) fn take_parkable(&mut self, bytes: u64) -> Result<Taken, CudaError> {
        self.take_by(bytes, |pool| pool.allocate_parkable(bytes))
    }

    fn take_by(
        &mut self,
        bytes: u64,
        allocate: impl Fn(&mut Pool<Vmm>) -> Result<Block, AllocateError<CudaError>>,
    ) -> Result<Taken, CudaError> {
        assert!(bytes > 0, "no memory is taken for no bytes");
        let (origin, address) = match &mut self.backing {
            Backing::Mapped { base, pool } => {
                let block = or_trimmed(pool, allocate)?;
                let address = *base + block.at();
                (Origin::Pool(block), address)
            }
            Backing::Driver(pool) => (Origin::Driver, pool.take(bytes)?),
        };
        let number = self.trace.as_mut().map_or(0, |trace| trace.take(bytes));
        Ok(Taken { origin, address, workspace: 0, number })
    }

    /// Frees memory. `until` are the streams that may still use it, each up to a point.
    pub(super) fn give_back(&mut self, taken: Taken, until: Vec<(Arc<Progress>, u64)>) {
        self.workspaces.bytes -= taken.workspace;
        if let Some(trace) = &mut self.trace {
            trace.give_back(taken.number);
        }
        match (&mut self.backing, taken.origin) {
            (Backing::Mapped { pool, .. }, Origin::Pool(block)) => match &until[..] {
                [] => pool.free(block),
                [(progress, point)] => {
                    pool.free_after(block, progress.id(), *point);
                    self.resting_in_pool.push((Arc::clone(progress), *point));
                }
                _ => self.resting.push(Resting { what: Taken { origin: Origin::Pool(block), ..taken }, until }),
            },
            (Backing::Driver(pool), Origin::Driver) if until.is_empty() => pool.give_back(taken.address),
            (_, origin) => self.resting.push(Resting { what: Taken { origin, ..taken }, until }),
        }
    }

    /// Whether any memory waits for a stream.
    pub(super) fn rests(&self) -> bool {
        !self.resting.is_empty() || !self.resting_in_pool.is_empty()
    }

    /// Frees what waited for streams that have reached their points.
    pub(super) fn reached(&mut self) {
        let Self { backing, resting_in_pool, .. } = self;
        resting_in_pool.retain(|(progress, point)| {
            let is_over = progress.has_reached(*point);
            if let (true, Backing::Mapped { pool, .. }) = (is_over, &mut *backing) {
                pool.reached(progress.id(), *point);
            }
            !is_over
        });
        let mut at = 0;
        while at < self.resting.len() {
            if !self.resting[at].is_over() {
                at += 1;
                continue;
            }
            let Taken { origin, address, .. } = self.resting.swap_remove(at).what;
            match (&mut self.backing, origin) {
                (Backing::Mapped { pool, .. }, Origin::Pool(block)) => pool.free(block),
                (Backing::Driver(pool), _) => pool.give_back(address),
                (Backing::Mapped { .. }, Origin::Driver) => {}
            }
        }
    }

    /// Whether memory can be unmapped from its addresses.
    pub(super) fn can_park(&self) -> bool {
        matches!(self.backing, Backing::Mapped { .. })
    }

    /// Lets other GPUs read and write memory that was taken as parkable: it has pieces of its own.
    pub(super) fn open_to(&mut self, taken: &Taken, others: &[sys::CUdevice]) -> Result<(), CudaError> {
        match (&self.backing, &taken.origin) {
            (Backing::Mapped { pool, .. }, Origin::Pool(block)) => {
                let vmm = pool.upstream();
                vmm.open_to(block.at(), block.bytes().next_multiple_of(vmm.grain_bytes()), others)
            }
            _ => CudaError::check(sys::CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
    }

    /// Unmaps the memory and keeps the addresses. No stream may be using it.
    pub(super) fn park(&mut self, taken: &Taken) {
        if let (Backing::Mapped { pool, .. }, Origin::Pool(block)) = (&mut self.backing, &taken.origin) {
            pool.park(block);
        }
    }

    /// Maps memory at the addresses again, with undefined content.
    pub(super) fn restore(&mut self, taken: &Taken) -> Result<(), CudaError> {
        match (&mut self.backing, &taken.origin) {
            (Backing::Mapped { pool, .. }, Origin::Pool(block)) => or_trimmed(pool, |pool| pool.restore(block)),
            _ => Ok(()),
        }
    }

    /// Gives all unused memory back, whatever was expected.
    pub(super) fn trim_all(&mut self) {
        match &mut self.backing {
            Backing::Mapped { pool, .. } => {
                pool.trim_all();
            }
            Backing::Driver(pool) => pool.trim(),
        }
    }

    /// Maintenance: the epoch advances, what was long unused is given back, scattered pieces are joined.
    pub(super) fn tend(&mut self, keep_epochs: u32) {
        match &mut self.backing {
            Backing::Mapped { pool, .. } => {
                // What was needed at once is expected to be needed again, and not given back for some time.
                pool.note(0, 0, self.workspaces.peak);
                self.workspaces.peak = self.workspaces.bytes;
                pool.age();
                pool.trim(keep_epochs);
                // What cannot be joined now stays as it was.
                let _ = pool.stitch(STITCH_EPOCHS);
            }
            Backing::Driver(pool) => pool.tend(keep_epochs),
        }
        if let Some(trace) = &mut self.trace {
            trace.flush();
        }
    }

    pub(super) fn stats(&self) -> PoolStats {
        match &self.backing {
            Backing::Mapped { pool, .. } => pool.stats(),
            Backing::Driver(pool) => pool.stats(),
        }
    }
}

/// Tries it; where memory is short, gives back unused memory of other pools and tries once more.
fn or_trimmed<T>(
    pool: &mut Pool<Vmm>,
    attempt: impl Fn(&mut Pool<Vmm>) -> Result<T, AllocateError<CudaError>>,
) -> Result<T, CudaError> {
    let refused = match attempt(pool) {
        Ok(got) => return Ok(got),
        Err(AllocateError::Upstream(error)) if error != CudaError::OutOfMemory => return Err(error),
        Err(refused) => refused,
    };
    if pool.trim_all() == 0 {
        return Err(meaning(refused));
    }
    attempt(pool).map_err(meaning)
}

/// The caller's error for a refusal of the pool.
fn meaning(error: AllocateError<CudaError>) -> CudaError {
    match error {
        AllocateError::Limit { .. } => CudaError::OutOfMemory,
        AllocateError::Upstream(error) => error,
    }
}

/// The driver's own pool, for GPUs whose memory cannot be mapped. Models in it cannot be offloaded and return to their
/// addresses.
#[derive(Debug)]
struct DriverPool {
    context: sys::CUcontext,
    raw: sys::CUmemoryPool,
    limit_bytes: u64,
    taken: HashMap<u64, u64>,
    /// Epochs since the last allocation.
    quiet: u32,
    stats: PoolStats,
}

// SAFETY: the driver's pool may be used from any thread.
unsafe impl Send for DriverPool {}

impl DriverPool {
    fn open(context: sys::CUcontext, device: sys::CUdevice, limit_bytes: u64) -> Result<Self, CudaError> {
        let kind = sys::CUmemPoolProps {
            allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device },
            win32SecurityAttributes: std::ptr::null_mut(),
            maxSize: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the description outlives the call; writes one handle, destroyed in `drop`.
        CudaError::check(unsafe { sys::cuMemPoolCreate(&mut raw, &kind) })?;
        let pool = Self { context, raw, limit_bytes, taken: HashMap::new(), quiet: 0, stats: PoolStats::default() };
        // Kept until it is trimmed: a pool that gives back at every wait would ask the driver all the time.
        let mut keep = u64::MAX;
        let which = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the attribute is a 64-bit number, which outlives the call.
        CudaError::check(unsafe { sys::cuMemPoolSetAttribute(pool.raw, which, std::ptr::from_mut(&mut keep).cast()) })?;
        Ok(pool)
    }

    fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context outlives its pool.
        CudaError::check(unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    fn take(&mut self, bytes: u64) -> Result<u64, CudaError> {
        self.bind()?;
        if self.stats.used + bytes > self.limit_bytes {
            return Err(CudaError::OutOfMemory);
        }
        let mut address = 0;
        let stream = std::ptr::null_mut();
        // SAFETY: the pool lives; writes one address. The driver's own stream is waited for below, so that every other
        // stream may use the memory.
        CudaError::check(unsafe { sys::cuMemAllocFromPoolAsync(&mut address, bytes as usize, self.raw, stream) })?;
        // SAFETY: as above.
        CudaError::check(unsafe { sys::cuStreamSynchronize(stream) })?;
        self.taken.insert(address, bytes);
        self.quiet = 0;
        self.stats.used += bytes;
        self.stats.blocks += 1;
        self.stats.misses += 1;
        self.stats.driver_calls += 2;
        self.stats.peak_used = self.stats.peak_used.max(self.stats.used);
        self.stats.reserved = self.stats.reserved.max(self.stats.used);
        self.stats.peak_reserved = self.stats.peak_reserved.max(self.stats.reserved);
        Ok(address)
    }

    fn give_back(&mut self, address: u64) {
        let Some(bytes) = self.taken.remove(&address) else { return };
        self.stats.used -= bytes;
        self.stats.blocks -= 1;
        self.stats.driver_calls += 1;
        if self.bind().is_ok() {
            // SAFETY: taken once above; all streams that used it are known to be done. A failure means a lost context.
            let _ = unsafe { sys::cuMemFreeAsync(address, std::ptr::null_mut()) };
        }
    }

    fn trim(&mut self) {
        self.stats.driver_calls += 1;
        self.stats.reserved = self.stats.used;
        // SAFETY: the pool lives; a failure leaves the memory where it is.
        let _ = unsafe { sys::cuMemPoolTrimTo(self.raw, 0) };
    }

    /// The epoch advances: what was unused for this long is given back, once.
    fn tend(&mut self, keep_epochs: u32) {
        self.quiet = self.quiet.saturating_add(1);
        if self.quiet == keep_epochs {
            self.trim();
        }
    }

    fn stats(&self) -> PoolStats {
        self.stats
    }
}

impl Drop for DriverPool {
    fn drop(&mut self) {
        // SAFETY: made once in `open`; nothing that was taken is left in use.
        let _ = unsafe { sys::cuMemPoolDestroy(self.raw) };
    }
}
