//! Models that come and go by hand: offload, release, preheat, and how long they stay by themselves.
//! Decides nothing: it says what is wanted and waits until it is so.

use super::background::Background;
use super::dispatcher::{Seen, Unmet};
use super::{Engine, EngineError};
use magray_core::DeviceName;
use magray_core::schedule::{DeviceState, DeviceView, Location, ModelView, Priority, Residency, ResidencyRequest};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// From one look at a worker that is about to end to the next.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// What came of a request.
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
    /// As [`Engine::preheat`] does, with this priority.
    Preheat(Priority),
}

/// Callers that await moves at a time.
const TRANSFERS_MAX: usize = 8;

impl Engine {
    /// Moves a model and awaits that it is done, in any runtime. A caller that stops waiting does not stop the move. A few
    /// callers may wait at a time; more are refused.
    ///
    /// ```
    /// # use magray_engine::engine::{Engine, EngineOptions, ModelSource, Move, Priority, Residency};
    /// # use std::time::Duration;
    /// # let engine = Engine::start(EngineOptions::on_cpu(vec![ModelSource::Synthetic("tiny".parse()?).into()]))?;
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let moved = engine.move_model(0, Move::Preheat(Priority::Normal), Duration::from_secs(60)).await?;
    /// assert_eq!(moved.residency[0].1, Residency::OnDevice);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn move_model(&self, model: usize, how: Move, most: Duration) -> Result<Moved, EngineError> {
        let refused = || EngineError::Full { retry_after: Duration::from_secs(1) };
        let turn = Permit::take(&self.0.transfers).ok_or_else(refused)?;
        let own = self.clone();
        let moving = Background::on_own_thread(move || {
            let _turn = turn;
            match how {
                Move::Offload => own.offload(model, most),
                Move::Release => own.release(model, most),
                Move::Preheat(priority) => own.preheat_as(model, priority, most),
            }
        });
        moving.map_err(|_| refused())?.await?
    }

    /// Takes a model off the GPUs; its weights stay in the memory of the host. Batches that run end first, and no request
    /// fails: one that comes meanwhile brings the model back.
    pub fn offload(&self, model: usize, most: Duration) -> Result<Moved, EngineError> {
        self.request(model, ResidencyRequest::Offload, most, is_offloaded)
    }

    /// Takes a model out of all memory, and ends workers whose GPUs have no model left. The next request loads it again.
    pub fn release(&self, model: usize, most: Duration) -> Result<Moved, EngineError> {
        let until = Instant::now().checked_add(most);
        let mut moved = self.request(model, ResidencyRequest::Release, most, is_released)?;
        let started = Instant::now();
        // The memory of a GPU is free when its worker is gone, and not when that was told to go.
        while self.has_ending_worker() {
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(EngineError::NotYet { within: most });
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        moved.took += started.elapsed();
        Ok(moved)
    }

    /// Brings a model to a GPU before the first request; to the CPU where there is no GPU.
    pub fn preheat(&self, model: usize, most: Duration) -> Result<Moved, EngineError> {
        self.preheat_as(model, Priority::Normal, most)
    }

    /// As [`Engine::preheat`]; with a high priority it evicts models that count less, also those that compute or just came.
    pub fn preheat_as(&self, model: usize, priority: Priority, most: Duration) -> Result<Moved, EngineError> {
        self.request(model, ResidencyRequest::Preheat(priority), most, is_preheated)
    }

    /// How long a model stays on a GPU without being used; `None`: until it is taken off by hand.
    pub fn set_idle_timeout(&self, model: usize, timeout: Option<Duration>) -> Result<(), EngineError> {
        self.change(model, ResidencyRequest::IdleTimeout(timeout))
    }

    /// Whether a model leaves the GPUs whenever nothing of it waits or runs.
    pub fn set_offload_after_use(&self, model: usize, is_on: bool) -> Result<(), EngineError> {
        self.change(model, ResidencyRequest::OffloadAfterUse(is_on))
    }

    /// Whether a model stays on its GPU whatever others need.
    pub fn set_pinned(&self, model: usize, is_pinned: bool) -> Result<(), EngineError> {
        self.change(model, ResidencyRequest::Pin(is_pinned))
    }

    /// How much a model counts when models compete for the memory of a GPU.
    pub fn set_priority(&self, model: usize, priority: Priority) -> Result<(), EngineError> {
        self.change(model, ResidencyRequest::Priority(priority))
    }

    /// Whether a worker that is not needed any more is still there.
    fn has_ending_worker(&self) -> bool {
        self.status().devices.iter().any(|device| device.schedule.is_ending && device.pid.is_some())
    }

    fn change(&self, model: usize, request: ResidencyRequest) -> Result<(), EngineError> {
        self.request(model, request, Duration::ZERO, |_| true).map(drop)
    }

    fn request(
        &self,
        model: usize,
        request: ResidencyRequest,
        most: Duration,
        is_done: impl Fn(Seen<'_>) -> bool,
    ) -> Result<Moved, EngineError> {
        self.reader(model)?;
        let started = Instant::now();
        let view = self.dispatcher().requested(model, request, most, is_done).map_err(|unmet| match unmet {
            Unmet::Late => EngineError::NotYet { within: most },
            Unmet::Overruled => EngineError::Overruled,
        })?;
        let names = self.dispatcher().executors().iter().map(|executor| executor.name());
        Ok(Moved { took: started.elapsed(), residency: names.zip(view.residency).collect() })
    }
}

/// One of the callers that may await a move; given back when it is dropped.
struct Permit(Arc<AtomicUsize>);

impl Permit {
    fn take(transfers: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |waiting: usize| (waiting < TRANSFERS_MAX).then_some(waiting + 1);
        transfers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self(Arc::clone(transfers)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a model has left every GPU that had it. It may have come back since.
fn is_offloaded(Seen { before, now, devices }: Seen<'_>) -> bool {
    let departed = |at: usize| now.departures[at] > before.departures[at];
    at_location(devices, Location::Worker).all(|at| !is_held(before.residency[at]) || departed(at))
}

/// Whether a model was in no memory. It may have come back since.
fn is_released(Seen { before, now, .. }: Seen<'_>) -> bool {
    now.releases > before.releases
}

/// Whether a model was on a GPU, or on the CPU where there is no GPU. It may have left since.
fn is_preheated(Seen { before, now, devices }: Seen<'_>) -> bool {
    let suits = |at: usize| now.plan.home.map_or(!devices[at].is_reserved, |home| usize::from(home.0) == at);
    let is_used = |at: usize| suits(at) && !matches!(devices[at].state, DeviceState::Out(_));
    let has_worker = at_location(devices, Location::Worker).any(is_used);
    let location = if has_worker { Location::Worker } else { Location::InProcess };
    let is_on = |view: &ModelView, at: usize| view.residency[at] == Residency::OnDevice;
    let is_there = |view: &ModelView| at_location(devices, location).any(|at| is_on(view, at));
    is_there(before) || is_there(now) || now.loads > before.loads
}

/// The places of the devices whose executors run there.
fn at_location(devices: &[DeviceView], location: Location) -> impl Iterator<Item = usize> {
    devices.iter().enumerate().filter(move |(_, device)| device.location == location).map(|(at, _)| at)
}

/// Whether it takes memory of the device.
fn is_held(residency: Residency) -> bool {
    matches!(residency, Residency::Loading | Residency::OnDevice | Residency::Leaving)
}

#[cfg(test)]
mod tests {
    //! A waiter may be scheduled late: everything here has happened before its first look.

    use super::super::dispatcher::Dispatcher;
    use super::super::executor_handle::{ExecutorHandle, ExecutorStatus, Order};
    use super::super::profiling::Profiling;
    use super::*;
    use magray_core::Precision;
    use magray_core::ledger::Budget;
    use magray_core::schedule::{
        Action, Allowed, CallerId, DeviceId, DeviceKind, DeviceSpec, Ending, Event, Group, Machine, ModelId, ModelPlan,
        Moment, Options, Request, RequestId, Sequence,
    };

    const GPU: DeviceId = DeviceId(1);
    const MODEL: ModelId = ModelId(0);

    /// A CPU and a GPU, whose worker is asked for, and a model that is in no memory.
    struct Rig(Machine);

    impl Rig {
        fn new() -> Self {
            let spec = |kind| DeviceSpec {
                kind,
                location: if kind == DeviceKind::Cpu { Location::InProcess } else { Location::Worker },
                slots: 1,
                batch_tokens_max: 64,
                batch_tokens_least: 1,
                memory: Budget::UNBOUNDED,
                is_reserved: false,
            };
            let plan = ModelPlan { bytes: 1, is_preloaded: false, ..ModelPlan::default() };
            let specs = vec![spec(DeviceKind::Cpu), spec(DeviceKind::Gpu)];
            let mut rig = Self(Machine::new(specs, vec![plan], Options::default()));
            rig.step(Event::Tick);
            rig
        }

        /// The same with the model on the GPU.
        fn loaded() -> Self {
            let mut rig = Self::new();
            rig.step(Event::Up { device: GPU });
            rig.step(Event::ResidencyRequested { model: MODEL, request: ResidencyRequest::Preheat(Priority::Normal) });
            rig.load();
            rig
        }

        fn step(&mut self, event: Event) -> Vec<Action> {
            let mut actions = Vec::new();
            self.0.step(event, Moment::START, &mut actions);
            actions
        }

        fn load(&mut self) {
            self.step(Event::Loaded { device: GPU, model: MODEL, bytes: 1, took: Duration::ZERO, from_host: false });
        }

        /// A request waits for the model on the GPU.
        fn ask(&mut self) {
            let request = Request {
                id: RequestId(1),
                group: Group { model: MODEL, key: 0 },
                sequences: vec![Sequence::one_step(1)],
                caller: CallerId(0),
                priority: Priority::Normal,
                deadline: None,
                allowed: Allowed::Gpu,
            };
            self.step(Event::Submitted(request));
        }

        /// Whether a request is done after all that `then` does.
        fn grants(
            mut self,
            request: ResidencyRequest,
            is_done: impl Fn(Seen<'_>) -> bool,
            then: impl FnOnce(&mut Self),
        ) -> bool {
            let before = self.0.view().models.remove(0);
            self.step(Event::ResidencyRequested { model: MODEL, request });
            then(&mut self);
            let view = self.0.view();
            is_done(Seen { before: &before, now: &view.models[0], devices: &view.devices })
        }
    }

    #[test]
    fn a_release_waited_for_ever_where_the_model_came_back_before_the_first_look() {
        let mut rig = Rig::new();
        rig.ask();
        let is_done = rig.grants(ResidencyRequest::Release, is_released, |rig| {
            rig.step(Event::Up { device: GPU });
            rig.load();
        });
        assert!(is_done);
    }

    #[test]
    fn an_offload_waited_for_ever_where_the_model_came_before_the_first_look() {
        let mut rig = Rig::new();
        rig.ask();
        let is_done = rig.grants(ResidencyRequest::Offload, is_offloaded, |rig| {
            rig.step(Event::Up { device: GPU });
            rig.load();
        });
        assert!(is_done);
    }

    #[test]
    fn an_offload_waited_for_ever_where_the_worker_ended_and_the_model_came_back() {
        let is_done = Rig::loaded().grants(ResidencyRequest::Offload, is_offloaded, |rig| {
            rig.step(Event::Down { device: GPU, ending: Ending::Crashed });
            rig.ask();
            rig.step(Event::Up { device: GPU });
            rig.load();
        });
        assert!(is_done);
    }

    #[test]
    fn a_preheat_waited_for_ever_where_the_model_left_before_the_first_look() {
        let is_done = Rig::loaded().grants(ResidencyRequest::Preheat(Priority::Normal), is_preheated, |rig| {
            rig.step(Event::ResidencyRequested { model: MODEL, request: ResidencyRequest::Offload });
            rig.step(Event::Offloaded { device: GPU, model: MODEL });
        });
        assert!(is_done);
    }

    #[test]
    fn what_is_under_way_is_not_done() {
        assert!(!Rig::loaded().grants(ResidencyRequest::Release, is_released, |_| ()));
        assert!(!Rig::loaded().grants(ResidencyRequest::Offload, is_offloaded, |_| ()));
        let is_done = Rig::new().grants(ResidencyRequest::Preheat(Priority::Normal), is_preheated, |rig| {
            rig.step(Event::Up { device: GPU });
        });
        assert!(!is_done);
        let gone = |rig: &mut Rig| {
            rig.step(Event::Offloaded { device: GPU, model: MODEL });
        };
        assert!(Rig::loaded().grants(ResidencyRequest::Offload, is_offloaded, gone));
        assert!(!Rig::loaded().grants(ResidencyRequest::Release, is_released, gone), "the host still has it");
    }
    /// A device that takes orders and does nothing.
    struct Deaf;

    impl ExecutorHandle for Deaf {
        fn name(&self) -> DeviceName {
            DeviceName::Cpu
        }

        fn precision(&self, _: usize) -> Precision {
            Precision::F32
        }

        fn take(&self, _: Order) {}

        fn stop(&self) {}

        fn join(&self, _: Instant) -> bool {
            true
        }

        fn status(&self) -> ExecutorStatus {
            ExecutorStatus::default()
        }
    }

    #[test]
    fn a_release_that_somebody_overrules_waits_no_longer() {
        let dispatcher = Dispatcher::new(Rig::loaded().0, None, Box::new(|_, _, _| ()), Profiling::default());
        dispatcher.open(vec![Box::new(Deaf), Box::new(Deaf)], &[]);
        let requested = |request, most| dispatcher.requested(0, request, most, |_| false).map(drop);
        let waited = std::thread::scope(|scope| {
            let release = scope.spawn(|| requested(ResidencyRequest::Release, Duration::from_secs(600)));
            while !release.is_finished() {
                // Either may be the last of the two, until the release has ended.
                assert!(requested(ResidencyRequest::Preheat(Priority::Normal), Duration::ZERO).is_err());
            }
            release.join().unwrap()
        });
        assert_eq!(waited, Err(Unmet::Overruled));
    }
}
