//! A model's weights in host memory that processes share, byte for byte as they lie on the GPU.
//! Shares nothing itself: who made the memory hands it on.

use super::{Ground, UNIT_BYTES};
use crate::SharedMemory;
use crate::cuda::context::Context;
use crate::cuda::device_error::DeviceError;
use crate::cuda::error::CudaError;
use crate::cuda::pinned_buffers::PinnedBytes;
use crate::cuda::stream::{Stream, Urgency};
use crate::cuda::sys;
use crate::cuda::threads::on_threads;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes that are registered at once: a longer piece would hold the driver's locks for long.
const CHUNK_BYTES: usize = 256 << 20;
/// Threads that fill an image. Most of their work is the system's, which finds the pages.
const FILLERS: usize = 4;
/// With this many cores copies through buffers are about as fast as from page-locked memory: 50 of 55 GB/s on an H200 with 12.
/// Page-locking has its price: a process with 16 GiB registered takes 1.4 s to end, and one without 0.1 s. So with as many
/// cores nothing stays registered.
const CORES_ENOUGH: usize = 12;

#[derive(Debug)]
pub(super) struct Image {
    context: Arc<Context>,
    memory: SharedMemory,
    bytes: usize,
    /// For each unit, whether it is in the image.
    units: Vec<AtomicBool>,
    is_filled: AtomicBool,
    /// For each chunk, whether it is page-locked: copies then need no buffer.
    registered: Vec<AtomicBool>,
    /// Whether chunks stay registered.
    is_kept_registered: bool,
}

impl Image {
    /// An image for weights of this many bytes in this memory, which may be longer.
    pub(super) fn new(
        context: &Arc<Context>,
        memory: SharedMemory,
        bytes: usize,
        is_filled: bool,
    ) -> Result<Self, DeviceError> {
        if memory.bytes() < bytes {
            return Err(DeviceError::WrongImage { expected: bytes as u64, found: memory.bytes() as u64 });
        }
        let registered = (0..bytes.div_ceil(CHUNK_BYTES)).map(|_| AtomicBool::new(false)).collect();
        let units = (0..bytes.div_ceil(UNIT_BYTES)).map(|_| AtomicBool::new(is_filled)).collect();
        let is_filled = AtomicBool::new(is_filled);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let is_kept_registered = context.keeps_registered().unwrap_or(cores < CORES_ENOUGH);
        let context = Arc::clone(context);
        Ok(Self { context, memory, bytes, units, is_filled, registered, is_kept_registered })
    }

    pub(super) fn is_filled(&self) -> bool {
        self.is_filled.load(Ordering::Acquire)
    }

    /// Whether it holds the unit that begins here.
    pub(super) fn has_unit(&self, start: usize) -> bool {
        self.units[start / UNIT_BYTES].load(Ordering::Acquire)
    }

    /// Whether all of it is page-locked.
    pub(super) fn is_registered(&self) -> bool {
        self.registered.iter().all(|chunk| chunk.load(Ordering::Acquire))
    }

    /// The address of bytes that can be copied without a buffer. They lie in one chunk.
    pub(super) fn registered(&self, range: Range<usize>) -> Option<u64> {
        let chunk = range.start / CHUNK_BYTES;
        assert!(range.end <= self.bytes && range.end <= (chunk + 1) * CHUNK_BYTES, "inside one chunk");
        let is_known = self.registered[chunk].load(Ordering::Acquire);
        is_known.then(|| self.memory.address() as u64 + range.start as u64)
    }

    pub(super) fn read(&self, at: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        assert!(at + out.len() <= self.bytes, "inside the image");
        Ok(self.memory.read_at(at, out)?)
    }

    /// Page-locks all chunks where that pays, so that the next copies need no buffer. What the driver refuses stays as it is.
    pub(super) fn register(&self, cancel: &AtomicBool) {
        if !self.is_kept_registered || self.context.bind().is_err() {
            return;
        }
        for (chunk, is_registered) in self.registered.iter().enumerate() {
            let range = chunk * CHUNK_BYTES..((chunk + 1) * CHUNK_BYTES).min(self.bytes);
            // What is not page-locked goes through buffers; nothing else is lost.
            if cancel.load(Ordering::Relaxed)
                || !is_registered.load(Ordering::Acquire) && self.register_chunk(chunk, range).is_err()
            {
                return;
            }
        }
    }

    /// Takes the weights over, unit by unit: from the GPU where they are there, in streams that come after all others, else
    /// from `make`. They may leave and come back meanwhile.
    pub(super) fn fill(
        &self,
        ground: &Ground,
        make: impl Fn(usize, &mut [u8]) -> Result<(), DeviceError> + Sync,
        cancel: &AtomicBool,
    ) -> Result<(), DeviceError> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<(), DeviceError> {
            self.context.bind()?;
            let stream = Stream::new(&self.context, Urgency::Background)?;
            let mut buffer = PinnedBytes::take(&self.context, UNIT_BYTES)?;
            while !cancel.load(Ordering::Relaxed) {
                let unit = next.fetch_add(1, Ordering::Relaxed);
                let Some(is_there) = self.units.get(unit) else { break };
                let range = unit * UNIT_BYTES..((unit + 1) * UNIT_BYTES).min(self.bytes);
                if !ground.copy_out(&stream, range.clone(), &mut buffer)? {
                    make(range.start, &mut buffer.as_mut_slice()[..range.len()])?;
                }
                self.memory.write_at(range.start, &buffer.as_mut_slice()[..range.len()])?;
                is_there.store(true, Ordering::Release);
            }
            Ok(())
        };
        on_threads(FILLERS.min(self.units.len()), work)?;
        if cancel.load(Ordering::Relaxed) {
            return Err(DeviceError::System("the image was given up before it was filled".to_owned()));
        }
        self.is_filled.store(true, Ordering::Release);
        Ok(())
    }

    /// Populates the pages of a chunk, which can fail, and page-locks it, which the driver may refuse.
    fn register_chunk(&self, chunk: usize, range: Range<usize>) -> Result<(), DeviceError> {
        // The driver would touch page after page; the system does it faster when asked for all.
        self.memory.populate(range.clone())?;
        let address = self.memory.address().wrapping_add(range.start);
        // SAFETY: the range lies in the mapping, which lives until `drop` has unregistered it.
        let result =
            unsafe { sys::cuMemHostRegister_v2(address.cast(), range.len(), sys::CU_MEMHOSTREGISTER_PORTABLE) };
        // A chunk that is refused goes through buffers; nothing else is lost.
        if CudaError::check(result).is_ok() {
            self.registered[chunk].store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Ends the page-locking of a chunk. All copies from or to it have ended.
    fn unregister_chunk(&self, chunk: usize) {
        if self.registered[chunk].swap(false, Ordering::AcqRel) {
            let address = self.memory.address().wrapping_add(chunk * CHUNK_BYTES);
            // SAFETY: registered once, as was just seen. A failure means a lost context.
            let _ = unsafe { sys::cuMemHostUnregister(address.cast()) };
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            (0..self.registered.len()).for_each(|chunk| self.unregister_chunk(chunk));
        }
    }
}
