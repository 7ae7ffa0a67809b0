//! A model on one device: how far its weights are, why they leave, and loads that failed.
//! Decides nothing.

use super::load_time::LoadTimes;
use super::{Fallback, Moment, MoveReason};
use std::time::Duration;

/// The pause after a load that failed; twice as long after each further one, up to a bound.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Loads that fail in a row before requests are not kept waiting for the next.
const TRIES_MAX: u32 = 3;

/// How far a model's weights are on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Absent,
    Loading {
        since: Moment,
        /// Whether it was to be restored, and still is if it fails.
        is_restored: bool,
    },
    Present {
        since: Moment,
        /// How long it took to come.
        took: Duration,
        /// Whether a batch of it was computed since.
        has_computed: bool,
        /// Whether it was brought before a request needed it: then it stays until one has.
        is_preheated: bool,
    },
    Leaving {
        since: Moment,
    },
}

/// Why no batch of a model starts on a device any more, although it is there or on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// A residency request.
    Requested,
    /// Its memory is needed.
    Evicted,
}

/// A model on a device, or absent from it.
#[derive(Clone, Debug)]
pub(super) struct Resident {
    pub(super) stage: Stage,
    /// What its weights take there, as was measured or is expected.
    pub(super) bytes: u64,
    pub(super) leave: Option<Leave>,
    /// It comes back as soon as the device's worker is ready, if there is room: nothing is evicted for it.
    pub(super) is_to_restore: bool,
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
    /// How often in a row it was evicted before a batch of it was computed, while that could be computed elsewhere.
    pub(super) evicted_unused: u32,
    /// Why its weights were moved last; tells people, decides nothing.
    pub(super) moved_for: Option<MoveReason>,
    pub(super) tries: Tries,
    pub(super) times: LoadTimes,
}

impl Resident {
    pub(super) fn absent(bytes: u64) -> Self {
        Self {
            stage: Stage::Absent,
            bytes,
            leave: None,
            is_to_restore: false,
            is_served: false,
            lost_since: None,
            ready_at: None,
            used: Moment::START,
            departures: 0,
            evicted_unused: 0,
            moved_for: None,
            tries: Tries::default(),
            times: LoadTimes::default(),
        }
    }

    pub(super) fn is_present(&self) -> bool {
        matches!(self.stage, Stage::Present { .. })
    }

    pub(super) fn is_loading(&self) -> bool {
        matches!(self.stage, Stage::Loading { .. })
    }

    pub(super) fn is_staying(&self) -> bool {
        (self.is_present() || self.is_loading()) && self.leave.is_none()
    }

    /// If it was to leave for this reason, or for any, it does not.
    pub(super) fn keep(&mut self, reason: Option<Leave>) {
        if reason.is_none_or(|reason| self.leave == Some(reason)) {
            self.leave = None;
        }
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

    /// Whether requests should not be kept waiting for the next one.
    pub(super) fn are_enough(&self, now: Moment) -> bool {
        self.count >= TRIES_MAX && now < self.next_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
