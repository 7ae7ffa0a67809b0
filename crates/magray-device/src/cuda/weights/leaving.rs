//! Weights that leave the GPU at once and come back, from an image in host memory or from where they first came.
//! An image is filled beside all that, and survives the weights' coming and going.

use super::image::Image;
use super::upload::{self, Origin, Source};
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
        let image = Image::new(&ground.context, memory, ground.bytes(), true)?;
        let mut weights = Self { keeping: Keeping::new(copies, Origin::Image(Arc::new(image))), ground };
        weights.fetch();
        Ok(weights)
    }

    /// Whether an image holds all weights.
    pub fn image_is_filled(&self) -> bool {
        let is_filled = |filling: &Filling| filling.image.is_filled();
        matches!(*self.keeping.origin, Origin::Image(_)) || self.keeping.filling.as_ref().is_some_and(is_filled)
    }

    /// Fills an image in the background, whether the weights stay meanwhile or leave; takes the place of one that is being
    /// filled.
    pub fn keep_image(&mut self, memory: SharedMemory, on_filled: OnFilled) {
        self.keeping.filling = None;
        let image = match Image::new(&self.ground.context, memory, self.ground.bytes(), false) {
            Ok(image) => Arc::new(image),
            Err(error) => return on_filled(Err(error)),
        };
        let (ground, origin, told) =
            (Arc::clone(&self.ground), Arc::clone(&self.keeping.origin), Told(Some(on_filled)));
        let fills = Arc::clone(&image);
        let task = Task::begin("magray-image", move |cancel| {
            let filled = fills.fill(&ground, |at, bytes| origin.make(at, bytes), cancel);
            origin.release_pages();
            let is_filled = filled.is_ok();
            told.tell(filled.map(|()| ground.bytes() as u64));
            if is_filled {
                fills.register(cancel);
            }
        });
        self.keeping.filling = Some(Filling { image, task });
    }

    /// Takes an image that another process has filled from the same model, for the next wake; one of another size is left.
    pub fn take_image(&mut self, memory: SharedMemory, bytes: u64) {
        if let Ok(image) = Image::new(&self.ground.context, memory, self.ground.bytes(), true)
            && bytes == self.bytes()
        {
            self.keeping.filling = None;
            self.keeping.origin = Arc::new(Origin::Image(Arc::new(image)));
        }
    }

    /// Takes the weights from the GPU; an image that is being filled goes on without them. The caller guarantees
    /// that no pass uses them.
    pub fn offload(&mut self) -> Result<(), DeviceError> {
        if !self.is_resident() {
            return Ok(());
        }
        let arrived = self.ground.arrival.wait();
        if !self.ground.context.can_park() {
            // All of this is dropped now, and the image is what the model comes back from.
            if let Some(filling) = self.keeping.filling.take() {
                filling.task.finish();
            }
            return Err(DeviceError::CannotPark);
        }
        self.keeping.settle();
        if arrived.is_err() {
            // Copies may be under way still; memory that the driver may write to is not taken away.
            self.keeping.copies.lock().unwrap_or_else(PoisonError::into_inner).wait()?;
        }
        let _alone = self.ground.copying.write().unwrap_or_else(PoisonError::into_inner);
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
        self.keeping.settle();
        self.ground.buffer.restore()?;
        self.ground.is_parked.store(false, Ordering::Release);
        self.fetch();
        Ok(())
    }

    /// Begins to copy the weights to the GPU.
    fn fetch(&mut self) {
        self.ground.arrival.begin();
        let (ground, copies) = (Arc::clone(&self.ground), Arc::clone(&self.keeping.copies));
        let origin = Arc::clone(&self.keeping.origin);
        let filling = self.keeping.filling.as_ref().map(|filling| Arc::clone(&filling.image));
        self.keeping.task = Some(Task::begin("magray-upload", move |cancel| {
            // The arrival tells a failure to all who wait for the weights.
            let uploaded = upload::upload(&ground, &Source { origin: &origin, filling: filling.as_deref() }, &copies);
            match (uploaded, &*origin) {
                (Ok(()), Origin::Image(image)) => image.register(cancel),
                _ => origin.release_pages(),
            }
        }));
    }
}

/// What stays in host memory.
#[derive(Debug)]
pub(super) struct Keeping {
    copies: Arc<Mutex<Stream>>,
    /// Where the weights can be had from at any time.
    origin: Arc<Origin>,
    /// An image on its way: the origin once it is whole.
    filling: Option<Filling>,
    /// An upload, then the page-locking of the image it came from.
    task: Option<Task>,
}

#[derive(Debug)]
struct Filling {
    image: Arc<Image>,
    task: Task,
}

impl Keeping {
    /// Nothing is under way.
    pub(super) fn new(copies: &Arc<Mutex<Stream>>, origin: Origin) -> Self {
        Self { copies: Arc::clone(copies), origin: Arc::new(origin), filling: None, task: None }
    }

    /// Ends the background work, but for an image that is being filled. Page-locking for the next time is not worth waiting
    /// for.
    fn settle(&mut self) {
        self.task = None;
        if let Some(filling) = self.filling.take_if(|filling| filling.image.is_filled()) {
            self.origin = Arc::new(Origin::Image(filling.image));
        }
    }
}

/// Work in the background. When dropped, it is cancelled and waited for.
#[derive(Debug)]
struct Task {
    cancel: Arc<AtomicBool>,
    /// There until it is waited for.
    thread: Option<JoinHandle<()>>,
}

impl Task {
    fn begin(name: &str, act: impl FnOnce(&AtomicBool) + Send + 'static) -> Self {
        let cancel = Arc::new(AtomicBool::new(false));
        let waiting = Arc::new(Mutex::new(Some(Box::new(act) as Act)));
        let (for_thread, heeds) = (Arc::clone(&waiting), Arc::clone(&cancel));
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || take_and_do(&for_thread, &heeds));
        if thread.is_err() {
            // A system that has no thread left gets it done all the same, only not beside the caller.
            take_and_do(&waiting, &cancel);
        }
        Self { cancel, thread: thread.ok() }
    }

    /// Waits until it is done.
    fn finish(mut self) {
        self.join();
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // What a thread has to tell it has told by the arrival or the callback.
            let _ = thread.join();
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
        self.join();
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
