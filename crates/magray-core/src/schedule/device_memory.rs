//! The memory of one device over its ledger: weights that come and go, the state of sequences, vectors.
//! Every change of an account goes through here. Decides nothing: what comes, goes and stays is decided beside it.

use super::resident::{Resident, Stage};
use super::sequence::SequenceId;
use super::{DeviceSpec, Location, ModelId, ModelPlan, Moment};
use crate::ledger::{CollectionId, Ledger, MemoryReport, Missing, Need, Owner};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

/// A prompt is begun beside others only where each of those has space for this many more tokens: otherwise it would give
/// way again before long.
pub(super) const HEADROOM_TOKENS: u64 = 16;

/// What a device has in its memory.
#[derive(Clone, Debug)]
pub(super) struct DeviceMemory {
    ledger: Ledger,
    location: Location,
    /// By model.
    residents: Vec<Resident>,
    sequences: BTreeMap<SequenceId, State>,
    /// What each of them may need for some more tokens.
    headroom: u64,
    vectors: BTreeMap<CollectionId, Vectors>,
    /// Weights that are on their way to the device or off it, and since when.
    moving: BTreeMap<ModelId, Moment>,
    /// The model that is being loaded: one at a time, so that the first is there first.
    loading: Option<ModelId>,
    /// How long weights may be on their way.
    load_max: Duration,
    /// Since when there are no weights.
    empty_since: Option<Moment>,
    /// Something waits for room that a batch, or a request that ends, may free.
    pub(super) is_blocked: bool,
    /// Its worker goes as soon as there are no weights.
    pub(super) rests_at_once: bool,
    /// Its worker rests and is needed.
    pub(super) is_woken: bool,
    /// Its worker rests, and vectors were to come.
    pub(super) is_called: bool,
}

/// State of a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) model: ModelId,
    pub(super) bytes: u64,
    /// Of one token.
    pub(super) token_bytes: u64,
}

impl State {
    pub(super) fn headroom(&self) -> u64 {
        HEADROOM_TOKENS * self.token_bytes
    }
}

/// The vectors of a collection.
#[derive(Clone, Copy, Debug)]
struct Vectors {
    /// When they were asked for last.
    used: Moment,
    leaving_since: Option<Moment>,
}

impl DeviceMemory {
    pub(super) fn new(spec: &DeviceSpec, plans: impl Iterator<Item = ModelPlan>, load_max: Duration) -> Self {
        let mut memory = Self {
            ledger: Ledger::new(spec.memory),
            location: spec.location,
            residents: Vec::new(),
            sequences: BTreeMap::new(),
            headroom: 0,
            vectors: BTreeMap::new(),
            moving: BTreeMap::new(),
            loading: None,
            load_max,
            empty_since: None,
            is_blocked: false,
            rests_at_once: false,
            is_woken: false,
            is_called: false,
        };
        for (model, plan) in (0..).map(ModelId).zip(plans) {
            memory.add_model(&plan);
            if spec.location == Location::InProcess && plan.is_preloaded_at(spec.location) {
                let (since, took) = (Moment::START, Duration::ZERO);
                let resident = memory.resident_mut(model);
                resident.is_to_restore = false;
                resident.stage = Stage::Present { since, took, has_computed: false, is_preheated: false };
                memory.ledger.set(Owner::Weights(model), plan.bytes);
            }
        }
        memory
    }

    /// One model more. It is not there, and comes where it is preloaded.
    pub(super) fn add_model(&mut self, plan: &ModelPlan) {
        let (bytes, is_to_restore) = (plan.bytes_at(self.location), plan.is_preloaded_at(self.location));
        self.residents.push(Resident { is_to_restore, ..Resident::absent(bytes) });
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(super) fn resident(&self, model: ModelId) -> &Resident {
        &self.residents[model.0 as usize]
    }

    pub(super) fn resident_mut(&mut self, model: ModelId) -> &mut Resident {
        &mut self.residents[model.0 as usize]
    }

    pub(super) fn residents(&self) -> impl Iterator<Item = (ModelId, &Resident)> {
        (0..).map(ModelId).zip(&self.residents)
    }

    pub(super) fn residents_mut(&mut self) -> impl Iterator<Item = &mut Resident> {
        self.residents.iter_mut()
    }

    pub(super) fn stage(&self, model: ModelId) -> Option<Stage> {
        self.residents.get(model.0 as usize).map(|resident| resident.stage)
    }

    pub(super) fn loading(&self) -> Option<ModelId> {
        self.loading
    }

    /// What a model's weights take, or would.
    pub(super) fn bytes(&self, model: ModelId) -> u64 {
        let resident = self.resident(model);
        match resident.stage {
            Stage::Absent => resident.bytes,
            _ => self.ledger.balance(Owner::Weights(model)),
        }
    }

    pub(super) fn begin_load(&mut self, model: ModelId, now: Moment) -> Result<(), Missing> {
        let bytes = self.resident(model).bytes;
        self.ledger.grant(Owner::Weights(model), bytes, now)?;
        let is_restored = std::mem::take(&mut self.resident_mut(model).is_to_restore);
        self.loading = Some(model);
        self.set(model, Stage::Loading { since: now, is_restored });
        Ok(())
    }

    pub(super) fn end_load(&mut self, model: ModelId, bytes: u64, present: Stage) {
        self.resident_mut(model).bytes = bytes;
        self.ledger.set(Owner::Weights(model), bytes);
        self.set(model, present);
    }

    pub(super) fn begin_offload(&mut self, model: ModelId, now: Moment) {
        self.set(model, Stage::Leaving { since: now });
    }

    /// They have left, or have not come: what was granted for them is returned.
    pub(super) fn end_offload(&mut self, model: ModelId) {
        self.ledger.close(Owner::Weights(model));
        self.set(model, Stage::Absent);
    }

    fn set(&mut self, model: ModelId, stage: Stage) {
        match stage {
            Stage::Loading { since, .. } | Stage::Leaving { since } => self.moving.insert(model, since),
            Stage::Absent | Stage::Present { .. } => self.moving.remove(&model),
        };
        let is_loading = matches!(stage, Stage::Loading { .. });
        if self.loading == Some(model) && !is_loading {
            self.loading = None;
        }
        let resident = self.resident_mut(model);
        resident.departures += u64::from(stage == Stage::Absent && resident.stage != Stage::Absent);
        resident.stage = stage;
        if !is_loading {
            resident.ready_at = None;
        }
        if !matches!(stage, Stage::Loading { .. } | Stage::Present { .. }) {
            resident.leave = None;
        }
    }

    /// Its worker is gone, and all that it had: sequences whose state it kept. Models that were there, or came, come again
    /// with the next one.
    pub(super) fn clear(&mut self) -> Vec<SequenceId> {
        for resident in &mut self.residents {
            let was_wanted = matches!(resident.stage, Stage::Loading { .. } | Stage::Present { .. });
            resident.is_to_restore |= was_wanted && resident.leave.is_none();
            resident.departures += u64::from(resident.stage != Stage::Absent);
            resident.stage = Stage::Absent;
            resident.leave = None;
            resident.ready_at = None;
        }
        self.moving.clear();
        self.loading = None;
        self.empty_since = None;
        self.is_woken = false;
        self.is_called = false;
        self.vectors.clear();
        self.headroom = 0;
        // What the worker reported is gone with it: otherwise a device at rest could be thought full for ever.
        self.ledger.clear();
        std::mem::take(&mut self.sequences).into_keys().collect()
    }

    /// When weights or vectors have been on their way for too long.
    pub(super) fn overdue_at(&self) -> Option<Moment> {
        let vectors = self.vectors.values().filter_map(|vectors| vectors.leaving_since);
        self.moving.values().copied().chain(vectors).min().map(|since| since + self.load_max)
    }

    /// The driver was late, and so may reports be: what is on its way is given that much longer.
    pub(super) fn excuse(&mut self, excused: impl Fn(Moment) -> Moment) {
        let vectors = self.vectors.values_mut().filter_map(|vectors| vectors.leaving_since.as_mut());
        for since in self.moving.values_mut().chain(vectors) {
            *since = excused(*since);
        }
    }

    pub(super) fn has_weights(&self) -> bool {
        self.residents.iter().any(Resident::is_present)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.residents.iter().all(|resident| resident.stage == Stage::Absent)
    }

    /// Whether a model is to come back that was there before.
    pub(super) fn is_restoring(&self) -> bool {
        self.residents.iter().any(|resident| resident.is_to_restore)
    }

    /// Since when there are no weights: from now on, if there were some.
    pub(super) fn empty_since(&mut self, now: Moment) -> Moment {
        *self.empty_since.get_or_insert(now)
    }

    pub(super) fn note_use(&mut self) {
        self.empty_since = None;
    }

    pub(super) fn leaving(&self) -> u64 {
        let weights = self.residents().filter(|(_, resident)| resident.is_on_its_way_out());
        let weights = weights.map(|(model, _)| self.ledger.balance(Owner::Weights(model)));
        let vectors = self.vectors.iter().filter(|(_, vectors)| vectors.leaving_since.is_some());
        let vectors = vectors.map(|(&collection, _)| self.ledger.balance(Owner::Vectors(collection)));
        weights.chain(vectors).fold(0, u64::saturating_add)
    }

    /// What is missing of the room for a model beside what is there and what is promised to others.
    pub(super) fn missing(&self, model: ModelId, promised: u64, leaving: u64, now: Moment) -> u64 {
        self.ledger.missing(Need { bytes: self.bytes(model), promised, leaving }, now)
    }

    pub(super) fn reconcile(&mut self, report: &MemoryReport) -> bool {
        self.ledger.reconcile(report)
    }

    /// A load found less memory than was granted.
    pub(super) fn out_of_memory(&mut self, until: Moment) {
        self.ledger.out_of_memory(until);
    }

    pub(super) fn sequences(&self) -> impl DoubleEndedIterator<Item = (SequenceId, State)> {
        self.sequences.iter().map(|(&sequence, &state)| (sequence, state))
    }

    /// Space that those need who are there for some more tokens.
    pub(super) fn headroom(&self) -> u64 {
        self.headroom
    }

    /// How much more a sequence needs to have this many bytes.
    pub(super) fn growth(&self, sequence: SequenceId, bytes: u64) -> u64 {
        bytes.saturating_sub(self.sequences.get(&sequence).map_or(0, |state| state.bytes))
    }

    /// Asks for this many bytes for a sequence, or as many as it has where that is more.
    pub(super) fn keep(&mut self, sequence: SequenceId, wanted: State, now: Moment) -> Result<(), Missing> {
        let growth = self.growth(sequence, wanted.bytes);
        self.ledger.grant(Owner::Kv(wanted.model), growth, now)?;
        let state = match self.sequences.entry(sequence) {
            Entry::Vacant(entry) => {
                self.headroom += wanted.headroom();
                entry.insert(State { bytes: 0, ..wanted })
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        state.bytes += growth;
        Ok(())
    }

    pub(super) fn free(&mut self, sequence: SequenceId) -> bool {
        let Some(state) = self.sequences.remove(&sequence) else { return false };
        self.headroom -= state.headroom();
        self.ledger.give_back(Owner::Kv(state.model), state.bytes);
        true
    }

    /// Asks for memory for the vectors of a collection. Refused while others wait for memory: they would wait for ever.
    pub(super) fn grow_vectors(&mut self, collection: CollectionId, bytes: u64, now: Moment) -> Result<(), Missing> {
        if self.is_blocked || self.leaving() > 0 {
            return Err(Missing(bytes));
        }
        self.ledger.grant(Owner::Vectors(collection), bytes, now)?;
        self.vectors.insert(collection, Vectors { used: now, leaving_since: None });
        Ok(())
    }

    pub(super) fn note_vectors_use(&mut self, collection: CollectionId, now: Moment) {
        self.vectors.entry(collection).and_modify(|vectors| vectors.used = now);
    }

    /// Vectors that may be asked to leave, what they take, and when they were asked for last.
    pub(super) fn idle_vectors(&self) -> impl Iterator<Item = (CollectionId, u64, Moment)> {
        let idle = self.vectors.iter().filter(|(_, vectors)| vectors.leaving_since.is_none());
        idle.map(|(&collection, vectors)| (collection, self.ledger.balance(Owner::Vectors(collection)), vectors.used))
    }

    pub(super) fn vectors(&self) -> u64 {
        self.vectors.keys().fold(0, |sum, &one| sum.saturating_add(self.ledger.balance(Owner::Vectors(one))))
    }

    pub(super) fn begin_drop(&mut self, collection: CollectionId, now: Moment) {
        self.vectors.entry(collection).and_modify(|vectors| vectors.leaving_since = Some(now));
    }

    pub(super) fn end_drop(&mut self, collection: CollectionId) {
        self.vectors.remove(&collection);
        self.ledger.close(Owner::Vectors(collection));
    }

    /// Breaks the ledger on purpose, for tests of tests.
    #[cfg(feature = "sabotage")]
    pub(super) fn sabotage(&mut self, fraud: crate::ledger::Fraud) {
        self.ledger.sabotage(fraud);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Budget;
    use crate::schedule::DeviceKind;
    use crate::schedule::RequestId;

    const FIRST: ModelId = ModelId(0);
    const SECOND: ModelId = ModelId(1);

    fn memory(room: u64, kv_max: u64, bytes: [u64; 2]) -> DeviceMemory {
        // A sixteenth of all is kept for passes.
        let memory_max = room * 16 / 15 + kv_max;
        let memory = Budget { memory_max: memory_max + kv_max, context: kv_max, kv_max };
        let kind = DeviceKind::Gpu;
        let spec = DeviceSpec {
            kind,
            location: Location::Worker,
            slots: 1,
            batch_tokens_max: 1,
            batch_tokens_least: 1,
            memory,
            is_reserved: false,
        };
        let plans = bytes.map(|bytes| ModelPlan { bytes, ..ModelPlan::default() });
        DeviceMemory::new(&spec, plans.into_iter(), Duration::from_secs(1))
    }

    #[test]
    fn what_leaves_takes_its_room_until_it_is_gone() {
        let mut memory = memory(150, 0, [60, 100]);
        let now = Moment::START;
        memory.begin_load(FIRST, now).unwrap();
        assert_eq!((memory.loading(), memory.ledger().room_used(), memory.leaving()), (Some(FIRST), 60, 0));
        memory.begin_offload(FIRST, now);
        assert_eq!((memory.loading(), memory.ledger().room_used(), memory.leaving()), (None, 60, 60));
        assert_eq!(memory.begin_load(SECOND, now), Err(Missing(10)));
        assert_eq!(memory.overdue_at(), Some(now + Duration::from_secs(1)));
        memory.end_offload(FIRST);
        assert!(memory.begin_load(SECOND, now).is_ok());
        memory.end_offload(SECOND);
        assert!(memory.overdue_at().is_none() && memory.ledger().accounts().next().is_none());
    }

    #[test]
    fn the_process_has_from_the_start_what_was_loaded_there_and_workers_get_what_is_preloaded() {
        let start = |location, is_in_process| {
            let spec = DeviceSpec {
                kind: DeviceKind::Cpu,
                location,
                slots: 1,
                batch_tokens_max: 1,
                batch_tokens_least: 1,
                memory: Budget::UNBOUNDED,
                is_reserved: false,
            };
            let plan = ModelPlan { is_in_process, ..ModelPlan::default() };
            let memory = DeviceMemory::new(&spec, std::iter::once(plan), Duration::from_secs(1));
            (memory.resident(FIRST).is_present(), memory.resident(FIRST).is_to_restore)
        };
        assert_eq!(start(Location::InProcess, true), (true, false));
        assert_eq!(start(Location::InProcess, false), (false, false));
        assert_eq!(start(Location::Worker, false), (false, true));
    }

    #[test]
    fn what_is_kept_of_a_sequence_is_free_again_when_it_is() {
        let mut memory = memory(0, 100, [0, 0]);
        let [first, second] = [1, 2].map(|id| SequenceId { request: RequestId(id), number: 0 });
        let mut keep = |sequence, bytes| {
            let state = State { model: FIRST, bytes, token_bytes: 2 };
            (memory.keep(sequence, state, Moment::START), memory.ledger().kv_free(), memory.headroom())
        };
        assert_eq!(keep(first, 60), (Ok(()), 40, 32));
        assert_eq!(keep(first, 50), (Ok(()), 40, 32));
        assert_eq!(keep(second, 30), (Ok(()), 10, 64));
        assert_eq!(keep(second, 41), (Err(Missing(1)), 10, 64));
        assert_eq!((memory.growth(first, 65), memory.growth(second, 10)), (5, 0));
        assert!(memory.free(first) && !memory.free(first));
        assert_eq!((memory.ledger().balance(Owner::Kv(FIRST)), memory.headroom()), (30, 32));
        assert_eq!(memory.sequences().map(|(sequence, _)| sequence).collect::<Vec<_>>(), [second]);
        assert_eq!(memory.clear(), [second]);
        assert_eq!((memory.ledger().kv_used(), memory.headroom()), (0, 0));
    }

    #[test]
    fn vectors_are_not_granted_while_others_wait_for_memory() {
        let mut memory = memory(150, 0, [60, 100]);
        let (now, collection) = (Moment::START, CollectionId(3));
        assert!(memory.grow_vectors(collection, 100, now).is_ok());
        assert_eq!(memory.grow_vectors(collection, 60, now), Err(Missing(10)));
        memory.begin_drop(collection, now);
        assert_eq!((memory.leaving(), memory.idle_vectors().count()), (100, 0));
        assert_eq!(memory.grow_vectors(CollectionId(4), 1, now), Err(Missing(1)));
        memory.end_drop(collection);
        assert!(memory.grow_vectors(CollectionId(4), 150, now).is_ok());
    }
}
