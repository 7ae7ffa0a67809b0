//! Which models a worker has on its device, by what it was told and what it said, and what that means of its memory.
//! Orders nothing and decides nothing.

use crate::gpu::MemoryStats;
use magray_core::ledger::{MemoryReport, ModelId, Owner};
use std::time::{Duration, Instant};

/// The models of one worker.
#[derive(Debug, Default)]
pub(super) struct Presence {
    models: Vec<State>,
    /// Heartbeats since models last came or went.
    quiet_beats: u32,
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

impl Presence {
    /// A worker that knows so many models and has none of them.
    pub(super) fn new(models: usize) -> Self {
        Self { models: vec![State::Away; models], quiet_beats: 0 }
    }

    /// What memory figures mean, account by account, where no weights are on their way.
    pub(super) fn report(&self, memory: &MemoryStats, context: u64) -> MemoryReport {
        let MemoryStats { allocated, reserved, spare, free, pool, .. } = *memory;
        let weights = (0..).map(ModelId).zip(&self.models).map(|(model, state)| (Owner::Weights(model), state.bytes()));
        let mut held: Vec<(Owner, u64)> = weights.filter(|(_, bytes)| *bytes > 0).collect();
        let weights = held.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        let workspace = allocated.saturating_sub(weights).saturating_sub(spare);
        held.extend([(Owner::Context, context), (Owner::Workspace, workspace)]);
        // What the pool has without using it, and what models that are away keep for their passes, goes when it is needed.
        let ours = if pool.reserved > 0 { pool.reserved } else { reserved.max(allocated) };
        let cached = ours.saturating_sub(workspace).saturating_sub(weights);
        MemoryReport { free, cached, held }
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

    /// Takes the figures of a heartbeat, and gives what they mean unless weights are on their way.
    pub(super) fn beat(&mut self, memory: &MemoryStats, context: u64) -> Option<MemoryReport> {
        if self.models.iter().any(|state| matches!(state, State::Loading { .. } | State::Leaving { .. })) {
            // Weights that are on their way would be taken for something else.
            return None;
        }
        self.quiet_beats = self.quiet_beats.saturating_add(1);
        // The first may have been measured before the last model had come or gone, and be said after.
        (self.quiet_beats >= 2).then(|| self.report(memory, context))
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
        self.models.get(model).map_or(0, State::bytes)
    }

    fn set(&mut self, model: usize, state: State) {
        self.quiet_beats = 0;
        if let Some(known) = self.models.get_mut(model) {
            *known = state;
        }
    }
}

impl State {
    fn bytes(&self) -> u64 {
        match self {
            Self::There { bytes } | Self::Leaving { bytes } => *bytes,
            Self::Away | Self::Loading { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const FIRST: Owner = Owner::Weights(ModelId(0));

    fn memory(allocated: u64, others: u64) -> MemoryStats {
        let (total, free) = (16 * GIB, 16 * GIB - allocated - others);
        MemoryStats { allocated, reserved: allocated, free, total, ..MemoryStats::default() }
    }

    /// What two heartbeats of the same memory mean.
    fn beats(presence: &mut Presence, memory: &MemoryStats) -> MemoryReport {
        assert_eq!(presence.beat(memory, GIB), None, "the first may be old");
        presence.beat(memory, GIB).unwrap()
    }

    #[test]
    fn every_byte_is_of_the_driver_or_weights_or_passes_or_free() {
        let mut presence = Presence::new(2);
        let opened = presence.report(&memory(0, GIB), GIB);
        assert_eq!((opened.free, opened.cached, opened.capacity()), (15 * GIB, 0, 16 * GIB));
        presence.load_ordered(0, None);
        assert!(presence.loaded(0, 4 * GIB).is_some());
        let loaded = beats(&mut presence, &MemoryStats { reserved: 8 * GIB, ..memory(6 * GIB, 3 * GIB) });
        assert_eq!((loaded.free, loaded.cached), (7 * GIB, 2 * GIB), "what is taken and not used can be had");
        assert_eq!((loaded.held_by(FIRST), loaded.held_by(Owner::Workspace)), (4 * GIB, 2 * GIB));
        presence.offload_ordered(0);
        presence.offloaded(0);
        let left = MemoryStats { spare: 2 * GIB, ..memory(2 * GIB, GIB) };
        let left = beats(&mut presence, &left);
        assert_eq!((left.cached, left.held_by(Owner::Workspace)), (2 * GIB, 0), "what its passes had can be had");
    }

    #[test]
    fn weights_on_their_way_are_not_taken_for_passes() {
        let mut presence = Presence::new(1);
        presence.load_ordered(0, Some(7));
        for _ in 0..3 {
            assert_eq!(presence.beat(&memory(8 * GIB, 0), 0), None, "it is being loaded");
        }
        assert_eq!(presence.loaded(0, 8 * GIB).map(|ordered| ordered.image), Some(Some(7)));
        presence.offload_ordered(0);
        assert_eq!(presence.any(), None);
        assert_eq!(presence.offloaded(0), 8 * GIB);
        // Measured before it left, and said after.
        assert_eq!(presence.beat(&memory(8 * GIB, 0), 0), None);
        assert_eq!(presence.beat(&memory(0, 0), 0).unwrap().held_by(Owner::Workspace), 0);
    }

    #[test]
    fn absurd_sizes_are_no_panic() {
        let mut presence = Presence::new(2);
        presence.loaded(0, u64::MAX);
        presence.loaded(1, u64::MAX);
        assert_eq!(beats(&mut presence, &memory(0, 0)).capacity(), u64::MAX);
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
