//! Where the weights of models are, device by device, and what is known of how they come and go.
//! Decides nothing: what comes, goes and stays is decided in the files beside it.

use super::device_set::DeviceSet;
use super::load_time::{LoadTimes, Source};
use super::{DeviceSpec, Fallback, ModelId, ModelPlan, Moment};
use std::collections::BTreeMap;
use std::time::Duration;

/// The pause after a load that failed; twice as long after each further one, up to a bound.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Loads that fail in a row before requests are not kept waiting for the next.
const TRIES_MAX: u32 = 3;

/// A model, wherever its weights are.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) plan: ModelPlan,
    /// When something of it came or ended last.
    pub(super) used: Moment,
    /// The same of what may go to a GPU.
    pub(super) gpu_used: Moment,
    /// Somebody asked for it, and no GPU has it yet.
    pub(super) want: Option<Want>,
    /// It leaves all memory; nothing of it is loaded before that is done.
    pub(super) is_releasing: bool,
    /// It is being taken out of the host's memory, whatever was requested since.
    pub(super) is_forgetting: bool,
    /// Some form of its weights is in the host's memory ...
    pub(super) is_in_host: bool,
    /// ... namely the one that GPUs load.
    pub(super) has_image: bool,
    pub(super) loads: u64,
    pub(super) offloads: u64,
    /// How often it was in no memory after it was to be in none.
    pub(super) releases: u64,
    /// Devices in rotation that may start batches of it.
    pub(super) present: DeviceSet,
    /// Devices that it is on its way to, or that it waits for.
    pub(super) coming: DeviceSet,
}

/// That a GPU should have a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) since: Moment,
    pub(super) is_preheat: bool,
}

impl Model {
    pub(super) fn new(plan: ModelPlan) -> Self {
        Self {
            plan,
            used: Moment::START,
            gpu_used: Moment::START,
            want: None,
            is_releasing: false,
            is_forgetting: false,
            is_in_host: plan.is_preloaded,
            has_image: false,
            loads: 0,
            offloads: 0,
            releases: 0,
            present: DeviceSet::EMPTY,
            coming: DeviceSet::EMPTY,
        }
    }

    /// Whether nothing of it may be loaded now.
    pub(super) fn is_going(&self) -> bool {
        self.is_releasing || self.is_forgetting
    }

    /// Where a device would load it from.
    pub(super) fn source(&self) -> Source {
        if self.has_image { Source::Host } else { Source::Files }
    }

    /// When it leaves GPUs by itself, if nothing of it comes.
    pub(super) fn idle_at(&self) -> Option<Moment> {
        self.plan.idle_timeout.filter(|_| !self.plan.is_pinned).map(|timeout| self.gpu_used + timeout)
    }
}

/// How far a model's weights are on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Absent,
    Loading {
        since: Moment,
        /// Whether it was owed, and still is if it fails.
        was_owed: bool,
    },
    Present {
        since: Moment,
        /// How long it took to come.
        took: Duration,
        /// Whether a batch of it was computed since.
        has_computed: bool,
        /// Whether it was brought before anybody asked: then it stays until somebody has.
        is_preheated: bool,
    },
    Leaving {
        since: Moment,
    },
}

/// Why no batch of a model starts on a device any more, although it is there or on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// Somebody wants it gone.
    ResidencyRequested,
    /// Its room is needed.
    Pushed,
}

/// A model on a device.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) stage: Stage,
    /// What its weights take there, as was measured or is expected.
    pub(super) bytes: u64,
    pub(super) leave: Option<Leave>,
    /// It comes as soon as the device's worker is ready, if there is room: nobody is pushed out for it.
    pub(super) is_owed: bool,
    /// Whether the device has it, or gets it, and is used.
    pub(super) is_served: bool,
    /// Since when that is not so any more; none if it never was.
    pub(super) lost_since: Option<Moment>,
    /// When it is expected to be there, if it is coming.
    pub(super) ready_at: Option<Moment>,
    /// When a batch of it ended last.
    pub(super) used: Moment,
    /// How often it was gone after it was there or on its way.
    pub(super) departures: u64,
    pub(super) tries: Tries,
    pub(super) times: LoadTimes,
}

impl Place {
    pub(super) fn is_present(&self) -> bool {
        matches!(self.stage, Stage::Present { .. })
    }

    pub(super) fn is_loading(&self) -> bool {
        matches!(self.stage, Stage::Loading { .. })
    }

    /// How long its weights took to come, if nothing was computed with them yet. The CPU's take no time to arrive.
    pub(super) fn unproven(&self) -> Option<Duration> {
        match self.stage {
            Stage::Present { took, has_computed: false, .. } => Some(took),
            _ => None,
        }
    }

    /// Whether it takes memory that it is going to give back.
    pub(super) fn is_on_its_way_out(&self) -> bool {
        match self.stage {
            Stage::Absent => false,
            Stage::Leaving { .. } => true,
            Stage::Loading { .. } | Stage::Present { .. } => self.leave.is_some(),
        }
    }
}

/// Loads that failed in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tries {
    count: u32,
    pub(super) next_at: Moment,
    pub(super) reason: Option<Fallback>,
}

impl Tries {
    /// One more failed, for this reason.
    pub(super) fn fail(&mut self, reason: Fallback, now: Moment) {
        let doublings = self.count.min(16);
        self.count = self.count.saturating_add(1);
        self.next_at = now + PAUSE.saturating_mul(1 << doublings).min(PAUSE_MAX);
        self.reason = Some(reason);
    }

    /// One ended with its worker: the first time that says nothing of the model.
    pub(super) fn fail_with_worker(&mut self, now: Moment) {
        let is_first = self.count == 0;
        self.fail(Fallback::NotLoaded, now);
        if is_first {
            self.next_at = now;
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.count > 0
    }

    pub(super) fn is_pausing(&self, now: Moment) -> bool {
        self.count > 0 && now < self.next_at
    }

    /// Whether nobody should be kept waiting for the next one.
    pub(super) fn are_enough(&self, now: Moment) -> bool {
        self.count >= TRIES_MAX && now < self.next_at
    }
}

/// The weights on a device and the room for them.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    pub(super) places: Vec<Place>,
    /// What they may take, as was told.
    pub(super) room: u64,
    /// The same as long as no worker has told anything.
    room_untold: u64,
    /// What they are believed to have room for, and until when, after there was less than was told.
    pub(super) doubt: Option<(u64, Moment)>,
    /// What is on its way to the device or off it, and since when.
    moving: BTreeMap<ModelId, Moment>,
    /// The model that is being loaded: one at a time, so that the first is there first.
    pub(super) loading: Option<ModelId>,
    /// Since when there are no weights.
    pub(super) empty_since: Option<Moment>,
    /// Something waits for room that a batch, or a request that ends, may free.
    pub(super) is_blocked: bool,
    /// Its worker goes as soon as there are no weights.
    pub(super) rests_at_once: bool,
    /// Its worker rests and is needed.
    pub(super) is_woken: bool,
    load_max: Duration,
}

impl Shelf {
    pub(super) fn new(spec: &DeviceSpec, models: &[Model], load_max: Duration) -> Self {
        let is_cpu = spec.kind == super::DeviceKind::Cpu;
        let place = |model: &Model| Place {
            stage: match is_cpu && model.plan.is_preloaded {
                true => Stage::Present {
                    since: Moment::START,
                    took: Duration::ZERO,
                    has_computed: false,
                    is_preheated: false,
                },
                false => Stage::Absent,
            },
            bytes: model.plan.bytes,
            leave: None,
            is_owed: !is_cpu && model.plan.is_preloaded,
            is_served: false,
            lost_since: None,
            ready_at: None,
            used: Moment::START,
            departures: 0,
            tries: Tries::default(),
            times: LoadTimes::default(),
        };
        Self {
            places: models.iter().map(place).collect(),
            room: spec.weights_max,
            room_untold: spec.weights_max,
            doubt: None,
            moving: BTreeMap::new(),
            loading: None,
            empty_since: None,
            is_blocked: false,
            rests_at_once: false,
            is_woken: false,
            load_max,
        }
    }

    pub(super) fn place(&self, model: ModelId) -> &Place {
        &self.places[model.0 as usize]
    }

    pub(super) fn place_mut(&mut self, model: ModelId) -> &mut Place {
        &mut self.places[model.0 as usize]
    }

    /// The models, with their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ModelId, &Place)> {
        (0..).map(ModelId).zip(&self.places)
    }

    /// A model's weights are this far now.
    pub(super) fn set(&mut self, model: ModelId, stage: Stage) {
        match stage {
            Stage::Loading { since, .. } => {
                self.loading = Some(model);
                self.moving.insert(model, since);
            }
            Stage::Leaving { since } => {
                self.moving.insert(model, since);
            }
            Stage::Absent | Stage::Present { .. } => {
                self.moving.remove(&model);
            }
        }
        if self.loading == Some(model) && !matches!(stage, Stage::Loading { .. }) {
            self.loading = None;
        }
        let place = self.place_mut(model);
        place.departures += u64::from(stage == Stage::Absent && place.stage != Stage::Absent);
        place.stage = stage;
        if !matches!(stage, Stage::Loading { .. }) {
            place.ready_at = None;
        }
        if !matches!(stage, Stage::Loading { .. } | Stage::Present { .. }) {
            place.leave = None;
        }
    }

    /// Its worker is gone, and all that it had. What was there, or came, comes again with the next one.
    pub(super) fn clear(&mut self) {
        for place in &mut self.places {
            let was_wanted = matches!(place.stage, Stage::Loading { .. } | Stage::Present { .. });
            place.is_owed |= was_wanted && place.leave.is_none();
            place.departures += u64::from(place.stage != Stage::Absent);
            place.stage = Stage::Absent;
            place.leave = None;
            place.ready_at = None;
        }
        self.moving.clear();
        self.loading = None;
        self.empty_since = None;
        self.is_woken = false;
        // What the worker told of the room is gone with it: otherwise a device at rest could be thought full for ever.
        self.room = self.room_untold;
        self.doubt = None;
    }

    /// When weights have been on their way for too long.
    pub(super) fn overdue_at(&self) -> Option<Moment> {
        self.moving.values().min().map(|&since| since + self.load_max)
    }

    /// Signs of life may lie unread: what is on its way is given that much longer.
    pub(super) fn excuse(&mut self, excused: impl Fn(Moment) -> Moment) {
        for since in self.moving.values_mut() {
            *since = excused(*since);
        }
    }

    pub(super) fn has_weights(&self) -> bool {
        self.places.iter().any(Place::is_present)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.iter().all(|place| place.stage == Stage::Absent)
    }

    /// Bytes of all that is there, comes or goes.
    pub(super) fn used(&self) -> u64 {
        let there = self.places.iter().filter(|place| place.stage != Stage::Absent);
        there.fold(0, |sum, place| sum.saturating_add(place.bytes))
    }

    /// Those of them that will be free.
    pub(super) fn outgoing(&self) -> u64 {
        let out = self.places.iter().filter(|place| place.is_on_its_way_out());
        out.fold(0, |sum, place| sum.saturating_add(place.bytes))
    }

    /// Whether there is room for so much beside what is taken. What is alone is always worth a try.
    pub(super) fn has_room(&self, taken: u64, bytes: u64, now: Moment) -> bool {
        let all = taken.saturating_add(bytes);
        let is_believed = self.doubt.is_none_or(|(room, until)| until <= now || all <= room || taken == 0);
        all <= self.room && is_believed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::DeviceKind;

    #[test]
    fn pauses_after_loads_that_fail_double_up_to_a_bound() {
        let mut tries = Tries::default();
        let pause = |tries: &mut Tries| {
            tries.fail(Fallback::NotLoaded, Moment::START);
            tries.next_at.since(Moment::START).as_millis()
        };
        let pauses: Vec<u128> = (0..8).map(|_| pause(&mut tries)).collect();
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        assert!(tries.are_enough(Moment::START) && !tries.are_enough(tries.next_at));
    }

    #[test]
    fn the_first_load_that_ends_with_its_worker_is_tried_again_at_once() {
        let mut tries = Tries::default();
        tries.fail_with_worker(Moment::START);
        assert!(!tries.is_pausing(Moment::START));
        tries.fail_with_worker(Moment::START);
        assert!(tries.is_pausing(Moment::START));
    }

    #[test]
    fn what_leaves_takes_its_room_until_it_is_gone() {
        let spec =
            DeviceSpec { kind: DeviceKind::Gpu, slots: 1, batch_tokens_max: 1, weights_max: 100, kv_tokens_max: 0 };
        let models: Vec<Model> = [60, 50].map(|bytes| Model::new(ModelPlan { bytes, ..ModelPlan::default() })).into();
        let mut shelf = Shelf::new(&spec, &models, Duration::from_secs(1));
        let now = Moment::START;
        let (first, second) = (ModelId(0), ModelId(1));
        shelf.set(first, Stage::Loading { since: now, was_owed: false });
        assert_eq!((shelf.loading, shelf.used(), shelf.outgoing()), (Some(first), 60, 0));
        shelf.set(first, Stage::Leaving { since: now });
        assert_eq!((shelf.loading, shelf.used(), shelf.outgoing()), (None, 60, 60));
        assert!(!shelf.has_room(shelf.used(), shelf.place(second).bytes, now));
        assert_eq!(shelf.overdue_at(), Some(now + Duration::from_secs(1)));
        shelf.set(first, Stage::Absent);
        assert!(shelf.has_room(shelf.used(), shelf.place(second).bytes, now) && shelf.overdue_at().is_none());
    }

    #[test]
    fn after_a_full_memory_the_room_is_believed_smaller_but_one_alone_is_tried() {
        let spec =
            DeviceSpec { kind: DeviceKind::Gpu, slots: 1, batch_tokens_max: 1, weights_max: 100, kv_tokens_max: 0 };
        let mut shelf = Shelf::new(&spec, &[], Duration::from_secs(1));
        let until = Moment::START + Duration::from_secs(1);
        shelf.doubt = Some((30, until));
        assert!(!shelf.has_room(20, 20, Moment::START) && shelf.has_room(20, 20, until));
        assert!(shelf.has_room(0, 90, Moment::START) && !shelf.has_room(0, 101, until));
    }
}
