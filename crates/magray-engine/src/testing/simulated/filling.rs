//! How the weights of a simulated GPU get into an image: a mark in it, after the time that it would take.
//! Copies no weights.

use crate::executors::{Failure, OnFilled};
use crate::gpu::GpuError;
use magray_device::SharedMemory;
use magray_device::cuda::DeviceError;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// An image, whole or being filled. Dropped before it is whole, it never will be.
pub(super) struct Filling {
    /// Nothing is ever sent: that it is gone tells the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Kept as a worker keeps the mapping of a real one.
    memory: Arc<SharedMemory>,
}

/// What stands in an image that is whole, at its beginning and at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) bytes: u64,
}

const BEGUN: u32 = 0xbe90_0000;
const WHOLE: u32 = 0x6001_e000;
/// Words of a mark: the state, and the bytes in two halves.
const WORDS: usize = 3;

impl Filling {
    /// Begins to fill; `on_filled` is told what came of it.
    pub(super) fn begin(memory: SharedMemory, mark: Mark, takes: Duration, on_filled: OnFilled) -> Self {
        let (stop, stopped) = channel::<()>();
        let memory = Arc::new(memory);
        let kept = Arc::clone(&memory);
        let fill = move || {
            let filled = match mark.begin(&memory) {
                false => Err(DeviceError::WrongImage { expected: mark.bytes, found: memory.bytes() as u64 }),
                true => match stopped.recv_timeout(takes) {
                    Err(RecvTimeoutError::Timeout) => {
                        mark.complete(&memory);
                        Ok(mark.bytes)
                    }
                    _ => Err(DeviceError::System("the image was let go of before it was filled".to_owned())),
                },
            };
            on_filled(filled.map_err(|error| Failure::from(GpuError::from(error))));
        };
        let thread = std::thread::Builder::new().name("fill".to_owned()).spawn(fill).ok();
        Self { stop: Some(stop), thread, memory: kept }
    }

    /// An image that another worker has filled.
    pub(super) fn whole(memory: SharedMemory) -> Self {
        Self { stop: None, thread: None, memory: Arc::new(memory) }
    }

    /// Whether all weights are in it.
    pub(super) fn is_whole(&self) -> bool {
        Mark::read(&self.memory).is_some()
    }

    /// Waits until the image is whole, or never will be.
    fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic was told where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.stop.take();
        self.wait();
    }
}

impl Mark {
    /// Notes that the image is being filled; `false` where it is too small.
    fn begin(self, memory: &SharedMemory) -> bool {
        let fits = self.words().is_some_and(|words| words <= memory.words() && words >= 2 * WORDS);
        if fits {
            memory.write(0, &self.with(BEGUN));
        }
        fits
    }

    fn complete(self, memory: &SharedMemory) {
        if let Some(words) = self.words() {
            memory.write(words - WORDS, &self.with(WHOLE));
            memory.write(0, &self.with(WHOLE));
        }
    }

    /// The mark of an image that is whole; `None` where it is not.
    pub(super) fn read(memory: &SharedMemory) -> Option<Self> {
        let read = |at: usize| {
            let mut words = [0; WORDS];
            memory.read(at, &mut words);
            words
        };
        let [_, low, high] = (memory.words() >= WORDS).then(|| read(0))?;
        let mark = Self { bytes: u64::from(low) | u64::from(high) << 32 };
        let end = mark.words().filter(|words| *words <= memory.words())?.checked_sub(WORDS)?;
        (read(0) == mark.with(WHOLE) && read(end) == mark.with(WHOLE)).then_some(mark)
    }

    fn with(self, state: u32) -> [u32; WORDS] {
        [state, self.bytes as u32, (self.bytes >> 32) as u32]
    }

    fn words(self) -> Option<usize> {
        usize::try_from(self.bytes.div_ceil(4)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(memory: &SharedMemory, bytes: u64, takes: Duration) -> (Filling, std::sync::mpsc::Receiver<Option<u64>>) {
        let (tell, told) = channel();
        let other = SharedMemory::from_fd(memory.fd().try_clone_to_owned().unwrap(), memory.words()).unwrap();
        let on_filled: OnFilled = Box::new(move |filled| tell.send(filled.ok()).unwrap());
        (Filling::begin(other, Mark { bytes }, takes, on_filled), told)
    }

    #[test]
    fn an_image_is_whole_when_it_says_so_and_not_before() {
        let memory = SharedMemory::create(100).unwrap();
        assert_eq!(Mark::read(&memory), None);
        let (filling, told) = fill(&memory, 390, Duration::MAX);
        drop(filling);
        assert_eq!((told.recv().unwrap(), Mark::read(&memory)), (None, None), "it was let go of");
        let (mut filling, told) = fill(&memory, 390, Duration::ZERO);
        filling.wait();
        assert_eq!((told.recv().unwrap(), Mark::read(&memory)), (Some(390), Some(Mark { bytes: 390 })));
        memory.write(96, &[0]);
        assert_eq!(Mark::read(&memory), None, "its end is lost");
    }

    #[test]
    fn an_image_that_is_too_small_is_refused() {
        let memory = SharedMemory::create(100).unwrap();
        let (_filling, told) = fill(&memory, 401, Duration::ZERO);
        assert_eq!((told.recv().unwrap(), Mark::read(&memory)), (None, None));
        assert_eq!(Mark::read(&SharedMemory::create(1).unwrap()), None);
    }
}
