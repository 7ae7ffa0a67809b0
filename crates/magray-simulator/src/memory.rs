//! The world's side of memory: what workers measure and report, and vectors that come and go.
//! What other processes take is in the script; what a worker holds follows from what it was told to load.

use crate::check::Broken;
use crate::worker::Phase;
use crate::world::{Due, World};
use magray_core::ledger::{CollectionId, MemoryReport, Owner};
use magray_core::schedule::{DeviceId, Event};
use std::time::Duration;

/// Passes take up to this part of the memory, and while nothing goes wrong no more than the part that is kept for them.
const WORKSPACE_MOST: f64 = 1.0 / 8.0;
const WORKSPACE_CALM: f64 = 1.0 / 16.0;

impl World {
    /// A worker measures its device's memory and reports it. What it holds beyond what others leave is counted in part.
    pub(crate) fn report_memory(&mut self, device: usize) {
        let mut free = self.memories[device];
        let most = if self.now < self.scenario.calm_at { WORKSPACE_MOST } else { WORKSPACE_CALM };
        let workspace = if free == u64::MAX { 0.0 } else { free as f64 * most * self.chance.unit() };
        let executor = &self.executors[device];
        let weights = executor.weights.iter().map(|(model, bytes)| (Owner::Weights(*model), *bytes));
        let vectors = executor.vectors.iter().map(|(collection, bytes)| (Owner::Vectors(*collection), *bytes));
        let fixed = [(Owner::Context, executor.device.spec.memory.context), (Owner::Workspace, workspace as u64)];
        let mut held = Vec::new();
        for (owner, bytes) in fixed.into_iter().chain(weights).chain(vectors) {
            let counted = bytes.min(free);
            free -= counted;
            held.push((owner, counted));
        }
        let cached = if self.chance.is(0.5) { free / 2 } else { 0 };
        let report = MemoryReport { free: free - cached, cached, held };
        self.report(device, Event::Memory { device: DeviceId(device as u16), report });
    }

    /// A collection wants more memory for its vectors, or none any more.
    pub(crate) fn want_vectors(
        &mut self,
        device: DeviceId,
        collection: CollectionId,
        bytes: u64,
    ) -> Result<(), Broken> {
        if bytes > 0 {
            return self.tell(Event::VectorsAsked { device, collection, bytes });
        }
        match self.executors[usize::from(device.0)].vectors.remove(&collection) {
            Some(_) => self.tell(Event::VectorsDropped { device, collection }),
            None => Ok(()),
        }
    }

    /// Vectors were granted memory. A worker that is gone, and the machine does not know yet, takes nothing.
    pub(crate) fn take_vectors(&mut self, device: usize, collection: CollectionId, bytes: u64) {
        let executor = &mut self.executors[device];
        if executor.phase != Phase::Absent {
            *executor.vectors.entry(collection).or_default() += bytes;
        }
    }

    pub(crate) fn drop_vectors(&mut self, device: usize, collection: CollectionId) {
        let executor = &self.executors[device];
        let generation = executor.generation;
        if matches!(executor.phase, Phase::Ready | Phase::Broken) {
            let pause = Duration::from_secs_f64(self.chance.magnitude(1e-5, 2e-2));
            self.agenda.plan(self.now + pause, Due::VectorsLeft { device, generation, collection });
        }
    }

    /// Vectors leave, if their worker still lives and they have not left by themselves.
    pub(crate) fn end_drop(&mut self, device: usize, generation: u64, collection: CollectionId) {
        let executor = &mut self.executors[device];
        if executor.generation == generation && executor.phase != Phase::Stuck {
            let was_there = executor.vectors.remove(&collection).is_some();
            if was_there {
                self.report(device, Event::VectorsDropped { device: DeviceId(device as u16), collection });
            }
        }
    }
}
