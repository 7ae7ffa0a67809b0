//! What people want of models: that they come, go or stay; waits until it is so, or cannot be any more.
//! Decides nothing, and trusts no look at where a model is: by then it may have come back.

use super::Desk;
use magray_core::schedule::{DeviceView, Event, ModelId, ModelView, View, Wish};
use std::cell::Cell;
use std::time::Duration;

impl Desk {
    /// Somebody wants a model to come, go or stay. Waits until that is so, for `most` at most. A model that is not there is
    /// a bug.
    pub(in crate::engine) fn wished(
        &self,
        model: usize,
        wish: Wish,
        most: Duration,
        is_done: impl Fn(Seen<'_>) -> bool,
    ) -> Result<ModelView, Unmet> {
        let mut state = self.lock();
        let before = state.machine.view().models.swap_remove(model);
        let against = state.wishes[model].against(wish);
        state.wishes[model].take(wish);
        let now = self.now();
        self.step(state, Event::Wished { model: ModelId(model as u32), wish }, now);
        let outcome = Cell::new(Err(Unmet::Late));
        self.wait(most, |state| {
            let View { models, devices, .. } = state.machine.view();
            if is_done(Seen { before: &before, now: &models[model], devices: &devices }) {
                outcome.set(Ok(()));
            } else if state.wishes[model].against(wish) > against {
                // Nothing is under way for it any more: whoever waits would wait in vain.
                outcome.set(Err(Unmet::Overruled));
            }
            outcome.get() != Err(Unmet::Late)
        });
        outcome.get().map(|()| self.view().models.swap_remove(model))
    }
}

/// How a model is after somebody wanted something of it, and how it was just before. Whoever waits may look late: what
/// came and went meanwhile shows in what is counted, and nowhere else.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Seen<'a> {
    pub(in crate::engine) before: &'a ModelView,
    pub(in crate::engine) now: &'a ModelView,
    pub(in crate::engine) devices: &'a [DeviceView],
}

/// Why a wish did not come true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Unmet {
    /// Not in the time that was given; it may still.
    Late,
    /// Somebody wanted the opposite after it.
    Overruled,
}

/// How often a model was wanted to come, and to go.
#[derive(Clone, Copy, Default)]
pub(super) struct Wishes {
    to_come: u64,
    to_go: u64,
}

impl Wishes {
    fn take(&mut self, wish: Wish) {
        match wish {
            Wish::Preheat => self.to_come += 1,
            Wish::Offload | Wish::Release => self.to_go += 1,
            Wish::IdleTimeout(_) | Wish::OffloadAfterUse(_) | Wish::Pin(_) | Wish::Priority(_) => {}
        }
    }

    /// How often the opposite of a wish was wanted: the last one counts.
    fn against(self, wish: Wish) -> u64 {
        match wish {
            Wish::Preheat => self.to_go,
            Wish::Offload | Wish::Release => self.to_come,
            Wish::IdleTimeout(_) | Wish::OffloadAfterUse(_) | Wish::Pin(_) | Wish::Priority(_) => 0,
        }
    }
}
