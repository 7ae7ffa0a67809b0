//! The book of weights: which model is where, as far as was told, and what may be done with it.
//! Knows of memory and requests; how long loads truly take is the world's secret.

mod judging;

pub(crate) use judging::Scene;

use super::batches::Batches;
use super::memory::MemoryBook;
use super::moves::Eviction;
use super::requests::Ledger;
use super::rule::{Broken, Rule, Verdict, holds};
use super::workers::Workers;
use crate::scenario::Scenario;
use magray_core::ledger::{CollectionId, Owner};
use magray_core::schedule::{
    Allowed, DeviceId, Event, Keeping, Location, ModelId, ModelPlan, Moment, ResidencyRequest, Step,
};
use std::collections::BTreeMap;

/// Loads that fail in a row before requests may be refused for it.
const TRIES: u32 = 3;

#[derive(Debug)]
pub(crate) struct Weights {
    books: Vec<Book>,
    models: Vec<Known>,
    /// Models that the machine has ever known.
    models_told: usize,
    keeping: Keeping,
    /// Whether models may have to leave, by eviction or by request.
    is_crowded: bool,
}

#[derive(Debug)]
struct Book {
    location: Location,
    memory: MemoryBook,
    spots: Vec<Spot>,
    /// When its weights or its worker last changed.
    changed: Moment,
}

#[derive(Debug)]
struct Known {
    plan: ModelPlan,
    /// Whether the machine was told of it and not that it was removed.
    is_known: bool,
    has_image: bool,
    /// When it was last used or requested.
    used: Moment,
    /// Whether it had requests after the previous step.
    was_busy: bool,
    /// Requested on a GPU, and not seen there since.
    preheat: bool,
    /// Requested to leave all memory.
    is_released: bool,
    /// The same until the machine confirms it.
    release: Option<Release>,
    /// How many releases the machine has confirmed.
    releases: u64,
    /// It is being taken out of host memory.
    is_forgetting: bool,
}

/// A release that is not confirmed yet.
#[derive(Clone, Copy, Debug)]
struct Release {
    /// Confirmed releases when it was requested.
    before: u64,
    /// A load of the model was ordered since.
    is_loaded: bool,
}

#[derive(Clone, Copy, Debug)]
struct Spot {
    stage: Stage,
    bytes: u64,
    /// Whether this size was reported, or is only expected.
    is_measured: bool,
    /// Requested to leave this device.
    is_asked_to_leave: bool,
    /// Loads that failed since the last that did not.
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Absent,
    Loading { since: Moment },
    Present { has_computed: bool },
    Leaving { since: Moment },
}

impl Weights {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let book = |device: &crate::scenario::Device| {
            let location = device.spec.location;
            let spot = |(at, model): (usize, &crate::scenario::Model)| Spot {
                stage: match location == Location::InProcess && model.plan.is_preloaded && at < scenario.models_known {
                    true => Stage::Present { has_computed: false },
                    false => Stage::Absent,
                },
                bytes: model.plan.bytes,
                is_measured: false,
                is_asked_to_leave: false,
                failures: 0,
            };
            let spots = scenario.models.iter().enumerate().map(spot).collect();
            Book { location, memory: MemoryBook::new(device.spec.memory), spots, changed: Moment::START }
        };
        let known = |(at, model): (usize, &crate::scenario::Model)| Known {
            plan: model.plan,
            is_known: at < scenario.models_known,
            has_image: false,
            used: Moment::START,
            was_busy: false,
            preheat: false,
            is_released: false,
            release: None,
            releases: 0,
            is_forgetting: false,
        };
        let all: u64 = scenario.models.iter().map(|model| model.bytes.max(model.plan.bytes)).sum();
        let books: Vec<Book> = scenario.devices.iter().map(book).collect();
        Self {
            models: scenario.models.iter().enumerate().map(known).collect(),
            models_told: scenario.models_known,
            keeping: scenario.options.keeping,
            is_crowded: !scenario.interventions.is_empty()
                || books.iter().any(|book| book.memory.room() < all)
                || !scenario.troubles.is_empty(),
            books,
        }
    }

    /// Records an event that the machine is about to get.
    pub(crate) fn heard(&mut self, event: &Event, batches: &Batches, now: Moment) {
        match event {
            Event::Loaded { device, model, bytes, .. } if self.is_loading(*device, *model) => {
                let is_gpu = self.book(*device).location == Location::Worker;
                let known = self.known_mut(*model);
                known.preheat &= !is_gpu;
                known.used = now;
                let spot = self.spot_mut(*device, *model);
                spot.stage = Stage::Present { has_computed: false };
                spot.bytes = *bytes;
                spot.is_measured = true;
                spot.failures = 0;
                for book in self.books.iter_mut().filter(|book| is_gpu && book.location == Location::Worker) {
                    let spot = &mut book.spots[model.0 as usize];
                    if !spot.is_measured && spot.stage == Stage::Absent {
                        spot.bytes = *bytes;
                    }
                }
                self.book_mut(*device).changed = now;
            }
            Event::NotLoaded { device, model, .. } if self.is_loading(*device, *model) => {
                let spot = self.spot_mut(*device, *model);
                spot.stage = Stage::Absent;
                spot.failures += 1;
                spot.is_asked_to_leave = false;
                self.book_mut(*device).changed = now;
            }
            Event::Offloaded { device, model } if self.is_leaving(*device, *model) => {
                let spot = self.spot_mut(*device, *model);
                spot.stage = Stage::Absent;
                spot.is_asked_to_leave = false;
                self.book_mut(*device).changed = now;
            }
            Event::Down { device, .. } => {
                let book = self.book_mut(*device);
                book.changed = now;
                book.memory.clear();
                for spot in &mut book.spots {
                    spot.failures += u32::from(matches!(spot.stage, Stage::Loading { .. }));
                    spot.stage = Stage::Absent;
                    spot.is_asked_to_leave = false;
                }
            }
            Event::Up { device } => self.book_mut(*device).changed = now,
            Event::Memory { device, report } => self.book_mut(*device).memory.report(report),
            Event::VectorsDropped { device, collection } => {
                let book = self.book_mut(*device);
                book.memory.end_drop(*collection);
                book.changed = now;
            }
            Event::Finished { batch, .. } | Event::Failed { batch, .. } => {
                let Some(batch) = batches.get(*batch) else { return };
                let is_computed = matches!(event, Event::Finished { .. });
                self.known_mut(batch.group.model).used = now;
                if let Stage::Present { has_computed } = &mut self.spot_mut(batch.device, batch.group.model).stage {
                    *has_computed |= is_computed;
                }
            }
            Event::Submitted(request) => self.known_mut(request.group.model).used = now,
            Event::Imaged { model, is_there } => self.known_mut(*model).has_image = *is_there,
            Event::Forgotten { model } if self.is_forgetting(*model) => {
                let known = self.known_mut(*model);
                known.is_forgetting = false;
                known.has_image = false;
                known.used = now;
            }
            Event::ResidencyRequested { model, request } => self.requested(*model, *request, now),
            Event::ModelAdded { .. } => {
                let known = &mut self.models[self.models_told];
                known.is_known = true;
                known.used = now;
                self.models_told += 1;
                self.books.iter_mut().for_each(|book| book.changed = now);
            }
            Event::ModelRemoved { model } => {
                self.requested(*model, ResidencyRequest::Release, now);
                self.known_mut(*model).is_known = false;
            }
            _ => {}
        }
    }

    fn requested(&mut self, model: ModelId, request: ResidencyRequest, now: Moment) {
        let known = self.known_mut(model);
        if !known.is_known {
            return;
        }
        known.used = now;
        match request {
            ResidencyRequest::Offload | ResidencyRequest::Release => {
                let is_release = request == ResidencyRequest::Release;
                known.preheat = false;
                if is_release {
                    known.is_released = true;
                    known.release = Some(Release { before: known.releases, is_loaded: false });
                }
                for book in &mut self.books {
                    let spot = &mut book.spots[model.0 as usize];
                    spot.is_asked_to_leave |=
                        spot.stage != Stage::Absent && (is_release || book.location == Location::Worker);
                }
            }
            ResidencyRequest::Preheat(_) => {
                known.preheat = true;
                known.is_released = false;
                known.release = None;
                for book in &mut self.books {
                    book.spots[model.0 as usize].is_asked_to_leave = false;
                }
            }
            ResidencyRequest::IdleTimeout(timeout) => known.plan.idle_timeout = timeout,
            ResidencyRequest::OffloadAfterUse(is_wanted) => known.plan.offload_after_use = is_wanted,
            ResidencyRequest::Pin(is_pinned) => known.plan.is_pinned = is_pinned,
            ResidencyRequest::Priority(priority) => known.plan.priority = priority,
        }
    }

    /// A batch is to be started.
    pub(crate) fn may_start(&self, device: DeviceId, steps: &[Step], ledger: &Ledger) -> Verdict {
        let Some(step) = steps.first() else { return Ok(()) };
        let model = ledger.entry(step.request)?.request.group.model;
        let stage = self.spot(device, model).stage;
        holds(matches!(stage, Stage::Present { .. }), Rule::HasWeights, || {
            format!("a batch of model {} is started on device {}, where its weights are {stage:?}", model.0, device.0)
        })
    }

    pub(crate) fn load(&mut self, device: DeviceId, model: ModelId, workers: &Workers, now: Moment) -> Verdict {
        let spot = *self.spot(device, model);
        let is_ready = self.book(device).location == Location::InProcess || workers.takes_orders(device);
        let is_kept_off = self.is_forgetting(model);
        holds(spot.stage == Stage::Absent && is_ready && !is_kept_off, Rule::WeightsOrder, || {
            format!("model {} is to be loaded on device {}: it is {spot:?}", model.0, device.0)
        })?;
        let book = self.book(device);
        let (taken, room) = (book.taken(), book.memory.room());
        holds(taken.saturating_add(spot.bytes) <= room, Rule::Room, || {
            let bytes = spot.bytes;
            format!("model {} of {bytes} is loaded on device {} beside {taken} of {room}", model.0, device.0)
        })?;
        self.spot_mut(device, model).stage = Stage::Loading { since: now };
        if let Some(release) = &mut self.known_mut(model).release {
            release.is_loaded = true;
        }
        self.book_mut(device).changed = now;
        Ok(())
    }

    /// Weights are to leave a device. Returns how, where it is for others.
    pub(crate) fn offload(&mut self, order: Order<'_>, now: Moment) -> Result<Option<Eviction>, Broken> {
        let Order { device, model, .. } = order;
        let spot = *self.spot(device, model);
        let Stage::Present { has_computed } = spot.stage else {
            let message = format!("model {} is to leave device {}, and is {spot:?}", model.0, device.0);
            return Err(Broken { rule: Rule::WeightsOrder, message });
        };
        let is_used = Self::is_used(device, model, order.batches, order.workers);
        holds(!is_used, Rule::NotUnderBatch, || {
            format!("model {} is to leave device {} while that computes", model.0, device.0)
        })?;
        let known = self.known(model);
        holds(!known.plan.is_pinned || spot.is_asked_to_leave, Rule::Pinned, || {
            format!("model {} is pinned, no request asked it to leave, and it is to leave device {}", model.0, device.0)
        })?;
        let is_cpu = self.book(device).location == Location::InProcess;
        let may_leave_cpu = spot.is_asked_to_leave || self.keeping.host.is_some();
        holds(!is_cpu || may_leave_cpu, Rule::Pinned, || {
            format!("model {} is to leave the CPU without a request", model.0)
        })?;
        let is_due = spot.is_asked_to_leave || self.book(device).taken() > self.book(device).memory.room_at_most();
        let is_equal = self.models.iter().all(|other| other.plan.priority <= known.plan.priority)
            && !order.ledger.is_urgent_elsewhere(model, now);
        let is_awaited = || order.ledger.live().any(|entry| self.waits_only_for(entry, device, model));
        holds(has_computed || is_due || !is_equal || is_cpu || !is_awaited(), Rule::TakesTurns, || {
            format!("model {} is to leave device {}, has computed nothing there, and is awaited", model.0, device.0)
        })?;
        self.spot_mut(device, model).stage = Stage::Leaving { since: now };
        self.book_mut(device).changed = now;
        let is_unused = !has_computed && is_equal;
        Ok((!is_due && !is_cpu).then_some(Eviction { device, model, is_unused }))
    }

    /// Whether an untouched request can be computed by this device only.
    fn waits_only_for(&self, entry: &super::requests::Entry, device: DeviceId, model: ModelId) -> bool {
        let gpus = self.books.iter().filter(|book| book.location == Location::Worker).count();
        let is_only = match entry.request.allowed {
            Allowed::Only(only) => only == device,
            Allowed::Gpu => gpus == 1,
            Allowed::Any | Allowed::Cpu | Allowed::Rather(_) => false,
        };
        is_only && entry.request.group.model == model && entry.waiting > 0 && entry.is_untouched()
    }

    pub(crate) fn forget(&mut self, model: ModelId) -> Verdict {
        let holder = self.books.iter().position(|book| book.spots[model.0 as usize].stage != Stage::Absent);
        holds(holder.is_none(), Rule::NotUnderBatch, || {
            format!("model {} is to be forgotten, and device {holder:?} has it", model.0)
        })?;
        let known = self.known_mut(model);
        let is_twice = std::mem::replace(&mut known.is_forgetting, true);
        known.has_image = false;
        known.is_released = false;
        holds(!is_twice, Rule::WeightsOrder, || format!("model {} is to be forgotten twice at once", model.0))
    }

    /// A worker is to be stopped because it has no work.
    pub(crate) fn rest(&self, device: DeviceId, batches: &Batches) -> Verdict {
        let book = self.book(device);
        let is_empty = book.spots.iter().all(|spot| spot.stage == Stage::Absent) && book.memory.vectors() == 0;
        holds(is_empty && batches.oldest(device).is_none(), Rule::NotUnderBatch, || {
            format!("the worker of device {} is to rest, and has weights or batches", device.0)
        })
    }

    /// Whether a load on this device has taken as long as it may.
    pub(crate) fn is_overdue(&self, device: DeviceId, now: Moment) -> bool {
        self.book(device).moving_since().is_some_and(|since| now.since(since) >= self.keeping.load_max)
    }

    /// Whether a batch of a model, or a probe, is on a device.
    fn is_used(device: DeviceId, model: ModelId, batches: &Batches, workers: &Workers) -> bool {
        batches.on(device).any(|(_, batch)| batch.group.model == model) || workers.is_probing(device)
    }

    /// Whether a device cannot have a model before long: there is no memory, or loading failed too often.
    pub(crate) fn is_hopeless(&self, device: DeviceId, model: ModelId, now: Moment) -> bool {
        let book = self.book(device);
        let own = self.spot(device, model);
        let is_fixed = |at: usize, spot: &Spot| {
            let stays = match spot.stage {
                Stage::Absent => false,
                Stage::Loading { .. } | Stage::Present { .. } => !spot.is_asked_to_leave,
                // What was ordered off after the request was judged.
                Stage::Leaving { since } => since == now,
            };
            at != model.0 as usize && stays && (book.location == Location::InProcess || self.models[at].plan.is_pinned)
        };
        let fixed = book.spots.iter().enumerate().filter(|(at, spot)| is_fixed(*at, spot));
        let taken = fixed.fold(own.bytes, |sum, (_, spot)| sum.saturating_add(spot.bytes));
        taken > book.memory.room() || own.failures >= TRIES || !self.known(model).is_known
    }

    /// Whether a device has a model, or has been loading it since before this moment.
    pub(crate) fn is_near(&self, device: DeviceId, model: ModelId, now: Moment) -> bool {
        match self.spot(device, model).stage {
            Stage::Present { .. } => true,
            Stage::Loading { since } => since < now,
            Stage::Absent | Stage::Leaving { .. } => false,
        }
    }

    /// Whether a device has a model, or loads it.
    pub(crate) fn is_served(&self, device: DeviceId, model: ModelId) -> bool {
        matches!(self.spot(device, model).stage, Stage::Present { .. } | Stage::Loading { .. })
    }

    /// Whether every device has every model.
    pub(crate) fn are_all_there(&self) -> bool {
        let mut spots = self.books.iter().flat_map(|book| &book.spots);
        spots.all(|spot| matches!(spot.stage, Stage::Present { .. }))
    }

    /// Whether some device has some model, or has not finished offloading it.
    pub(crate) fn are_some_there(&self) -> bool {
        self.books.iter().flat_map(|book| &book.spots).any(|spot| spot.stage != Stage::Absent)
    }

    /// Whether a device has a model.
    pub(crate) fn is_there(&self, device: DeviceId, model: ModelId) -> bool {
        matches!(self.spot(device, model).stage, Stage::Present { .. })
    }

    /// Whether models may have to leave: then it cannot be told from outside which.
    pub(crate) fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    pub(crate) fn is_loading(&self, device: DeviceId, model: ModelId) -> bool {
        matches!(self.spot(device, model).stage, Stage::Loading { .. })
    }

    pub(crate) fn is_forgetting(&self, model: ModelId) -> bool {
        self.known(model).is_forgetting
    }

    pub(crate) fn is_leaving(&self, device: DeviceId, model: ModelId) -> bool {
        matches!(self.spot(device, model).stage, Stage::Leaving { .. })
    }

    /// Vectors are granted memory of a device.
    pub(crate) fn grant(&mut self, device: DeviceId, collection: CollectionId, bytes: u64) -> Verdict {
        let book = self.book_mut(device);
        let weights = book.weights();
        book.memory.grant(collection, bytes, weights)
    }

    /// Vectors are to leave a device.
    pub(crate) fn begin_drop(&mut self, device: DeviceId, collection: CollectionId, now: Moment) -> Verdict {
        self.book_mut(device).memory.begin_drop(collection, now)
    }

    /// Grants of a device's memory, without the state of sequences, and its total.
    pub(crate) fn accounts(&self, device: DeviceId) -> (BTreeMap<Owner, u64>, u64) {
        let book = self.book(device);
        let there = book.spots.iter().enumerate().filter(|(_, spot)| spot.stage != Stage::Absent && spot.bytes > 0);
        let weights = there.map(|(at, spot)| (Owner::Weights(ModelId(at as u32)), spot.bytes));
        (book.memory.accounts().into_iter().chain(weights).collect(), book.memory.capacity)
    }

    /// Whether a model is requested on a GPU that could have it, and none has it.
    pub(crate) fn is_awaited(&self) -> bool {
        let could_have = |book: &Book, at: usize| {
            let priority = self.models[at].plan.priority;
            let is_fixed = |other: usize| {
                let plan = self.models[other].plan;
                other != at && (plan.is_pinned || plan.priority > priority)
            };
            let there = book.spots.iter().enumerate();
            let fixed = there.filter(|(other, spot)| is_fixed(*other) && spot.stage != Stage::Absent);
            let taken = fixed.fold(book.spots[at].bytes, |sum, (_, spot)| sum.saturating_add(spot.bytes));
            book.location == Location::Worker && taken <= book.memory.room()
        };
        (0..self.models.len()).any(|at| self.models[at].preheat && self.books.iter().any(|book| could_have(book, at)))
    }

    /// A model's plan, with the requests that changed it.
    #[cfg(test)]
    pub(crate) fn plan(&self, model: ModelId) -> ModelPlan {
        self.known(model).plan
    }

    fn book(&self, device: DeviceId) -> &Book {
        &self.books[usize::from(device.0)]
    }

    fn book_mut(&mut self, device: DeviceId) -> &mut Book {
        &mut self.books[usize::from(device.0)]
    }

    fn spot(&self, device: DeviceId, model: ModelId) -> &Spot {
        &self.book(device).spots[model.0 as usize]
    }

    fn spot_mut(&mut self, device: DeviceId, model: ModelId) -> &mut Spot {
        &mut self.book_mut(device).spots[model.0 as usize]
    }

    fn known(&self, model: ModelId) -> &Known {
        &self.models[model.0 as usize]
    }

    fn known_mut(&mut self, model: ModelId) -> &mut Known {
        &mut self.models[model.0 as usize]
    }
}

/// An order to offload, and what it is judged by.
#[derive(Clone, Copy)]
pub(crate) struct Order<'a> {
    pub(crate) device: DeviceId,
    pub(crate) model: ModelId,
    pub(crate) batches: &'a Batches,
    pub(crate) workers: &'a Workers,
    pub(crate) ledger: &'a Ledger,
}

impl Book {
    /// Bytes of all models that are resident, loading or leaving.
    fn taken(&self) -> u64 {
        self.weights().saturating_add(self.memory.vectors())
    }

    fn weights(&self) -> u64 {
        let there = self.spots.iter().filter(|spot| spot.stage != Stage::Absent);
        there.fold(0, |sum, spot| sum.saturating_add(spot.bytes))
    }

    fn moving_since(&self) -> Option<Moment> {
        let since = |spot: &Spot| match spot.stage {
            Stage::Loading { since } | Stage::Leaving { since } => Some(since),
            Stage::Absent | Stage::Present { .. } => None,
        };
        self.spots.iter().filter_map(since).chain(self.memory.leaving_since()).min()
    }
}
