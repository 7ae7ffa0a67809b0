//! Models that come and go by hand: offload, release, preheat, and how long they stay by themselves.
//! Decides nothing: it says what is wanted and waits until it is so.

use super::{Engine, EngineError};
use magray_core::DeviceName;
use magray_core::schedule::{ModelView, Priority, Residency, Wish};
use std::time::{Duration, Instant};

/// What came of a wish.
#[derive(Clone, Debug)]
pub struct Moved {
    /// How long it took.
    pub took: Duration,
    /// Where the model's weights are now, by device.
    pub residency: Vec<(DeviceName, Residency)>,
}

impl Engine {
    /// Takes a model off the GPUs; its weights stay in the memory of the host. Batches that run end first, and no request
    /// fails: one that comes meanwhile brings the model back.
    pub fn offload(&self, model: usize, most: Duration) -> Result<Moved, EngineError> {
        self.wish(model, Wish::Offload, most, |before, now, _| {
            now.offloads > before.offloads || !gpus(now).any(is_held)
        })
    }

    /// Takes a model out of all memory, and ends workers whose GPUs have no model left. The next request loads it again.
    pub fn release(&self, model: usize, most: Duration) -> Result<Moved, EngineError> {
        self.wish(model, Wish::Release, most, |_, now, is_forgotten| {
            is_forgotten || now.residency.iter().all(|residency| *residency == Residency::Unloaded)
        })
    }

    /// Brings a model to a GPU before anybody asks; to the CPU where there is no GPU.
    pub fn preheat(&self, model: usize, most: Duration) -> Result<Moved, EngineError> {
        self.wish(model, Wish::Preheat, most, |before, now, _| {
            let on_device = |residency| residency == Residency::OnDevice;
            let has_gpu = now.residency.len() > 1;
            now.loads > before.loads || if has_gpu { gpus(now).any(on_device) } else { on_device(now.residency[0]) }
        })
    }

    /// How long a model stays on a GPU without being used; `None`: until somebody takes it off.
    pub fn set_idle_timeout(&self, model: usize, timeout: Option<Duration>) -> Result<(), EngineError> {
        self.change(model, Wish::IdleTimeout(timeout))
    }

    /// Whether a model leaves the GPUs whenever nothing of it waits or runs.
    pub fn set_offload_after_use(&self, model: usize, is_on: bool) -> Result<(), EngineError> {
        self.change(model, Wish::OffloadAfterUse(is_on))
    }

    /// Whether a model stays on its GPU whatever others need.
    pub fn set_pinned(&self, model: usize, is_pinned: bool) -> Result<(), EngineError> {
        self.change(model, Wish::Pin(is_pinned))
    }

    /// How much a model counts when models compete for the memory of a GPU.
    pub fn set_priority(&self, model: usize, priority: Priority) -> Result<(), EngineError> {
        self.change(model, Wish::Priority(priority))
    }

    fn change(&self, model: usize, wish: Wish) -> Result<(), EngineError> {
        self.wish(model, wish, Duration::ZERO, |_, _, _| true).map(drop)
    }

    fn wish(
        &self,
        model: usize,
        wish: Wish,
        most: Duration,
        is_done: impl Fn(&ModelView, &ModelView, bool) -> bool,
    ) -> Result<Moved, EngineError> {
        if model >= self.0.readers.len() {
            return Err(EngineError::NoModel(model));
        }
        let started = Instant::now();
        let view = self.desk().wished(model, wish, most, is_done).ok_or(EngineError::NotYet { within: most })?;
        let names = self.desk().lanes().iter().map(|lane| lane.name());
        Ok(Moved { took: started.elapsed(), residency: names.zip(view.residency).collect() })
    }
}

/// Where a model is, seen from the GPUs. The first device is the CPU.
fn gpus(view: &ModelView) -> impl Iterator<Item = Residency> {
    view.residency.iter().skip(1).copied()
}

/// Whether it takes memory of the device.
fn is_held(residency: Residency) -> bool {
    matches!(residency, Residency::Loading | Residency::OnDevice | Residency::Leaving)
}
