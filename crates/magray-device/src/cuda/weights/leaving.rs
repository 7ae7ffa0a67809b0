//! Weights that leave the GPU and come back, by an image of them in host memory, beside the caller's work.
//! Never leaves while something is copied: each waits for the other.

use super::image::Image;
use super::upload::{self, Origin};
use super::{Ground, OnFilled, WeightsBlock};
use crate::SharedMemory;
use crate::cuda::device_error::DeviceError;
use crate::cuda::stream::Stream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

impl WeightsBlock {
    /// Weights that are copied from an image; returns when the copy has begun.
    pub(super) fn arriving(
        ground: Arc<Ground>,
        copies: &Arc<Mutex<Stream>>,
        memory: SharedMemory,
    ) -> Result<Self, DeviceError> {
        let image = Arc::new(Image::new(&ground.context, memory, ground.bytes(), true)?);
        let keeping = Keeping { copies: Arc::clone(copies), image: Some(Arc::clone(&image)), task: None };
        let mut weights = Self { ground, keeping };
        weights.fetch(image);
        Ok(weights)
    }

    /// Whether an image holds the weights.
    pub fn image_is_filled(&self) -> bool {
        self.keeping.image.as_ref().is_some_and(|image| image.is_filled())
    }

    /// Fills an image in the background, from the GPU; takes the place of one that was there. Weights that are away fill
    /// none.
    pub fn keep_image(&mut self, memory: SharedMemory, on_filled: OnFilled) {
        if !self.is_resident() {
            return on_filled(Err(DeviceError::Away));
        }
        self.forget_image();
        let started = Image::new(&self.ground.context, memory, self.ground.bytes(), false).map(Arc::new);
        let image = match started {
            Ok(image) => image,
            Err(error) => return on_filled(Err(error)),
        };
        self.keeping.image = Some(Arc::clone(&image));
        let ground = Arc::clone(&self.ground);
        let told = Told(Some(on_filled));
        self.keeping.begin("magray-image", move |cancel| {
            let bytes = ground.bytes() as u64;
            let filled = ground.arrival.wait().and_then(|()| image.fill(&ground, cancel));
            told.tell(filled.map(|()| bytes));
        });
    }

    /// Drops the image: its memory is unmapped, and no longer page-locked. Waits for copies from or to it. Offloaded weights
    /// cannot come back then.
    pub fn forget_image(&mut self) {
        // An upload must end: layers wait for it.
        if self.is_arriving() {
            // Its failure is told to those who need the weights.
            let _ = self.ground.arrival.wait();
        }
        self.keeping.settle(true);
        self.keeping.image = None;
    }

    /// Takes the weights off the GPU. Waits until the image holds them, and makes one if there is none. The caller guarantees
    /// that no pass uses them.
    pub fn offload(&mut self) -> Result<(), DeviceError> {
        if !self.is_resident() {
            return Ok(());
        }
        let arrived = self.ground.arrival.wait();
        // What is only registered for the next time is not worth waiting for; an image that is being filled is, also
        // where the weights cannot be parked: it is what they come back from.
        self.keeping.settle(self.image_is_filled());
        if !self.ground.context.can_park() {
            return Err(DeviceError::CannotPark);
        }
        if arrived.is_err() {
            // Copies may be under way still; memory that the driver may write to is not taken away.
            self.keeping.copies.lock().unwrap_or_else(PoisonError::into_inner).wait()?;
        }
        if !self.image_is_filled() {
            arrived?;
            let memory = SharedMemory::of_bytes(self.bytes())?;
            let image = Image::new(&self.ground.context, memory, self.ground.bytes(), false)?;
            image.fill(&self.ground, &AtomicBool::new(false))?;
            self.keeping.image = Some(Arc::new(image));
        }
        self.ground.arrival.leave();
        self.ground.buffer.park();
        self.ground.is_parked.store(true, Ordering::Release);
        Ok(())
    }

    /// Copies the weights back to their addresses; returns when the copy has begun. Without memory for them they stay
    /// offloaded.
    pub fn wake(&mut self) -> Result<(), DeviceError> {
        if self.is_resident() {
            return Ok(());
        }
        let Some(image) = self.keeping.image.clone() else {
            return Err(DeviceError::System("the weights' image is gone: load the model again".to_owned()));
        };
        self.keeping.settle(true);
        self.ground.buffer.restore()?;
        self.ground.is_parked.store(false, Ordering::Release);
        self.fetch(image);
        Ok(())
    }

    /// Begins to copy the weights from the image.
    fn fetch(&mut self, image: Arc<Image>) {
        self.ground.arrival.begin();
        let (ground, copies) = (Arc::clone(&self.ground), Arc::clone(&self.keeping.copies));
        self.keeping.begin("magray-upload", move |cancel| {
            // A failure is told by the arrival, to all who wait for the weights.
            if upload::upload(&ground, &Origin::Image(&image), &copies).is_ok() {
                image.register(cancel);
            }
        });
    }
}

/// What stays in host memory.
#[derive(Debug)]
pub(super) struct Keeping {
    copies: Arc<Mutex<Stream>>,
    image: Option<Arc<Image>>,
    /// The background copy, one at a time.
    task: Option<Task>,
}

/// A background copy.
#[derive(Debug)]
struct Task {
    cancel: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Keeping {
    /// No image, and no copy in progress.
    pub(super) fn nothing(copies: &Arc<Mutex<Stream>>) -> Self {
        Self { copies: Arc::clone(copies), image: None, task: None }
    }

    /// Starts a background copy.
    fn begin(&mut self, name: &str, act: impl FnOnce(&AtomicBool) + Send + 'static) {
        let cancel = Arc::new(AtomicBool::new(false));
        let waiting = Arc::new(Mutex::new(Some(Box::new(act) as Act)));
        let (for_thread, heeds) = (Arc::clone(&waiting), Arc::clone(&cancel));
        match std::thread::Builder::new().name(name.to_owned()).spawn(move || take_and_do(&for_thread, &heeds)) {
            Ok(thread) => self.task = Some(Task { cancel, thread }),
            // A system that has no thread left gets it done all the same, only not beside the caller.
            Err(_) => take_and_do(&waiting, &cancel),
        }
    }

    /// Ends the background copy: waits for it, or cancels it.
    fn settle(&mut self, cancels: bool) {
        if let Some(task) = self.task.take() {
            task.cancel.store(cancels, Ordering::Relaxed);
            // What a thread has to tell it has told by the arrival or the callback.
            let _ = task.thread.join();
        }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.settle(true);
    }
}

type Act = Box<dyn FnOnce(&AtomicBool) + Send>;

fn take_and_do(waiting: &Mutex<Option<Act>>, cancel: &AtomicBool) {
    let act = waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(act) = act {
        act(cancel);
    }
}

/// Reports exactly once, also when the reporting thread panicked.
struct Told(Option<OnFilled>);

impl Told {
    fn tell(mut self, result: Result<u64, DeviceError>) {
        if let Some(on_filled) = self.0.take() {
            on_filled(result);
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if let Some(on_filled) = self.0.take() {
            on_filled(Err(DeviceError::System("the image was given up before it was filled".to_owned())));
        }
    }
}
