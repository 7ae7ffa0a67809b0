//! The GPU's memory in pieces that are put behind one long range of addresses and taken away again.
//! Decides nothing: which piece lies where is the pool's.

use super::error::CudaError;
use super::sys::{self, CUdevice_attribute};
use magray_core::pool::Upstream;

/// Length of the address range as a multiple of the GPU's memory: offloaded models keep their addresses.
const RANGE_TIMES: u64 = 8;

/// A range of addresses of one GPU. Its caller is a pool that maps nothing twice.
#[derive(Debug)]
pub(super) struct Vmm {
    context: sys::CUcontext,
    device: sys::CUdevice,
    base: u64,
    range_bytes: u64,
    grain_bytes: u64,
}

// SAFETY: the driver's functions for such memory may be called from any thread.
unsafe impl Send for Vmm {}

impl Vmm {
    pub(super) fn is_supported(device: sys::CUdevice) -> bool {
        let mut value = 0;
        let which = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        // SAFETY: the device is one of the driver's; writes one number.
        let asked = CudaError::check(unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) });
        asked.is_ok() && value != 0
    }

    /// Reserves addresses for a GPU with this much memory. Allocates nothing.
    pub(super) fn reserve(
        context: sys::CUcontext,
        device: sys::CUdevice,
        memory_bytes: u64,
    ) -> Result<Self, CudaError> {
        let mut grain = 0;
        let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        // SAFETY: the description outlives the call; writes one number.
        CudaError::check(unsafe { sys::cuMemGetAllocationGranularity(&mut grain, &kind(device), option) })?;
        let grain_bytes = (grain as u64).max(1);
        let mut times = RANGE_TIMES;
        loop {
            let range_bytes = (memory_bytes * times).next_multiple_of(grain_bytes);
            let mut base = 0;
            // SAFETY: writes one address, given back in `drop`.
            let reserved = unsafe { sys::cuMemAddressReserve(&mut base, range_bytes as usize, 0, 0, 0) };
            match CudaError::check(reserved) {
                Ok(()) => return Ok(Self { context, device, base, range_bytes, grain_bytes }),
                // A system may limit how many addresses a process has; a shorter range does for fewer models.
                Err(_) if times > 1 => times /= 2,
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    pub(super) fn range_bytes(&self) -> u64 {
        self.range_bytes
    }

    pub(super) fn grain_bytes(&self) -> u64 {
        self.grain_bytes
    }

    /// Lets other GPUs read and write what is mapped here, until it is unmapped. The stretch begins and ends where pieces do.
    pub(super) fn open_to(&self, at: u64, bytes: u64, others: &[sys::CUdevice]) -> Result<(), CudaError> {
        assert!(at + bytes <= self.range_bytes, "inside the range");
        self.bind()?;
        let access: Vec<_> = others.iter().map(|device| access(*device)).collect();
        // SAFETY: the stretch is reserved; one that is not mapped as a whole is refused. The descriptions outlive the call.
        let opened = unsafe { sys::cuMemSetAccess(self.base + at, bytes as usize, access.as_ptr(), access.len()) };
        CudaError::check(opened)
    }

    fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context outlives its pool.
        CudaError::check(unsafe { sys::cuCtxSetCurrent(self.context) })
    }
}

fn kind(device: sys::CUdevice) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn location(device: sys::CUdevice) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

fn access(device: sys::CUdevice) -> sys::CUmemAccessDesc {
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    sys::CUmemAccessDesc { location: location(device), flags }
}

#[derive(Debug)]
pub(super) struct Piece(sys::CUmemGenericAllocationHandle);

impl Upstream for Vmm {
    type Handle = Piece;
    type Error = CudaError;

    fn create(&mut self, bytes: u64) -> Result<Piece, CudaError> {
        self.bind()?;
        let mut handle = 0;
        // SAFETY: the description outlives the call; writes one handle, given back in `release`.
        CudaError::check(unsafe { sys::cuMemCreate(&mut handle, bytes as usize, &kind(self.device), 0) })?;
        Ok(Piece(handle))
    }

    fn map(&mut self, at: u64, bytes: u64, piece: &Piece) -> Result<(), CudaError> {
        assert!(at + bytes <= self.range_bytes, "inside the range");
        self.bind()?;
        let address = self.base + at;
        // SAFETY: the addresses are reserved and, by the pool's word, nothing is mapped there; the piece is as long.
        CudaError::check(unsafe { sys::cuMemMap(address, bytes as usize, 0, piece.0, 0) })?;
        // SAFETY: the range was mapped above; the description outlives the call.
        let opened = CudaError::check(unsafe { sys::cuMemSetAccess(address, bytes as usize, &access(self.device), 1) });
        if opened.is_err() {
            self.unmap(at, bytes);
        }
        opened
    }

    fn unmap(&mut self, at: u64, bytes: u64) {
        if self.bind().is_ok() {
            // SAFETY: mapped once in `map`, with these bounds, and no stream uses it any more. A failure means that the
            // context is lost, and the memory with it.
            let _ = unsafe { sys::cuMemUnmap(self.base + at, bytes as usize) };
        }
    }

    fn release(&mut self, piece: Piece) {
        if self.bind().is_ok() {
            // SAFETY: made once in `create`; it is mapped nowhere any more.
            let _ = unsafe { sys::cuMemRelease(piece.0) };
        }
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        if self.bind().is_ok() {
            // SAFETY: reserved once in `reserve`; the pool has unmapped everything.
            let _ = unsafe { sys::cuMemAddressFree(self.base, self.range_bytes as usize) };
        }
    }
}
