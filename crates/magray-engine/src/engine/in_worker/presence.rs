//! Which models a worker has on its device, by what it was told and what it said, and the room that is left for others.
//! Orders nothing and decides nothing.

use crate::gpu::MemoryStats;
use std::time::{Duration, Instant};

/// The models of one worker.
#[derive(Debug, Default)]
pub(super) struct Presence {
    models: Vec<State>,
    /// Heartbeats since models last came or went.
    quiet_beats: u32,
    /// The room that was told last.
    told: Option<u64>,
}

/// Where a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Away,
    Loading {
        since: Instant,
        /// The empty image that it was handed.
        image: Option<u64>,
    },
    There {
        bytes: u64,
    },
    Leaving {
        bytes: u64,
    },
}

/// What an order to load has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ordered {
    /// From the order on.
    pub(super) took: Duration,
    /// The empty image that was handed along.
    pub(super) image: Option<u64>,
}

/// Changes of the room that are not worth a word.
const ROOM_STEP: u64 = 64 << 20;
/// The part of the memory that is kept for passes, where they do not take more.
const PASSES_PART: u64 = 16;

impl Presence {
    /// A worker that knows so many models and has none of them.
    pub(super) fn new(models: usize) -> Self {
        Self { models: vec![State::Away; models], quiet_beats: 0, told: None }
    }

    /// Takes the memory of a worker that has just opened its device: the room for weights.
    pub(super) fn opened(&mut self, memory: &MemoryStats, limit: Option<u64>) -> u64 {
        let room = room(memory, limit, 0);
        self.told = Some(room);
        room
    }

    /// It was told to load a model, with this image to fill.
    pub(super) fn load_ordered(&mut self, model: usize, image: Option<u64>) {
        self.set(model, State::Loading { since: Instant::now(), image });
    }

    /// It has loaded a model. `None` where nobody told it to.
    pub(super) fn loaded(&mut self, model: usize, bytes: u64) -> Option<Ordered> {
        self.load_ended(model, State::There { bytes })
    }

    /// It has not.
    pub(super) fn not_loaded(&mut self, model: usize) -> Option<Ordered> {
        self.load_ended(model, State::Away)
    }

    /// It was told to let a model's weights leave.
    pub(super) fn offload_ordered(&mut self, model: usize) {
        let bytes = self.bytes_of(model);
        self.set(model, State::Leaving { bytes });
    }

    /// They have left; what they had taken.
    pub(super) fn offloaded(&mut self, model: usize) -> u64 {
        let bytes = self.bytes_of(model);
        self.set(model, State::Away);
        bytes
    }

    /// A model whose weights are there.
    pub(super) fn any(&self) -> Option<usize> {
        self.models.iter().position(|state| matches!(state, State::There { .. }))
    }

    /// Takes the figures of a heartbeat. The room for weights, if it is another than was told last: what may be taken,
    /// without what is taken by anything that is no weights; never less than the weights that are there.
    pub(super) fn beat(&mut self, memory: &MemoryStats, limit: Option<u64>) -> Option<u64> {
        if self.models.iter().any(|state| matches!(state, State::Loading { .. } | State::Leaving { .. })) {
            // Weights that are on their way would be taken for something else.
            return None;
        }
        self.quiet_beats = self.quiet_beats.saturating_add(1);
        if self.quiet_beats < 2 {
            // The first may have been measured before the last model had come or gone, and be said after.
            return None;
        }
        let all = (0..self.models.len()).map(|model| self.bytes_of(model));
        let weights = all.fold(0, u64::saturating_add);
        let room = room(memory, limit, weights);
        if self.told.is_some_and(|told| told.abs_diff(room) <= ROOM_STEP && told >= weights) {
            return None;
        }
        self.told = Some(room);
        Some(room)
    }

    fn load_ended(&mut self, model: usize, state: State) -> Option<Ordered> {
        let before = self.models.get(model).copied();
        self.set(model, state);
        match before {
            Some(State::Loading { since, image }) => Some(Ordered { took: since.elapsed(), image }),
            _ => None,
        }
    }

    fn bytes_of(&self, model: usize) -> u64 {
        match self.models.get(model) {
            Some(State::There { bytes } | State::Leaving { bytes }) => *bytes,
            _ => 0,
        }
    }

    fn set(&mut self, model: usize, state: State) {
        self.quiet_beats = 0;
        if let Some(known) = self.models.get_mut(model) {
            *known = state;
        }
    }
}

fn room(memory: &MemoryStats, limit: Option<u64>, weights: u64) -> u64 {
    let MemoryStats { allocated, reserved, spare, free, total, pool, .. } = *memory;
    let ours = if pool.reserved > 0 { pool.reserved } else { reserved.max(allocated) };
    // What is neither free nor ours belongs to the driver and to other programs.
    let allowed = free.saturating_add(ours).min(total);
    let allowed = limit.map_or(allowed, |limit| allowed.min(limit));
    // What models that are away keep for their passes goes when somebody needs it.
    let passes = allocated.saturating_sub(weights).saturating_sub(spare).max(allowed / PASSES_PART);
    allowed.saturating_sub(passes).max(weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn memory(allocated: u64, others: u64) -> MemoryStats {
        let (total, free) = (16 * GIB, 16 * GIB - allocated - others);
        MemoryStats { allocated, reserved: allocated, free, total, ..MemoryStats::default() }
    }

    /// What is told of two heartbeats of the same memory.
    fn beats(presence: &mut Presence, memory: &MemoryStats) -> Option<u64> {
        assert_eq!(presence.beat(memory, None), None, "the first may be old");
        presence.beat(memory, None)
    }

    #[test]
    fn the_room_is_what_passes_and_others_leave() {
        let mut presence = Presence::new(2);
        assert_eq!(beats(&mut presence, &memory(0, 0)), Some(15 * GIB));
        presence.load_ordered(0, None);
        assert!(presence.loaded(0, 4 * GIB).is_some());
        assert_eq!(beats(&mut presence, &memory(4 * GIB, 0)), None, "weights are no loss");
        assert_eq!(presence.beat(&memory(6 * GIB, 0), None), Some(14 * GIB), "passes are");
        assert_eq!(presence.beat(&memory(6 * GIB + 60 * MIB, 0), None), None);
        assert_eq!(presence.beat(&memory(6 * GIB, 8 * GIB), None), Some(6 * GIB), "and other programs");
        assert_eq!(presence.beat(&memory(5 * GIB, 11 * GIB), None), Some(4 * GIB), "what is there has room");
    }

    #[test]
    fn a_limit_holds() {
        let mut presence = Presence::new(1);
        let (stats, limit) = (memory(0, 0), Some(8 * GIB));
        assert_eq!(presence.beat(&stats, limit), None);
        assert_eq!(presence.beat(&stats, limit), Some(8 * GIB - GIB / 2));
        assert_eq!(room(&stats, Some(0), 0), 0);
    }

    #[test]
    fn weights_on_their_way_are_not_taken_for_a_loss_of_room() {
        let mut presence = Presence::new(1);
        assert_eq!(presence.opened(&memory(0, 0), None), 15 * GIB);
        presence.load_ordered(0, Some(7));
        for _ in 0..3 {
            assert_eq!(presence.beat(&memory(8 * GIB, 0), None), None, "it is being loaded");
        }
        assert_eq!(presence.loaded(0, 8 * GIB).map(|ordered| ordered.image), Some(Some(7)));
        presence.offload_ordered(0);
        assert_eq!(presence.any(), None);
        assert_eq!(presence.offloaded(0), 8 * GIB);
        // Measured before it left, and said after.
        assert_eq!(presence.beat(&memory(8 * GIB, 0), None), None);
        assert_eq!(presence.beat(&memory(0, 0), None), None, "all is as it was");
    }

    #[test]
    fn what_models_that_left_keep_for_their_passes_is_room() {
        let mut presence = Presence::new(1);
        assert_eq!(presence.opened(&memory(0, 0), None), 15 * GIB);
        presence.load_ordered(0, None);
        presence.loaded(0, 12 * GIB);
        assert_eq!(beats(&mut presence, &memory(15 * GIB, 0)), Some(13 * GIB), "its passes take 3 GiB");
        presence.offload_ordered(0);
        presence.offloaded(0);
        let left = MemoryStats { spare: 3 * GIB, ..memory(3 * GIB, 0) };
        assert_eq!(beats(&mut presence, &left), Some(15 * GIB), "it can come back");
    }

    #[test]
    fn absurd_sizes_are_no_panic() {
        let mut presence = Presence::new(2);
        presence.loaded(0, u64::MAX);
        presence.loaded(1, u64::MAX);
        assert_eq!(beats(&mut presence, &memory(0, 0)), Some(u64::MAX));
    }

    #[test]
    fn what_nobody_ordered_is_known_for_what_it_is() {
        let mut presence = Presence::new(2);
        assert_eq!(presence.loaded(1, 5), None);
        assert_eq!((presence.any(), presence.offloaded(1), presence.any()), (Some(1), 5, None));
        presence.load_ordered(0, None);
        assert!(presence.not_loaded(0).is_some());
        assert_eq!((presence.any(), presence.offloaded(0)), (None, 0));
    }
}
