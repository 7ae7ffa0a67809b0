//! Models that come and go by hand: offload, release, preheat, and how long they stay by themselves.
//! Decides nothing: it says what is wanted and waits until it is so.

use super::aside::Aside;
use super::desk::Seen;
use super::{Engine, EngineError, Status};
use magray_core::DeviceName;
use magray_core::schedule::{DeviceState, ModelView, Priority, Residency, Wish};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// From one look at a worker that is about to end to the next.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// What came of a wish.
#[derive(Clone, Debug)]
pub struct Moved {
    /// How long it took.
    pub took: Duration,
    /// Where the model's weights are now, by device.
    pub residency: Vec<(DeviceName, Residency)>,
}

/// How a model can be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// As [`Engine::offload`] does.
    Offload,
    /// As [`Engine::release`] does.
    Release,
    /// As [`Engine::preheat`] does.
    Preheat,
}

/// Callers that await moves at a time.
const MOVERS_MAX: usize = 8;

impl Engine {
    /// Moves a model and awaits that it is done, in any runtime. A caller that stops waiting does not stop the move. A few
    /// callers may wait at a time; more are refused.
    ///
    /// ```
    /// # use magray_engine::engine::{Engine, EngineOptions, ModelSource, Move, Residency};
    /// # use std::time::Duration;
    /// # let engine = Engine::start(EngineOptions::on_cpu(vec![ModelSource::Synthetic("tiny".parse()?).into()]))?;
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let moved = engine.move_model(0, Move::Preheat, Duration::from_secs(60)).await?;
    /// assert_eq!(moved.residency[0].1, Residency::OnDevice);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn move_model(&self, model: usize, how: Move, most: Duration) -> Result<Moved, EngineError> {
        let refused = || EngineError::Full { retry_after: Duration::from_secs(1) };
        let turn = Turn::take(&self.0.movers).ok_or_else(refused)?;
        let own = self.clone();
        let moving = Aside::on_own_thread(move || {
            let _turn = turn;
            match how {
                Move::Offload => own.offload(model, most),
                Move::Release => own.release(model, most),
                Move::Preheat => own.preheat(model, most),
            }
        });
        moving.map_err(|_| refused())?.await?
    }

    /// Takes a model off the GPUs; its weights stay in the memory of the host. Batches that run end first, and no request
    /// fails: one that comes meanwhile brings the model back.
    pub fn offload(&self, model: usize, most: Duration) -> Result<Moved, EngineError> {
        self.wish(model, Wish::Offload, most, |seen| {
            let held = gpus(seen.before).filter(|residency| is_held(*residency)).count() as u64;
            seen.now.offloads >= seen.before.offloads + held.max(1) || !gpus(seen.now).any(is_held)
        })
    }

    /// Takes a model out of all memory, and ends workers whose GPUs have no model left. The next request loads it again.
    pub fn release(&self, model: usize, most: Duration) -> Result<Moved, EngineError> {
        let until = Instant::now().checked_add(most);
        let is_unloaded = |residency: &Residency| *residency == Residency::Unloaded;
        let is_released = |seen: Seen<'_>| seen.is_forgotten || seen.now.residency.iter().all(is_unloaded);
        let mut moved = self.wish(model, Wish::Release, most, is_released)?;
        let started = Instant::now();
        // The memory of a GPU is free when its worker is gone, and not when that was told to go.
        while self.has_idle_worker() {
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(EngineError::NotYet { within: most });
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        moved.took += started.elapsed();
        Ok(moved)
    }

    /// Brings a model to a GPU before anybody asks; to the CPU where there is no GPU.
    pub fn preheat(&self, model: usize, most: Duration) -> Result<Moved, EngineError> {
        self.wish(model, Wish::Preheat, most, |seen| {
            let is_there = |residency| residency == Residency::OnDevice;
            let has_gpu = seen.devices.iter().skip(1).any(|gpu| !matches!(gpu.state, DeviceState::Out(_)));
            let is_done = if has_gpu { gpus(seen.now).any(is_there) } else { is_there(seen.now.residency[0]) };
            is_done || seen.now.loads > seen.before.loads
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

    /// Whether a GPU that is used, and has no weights, still has a worker.
    fn has_idle_worker(&self) -> bool {
        let Status { devices, models, .. } = self.status();
        devices.iter().enumerate().skip(1).any(|(at, device)| {
            let is_used = matches!(device.schedule.state, DeviceState::InRotation | DeviceState::Resting);
            let has_weights = models.iter().any(|model| model.view.residency.get(at).is_some_and(|r| is_held(*r)));
            is_used && device.pid.is_some() && !has_weights
        })
    }

    fn change(&self, model: usize, wish: Wish) -> Result<(), EngineError> {
        self.wish(model, wish, Duration::ZERO, |_| true).map(drop)
    }

    fn wish(
        &self,
        model: usize,
        wish: Wish,
        most: Duration,
        is_done: impl Fn(Seen<'_>) -> bool,
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

/// One of the callers that may await a move; given back when it is dropped.
struct Turn(Arc<AtomicUsize>);

impl Turn {
    fn take(movers: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |waiting: usize| (waiting < MOVERS_MAX).then_some(waiting + 1);
        movers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self(Arc::clone(movers)))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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
