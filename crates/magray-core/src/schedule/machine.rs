//! The machine: takes an event and the time, says what to do.
//! Branches only: what an event means stands in the files beside it.

use super::context::Context;
use super::device::Device;
use super::devices::Devices;
use super::event::Done;
use super::event::{Arrival, Growth};
use super::jobs::Jobs;
use super::largest_refused::LargestRefused;
use super::queue::Queue;
use super::residency::Residency;
use super::sabotage::sabotaged;
use super::{Action, DeviceId, DeviceSpec, Event, ModelPlan, Moment, Options, RequestId, View};
use std::collections::BTreeSet;
use std::time::Duration;

/// Whoever drives the machine is late when it comes so long after it was asked to.
const DRIVER_LATE: Duration = Duration::from_millis(50);
/// What it has not told yet, it tells within this time.
const DRIVER_GRACE: Duration = Duration::from_millis(200);
/// No tick is asked for sooner than this.
const WAKE_LEAST: Duration = Duration::from_micros(10);

/// All decisions and what they depend on.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(super) cx: Context,
    pub(super) residency: Residency,
    pub(super) devices: Devices,
    pub(super) jobs: Jobs,
    pub(super) queue: Queue,
    /// Deadlines of the requests that have one.
    pub(super) deadlines: BTreeSet<(Moment, RequestId)>,
    /// When to look after requests without one that need devices which may be away.
    pub(super) patience: BTreeSet<(Moment, RequestId)>,
    pub(super) is_draining: bool,
    /// Who was refused lately and comes next.
    pub(super) turned_away: LargestRefused,
    /// Batches ever started: the next one's name.
    pub(super) batches: u64,
    pub(super) last_in_turn: DeviceId,
    wake: Option<Moment>,
    /// When what waits is looked at again although nothing happens.
    placement_wake: Option<Moment>,
}

impl Machine {
    /// A machine for these devices, 64 at most, and models. GPUs are asked for by `Spawn` at the first step.
    pub fn new(devices: Vec<DeviceSpec>, models: Vec<ModelPlan>, options: Options) -> Self {
        let mut machine = Self {
            devices: Devices::new(&devices, &options.recovery),
            jobs: Jobs::new(models.len()),
            queue: Queue::default(),
            deadlines: BTreeSet::new(),
            patience: BTreeSet::new(),
            is_draining: false,
            turned_away: LargestRefused::default(),
            batches: 0,
            last_in_turn: DeviceId(u16::MAX),
            residency: Residency::new(&devices, &models, options.keeping.load_max),
            cx: Context::new(options),
            wake: Some(Moment::START),
            placement_wake: None,
        };
        machine.note_presence();
        machine
    }

    /// Takes what happened and appends what to do. Time never goes back.
    pub fn step(&mut self, event: Event, now: Moment, actions: &mut Vec<Action>) {
        let now = now.max(self.cx.now);
        if event == Event::Tick && self.wake.is_none_or(|wake| now < wake) {
            return;
        }
        self.excuse_workers(now);
        self.cx.now = now;
        // Neither a sign of life nor a request that leaves is a reason to place anything; a report is where the room changes.
        let is_quiet = matches!(event, Event::Heartbeat { .. } | Event::Memory { .. });
        let is_news = !is_quiet && !matches!(event, Event::Cancelled(_) | Event::Draining);
        let is_due = self.placement_wake.is_some_and(|wake| wake <= now);
        let actions_before = actions.len();
        match event {
            Event::Submitted(request) => self.admit(request, now, actions),
            Event::Cancelled(request) => self.on_cancelled(request, actions),
            Event::Finished { batch, compute, outcomes } => {
                self.on_finished(batch, Done { compute, outcomes: &outcomes }, actions);
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
                self.on_loaded(device, Arrival { model, bytes, took, from_host }, now);
            }
            Event::NotLoaded { device, model, failure } => self.on_not_loaded(device, model, failure, now, actions),
            Event::Offloaded { device, model } => self.on_offloaded(device, model, now),
            Event::Imaged { model, is_there } => self.on_imaged(model, is_there),
            Event::Forgotten { model } => self.on_forgotten(model),
            Event::Memory { device, report } => self.on_memory(device, &report),
            Event::VectorsAsked { device, collection, bytes } => {
                self.on_vectors_asked(Growth { device, collection, bytes }, now, actions);
            }
            Event::VectorsDropped { device, collection } => self.on_vectors_dropped(device, collection),
            Event::ModelAdded { plan } => self.on_model_added(plan, now),
            Event::ModelRemoved { model } => self.on_model_removed(model, now),
            Event::ResidencyRequested { model, request } => self.on_residency_requested(model, request, now),
            Event::Draining => self.is_draining = true,
            Event::Tick => {}
        }
        self.expire(now, actions);
        for gpu in self.devices.in_workers().iter() {
            self.tend(gpu, actions);
        }
        self.note_quiet(now);
        let is_looked_at = self.settle_weights(now, actions);
        if is_news || is_due || is_looked_at || actions.len() > actions_before {
            self.dispatch(now, actions);
            self.placement_wake = self.placement_wake_after(now);
        }
        // What was refused meanwhile may have been the last of its model.
        self.note_quiet(now);
        self.wake = self.earliest_wake(now);
    }

    /// When the machine wants a [`Event::Tick`] at the latest, if nothing else happens.
    pub fn next_wake(&self) -> Option<Moment> {
        self.wake.filter(|_| !sabotaged!(self.cx, ForgetWake))
    }

    /// How everything is now.
    pub fn view(&self) -> View {
        View {
            requests: self.jobs.len(),
            tokens: self.jobs.tokens(),
            waiting: self.jobs.waiting(),
            devices: self
                .devices
                .iter()
                .zip(self.residency.memories())
                .map(|(device, memory)| device.view(memory))
                .collect(),
            models: self.model_views(),
        }
    }

    /// Whether a device is used now.
    pub fn is_in_rotation(&self, device: DeviceId) -> bool {
        self.devices.find(device).is_some_and(|device| device.health().is_in_rotation())
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
            return self.refuse(request, super::Refused::Expired, actions);
        }
        self.close(request, actions);
    }

    /// Where nobody called for a while although it was asked for, signs of life may be on their way unread: that time
    /// is no worker's fault.
    fn excuse_workers(&mut self, now: Moment) {
        let Some(late) = self.wake.map(|wake| now.since(wake)).filter(|&late| late > DRIVER_LATE) else { return };
        let excused = |since: Moment| (since + late + DRIVER_GRACE).min(now);
        let devices = self.devices.iter_mut().zip(self.residency.memories_mut());
        for (device, memory) in devices.filter(|(device, _)| device.health().has_worker()) {
            device.excuse(excused);
            memory.excuse(excused);
        }
    }

    fn earliest_wake(&self, now: Moment) -> Option<Moment> {
        let devices = self.devices.iter().zip(self.residency.memories());
        let in_workers = devices.filter(|(device, _)| device.health().has_worker());
        let recovery = &self.cx.options.recovery;
        let devices = in_workers.filter_map(|(device, memory)| device.health().wake(device.vitals(memory), recovery));
        let requests = [self.deadlines.first(), self.patience.first()].into_iter().flatten().map(|&(due, _)| due);
        let weights = self.residency.next_wake(now);
        let first = devices.chain(requests).chain(self.placement_wake).chain(weights).min()?;
        Some(first.max(now + WAKE_LEAST))
    }
}
