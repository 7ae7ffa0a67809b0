//! The models of a worker: orders for them, and what comes of these.
//! Reports every move once, with its time and its memory, to the dispatcher and to the log.

use super::super::canary::Canary;
use super::super::dispatcher::Dispatcher;
use super::super::executor_handle::Loaded;
use super::Inner;
use super::told::Told;
use crate::executors::{Failure, FailureKind, Origin, RankSums};
use crate::gpu::MemoryStats;
use crate::worker::{Arrived, FromWorker, Offer, Untold, WorkerHandle};
use magray_core::OnnxProvider;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Inner {
    /// Lets a worker load a model, from the host's memory where it is there.
    pub(super) fn load(&self, worker: u64, model: usize) {
        let mut state = self.lock();
        // The worker ended meanwhile: its end is reported, and the load with it.
        let Some(handle) = state.handle_of(worker) else { return };
        if let Err(error) = self.introduce(&handle, model) {
            drop(state);
            let problem = Failure::new(FailureKind::Transient, "unknown_model", error.to_string());
            return self.dispatcher.upgrade().into_iter().for_each(|dispatcher| {
                self.not_loaded(&dispatcher, worker, model, problem.clone());
            });
        }
        let form = self.spec.worker.form(&self.spec.models[model]);
        let handed = match self.spec.worker.device.takes_images() {
            true => self.spec.images.hand_out(model, form, self.holder(worker)),
            false => Ok(None),
        };
        let handed = handed.unwrap_or_else(|error| {
            let (device, model) = (self.spec.name, self.spec.packer.name(model));
            tracing::warn!(target: "magray::engine", %device, model, %error, "no memory to keep a model's weights in");
            None
        });
        let offer = handed.as_ref().map_or(Offer::None, |handed| handed.offer());
        let image = match offer {
            Offer::Empty { image, .. } => Some(image),
            Offer::None | Offer::Filled { .. } => None,
        };
        state.signs.move_model();
        state.presence.load_ordered(model, image);
        // One that is gone says so by its end.
        let _ = handle.load(model, offer);
    }

    /// Tells a worker of a model that came after it was started, and of those before it.
    fn introduce(&self, handle: &WorkerHandle, model: usize) -> Result<(), Untold> {
        (handle.models()..=model).try_for_each(|unknown| handle.know(&self.spec.models[unknown]))
    }

    /// Lets a worker take a model's weights off the device.
    pub(super) fn offload(&self, worker: u64, model: usize) {
        let mut state = self.lock();
        if let Some(handle) = state.handle_of(worker) {
            state.signs.move_model();
            state.presence.offload_ordered(model);
            let _ = handle.offload(model);
        }
    }

    /// Lets go of a model's weights in the host's memory, whether there is a worker or not: any that there is has them.
    pub(super) fn forget(&self, model: usize) {
        let began = Instant::now();
        let bytes = self.spec.images.forget(model);
        if let Some(handle) = &self.lock().handle {
            let _ = handle.forget(model);
        }
        // All executors share the images: the first to be told has something to tell.
        if bytes > 0 {
            let (model, took_ms, images_left) =
                (self.spec.packer.name(model), milliseconds(began.elapsed()), self.spec.images.bytes());
            tracing::info!(target: "magray::residency", model, took_ms, bytes, images_left, "a model is in no memory");
        }
    }

    /// What a worker says of models.
    pub(super) fn hear_of_models(
        &self,
        dispatcher: &Dispatcher,
        worker: u64,
        handle: &WorkerHandle,
        message: FromWorker,
    ) {
        let images = &self.spec.images;
        match message {
            FromWorker::Loaded { model, arrived } if arrived.outputs == self.canary(model).outputs() => {
                if let Some(arrived) = self.checkable(handle, model, arrived) {
                    self.loaded(dispatcher, model, arrived);
                }
            }
            FromWorker::Loaded { model, .. } => {
                // What it has is of no use.
                let _ = handle.forget(model);
                let message = "a model on the GPU answers with other lengths than on the CPU: was its folder changed?";
                let code = "model_changed".to_owned();
                let problem = Failure { kind: FailureKind::Transient, code, message: message.to_owned() };
                self.not_loaded(dispatcher, worker, model, problem);
            }
            FromWorker::NotLoaded { model, problem } => self.not_loaded(dispatcher, worker, model, problem),
            FromWorker::Offloaded { model, took, memory } => self.offloaded(dispatcher, model, took, memory),
            FromWorker::ImageFilled { model, image, bytes } => {
                if images.filled(self.holder(worker), image, bytes) {
                    dispatcher.imaged(model, true);
                    // It may have been dropped before that was told, which is not told again.
                    if !images.has(model) {
                        dispatcher.imaged(model, false);
                    }
                    let (device, model) = (self.spec.name, self.spec.packer.name(model));
                    tracing::info!(target: "magray::residency", %device, model, bytes, "weights are in the host's memory");
                }
            }
            FromWorker::ImageSpoilt { model, image, problem: Failure { code, message, .. } } => {
                if images.spoilt(image) {
                    dispatcher.imaged(model, images.has(model));
                }
                let (device, model) = (self.spec.name, self.spec.packer.name(model));
                tracing::warn!(target: "magray::engine", %device, model, code, error = message, "weights are not kept in the host's memory");
            }
            FromWorker::Finished { .. }
            | FromWorker::Turned { .. }
            | FromWorker::Failed { .. }
            | FromWorker::Vectors { .. }
            | FromWorker::Trimmed { .. }
            | FromWorker::Heartbeat { .. } => {
                unreachable!("these are no moves")
            }
        }
    }

    fn canary(&self, model: usize) -> &Canary {
        &self.spec.packer.canaries[model]
    }

    /// How a model arrived, if its answers can be checked. Else its known text is computed on the CPU, and then the worker is
    /// told once more to load what it has, so that it reports the model again.
    fn checkable(&self, handle: &WorkerHandle, model: usize, arrived: Arrived) -> Option<Arrived> {
        let mut state = self.lock();
        let before = state.unchecked.iter().position(|(known, _)| *known == model);
        let arrived = before.map_or(arrived, |at| state.unchecked.swap_remove(at).1);
        if self.canary(model).is_settled() {
            return Some(arrived);
        }
        state.unchecked.push((model, arrived.clone()));
        drop(state);
        let (packer, handle) = (Arc::clone(&self.spec.packer), handle.clone());
        let make = move || {
            packer.make_reference(model);
            // One that is gone says so by its end.
            let _ = handle.load(model, Offer::None);
        };
        let begun = std::thread::Builder::new().name("reference".to_owned()).spawn(make);
        begun.is_err().then_some(arrived)
    }

    fn loaded(&self, dispatcher: &Dispatcher, model: usize, arrived: Arrived) {
        let Arrived { precision, bytes, took, origin, memory, provider, sums, .. } = arrived;
        let mut state = self.lock();
        let ordered = state.presence.loaded(model, bytes);
        state.note_memory(memory);
        state.told.note(model, Told { precision, provider, sums: sums.clone() });
        drop(state);
        tracing::info!(
            target: "magray::residency",
            device = %self.spec.name,
            model = self.spec.packer.name(model),
            from = origin.code(),
            %precision,
            provider = provider.map(OnnxProvider::code),
            sums = sums.as_ref().map(tracing::field::display),
            took_ms = milliseconds(took),
            bytes,
            memory_used = memory.allocated,
            memory_free = memory.free,
            "a model is on its device"
        );
        if let Some(RankSums::Host(reason)) = sums {
            let model = self.spec.packer.name(model);
            tracing::warn!(
                target: "magray::engine", device = %self.spec.name, model,
                "GPUs that share layers add up their parts on the host: {reason}"
            );
        }
        // Weights may still be arriving, which the worker counts in.
        let took = ordered.map_or(took, |ordered| ordered.took.max(took));
        let from_host = origin != Origin::Files;
        dispatcher.loaded(self.spec.id, model, Loaded { bytes, took, from_host });
    }

    fn not_loaded(&self, dispatcher: &Dispatcher, worker: u64, model: usize, problem: Failure) {
        let Failure { kind, code, message } = problem;
        let mut state = self.lock();
        let ordered = state.presence.not_loaded(model);
        state.fail(message.clone(), !matches!(kind, FailureKind::OutOfMemory | FailureKind::Transient));
        drop(state);
        if let Some(image) = ordered.and_then(|ordered| ordered.image) {
            self.spec.images.not_taken(self.holder(worker), image);
        }
        let (device, model_name) = (self.spec.name, self.spec.packer.name(model));
        let took_ms = ordered.map(|ordered| milliseconds(ordered.took));
        tracing::warn!(target: "magray::engine", %device, model = model_name, took_ms, code, error = message, "a model is not on its device");
        dispatcher.not_loaded(self.spec.id, model, kind);
    }

    fn offloaded(&self, dispatcher: &Dispatcher, model: usize, took: Duration, memory: MemoryStats) {
        let mut state = self.lock();
        let bytes = state.presence.offloaded(model);
        state.note_memory(memory);
        drop(state);
        tracing::info!(
            target: "magray::residency",
            device = %self.spec.name,
            model = self.spec.packer.name(model),
            took_ms = milliseconds(took),
            bytes,
            memory_used = memory.allocated,
            memory_free = memory.free,
            "a model has left its device"
        );
        dispatcher.offloaded(self.spec.id, model);
    }

    pub(super) fn trimmed(&self, freed: u64, memory: MemoryStats) {
        let mut state = self.lock();
        state.note_memory(memory);
        if let Some(caller) = state.trims.pop_front() {
            // It may wait no more.
            let _ = caller.send(freed);
        }
        drop(state);
        let (device, memory_free) = (self.spec.name, memory.free);
        tracing::info!(target: "magray::residency", %device, freed, memory_free, "cached memory was freed");
    }
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}
