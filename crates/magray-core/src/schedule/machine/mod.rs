//! The machine: takes an event and the time, says what to do.
//! Only branches and wires: each part decides about its own state.

mod serving;
mod upkeep;

use super::admission::{Admission, predicted_wait};
use super::context::Context;
use super::device::Device;
use super::devices::Devices;
use super::event::{Arrival, Growth};
use super::outlook::Outlook;
use super::placement::{Placer, turn_us};
use super::requests::Requests;
use super::residency::{Model, Residency};
use super::resident::Stage;
use super::sabotage::sabotaged;
use super::{Action, DeviceId, DeviceSpec, Event, Group, ModelId, ModelPlan, ModelView, Moment, MoveReason, Options};
use super::{Refused, RequestId, Sketch, View};
use crate::moment::from_micros;
use std::time::Duration;

/// The driver is late when it comes so long after it was asked to: timers are coarse, and others compute too.
const DRIVER_LATE: Duration = Duration::from_millis(20);
/// While there are workers the driver comes at least this often: their heartbeats bring it sooner, unless it is late itself. Shorter than any
/// silence that ends a worker, so that no such silence can be the driver's own.
const WATCH: Duration = Duration::from_millis(250);
/// What it has not told yet, it tells within this time.
const DRIVER_GRACE: Duration = Duration::from_millis(200);
/// No tick is asked for sooner than this.
const WAKE_LEAST: Duration = Duration::from_micros(10);

/// All decisions and what they depend on.
#[derive(Clone, Debug)]
pub struct Machine {
    cx: Context,
    devices: Devices,
    residency: Residency,
    requests: Requests,
    admission: Admission,
    placer: Placer,
    wake: Option<Moment>,
}

impl Machine {
    /// A machine for these devices, 64 at most, and models. GPUs are asked for by `Spawn` at the first step.
    pub fn new(devices: Vec<DeviceSpec>, models: Vec<ModelPlan>, options: Options) -> Self {
        let mut machine = Self {
            devices: Devices::new(&devices, &options.recovery),
            residency: Residency::new(&devices, &models, options.keeping.load_max),
            requests: Requests::new(models.len()),
            admission: Admission::default(),
            placer: Placer::new(),
            cx: Context::new(options),
            wake: Some(Moment::START),
        };
        machine.note_presence();
        machine
    }

    /// Whether a request of about this many tokens would be taken now, beside others that were told so before and
    /// are not submitted yet; how long all that is there should take. One that would not be taken is remembered as if it had
    /// been submitted.
    pub fn would_take(&mut self, request: &Sketch, now: Moment) -> Result<Duration, Refused> {
        let (admission, of) = self.for_admission();
        admission.would_take(of, request, now)
    }

    /// Tokens that anyone may submit now without asking whether they would be taken: far from every bound.
    pub fn free_tokens(&mut self) -> u64 {
        let (admission, of) = self.for_admission();
        admission.free_tokens(of)
    }

    /// Takes what happened and appends what to do. Time never goes back.
    pub fn step(&mut self, event: Event, now: Moment, actions: &mut Vec<Action>) {
        self.step_all([event], now, actions);
    }

    /// As [`Machine::step`] with what happened at once: all of it is known before anything is placed.
    pub fn step_all(&mut self, events: impl IntoIterator<Item = Event>, now: Moment, actions: &mut Vec<Action>) {
        let now = now.max(self.cx.now);
        let is_time = self.wake.is_some_and(|wake| wake <= now);
        let mut events = events.into_iter().filter(|event| is_time || *event != Event::Tick).peekable();
        if events.peek().is_none() {
            return;
        }
        self.excuse_workers(now);
        self.cx.now = now;
        let is_due = self.placer.wake().is_some_and(|wake| wake <= now);
        let actions_before = actions.len();
        let mut is_news = false;
        for event in events {
            // Neither a sign of life nor a request that leaves is a reason to place anything; a report is where the room
            // changes.
            let is_quiet = matches!(event, Event::Heartbeat { .. } | Event::Memory { .. } | Event::MemoryUse { .. });
            is_news |= !is_quiet && !matches!(event, Event::Cancelled(_) | Event::Draining);
            self.take(event, actions);
        }
        self.expire(actions);
        for gpu in self.devices.in_workers().iter() {
            self.tend(gpu, actions);
        }
        self.note_quiet();
        let is_looked_at = self.settle_weights(actions);
        if is_news || is_due || is_looked_at || actions.len() > actions_before {
            self.dispatch(actions);
            let Self { cx, devices, residency, requests, placer, .. } = self;
            placer.plan_wake(Outlook { cx, devices, residency, requests });
        }
        // What was refused meanwhile may have been the last of its model.
        self.note_quiet();
        self.wake = self.earliest_wake(now);
    }

    fn take(&mut self, event: Event, actions: &mut Vec<Action>) {
        let now = self.cx.now;
        match event {
            Event::Submitted(request) => self.admit(request, actions),
            Event::Cancelled(request) => self.on_cancelled(request, actions),
            Event::Finished { batch, compute, outcomes } => {
                self.on_finished(batch, compute, &outcomes, actions);
            }
            Event::Read { request, sequence, tokens } => self.on_read(request, sequence, tokens, actions),
            Event::Failed { batch, failure } => self.on_failed(batch, failure, actions),
            Event::Spare { device } => self.devices.find_mut(device).into_iter().for_each(Device::note_spare),
            Event::Up { device } => self.on_up(device),
            Event::Down { device, ending } => self.on_down(device, ending, actions),
            Event::Heartbeat { device } => {
                self.devices.find_worker(device).into_iter().for_each(|health| health.on_heartbeat(now));
            }
            Event::Judged { device, condition } => self.on_judged(device, condition, actions),
            Event::Probed { device, passed } => self.on_probed(device, passed, actions),
            Event::Reset { device } => self.on_reset(device),
            Event::GivenUp { device } => self.on_given_up(device, actions),
            Event::Loaded { device, model, bytes, took, from_host } => {
                self.on_loaded(device, Arrival { model, bytes, took, from_host });
            }
            Event::NotLoaded { device, model, failure } => self.on_not_loaded(device, model, failure, actions),
            Event::Offloaded { device, model } => self.on_offloaded(device, model),
            Event::Imaged { model, is_there } => self.residency.imaged(model, is_there),
            Event::Forgotten { model } => self.residency.forgotten(model, &self.cx),
            Event::Memory { device, report } => self.residency.reported(device, &report),
            Event::MemoryUse { device, memory } => self.on_memory_use(device, memory, actions),
            Event::VectorsAsked { device, collection, bytes } => {
                self.residency.vectors_asked(Growth { device, collection, bytes }, &self.devices, now, actions);
            }
            Event::VectorsUsed { device, collection } => self.residency.vectors_used(device, collection, now),
            Event::VectorsDropped { device, collection } => self.residency.vectors_dropped(device, collection),
            Event::ModelAdded { plan } => {
                self.requests.add_model();
                self.residency.add_model(plan, now);
            }
            Event::ModelRemoved { model } => self.residency.remove_model(model, &self.devices, &self.cx),
            Event::ResidencyRequested { model, request } => {
                self.residency.request(model, request, &self.devices, &self.cx);
            }
            Event::Draining => self.admission.drain(),
            Event::Tick => {}
        }
    }

    /// When the machine wants a [`Event::Tick`] at the latest, if nothing else happens.
    pub fn next_wake(&self) -> Option<Moment> {
        self.wake.filter(|_| !sabotaged!(self.cx, ForgetWake))
    }

    /// How everything was when it last had to decide something.
    pub fn view(&self) -> View {
        self.view_at(self.cx.now)
    }

    /// How everything is at this time: idle times go on also where there is nothing to decide.
    pub fn view_at(&self, now: Moment) -> View {
        View {
            requests: self.requests.jobs().len(),
            tokens: self.requests.jobs().tokens(),
            waiting: self.requests.jobs().waiting(),
            wait: predicted_wait(self.outlook()),
            devices: self
                .devices
                .iter()
                .zip(self.residency.memories())
                .map(|(device, memory)| device.view(memory))
                .collect(),
            models: self.residency.models().map(|model| self.model_view(model, now)).collect(),
        }
    }

    /// Whether a device is used now.
    pub fn is_in_rotation(&self, device: DeviceId) -> bool {
        self.devices.find(device).is_some_and(|device| device.health().is_in_rotation())
    }

    /// How long a turn of a group may be predicted to take on a device.
    pub fn turn_most(&self, device: DeviceId, group: Group) -> Duration {
        from_micros(turn_us(self.outlook(), self.devices.cost(device, group), false))
    }

    /// Why a model's weights came to a device or left it last; `None` where they never moved.
    pub fn moved_for(&self, device: DeviceId, model: ModelId) -> Option<MoveReason> {
        self.residency.memory(device).resident(model).moved_for
    }

    /// Breaks one thing on purpose, for tests of tests.
    #[cfg(feature = "sabotage")]
    pub fn sabotage(&mut self, what: super::Sabotage) {
        self.cx.sabotage = Some(what);
        if let Some(fraud) = what.fraud() {
            self.residency.memories_mut().for_each(|memory| memory.sabotage(fraud));
        }
    }

    fn on_cancelled(&mut self, request: RequestId, actions: &mut Vec<Action>) {
        if sabotaged!(self.cx, AnswerCancelled) {
            return self.refuse(request, Refused::Expired, actions);
        }
        self.close(request, actions);
    }

    /// If the driver ran late, heartbeats may not have been read yet: extends the deadlines of workers by as much.
    fn excuse_workers(&mut self, now: Moment) {
        let Some(late) = self.wake.map(|wake| now.since(wake)).filter(|&late| late > DRIVER_LATE) else { return };
        let devices = self.devices.iter_mut().zip(self.residency.memories_mut());
        for (device, memory) in devices.filter(|(device, _)| device.health().has_worker()) {
            // A driver that is late each time would give a worker that is gone one grace after another.
            let grace = if device.health_mut().take_grace() { DRIVER_GRACE } else { Duration::ZERO };
            let excused = |since: Moment| (since + late + grace).min(now);
            device.excuse(excused);
            memory.excuse(excused);
        }
    }

    fn earliest_wake(&self, now: Moment) -> Option<Moment> {
        let devices = self.devices.iter().zip(self.residency.memories());
        let in_workers = devices.filter(|(device, _)| device.health().has_worker());
        let recovery = &self.cx.options.recovery;
        let devices = in_workers.flat_map(|(device, memory)| {
            let speed = device.meter().wake(&self.cx.speed_watch(device.meter()));
            [device.health().wake(device.vitals(memory), recovery), speed]
        });
        let devices = devices.flatten();
        let is_watched = self.devices.in_workers().iter().any(|id| self.devices.health(id).takes_orders());
        let watch = is_watched.then(|| now + WATCH);
        let parts = [self.requests.next_wake(), self.placer.wake(), self.residency.next_wake(now), watch];
        let first = devices.chain(parts.into_iter().flatten()).min()?;
        Some(first.max(now + WAKE_LEAST))
    }

    fn for_admission(&mut self) -> (&mut Admission, Outlook<'_>) {
        let Self { cx, devices, residency, requests, admission, .. } = self;
        (admission, Outlook { cx, devices, residency, requests })
    }

    fn model_view(&self, (id, model): (ModelId, &Model), now: Moment) -> ModelView {
        let requests = self.requests.jobs().of(id).all;
        ModelView {
            plan: model.plan,
            idle: if requests > 0 { Duration::ZERO } else { now.since(model.used) },
            requests,
            residency: self.devices.all().iter().map(|device| self.residency_on(device, id)).collect(),
            loads: model.loads,
            offloads: model.offloads,
            departures: self.residency.memories().map(|memory| memory.resident(id).departures).collect(),
            releases: model.releases,
        }
    }

    fn residency_on(&self, id: DeviceId, model: ModelId) -> super::Residency {
        match self.residency.memory(id).resident(model).stage {
            Stage::Loading { .. } => super::Residency::Loading,
            Stage::Present { .. } => super::Residency::OnDevice,
            Stage::Leaving { .. } => super::Residency::Leaving,
            Stage::Absent if !self.residency.model(model).has_image => super::Residency::Unloaded,
            Stage::Absent if self.devices.health(id).is_without_worker() => super::Residency::OnCpuCold,
            Stage::Absent => super::Residency::OnCpu,
        }
    }
}
