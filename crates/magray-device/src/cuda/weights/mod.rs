//! A model's weights on the GPU: one block, which can leave its memory and come back to the same addresses.
//! Never leaves while somebody computes with it: who owns it waits first.

mod arrival;
#[cfg(unix)]
mod image;
mod parts;
mod site;
mod upload;

pub(super) use parts::{Form, Matrix};
pub use site::Site;

use super::context::Context;
use super::device::DeviceError;
use super::error::CudaError;
use super::memory::DeviceBuffer;
use super::stream::Stream;
#[cfg(unix)]
use crate::SharedMemory;
use arrival::Arrival;
#[cfg(unix)]
use image::Image;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use upload::Origin;

/// Told once when an image is whole, with its bytes, or why it never will be. Called from any thread.
pub type OnFilled = Box<dyn FnOnce(Result<u64, DeviceError>) + Send>;

/// The weights of one model.
#[derive(Debug)]
pub struct WeightsBlock {
    ground: Arc<Ground>,
    copies: Arc<Mutex<Stream>>,
    #[cfg(unix)]
    image: Option<Arc<Image>>,
    /// What is copied beside the caller's work; one thing at a time.
    task: Option<Task>,
}

/// The memory that layers lie in; they keep it.
#[derive(Debug)]
pub(super) struct Ground {
    context: Arc<Context>,
    buffer: DeviceBuffer,
    arrival: Arrival,
    is_parked: AtomicBool,
}

impl Ground {
    /// Memory of so many bytes, which holds anything and can leave.
    fn take(context: &Arc<Context>, bytes: usize) -> Result<Arc<Self>, CudaError> {
        Ok(Self::of(context, DeviceBuffer::parkable(context, bytes)?))
    }

    /// Memory of so many bytes, which holds anything and stays: a few layers are not worth pieces of their own.
    fn take_small(context: &Arc<Context>, copies: &Mutex<Stream>, bytes: usize) -> Result<Arc<Self>, CudaError> {
        let stream = copies.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Self::of(context, DeviceBuffer::uncertain(&stream, bytes)?))
    }

    /// No memory, for a walk that only measures.
    fn nowhere(context: &Arc<Context>) -> Arc<Self> {
        Self::of(context, DeviceBuffer::empty(context))
    }

    fn of(context: &Arc<Context>, buffer: DeviceBuffer) -> Arc<Self> {
        let (arrival, is_parked) = (Arrival::new(), AtomicBool::new(false));
        Arc::new(Self { context: Arc::clone(context), buffer, arrival, is_parked })
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

    /// Whether all weights are on the GPU.
    pub(super) fn is_there(&self) -> bool {
        self.arrival.is_there()
    }
}

/// A part of the weights, as a layer holds it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    ground: Arc<Ground>,
    at: usize,
    end: usize,
}

impl Place {
    pub(super) fn address(&self) -> u64 {
        self.ground.address() + self.at as u64
    }

    /// Lets a stream wait until this part and all before it are there. Costs nothing when they are.
    pub(super) fn hold(&self, stream: &Stream) -> Result<(), DeviceError> {
        if self.ground.is_there() { Ok(()) } else { self.ground.arrival.hold(stream, self.end) }
    }
}

/// Copies that go on beside the caller.
#[derive(Debug)]
struct Task {
    cancel: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl WeightsBlock {
    /// Bytes of the weights, wherever they are.
    pub fn bytes(&self) -> u64 {
        self.ground.bytes() as u64
    }

    /// Whether the weights have memory on the GPU; they may still be on their way.
    pub fn is_resident(&self) -> bool {
        !self.ground.is_parked.load(Ordering::Acquire)
    }

    /// Whether the weights have memory and are not all there yet.
    pub fn is_arriving(&self) -> bool {
        self.is_resident() && !self.ground.is_there()
    }

    /// Waits until all weights are there.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.ground.arrival.wait()
    }

    /// The weights on their way, to be waited for while others compute with them; `None`: all are there.
    pub fn on_their_way(&self) -> Option<Arriving> {
        self.is_arriving().then(|| Arriving(Arc::clone(&self.ground)))
    }

    pub(super) fn ground(&self) -> &Arc<Ground> {
        &self.ground
    }

    /// Weights that are all there.
    fn there(ground: Arc<Ground>, copies: Arc<Mutex<Stream>>) -> Self {
        Self {
            ground,
            copies,
            #[cfg(unix)]
            image: None,
            task: None,
        }
    }

    /// Ends what goes on beside the caller: waits for it, or lets it stop soon.
    fn settle(&mut self, cancels: bool) {
        if let Some(task) = self.task.take() {
            task.cancel.store(cancels, Ordering::Relaxed);
            // What a thread has to tell it has told by the arrival or the callback.
            let _ = task.thread.join();
        }
    }
}

/// Weights on their way.
#[derive(Debug)]
pub struct Arriving(Arc<Ground>);

impl Arriving {
    /// Waits until all weights are there, or have been taken away again.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.0.arrival.wait()
    }
}

#[cfg(unix)]
impl WeightsBlock {
    /// Weights that come from an image; returns when they are on their way.
    fn arriving(ground: Arc<Ground>, copies: Arc<Mutex<Stream>>, memory: SharedMemory) -> Result<Self, DeviceError> {
        let image = Image::new(&ground.context, memory, ground.bytes(), true)?;
        let mut weights = Self { ground, copies, image: Some(Arc::new(image)), task: None };
        weights.fetch()?;
        Ok(weights)
    }

    /// Whether an image holds the weights.
    pub fn image_is_filled(&self) -> bool {
        self.image.as_ref().is_some_and(|image| image.is_filled())
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
        self.image = Some(Arc::clone(&image));
        let ground = Arc::clone(&self.ground);
        let told = Told(Some(on_filled));
        self.begin("magray-image", move |cancel| {
            let bytes = ground.bytes() as u64;
            let filled = ground.arrival.wait().and_then(|()| image.fill(&ground, cancel));
            told.tell(filled.map(|()| bytes));
        });
    }

    /// Lets go of the image: its memory is unmapped, and unknown to the driver again. Waits for copies from or to it.
    /// Weights that are away cannot come back then.
    pub fn forget_image(&mut self) {
        // An upload must end: layers wait for it.
        if self.is_arriving() {
            // Its failure is told to those who need the weights.
            let _ = self.ground.arrival.wait();
        }
        self.settle(true);
        self.image = None;
    }

    /// Takes the weights from the GPU. Waits until the image holds them, and makes one if there is none. Nobody computes
    /// with them, which the caller has seen to.
    pub fn offload(&mut self) -> Result<(), DeviceError> {
        if !self.is_resident() {
            return Ok(());
        }
        if !self.ground.context.can_park() {
            return Err(DeviceError::CannotPark);
        }
        let arrived = self.ground.arrival.wait();
        // What is only registered for the next time is not worth waiting for; an image that is being filled is.
        self.settle(self.image_is_filled());
        if !self.image_is_filled() {
            arrived?;
            let memory = SharedMemory::of_bytes(self.bytes())?;
            let image = Image::new(&self.ground.context, memory, self.ground.bytes(), false)?;
            image.fill(&self.ground, &AtomicBool::new(false))?;
            self.image = Some(Arc::new(image));
        }
        self.ground.arrival.leave();
        self.ground.buffer.park();
        self.ground.is_parked.store(true, Ordering::Release);
        Ok(())
    }

    /// Brings the weights back to where they were; returns when they are on their way. Without memory for them they stay
    /// away.
    pub fn wake(&mut self) -> Result<(), DeviceError> {
        if self.is_resident() {
            return Ok(());
        }
        self.settle(true);
        self.ground.buffer.restore()?;
        self.ground.is_parked.store(false, Ordering::Release);
        self.fetch()
    }

    /// Begins to copy the weights from the image.
    fn fetch(&mut self) -> Result<(), DeviceError> {
        let Some(image) = self.image.clone() else {
            return Err(DeviceError::System("the weights' image is gone: load the model again".to_owned()));
        };
        self.ground.arrival.begin();
        let (ground, copies) = (Arc::clone(&self.ground), Arc::clone(&self.copies));
        self.begin("magray-upload", move |cancel| {
            // A failure is told by the arrival, to all who wait for the weights.
            if upload::upload(&ground, &Origin::Image(&image), &copies).is_ok() {
                image.register(cancel);
            }
        });
        Ok(())
    }

    /// Does something beside the caller.
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
}

#[cfg(unix)]
type Act = Box<dyn FnOnce(&AtomicBool) + Send>;

#[cfg(unix)]
fn take_and_do(waiting: &Mutex<Option<Act>>, cancel: &AtomicBool) {
    let act = waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(act) = act {
        act(cancel);
    }
}

impl Drop for WeightsBlock {
    fn drop(&mut self) {
        self.settle(true);
    }
}

/// Tells exactly once, also when the one who was to tell is gone.
#[cfg(unix)]
struct Told(Option<OnFilled>);

#[cfg(unix)]
impl Told {
    fn tell(mut self, result: Result<u64, DeviceError>) {
        if let Some(on_filled) = self.0.take() {
            on_filled(result);
        }
    }
}

#[cfg(unix)]
impl Drop for Told {
    fn drop(&mut self) {
        if let Some(on_filled) = self.0.take() {
            on_filled(Err(DeviceError::System("the image was given up before it was filled".to_owned())));
        }
    }
}
