//! A model's weights on the GPU: one block, which can leave its memory and come back to the same addresses.
//! Never offloaded while a pass uses it: its owner waits first.

mod arrival;
mod image;
mod leaving;
mod parts;
mod site;
mod upload;

pub(super) use parts::{Content, Form, Matrix, by_pieces};
pub use site::Site;

use super::context::Context;
use super::device_error::DeviceError;
use super::error::CudaError;
use super::memory::DeviceBuffer;
use super::pinned_buffers::PinnedBytes;
use super::stream::Stream;
use arrival::Arrival;
use std::ops::Range;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use upload::Origin;

/// What is copied at once: long enough for the bus, short enough that a buffer stays in the cache between being filled
/// and being copied. Measured: buffers of 16 MiB bring half of what those of 4 MiB do.
const UNIT_BYTES: usize = 2 << 20;

/// Called once when an image is complete, with its bytes, or with why it never will be. From any thread.
pub type OnFilled = Box<dyn FnOnce(Result<u64, DeviceError>) + Send>;

/// The weights of one model.
#[derive(Debug)]
pub struct WeightsBlock {
    ground: Arc<Ground>,
    keeping: leaving::Keeping,
}

/// The memory that layers lie in; they keep it.
#[derive(Debug)]
pub(super) struct Ground {
    context: Arc<Context>,
    buffer: DeviceBuffer,
    arrival: Arrival,
    is_parked: AtomicBool,
    /// Shared by those who copy weights to the host, a unit at a time; who takes the memory away has it alone.
    copying: RwLock<()>,
}

impl Ground {
    /// Memory of this many bytes, with undefined content, that can be offloaded.
    fn take(context: &Arc<Context>, bytes: usize) -> Result<Arc<Self>, CudaError> {
        Ok(Self::of(context, DeviceBuffer::parkable(context, bytes)?))
    }

    /// Memory of this many bytes, with undefined content, that stays: a few layers are not worth pieces of their own.
    fn take_small(context: &Arc<Context>, copies: &Mutex<Stream>, bytes: usize) -> Result<Arc<Self>, CudaError> {
        let stream = copies.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Self::of(context, DeviceBuffer::uncertain(&stream, bytes)?))
    }

    /// No memory, for a walk that only measures.
    fn nowhere(context: &Arc<Context>) -> Arc<Self> {
        Self::of(context, DeviceBuffer::empty(context))
    }

    fn of(context: &Arc<Context>, buffer: DeviceBuffer) -> Arc<Self> {
        Arc::new(Self {
            context: Arc::clone(context),
            buffer,
            arrival: Arrival::new(),
            is_parked: AtomicBool::new(false),
            copying: RwLock::default(),
        })
    }

    fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn address(&self) -> u64 {
        self.buffer.address()
    }

    fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    /// Copies weights to the host, if they are all there; whether they are.
    fn copy_out(&self, stream: &Stream, range: Range<usize>, to: &mut PinnedBytes) -> Result<bool, CudaError> {
        let _shared = self.copying.read().unwrap_or_else(PoisonError::into_inner);
        if !self.is_there() {
            return Ok(false);
        }
        let to = &mut to.as_mut_slice()[..range.len()];
        assert!(range.end <= self.bytes(), "inside the weights");
        // SAFETY: both ranges were checked and hold the bytes until the wait below: the buffer is borrowed, and the weights
        // leave only when `copying` is free. The caller has bound the context, which the stream needs.
        unsafe { stream.copy_out(to.as_mut_ptr(), self.address() + range.start as u64, range.len()) }?;
        stream.wait()?;
        Ok(true)
    }

    /// Whether all weights are on the GPU.
    pub(super) fn is_there(&self) -> bool {
        self.arrival.is_there()
    }

    /// Makes a stream wait until all weights are copied. Costs nothing when they are.
    pub(super) fn hold_all(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.hold(stream, self.bytes())
    }

    fn hold(&self, stream: &Stream, end: usize) -> Result<(), DeviceError> {
        if self.is_there() { Ok(()) } else { self.arrival.hold(stream, end) }
    }
}

/// A part of the weights, as a layer holds it.
#[derive(Clone, Debug)]
pub(super) struct WeightSlice {
    ground: Arc<Ground>,
    at: usize,
    end: usize,
}

impl WeightSlice {
    pub(super) fn address(&self) -> u64 {
        self.ground.address() + self.at as u64
    }

    /// Makes a stream wait until this part and all before it are copied. Costs nothing when they are.
    pub(super) fn hold(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.ground.hold(stream, self.end)
    }
}

impl WeightsBlock {
    /// Bytes of the weights, wherever they are.
    pub fn bytes(&self) -> u64 {
        self.ground.bytes() as u64
    }

    /// Whether the weights have memory on the GPU; they may still be being copied.
    pub fn is_resident(&self) -> bool {
        !self.ground.is_parked.load(Ordering::Acquire)
    }

    /// Whether the weights are being copied.
    pub fn is_arriving(&self) -> bool {
        self.is_resident() && !self.ground.is_there()
    }

    /// Waits until all weights are there.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.ground.arrival.wait()
    }

    /// The weights being copied, to be waited for while others compute with them; `None`: all are there.
    pub fn on_their_way(&self) -> Option<Arriving> {
        self.is_arriving().then(|| Arriving(Arc::clone(&self.ground)))
    }

    pub(super) fn ground(&self) -> &Arc<Ground> {
        &self.ground
    }

    /// Weights that are all there, and where they came from.
    fn there(ground: Arc<Ground>, copies: &Arc<Mutex<Stream>>, origin: Origin) -> Self {
        Self { keeping: leaving::Keeping::new(copies, origin), ground }
    }
}

/// Weights that are being copied.
#[derive(Debug)]
pub struct Arriving(Arc<Ground>);

impl Arriving {
    /// Waits until all weights are there, or have been offloaded again.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.0.arrival.wait()
    }
}
