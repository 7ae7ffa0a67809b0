//! A compiled kernel in a GPU's memory, and how it is launched.
//! Knows no kernel's arguments: who launches vouches for them.

use super::context::Context;
use super::error::CudaError;
use super::sys;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What a block gets of shared memory without asking.
const SHARED_BYTES_FREE: u32 = 48 * 1024;

/// How many threads run a kernel, and what they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks. With a zero among them nothing is launched.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Blocks of a cluster, 8 at most, along the first dimension of the grid, which they divide.
    pub cluster: Option<u32>,
    /// The kernel may begin before the one ahead of it in the stream has ended; it waits for that one's results itself
    /// (`griddepcontrol.wait`).
    pub overlaps: bool,
}

impl LaunchShape {
    /// A grid of blocks with nothing special.
    pub fn new(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self { grid, block, shared_bytes: 0, cluster: None, overlaps: false }
    }

    /// With dynamic shared memory.
    #[must_use]
    pub fn with_shared_bytes(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// With clusters of this many blocks.
    #[must_use]
    pub fn with_cluster(mut self, blocks: u32) -> Self {
        self.cluster = Some(blocks);
        self
    }

    /// As the driver takes it; the attributes must outlive it.
    fn config(&self, stream: sys::CUstream, attributes: &mut [sys::CUlaunchAttribute; 2]) -> sys::CUlaunchConfig {
        let mut count = 0;
        if let Some(blocks) = self.cluster {
            let dimension = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: blocks, y: 1, z: 1 };
            attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attributes[count].value.clusterDim = dimension;
            count += 1;
        }
        if self.overlaps {
            attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[count].value.programmaticStreamSerializationAllowed = 1;
            count += 1;
        }
        sys::CUlaunchConfig {
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.block[0],
            blockDimY: self.block[1],
            blockDimZ: self.block[2],
            sharedMemBytes: self.shared_bytes,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        }
    }
}

/// A kernel that can be launched. Clones share it.
#[derive(Clone, Debug)]
pub struct Function {
    loaded: Arc<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    raw: sys::CUfunction,
    module: sys::CUmodule,
    context: Arc<Context>,
    /// The most shared memory that was asked for, beyond what is free.
    shared_bytes_granted: AtomicU32,
    granting: Mutex<()>,
}

// SAFETY: handles of the driver may be used from every thread where their context is current.
unsafe impl Send for Loaded {}
// SAFETY: as above; what changes is atomic.
unsafe impl Sync for Loaded {}

impl Function {
    /// Loads a cubin and finds a kernel in it.
    pub(super) fn load(context: &Arc<Context>, cubin: &[u8], entry: &str) -> Result<Self, CudaError> {
        context.bind()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: a context is current. The driver reads the image's own sizes: a cubin is only taken from the compiler
        // or from a file whose checksum holds.
        CudaError::check(unsafe { sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()) })?;
        let mut loaded = Loaded {
            raw: std::ptr::null_mut(),
            module,
            context: Arc::clone(context),
            shared_bytes_granted: AtomicU32::new(SHARED_BYTES_FREE),
            granting: Mutex::new(()),
        };
        // A name with a zero in it is no name of a kernel.
        let name = CString::new(entry).unwrap_or_default();
        // SAFETY: the module was loaded above, and the name ends with a zero.
        CudaError::check(unsafe { sys::cuModuleGetFunction(&mut loaded.raw, module, name.as_ptr()) })?;
        Ok(Self { loaded: Arc::new(loaded) })
    }

    /// Puts the kernel into a stream. Returns before it runs.
    ///
    /// # Safety
    /// The context of this function is current on this thread and the stream belongs to it. `arguments` are pointers to
    /// values of the types of the kernel's parameters, as many as it has; they are read before this returns. What the
    /// kernel reads and writes stays in place until it has run.
    pub unsafe fn launch(
        &self,
        stream: sys::CUstream,
        shape: &LaunchShape,
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        if shape.grid.contains(&0) {
            return Ok(());
        }
        self.grant_shared_bytes(shape.shared_bytes)?;
        let mut attributes = [blank_attribute(); 2];
        let config = shape.config(stream, &mut attributes);
        // SAFETY: the configuration and its attributes outlive the call; the rest is this function's own contract.
        let launched =
            unsafe { sys::cuLaunchKernelEx(&config, self.loaded.raw, arguments.as_mut_ptr(), std::ptr::null_mut()) };
        CudaError::check(launched)
    }

    /// How many clusters of this shape the GPU holds at once.
    pub(crate) fn clusters_at_once(&self, shape: &LaunchShape) -> Result<u32, CudaError> {
        self.loaded.context.bind()?;
        self.grant_shared_bytes(shape.shared_bytes)?;
        let mut attributes = [blank_attribute(); 2];
        let config = shape.config(std::ptr::null_mut(), &mut attributes);
        let mut clusters = 0;
        // SAFETY: the function is loaded, the configuration and its attributes outlive the call; writes one number.
        CudaError::check(unsafe { sys::cuOccupancyMaxActiveClusters(&mut clusters, self.loaded.raw, &config) })?;
        Ok(clusters.unsigned_abs())
    }

    /// Asks for shared memory beyond what is free, once.
    fn grant_shared_bytes(&self, bytes: u32) -> Result<(), CudaError> {
        let granted = &self.loaded.shared_bytes_granted;
        if bytes <= granted.load(Ordering::Acquire) {
            return Ok(());
        }
        let _alone = self.loaded.granting.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have asked for more meanwhile; less must not take its place.
        if bytes > granted.load(Ordering::Acquire) {
            let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let value = i32::try_from(bytes).unwrap_or(i32::MAX);
            // SAFETY: the function is loaded; a size that the GPU does not have is refused.
            CudaError::check(unsafe { sys::cuFuncSetAttribute(self.loaded.raw, which, value) })?;
            granted.store(bytes, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // The module goes with its context in any case; a failure here is ignored.
        if self.context.bind().is_ok() {
            // SAFETY: loaded once in `load`, and no clone of the function is left.
            let _ = unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

fn blank_attribute() -> sys::CUlaunchAttribute {
    sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { pad: [0; 64] },
    }
}
