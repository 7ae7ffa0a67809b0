//! What people want of models: that they come, go or stay; waits until it is so, or cannot be any more.
//! Decides nothing, and trusts no look at where a model is: by then it may have come back.

use super::Dispatcher;
use magray_core::schedule::{DeviceView, Event, ModelId, ModelPlan, ModelView, ResidencyRequest, View};
use std::cell::Cell;
use std::time::Duration;

impl Dispatcher {
    /// A caller wants a model to come, go or stay. Waits until that is so, for `most` at most. An unknown model is a bug.
    pub(in crate::engine) fn requested(
        &self,
        model: usize,
        request: ResidencyRequest,
        most: Duration,
        is_done: impl Fn(Seen<'_>) -> bool,
    ) -> Result<ModelView, Unmet> {
        let mut state = self.lock();
        let before = state.machine.view().models.swap_remove(model);
        let against = state.move_counts[model].against(request);
        state.move_counts[model].take(request);
        let now = self.now();
        self.step(state, Event::ResidencyRequested { model: ModelId(model as u32), request }, now);
        let outcome = Cell::new(Err(Unmet::Late));
        self.wait(most, |state| {
            let View { models, devices, .. } = state.machine.view();
            if is_done(Seen { before: &before, now: &models[model], devices: &devices }) {
                outcome.set(Ok(()));
            } else if state.move_counts[model].against(request) > against {
                // Nothing is being done for it any more: waiting would be in vain.
                outcome.set(Err(Unmet::Overruled));
            }
            outcome.get() != Err(Unmet::Late)
        });
        outcome.get().map(|()| self.view().models.swap_remove(model))
    }
}

impl Dispatcher {
    /// There is one model more, the next by number.
    pub(in crate::engine) fn add_model(&self, plan: ModelPlan) {
        let mut state = self.lock();
        state.move_counts.push(MoveCounts::default());
        let now = self.now();
        self.step(state, Event::ModelAdded { plan }, now);
    }

    /// Waits until nothing of a model waits or runs; `false` if that takes longer than `most`.
    pub(in crate::engine) fn wait_until_unused(&self, model: usize, most: Duration) -> bool {
        self.wait(most, |state| state.machine.view().models[model].requests == 0)
    }

    /// A model is no more: what waits for it is refused. Waits until it is in no memory; `false` if that takes longer than
    /// `most`.
    pub(in crate::engine) fn remove_model(&self, model: usize, most: Duration) -> bool {
        let before = self.view().models.swap_remove(model).releases;
        self.advance(Event::ModelRemoved { model: ModelId(model as u32) });
        self.wait(most, |state| state.machine.view().models[model].releases > before)
    }
}

/// How a model is after a request, and how it was just before. A waiter may look late: what came and went meanwhile shows
/// only in what is counted.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Seen<'a> {
    pub(in crate::engine) before: &'a ModelView,
    pub(in crate::engine) now: &'a ModelView,
    pub(in crate::engine) devices: &'a [DeviceView],
}

/// Why a request did not come true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Unmet {
    /// Not in the time that was given; it may still.
    Late,
    /// A later request wanted the opposite.
    Overruled,
}

/// How often a model was wanted to come, and to go.
#[derive(Clone, Copy, Default)]
pub(super) struct MoveCounts {
    to_come: u64,
    to_go: u64,
}

impl MoveCounts {
    fn take(&mut self, request: ResidencyRequest) {
        match request {
            ResidencyRequest::Preheat(_) => self.to_come += 1,
            ResidencyRequest::Offload | ResidencyRequest::Release => self.to_go += 1,
            ResidencyRequest::IdleTimeout(_)
            | ResidencyRequest::OffloadAfterUse(_)
            | ResidencyRequest::Pin(_)
            | ResidencyRequest::Priority(_) => {}
        }
    }

    /// How often the opposite of a request was wanted: the last one counts.
    fn against(self, request: ResidencyRequest) -> u64 {
        match request {
            ResidencyRequest::Preheat(_) => self.to_go,
            ResidencyRequest::Offload | ResidencyRequest::Release => self.to_come,
            ResidencyRequest::IdleTimeout(_)
            | ResidencyRequest::OffloadAfterUse(_)
            | ResidencyRequest::Pin(_)
            | ResidencyRequest::Priority(_) => 0,
        }
    }
}
