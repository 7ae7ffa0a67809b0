//! Brings a model's weights to the GPU, in the order in which they are used.
//! Straight from host memory that the driver knows, else through pinned buffers that several threads fill.

use super::image::Image;
use super::parts::{self, Part};
use super::{Ground, UNIT_BYTES};
use crate::cuda::device_error::DeviceError;
use crate::cuda::pinned_buffers::PinnedBytes;
use crate::cuda::stream::{Mark, Stream};
use crate::cuda::threads::on_threads;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Units copied at once from page-locked memory: nothing has to stay in a cache there.
const UNITS_DIRECT: usize = 16;
/// How often streams can begin to wait: one layer of a large model is longer.
const MARK_BYTES: usize = 32 << 20;
/// Threads that copy bytes as they are. Measured on an H200: 8 bring 39 GB/s, 16 bring 52, and the bus has 55.
const COPIERS_MOST: usize = 16;
/// Threads that convert numbers; each has two buffers.
const CONVERTERS_MOST: usize = 32;

/// Where weights can be had from at any time.
#[derive(Debug)]
pub(super) enum Origin {
    /// Made of a model's numbers.
    Parts(Vec<Part>),
    /// As they once lay on the GPU: an image that is whole.
    Image(Arc<Image>),
}

impl Origin {
    /// Fills a buffer with the stretch that begins at `start`.
    pub(super) fn make(&self, start: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        match self {
            Self::Parts(parts) => Ok(parts::make(parts, start, bytes)?),
            Self::Image(image) => image.read(start, bytes),
        }
    }

    /// The numbers went elsewhere: the pages of their files would only take memory.
    pub(super) fn release_pages(&self) {
        if let Self::Parts(parts) = self {
            parts.iter().for_each(|part| part.content.release_pages());
        }
    }
}

/// Where an upload takes weights from.
pub(super) struct Source<'a> {
    pub(super) origin: &'a Origin,
    /// An image that is being filled: what it has of them is cheaper to read than to make.
    pub(super) filling: Option<&'a Image>,
}

impl Source<'_> {
    /// Whether nothing goes through buffers.
    fn is_direct(&self) -> bool {
        match self.origin {
            Origin::Parts(_) => false,
            Origin::Image(image) => image.is_registered(),
        }
    }

    /// The address of a stretch that needs no buffer.
    fn direct(&self, range: Range<usize>) -> Option<u64> {
        match self.origin {
            Origin::Parts(_) => None,
            Origin::Image(image) => image.registered(range),
        }
    }

    /// Fills a buffer with the unit that begins at `start`.
    fn make(&self, start: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        if let Some(image) = self.filling.filter(|image| image.has_unit(start)) {
            return image.read(start, bytes);
        }
        self.origin.make(start, bytes)
    }

    /// Threads that are worth having.
    fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        match self.origin {
            // Without a buffer to fill, one thread keeps the bus busy.
            _ if self.is_direct() => 1,
            Origin::Parts(_) => cores.min(CONVERTERS_MOST),
            Origin::Image(_) => cores.min(COPIERS_MOST),
        }
    }
}

/// Copies all weights; returns when they are there. `ground` tells those who want to begin before that.
pub(super) fn upload(ground: &Ground, source: &Source<'_>, copies: &Mutex<Stream>) -> Result<(), DeviceError> {
    let broken = Broken(ground);
    let result = Upload::new(ground, source, copies).run();
    std::mem::forget(broken);
    ground.arrival.end(result.clone());
    result
}

/// Tells those who wait that nothing more will come, should a bug end the upload.
struct Broken<'a>(&'a Ground);

impl Drop for Broken<'_> {
    fn drop(&mut self) {
        self.0.arrival.end(Err(DeviceError::System("the upload ended in the middle".to_owned())));
    }
}

struct Upload<'a> {
    ground: &'a Ground,
    source: &'a Source<'a>,
    copies: &'a Mutex<Stream>,
    units: usize,
    /// Units that a thread takes at once.
    taken: usize,
    /// The next unit that a thread may take.
    next: AtomicUsize,
    front: Mutex<Front>,
    has_failed: AtomicBool,
}

/// How far the copies are in the stream.
struct Front {
    is_put: Vec<bool>,
    /// Units before which every one is in the stream.
    whole: usize,
    /// Bytes up to the last mark.
    marked: usize,
}

/// A pinned buffer of a thread, and where its last copy ends.
struct Bounce {
    bytes: PinnedBytes,
    copied: Mark,
}

impl<'a> Upload<'a> {
    fn new(ground: &'a Ground, source: &'a Source<'a>, copies: &'a Mutex<Stream>) -> Self {
        let units = ground.bytes().div_ceil(UNIT_BYTES);
        Self {
            ground,
            source,
            copies,
            units,
            taken: if source.is_direct() { UNITS_DIRECT } else { 1 },
            next: AtomicUsize::new(0),
            front: Mutex::new(Front { is_put: vec![false; units], whole: 0, marked: 0 }),
            has_failed: AtomicBool::new(false),
        }
    }

    fn run(&self) -> Result<(), DeviceError> {
        let threads = self.source.threads();
        let worked = on_threads(threads.min(self.units), || self.work());
        // Also after a failure: nothing may be under way when the memory goes.
        let end = self.stream(Stream::mark).and_then(|mark| Ok(mark.wait()?));
        end.or_else(|_| self.stream(Stream::wait))?;
        worked
    }

    /// Takes unit after unit until there is none.
    fn work(&self) -> Result<(), DeviceError> {
        let result = self.ground.context().bind().map_err(DeviceError::from).and_then(|()| self.copy_units());
        if result.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        result
    }

    fn copy_units(&self) -> Result<(), DeviceError> {
        let mut bounces: [Option<Bounce>; 2] = [None, None];
        let mut turn = 0;
        while !self.has_failed.load(Ordering::Relaxed) {
            let unit = self.next.fetch_add(self.taken, Ordering::Relaxed);
            if unit >= self.units {
                break;
            }
            let start = unit * UNIT_BYTES;
            let range = start..(start + self.taken * UNIT_BYTES).min(self.ground.bytes());
            match self.source.direct(range.clone()) {
                Some(from) => self.put(range, from, None)?,
                None => {
                    let bounce = self.bounce(&mut bounces[turn], range.len())?;
                    turn = 1 - turn;
                    let bytes = &mut bounce.bytes.as_mut_slice()[..range.len()];
                    self.source.make(start, bytes)?;
                    let from = bounce.bytes.address();
                    self.put(range, from, Some(&mut bounce.copied))?;
                }
            }
        }
        Ok(())
    }

    /// A buffer that no copy reads any more.
    fn bounce<'b>(&self, slot: &'b mut Option<Bounce>, bytes: usize) -> Result<&'b mut Bounce, DeviceError> {
        let bounce = match slot.take() {
            Some(bounce) => {
                bounce.copied.wait()?;
                bounce
            }
            None => {
                let context = self.ground.context();
                // The last unit may be short, but who takes it may take no other.
                let bytes = PinnedBytes::take(context, bytes.max(UNIT_BYTES.min(self.ground.bytes())))?;
                Bounce { bytes, copied: Mark::new(context)? }
            }
        };
        Ok(slot.insert(bounce))
    }

    /// Puts the copy of some units into the stream.
    fn put(&self, range: Range<usize>, from: u64, copied: Option<&mut Mark>) -> Result<(), DeviceError> {
        self.stream(|stream| {
            let to = self.ground.address() + range.start as u64;
            // SAFETY: the block holds the range, and is not given back before `run` has waited. The source is an image,
            // which outlives this too, or a buffer, which is not touched before its mark is reached.
            unsafe { stream.copy_in(to, from, range.len()) }?;
            if let Some(copied) = copied {
                stream.mark_again(copied)?;
            }
            let mut front = self.front.lock().unwrap_or_else(PoisonError::into_inner);
            front.is_put[range.start / UNIT_BYTES..range.end.div_ceil(UNIT_BYTES)].fill(true);
            while front.is_put.get(front.whole) == Some(&true) {
                front.whole += 1;
            }
            let end = (front.whole * UNIT_BYTES).min(self.ground.bytes());
            if end >= front.marked + MARK_BYTES || (front.whole == self.units && end > front.marked) {
                front.marked = end;
                // In the stream all of these stand before the mark, whichever threads put them there.
                self.ground.arrival.pass(end, stream.mark()?);
            }
            Ok(())
        })
    }

    fn stream<T>(&self, act: impl FnOnce(&Stream) -> Result<T, crate::cuda::CudaError>) -> Result<T, DeviceError> {
        Ok(act(&self.copies.lock().unwrap_or_else(PoisonError::into_inner))?)
    }
}
