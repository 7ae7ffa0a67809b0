//! Which models a worker has on its device, by what it was told and what it said.
//! Orders nothing and decides nothing.

use std::time::{Duration, Instant};

/// The models of one worker; those of which nothing was heard are away.
#[derive(Debug, Default)]
pub(super) struct Presence {
    models: Vec<State>,
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
    /// It was told to load a model, with this image to fill.
    pub(super) fn load_ordered(&mut self, model: usize, image: Option<u64>) {
        self.set(model, State::Loading { since: Instant::now(), image });
    }

    /// It has loaded a model. `None` where it was not told to.
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
        if self.models.len() <= model {
            self.models.resize(model + 1, State::Away);
        }
        self.models[model] = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_named_by_the_load_that_it_was_handed_to() {
        let mut presence = Presence::default();
        presence.load_ordered(0, Some(7));
        assert_eq!(presence.loaded(0, 8).map(|ordered| ordered.image), Some(Some(7)));
        presence.offload_ordered(0);
        assert_eq!((presence.any(), presence.offloaded(0)), (None, 8));
    }

    #[test]
    fn what_nobody_ordered_is_known_for_what_it_is() {
        let mut presence = Presence::default();
        assert_eq!(presence.loaded(1, 5), None);
        assert_eq!((presence.any(), presence.offloaded(1), presence.any()), (Some(1), 5, None));
        presence.load_ordered(0, None);
        assert!(presence.not_loaded(0).is_some());
        assert_eq!((presence.any(), presence.offloaded(0)), (None, 0));
    }
}
