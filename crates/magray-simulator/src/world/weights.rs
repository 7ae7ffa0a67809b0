//! The world's side of weights: they come, fail to come, never come, and go; workers rest when they are told to.
//! Answers each order once, or with the end of the worker that had it.

use super::{Due, World};
use crate::trouble::Kind;
use crate::worker::Phase;
use magray_core::schedule::{DeviceId, Ending, Event, Failure, Location, ModelId, Moment};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadEnd {
    Loaded,
    Failed(Failure),
    Crash,
}

/// The form of a model's weights that GPUs load, in the host's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Image {
    pub(crate) is_there: bool,
    /// Counts how often it was dropped, so that one being made then is not kept.
    pub(crate) generation: u64,
}

/// An order to load or offload weights, and its worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    pub(crate) device: usize,
    pub(crate) generation: u64,
    pub(crate) model: ModelId,
    pub(crate) since: Moment,
    pub(crate) from_host: bool,
}

impl World {
    pub(crate) fn load(&mut self, device: usize, model: ModelId) {
        let executor = &self.executors[device];
        // A worker that is gone, and the machine does not know yet, gets nothing more.
        if executor.phase == Phase::Absent {
            return;
        }
        let ranks = executor.device.ranks;
        // A group has no images.
        let is_in_host = ranks == 1 && self.images[model.0 as usize].is_there;
        let bytes = self.scenario.models[model.0 as usize].bytes;
        let noise = 1.0 + self.scenario.noise * self.chance.between(-1.0, 1.0);
        let time = executor.device.loads.of(bytes, is_in_host).mul_f64(noise);
        let from_host = is_in_host;
        let order = Move { device, generation: executor.generation, model, since: self.now, from_host };
        let is_stuck = executor.phase == Phase::Stuck;
        let is_broken = executor.phase == Phase::Broken;
        let trouble = (0..ranks).find_map(|_| self.load_trouble(device));
        let (end, time) = match (is_broken, trouble) {
            (true, _) => (Some(LoadEnd::Failed(Failure::Sticky)), Duration::from_micros(30)),
            (false, Some(end)) => (end, time.mul_f64(self.chance.unit())),
            (false, None) => (Some(LoadEnd::Loaded), time),
        };
        // A worker that hangs reports nothing until it is ended.
        if let Some(end) = end.filter(|_| !is_stuck) {
            self.agenda.plan(self.now + time, Due::LoadEnds { order, end });
        }
    }

    /// The fault of a load that begins now: `None`: no fault; `Some(None)`: it never ends.
    fn load_trouble(&mut self, device: usize) -> Option<Option<LoadEnd>> {
        let kinds: Vec<Kind> = self.faults(device).kinds().collect();
        kinds.into_iter().find_map(|kind| match kind {
            Kind::NoLoad { part, failure } if self.chance.is(part) => Some(Some(LoadEnd::Failed(failure))),
            Kind::LoadCrash { part } if self.chance.is(part) => Some(Some(LoadEnd::Crash)),
            Kind::LoadHang { part } if self.chance.is(part) => Some(None),
            Kind::Vanished { .. } => Some(Some(LoadEnd::Failed(Failure::Lost))),
            _ => None,
        })
    }

    pub(crate) fn end_load(&mut self, order: Move, end: LoadEnd) {
        let executor = &mut self.executors[order.device];
        if executor.generation != order.generation || executor.phase == Phase::Stuck {
            return;
        }
        let (device, model) = (DeviceId(order.device as u16), order.model);
        let event = match end {
            LoadEnd::Loaded => {
                let truth = self.scenario.models[model.0 as usize];
                let took = self.now.since(order.since);
                if executor.device.spec.location == Location::Worker && executor.device.ranks == 1 && !order.from_host {
                    let image = self.images[model.0 as usize].generation;
                    let time = took.mul_f64(self.chance.unit());
                    self.agenda.plan(self.now + time, Due::Imaged { order, image });
                }
                self.executors[order.device].weights.insert(model, truth.bytes);
                Event::Loaded { device, model, bytes: truth.bytes, took, from_host: order.from_host }
            }
            LoadEnd::Failed(failure) => {
                if failure == Failure::Sticky {
                    executor.phase = Phase::Broken;
                }
                Event::NotLoaded { device, model, failure }
            }
            LoadEnd::Crash => return self.die(order.device, Ending::Crashed),
        };
        self.report(order.device, event);
    }

    /// An image is complete, if its worker still lives and it was not dropped. Some are found to be corrupt later.
    pub(crate) fn imaged(&mut self, order: Move, image: u64) {
        let known = &mut self.images[order.model.0 as usize];
        if self.executors[order.device].generation == order.generation && known.generation == image {
            known.is_there = !known.is_there || !self.chance.is(0.05);
            let (model, is_there) = (order.model, known.is_there);
            self.report(order.device, Event::Imaged { model, is_there });
            if is_there && self.chance.is(0.1) {
                let time = Duration::from_secs_f64(self.chance.magnitude(1e-3, 1.0));
                self.agenda.plan(self.now + time, Due::Imaged { order, image });
            }
        }
    }

    pub(crate) fn offload(&mut self, device: usize, model: ModelId) {
        let executor = &self.executors[device];
        let order = Move { device, generation: executor.generation, model, since: self.now, from_host: true };
        let is_heard = matches!(executor.phase, Phase::Ready | Phase::Broken);
        let is_lost = self.faults(device).kinds().any(|kind| matches!(kind, Kind::LoadHang { part } if part == 1.0));
        if is_heard && !is_lost {
            let time = self.executors[device].device.loads.offload.mul_f64(self.chance.between(0.5, 1.5));
            self.agenda.plan(self.now + time, Due::OffloadEnds(order));
        }
    }

    pub(crate) fn end_offload(&mut self, order: Move) {
        let executor = &self.executors[order.device];
        if executor.generation == order.generation && executor.phase != Phase::Stuck {
            let (device, model) = (DeviceId(order.device as u16), order.model);
            self.executors[order.device].weights.remove(&model);
            self.report(order.device, Event::Offloaded { device, model });
        }
    }

    pub(crate) fn forget(&mut self, model: ModelId) {
        let image = &mut self.images[model.0 as usize];
        *image = Image { is_there: false, generation: image.generation + 1 };
        let time = Duration::from_secs_f64(self.chance.magnitude(1e-5, 2e-2));
        self.agenda.plan(self.now + time, Due::Tell(Event::Forgotten { model }));
    }

    pub(crate) fn rest(&mut self, device: usize) {
        let executor = &self.executors[device];
        let generation = executor.generation;
        let is_deaf = self.faults(device).kinds().any(|kind| matches!(kind, Kind::Restless));
        if matches!(executor.phase, Phase::Ready | Phase::Broken) && !is_deaf {
            let pause = Duration::from_secs_f64(self.chance.magnitude(1e-4, 2e-2));
            self.agenda.plan(self.now + pause, Due::Dies { device, generation, ending: Ending::Rested });
        }
    }
}
