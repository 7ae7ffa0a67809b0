//! A worker as the supervisor uses it: gives it batches, reads its answers, stops or kills it.
//! Never waits for the worker; what it says comes through the receiver.

use super::channel::{ChannelError, Outgoing};
use super::message::{Batch, Image, ToWorker, TurnStep, VectorOrder};
use super::process::Process;
use super::slots::Slots;
use super::wire::field_of;
use crate::decoder::Sampling;
use crate::executors::{ExecutorModel, Output};
use crate::packed::Tokens;
use magray_device::SharedMemory;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Gives work to a worker, from any thread. When the last clone goes, a worker that was not stopped is killed.
#[derive(Clone, Debug)]
pub struct WorkerHandle(Arc<Held>);

/// A batch for a worker.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// Its name, which comes back with the answer.
    pub batch: u64,
    /// Where it lies until the answer was read. No other batch may use the slot meanwhile.
    pub slot: usize,
    /// Which of the worker's models.
    pub model: usize,
    /// Leading tokens of each text that are not pooled.
    pub skip: usize,
    /// The texts; they fit the slot.
    pub texts: &'a [Tokens<'a>],
}

/// Memory for a model's weights that outlives the worker. The worker that gets an empty one fills it.
#[derive(Clone, Copy, Debug)]
pub enum Offer<'a> {
    /// There is none: what leaves the device is read from the model's files again.
    None,
    /// Nothing is in it yet.
    Empty {
        /// Its name, which comes back when it is full.
        image: u64,
        /// It; what is not touched costs nothing.
        memory: &'a SharedMemory,
    },
    /// A worker has filled it.
    Filled {
        /// Its name.
        image: u64,
        /// It.
        memory: &'a SharedMemory,
        /// How much of it is in use.
        bytes: u64,
    },
}

/// The worker cannot be reached any more; the receiver tells how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker is gone")]
pub struct WorkerGone;

/// Why a worker was not told of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untold {
    /// It cannot be reached.
    #[error(transparent)]
    Gone(#[from] WorkerGone),
    /// Messages carry paths as UTF-8.
    #[error("the path of its folder is not UTF-8")]
    Path,
}

#[derive(Debug)]
struct Held {
    process: Arc<Process>,
    outgoing: Mutex<Outgoing>,
    slots: Slots,
    /// How many models it knows.
    models: Arc<AtomicUsize>,
}

impl WorkerHandle {
    pub(super) fn new(process: Arc<Process>, outgoing: Outgoing, slots: Slots, models: Arc<AtomicUsize>) -> Self {
        Self(Arc::new(Held { process, outgoing: Mutex::new(outgoing), slots, models }))
    }

    /// Hands a batch over. Its answer, or its failure, is told by the receiver.
    pub fn submit(&self, work: Work<'_>) -> Result<(), WorkerGone> {
        let batch = self.put(work);
        self.send(ToWorker::Batch(batch))
    }

    /// As [`WorkerHandle::submit`], for an answer of this kind.
    pub fn submit_for(&self, work: Work<'_>, output: Output) -> Result<(), WorkerGone> {
        let batch = self.put(work);
        self.send(ToWorker::Batch(Batch { output, ..batch }))
    }

    /// Puts a batch into its slot.
    fn put(&self, work: Work<'_>) -> Batch {
        let model = self.number(work.model);
        let extent = self.0.slots.put(work.slot, work.texts);
        let [slot, skip] = [work.slot, work.skip].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        Batch { batch: work.batch, slot, model, skip, output: Output::Texts, extent }
    }

    /// Hands steps of sequences over, whose tokens are the texts of the work. What came of them is told by the receiver.
    /// For sequences that begin it says how their tokens are chosen.
    pub fn submit_turn<'a>(
        &self,
        work: Work<'_>,
        steps: &[TurnStep],
        beginning: impl Iterator<Item = (u64, &'a Sampling)>,
    ) -> Result<(), WorkerGone> {
        assert_eq!(work.texts.len(), steps.len(), "each step has its tokens");
        for (sequence, sampling) in beginning {
            self.send(ToWorker::Begin { sequence, sampling: sampling.clone() })?;
        }
        let batch = self.put(work);
        self.send(ToWorker::Turn { batch, steps: steps.to_vec() })
    }

    /// Lets it let go of the state of a sequence, after what it was given before. Not answered.
    pub fn free(&self, sequence: u64) -> Result<(), WorkerGone> {
        self.send(ToWorker::Free { sequence })
    }

    /// Copies the answer of a batch that has finished out of its slot.
    pub fn read_rows(&self, slot: usize, out: &mut [f32]) {
        self.0.slots.read_rows(slot, out);
    }

    /// How many models it knows.
    pub fn models(&self) -> usize {
        self.0.models.load(Ordering::Acquire)
    }

    /// Tells it of one model more. Callers must not do so at once.
    pub fn know(&self, model: &ExecutorModel) -> Result<(), Untold> {
        let field = field_of(model).map_err(|_| Untold::Path)?;
        self.send(ToWorker::Know(&field))?;
        self.0.models.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Lets it put a model's weights on the device. What comes of it is told by the receiver.
    pub fn load(&self, model: usize, offer: Offer<'_>) -> Result<(), WorkerGone> {
        let model = self.number(model);
        let (image, memory) = match offer {
            Offer::None => (Image::None, None),
            Offer::Empty { image, memory } => {
                (Image::Empty { image, bytes_max: memory.words() as u64 * 4 }, Some(memory))
            }
            Offer::Filled { image, memory, bytes } => (Image::Filled { image, bytes }, Some(memory)),
        };
        self.send_along(memory, ToWorker::Load { model, image })
    }

    /// Lets it take a model's weights off the device, after what it was given before. The receiver tells when they are.
    pub fn offload(&self, model: usize) -> Result<(), WorkerGone> {
        self.send(ToWorker::Offload { model: self.number(model) })
    }

    /// Lets it let go of a model altogether, after what it was given before. Not answered.
    pub fn forget(&self, model: usize) -> Result<(), WorkerGone> {
        if model >= self.models() {
            // It was never told of it.
            return Ok(());
        }
        self.send(ToWorker::Forget { model: self.number(model) })
    }

    /// Lets it do something with vectors; the memory goes along with the first order. What comes of it is told by the
    /// receiver.
    pub fn order_vectors(
        &self,
        call: u64,
        vectors: u32,
        order: VectorOrder,
        memory: Option<&SharedMemory>,
    ) -> Result<(), WorkerGone> {
        self.send_along(memory, ToWorker::Vectors { call, vectors, order })
    }

    /// Lets it free all memory of the device that it can, after what it was given before. The receiver tells how much.
    pub fn trim(&self) -> Result<(), WorkerGone> {
        self.send(ToWorker::Trim)
    }

    /// Lets a fault happen with its next batch, for tests.
    #[cfg(feature = "testing")]
    pub(crate) fn order_fault(&self, word: &str) -> Result<(), WorkerGone> {
        self.send(ToWorker::Fault(word))
    }

    /// Lets it answer what it was given and then end.
    pub fn stop(&self) {
        self.0.process.note_stop();
        // One that cannot be told any more has ended by itself.
        let _ = self.send(ToWorker::Stop);
    }

    /// Ends it by force. Does nothing where it has ended already.
    pub fn kill(&self) {
        self.0.process.kill();
    }

    /// Ends it by force as a stranger would, for tests: it counts as killed from outside.
    pub fn strike(&self) {
        self.0.process.strike();
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.0.process.pid()
    }

    /// A model by its number; one that the worker does not know is a bug.
    fn number(&self, model: usize) -> u32 {
        assert!(model < self.models(), "model {model} of {}", self.models());
        u32::try_from(model).unwrap_or(u32::MAX)
    }

    fn send(&self, message: ToWorker<'_>) -> Result<(), WorkerGone> {
        self.send_along(None, message)
    }

    fn send_along(&self, memory: Option<&SharedMemory>, message: ToWorker<'_>) -> Result<(), WorkerGone> {
        let mut outgoing = self.0.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = match memory {
            Some(memory) => outgoing.send_along(memory.fd(), &message),
            None => outgoing.send(&message),
        };
        sent.map_err(|error| {
            if !matches!(error, ChannelError::Closed) {
                // Half a message may be sent: nothing that follows would be understood.
                self.0.process.strike();
            }
            WorkerGone
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.process.is_stopping() {
            self.process.kill();
        }
    }
}
