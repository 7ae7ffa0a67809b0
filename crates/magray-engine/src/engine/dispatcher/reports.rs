//! What executors and those who look after devices tell the dispatcher: batches that ended, workers and weights that come and go.
//! Decides nothing: each becomes an event of the machine; batches that failed, workers that ended and devices that were
//! ruled out are incidents too.

use super::Dispatcher;
use crate::engine::executor_handle::{Batch, Loaded, Turn};
use crate::executors::NewTokens;
use crate::profile::Place;
use magray_core::ledger::{CollectionId, MemoryReport};
use magray_core::schedule::{BatchId, Condition, DeviceId, Ending, Event, Failure, MemoryUse, ModelId, Outcome};
use std::time::Duration;

impl Dispatcher {
    /// A batch was computed; `rows` has one row a text, or one a token where those were wanted.
    pub(in crate::engine) fn finished(&self, device: DeviceId, batch: &Batch, rows: &[f32], compute: Duration) {
        self.profiling.computed(self.place(device), batch, compute);
        let outputs = rows.len() / batch.rows().max(1);
        // Memory for the answers is taken, and they are copied, before the lock is.
        let mut from = 0;
        let computed: Vec<Vec<f32>> = batch
            .parts
            .iter()
            .map(|part| {
                let to = from + part.rows() * outputs;
                let rows = rows[from..to].to_vec();
                from = to;
                rows
            })
            .collect();
        let mut state = self.lock();
        let now = self.now();
        for (part, rows) in batch.parts.iter().zip(computed) {
            if let Some(pending) = state.requests.get_mut(&part.request) {
                pending.keep(part, rows, outputs);
            }
        }
        // A batch that a worker finishes while it ends does not mean that the device serves again.
        if state.machine.is_in_rotation(device) {
            state.incidents.served(device, now);
        }
        self.step(state, Event::Finished { batch: batch.id, compute, outcomes: Vec::new() }, now);
    }

    /// A turn was computed: what came of each step.
    pub(in crate::engine) fn turned(&self, device: DeviceId, turn: &Turn, new: Vec<NewTokens>, compute: Duration) {
        self.profiling.turned(self.place(device), turn, &new, compute);
        let outcome = |new: &NewTokens| match new.is_end {
            true => Outcome::End(new.tokens.len() as u32),
            false => Outcome::Tokens(new.tokens.len() as u32),
        };
        let outcomes = new.iter().map(outcome).collect();
        let tokens = new.iter().map(|new| new.tokens.len() as u64).sum();
        self.throughput().note_generated(tokens, self.started().elapsed());
        let mut state = self.lock();
        let now = self.now();
        // Those of a turn that was given up count for nothing: the machine says which are delivered.
        state.new_tokens = turn.steps.iter().zip(new).map(|(step, new)| (step.request, new)).collect();
        if state.machine.is_in_rotation(device) {
            state.incidents.served(device, now);
        }
        self.step(state, Event::Finished { batch: turn.id, compute, outcomes }, now);
    }

    /// A device as profiles name it.
    fn place(&self, device: DeviceId) -> Place {
        let number = usize::from(device.0);
        let name = self.executors().get(number).map(|executor| executor.name());
        Place { device: number, name: name.unwrap_or_default() }
    }

    /// Part of a device has nothing to do.
    pub(in crate::engine) fn spare(&self, device: DeviceId) {
        self.advance(Event::Spare { device });
    }

    pub(in crate::engine) fn failed(&self, device: DeviceId, batch: BatchId, failure: Failure) {
        self.profiling.happened(self.place(device), failure_word(failure));
        let mut state = self.lock();
        let now = self.now();
        state.note(device, failure_word(failure), now);
        self.step(state, Event::Failed { batch, failure }, now);
    }

    pub(in crate::engine) fn up(&self, device: DeviceId) {
        self.profiling.happened(self.place(device), "worker started");
        let mut state = self.lock();
        state.incidents.up(device);
        self.step(state, Event::Up { device }, self.now());
    }

    pub(in crate::engine) fn down(&self, device: DeviceId, ending: Ending) {
        self.profiling.happened(self.place(device), ending_word(ending));
        let mut state = self.lock();
        let now = self.now();
        // One that rests was not needed: nothing went wrong.
        if ending != Ending::Rested {
            state.note_end(device, ending_word(ending), now);
        }
        self.step(state, Event::Down { device, ending }, now);
    }

    pub(in crate::engine) fn heartbeat(&self, device: DeviceId) {
        self.advance(Event::Heartbeat { device });
    }

    /// A model's weights are on a device.
    pub(in crate::engine) fn loaded(&self, device: DeviceId, model: usize, loaded: Loaded) {
        self.profiling.loaded(self.place(device), model, loaded);
        let Loaded { bytes, took, from_host } = loaded;
        self.advance(Event::Loaded { device, model: ModelId(model as u32), bytes, took, from_host });
    }

    /// A model's weights could not be put on a device.
    pub(in crate::engine) fn not_loaded(&self, device: DeviceId, model: usize, failure: Failure) {
        self.advance(Event::NotLoaded { device, model: ModelId(model as u32), failure });
    }

    /// A model's weights have left a device.
    pub(in crate::engine) fn offloaded(&self, device: DeviceId, model: usize) {
        self.profiling.offloaded(self.place(device), model);
        self.advance(Event::Offloaded { device, model: ModelId(model as u32) });
    }

    /// A model's weights are in the host's memory as GPUs load them, or are there no more.
    pub(in crate::engine) fn imaged(&self, model: usize, is_there: bool) {
        self.profiling.imaged(model, is_there);
        self.advance(Event::Imaged { model: ModelId(model as u32), is_there });
    }

    /// A worker reports its device's memory.
    pub(in crate::engine) fn memory(&self, device: DeviceId, report: MemoryReport) {
        self.profiling.memory(self.place(device), &report);
        self.advance(Event::Memory { device, report });
    }

    /// Asks for memory of a device for vectors; where it is granted, says which worker the device has.
    pub(in crate::engine) fn ask_for_vectors(
        &self,
        device: DeviceId,
        collection: CollectionId,
        bytes: u64,
    ) -> Option<u64> {
        let mut state = self.lock();
        let worker = state.worker(device);
        self.step(state, Event::VectorsAsked { device, collection, bytes }, self.now());
        state = self.lock();
        // A worker that ended meanwhile took the memory along.
        (state.vectors_granted.remove(&collection) && state.worker(device) == worker).then_some(worker)
    }

    pub(in crate::engine) fn vectors_used(&self, device: DeviceId, collection: CollectionId) {
        self.advance(Event::VectorsUsed { device, collection });
    }

    pub(in crate::engine) fn vectors_dropped(&self, device: DeviceId, collection: CollectionId) {
        self.advance(Event::VectorsDropped { device, collection });
    }

    /// How full the memory of a whole device is.
    pub(in crate::engine) fn memory_use(&self, device: DeviceId, memory: MemoryUse) {
        self.advance(Event::MemoryUse { device, memory });
    }

    pub(in crate::engine) fn probed(&self, device: DeviceId, passed: bool) {
        self.advance(Event::Probed { device, passed });
    }

    pub(in crate::engine) fn judged(&self, device: DeviceId, condition: Condition) {
        let mut state = self.lock();
        let now = self.now();
        if let Condition::Bad(_) = condition {
            state.note(device, "ruled_out", now);
        }
        self.step(state, Event::Judged { device, condition }, now);
    }

    pub(in crate::engine) fn reset(&self, device: DeviceId) {
        self.advance(Event::Reset { device });
    }
}

fn failure_word(failure: Failure) -> &'static str {
    match failure {
        Failure::OutOfMemory => "out_of_memory",
        Failure::Transient => "transient",
        Failure::Sticky => "gpu_fault",
        Failure::WrongAnswer => "wrong_answers",
        Failure::Lost => "lost",
    }
}

fn ending_word(ending: Ending) -> &'static str {
    match ending {
        Ending::Crashed => "crashed",
        Ending::Killed => "killed",
        Ending::Ordered => "replaced",
        Ending::Rested => "rested",
        Ending::NotStarted => "not_started",
        Ending::Lost => "lost",
    }
}
