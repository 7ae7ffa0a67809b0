//! Runs a world: tells the machine what happens, does what it says, and has every step checked.
//! Owns the time; nothing here reads a clock or waits.

mod dialogue;
mod weights;

use crate::agenda::Agenda;
use crate::chance::Chance;
use crate::check::{Broken, Checks, Rule};
use crate::load::Arrivals;
use crate::measure::{Answer, Measured};
use crate::scenario::{Intervention, Scenario};
use crate::sequence::Name;
use crate::trail::Trail;
use crate::worker::{Executor, JobOutcome};
use dialogue::Dialogues;
use magray_core::ledger::{CollectionId, Owner};
use magray_core::schedule::{
    Action, BatchId, DeviceId, DeviceState, Ending, Event, Keeping, Location, Machine, ModelId, Moment, Report,
    RequestId, ResidencyRequest, Sequence, View,
};
use std::collections::BTreeMap;
use std::time::Duration;
use weights::{Image, LoadEnd, Move};

/// More wakes than this in a row, without any effect, are a defect.
const IDLE_WAKES_MAX: u32 = 2_000;

/// More steps a request than any world needs: the machine loops.
const STEPS_PER_REQUEST: u64 = 4_000;
const STEPS_AT_LEAST: u64 = 100_000;

/// Where the work is done first changes by and by, as batches take longer or shorter than expected. A machine may look at it
/// again from time to time; it must do so within this time, or within that of four slow batches if that is longer.
const RECONSIDERED_WITHIN: Duration = Duration::from_millis(100);

/// A wake that is nearer than this may stand for something that is due even sooner.
const PRESSING: Duration = Duration::from_micros(50);

pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) machine: Machine,
    pub(crate) now: Moment,
    pub(crate) agenda: Agenda<Due>,
    pub(crate) executors: Vec<Executor>,
    pub(crate) chance: Chance,
    pub(crate) checks: Checks,
    pub(crate) trail: Trail,
    pub(crate) measured: Measured,
    /// Batches that have ended, for outdated reports.
    pub(crate) spent: Vec<BatchId>,
    /// When the device began with batches that it has finished.
    pub(crate) begun: BTreeMap<BatchId, Moment>,
    /// Sequences of many steps.
    pub(crate) dialogues: Dialogues,
    pub(crate) images: Vec<Image>,
    /// Models that the machine knows, or knew.
    pub(crate) models_known: usize,
    /// What other processes leave of each device's memory; its worker reports it.
    pub(crate) memories: Vec<u64>,
    /// The machine's view after the last step.
    view: View,
    owners: BTreeMap<RequestId, usize>,
    submitted: usize,
    /// Chance of the load alone, so that what devices draw does not change the requests.
    load_chance: Chance,
    is_drained: bool,
    /// The latest time for all to be settled, once everything was requested and no fault is left.
    end_by: Option<Moment>,
    /// When the world ends, after everything was answered.
    ends_at: Option<Moment>,
    /// Wakes in a row without effect.
    idle_wakes: u32,
}

/// Something that is due.
#[derive(Clone, Debug)]
pub(crate) enum Due {
    /// Requests of the stream or of a burst come.
    Arrive,
    /// A client sends a request.
    Ask(usize),
    Cancel(RequestId),
    /// A reader goes on.
    Read(Name),
    /// An event for the machine.
    Tell(Event),
    Ready {
        device: usize,
        generation: u64,
    },
    JobEnds {
        device: usize,
        generation: u64,
        outcome: JobOutcome,
        time: Duration,
    },
    Dies {
        device: usize,
        generation: u64,
        ending: Ending,
    },
    Beat {
        device: usize,
        generation: u64,
    },
    TroubleBegins(usize),
    TroubleEnds(usize),
    LoadEnds {
        order: Move,
        end: LoadEnd,
    },
    OffloadEnds(Move),
    Imaged {
        order: Move,
        image: u64,
    },
    VectorsLeft {
        device: usize,
        generation: u64,
        collection: CollectionId,
    },
    Intervene(Intervention),
}

/// The batch that the event ends, and when its device began with it.
#[derive(Clone, Copy, Debug, Default)]
struct Ended {
    batch: Option<BatchId>,
    begun: Option<Moment>,
}

impl World {
    pub(crate) fn new(scenario: Scenario, machine: Machine, trail: Trail) -> Self {
        let mut chance = Chance::new(scenario.seed);
        let load_chance = chance.fork();
        Self {
            checks: Checks::new(&scenario),
            executors: scenario.devices.iter().cloned().map(Executor::new).collect(),
            view: machine.view(),
            measured: Measured::default(),
            now: Moment::START,
            agenda: Agenda::new(),
            spent: Vec::new(),
            begun: BTreeMap::new(),
            dialogues: Dialogues::default(),
            images: vec![Image::default(); scenario.models.len()],
            models_known: scenario.models_known,
            memories: scenario.devices.iter().map(|device| device.spec.memory.memory_max).collect(),
            owners: BTreeMap::new(),
            submitted: 0,
            is_drained: false,
            end_by: None,
            ends_at: None,
            idle_wakes: 0,
            scenario,
            machine,
            chance,
            load_chance,
            trail,
        }
    }

    /// Runs until everything is answered and every device is back.
    pub(crate) fn run(&mut self) -> Result<(), Broken> {
        self.plan_load();
        for (at, trouble) in self.scenario.troubles.iter().enumerate() {
            self.agenda.plan(trouble.from, Due::TroubleBegins(at));
            self.agenda.plan(trouble.until, Due::TroubleEnds(at));
        }
        for &(at, intervention) in &self.scenario.interventions {
            self.agenda.plan(at, Due::Intervene(intervention));
        }
        // Something is due when nothing goes wrong any more, so that the world gets there.
        self.agenda.plan(self.scenario.calm_at, Due::Tell(Event::Tick));
        for device in self.scenario.given_up.clone() {
            self.tell(Event::GivenUp { device })?;
        }
        self.tell(Event::Tick)?;
        while !self.is_over()? {
            self.advance()?;
        }
        self.measured.ended = self.now;
        self.checks.speeds.end(&self.view)?;
        self.wind_down()?;
        self.measured.busy = self.executors.iter().map(|executor| executor.busy).collect();
        Ok(())
    }

    fn plan_load(&mut self) {
        match self.scenario.load.arrivals {
            Arrivals::Stream { .. } | Arrivals::Bursts { .. } => self.agenda.plan(Moment::START, Due::Arrive),
            Arrivals::Clients { count, .. } => {
                (0..count).for_each(|client| self.agenda.plan(Moment::START, Due::Ask(client)));
            }
        }
    }

    /// Advances to the next moment at which something is due.
    fn advance(&mut self) -> Result<(), Broken> {
        self.think_early(self.agenda.next_at(), self.machine.next_wake())?;
        let (due, wake) = (self.agenda.next_at(), self.machine.next_wake());
        let woken = wake.map(|wake| (wake + self.scenario.lateness).max(self.now));
        let Some(next) = [due, woken].into_iter().flatten().min() else {
            let message = "nothing is due, and the machine does not want to be woken".to_owned();
            return Err(Broken { rule: self.unsettled(), message });
        };
        if self.measured.steps > STEPS_AT_LEAST + STEPS_PER_REQUEST * self.scenario.load.requests as u64 {
            let message = format!("it takes step after step without an end: {}", self.state_words());
            let rule = if self.end_by.is_some() { self.unsettled() } else { Rule::HonestWake };
            return Err(Broken { rule, message });
        }
        if self.end_by.is_some_and(|end_by| next > end_by) {
            let message = format!("nothing goes wrong any more, and still: {}", self.state_words());
            return Err(Broken { rule: self.unsettled(), message });
        }
        if woken == Some(next) && due.is_none_or(|due| next <= due) {
            if self.idle_wakes > IDLE_WAKES_MAX {
                let message = format!("it wants to be woken at {wake:?}, is, does nothing, and wants it again");
                return Err(Broken { rule: Rule::HonestWake, message });
            }
            self.now = next;
            return self.tell(Event::Tick);
        }
        let Some((at, due)) = self.agenda.take() else { return Ok(()) };
        assert!(at >= self.now, "time does not go back");
        self.now = at;
        self.happen(due)
    }

    /// Sometimes steps the machine before its wake time with an event without meaning: if it finds something to do, its wake
    /// time was too late.
    fn think_early(&mut self, due: Option<Moment>, wake: Option<Moment>) -> Result<(), Broken> {
        let Some(next) = [due, wake].into_iter().flatten().min() else { return Ok(()) };
        let gap = next.since(self.now).as_nanos() as u64;
        // A machine may ask for no wake within the next few microseconds; then it may have something to do before.
        let is_pressing = wake.is_some_and(|wake| wake.since(self.now) < PRESSING);
        if gap < 2 || is_pressing || !self.chance.is(self.scenario.early) {
            return Ok(());
        }
        self.now = Moment::from_nanos(self.now.as_nanos() + self.chance.whole(1, gap - 1));
        let event = Event::Finished { batch: BatchId(u64::MAX), compute: Duration::ZERO, outcomes: Vec::new() };
        let actions = self.step(event);
        let patience = RECONSIDERED_WITHIN.max(self.checks.workers.slowest() * 4).max(self.slowest_load() * 4);
        let is_soon = wake.is_some_and(|wake| wake.since(self.now) < patience);
        let is_of_placement = |action: &Action| matches!(action, Action::Start { .. } | Action::Free { .. });
        let is_placement = actions.iter().all(is_of_placement);
        if actions.is_empty() || (is_soon && is_placement) {
            return self.follow(actions, Ended::default());
        }
        let message = format!("it wanted to be woken at {wake:?}, and finds this to do before: {actions:?}");
        Err(Broken { rule: Rule::HonestWake, message })
    }

    /// How long the slowest load of all takes.
    fn slowest_load(&self) -> Duration {
        let bytes = self.scenario.models.iter().map(|model| model.bytes).max().unwrap_or(0);
        let loads = self.executors.iter().map(|executor| executor.device.loads.of(bytes, false));
        loads.max().unwrap_or_default()
    }

    pub(crate) fn tell(&mut self, event: Event) -> Result<(), Broken> {
        self.checks.heard(&event, self.now);
        let ended = match event {
            Event::Finished { batch, .. } => Some(batch),
            _ => None,
        };
        let begun = ended.and_then(|batch| self.begun.remove(&batch));
        if let Event::Finished { batch, .. } | Event::Failed { batch, .. } = event {
            self.spent.push(batch);
        }
        let actions = self.step(event);
        self.follow(actions, Ended { batch: ended, begun })?;
        if let Some(batch) = ended {
            self.forget_made(batch);
        }
        Ok(())
    }

    fn step(&mut self, event: Event) -> Vec<Action> {
        self.trail.event(self.now, &event);
        let is_idle =
            matches!(event, Event::Tick | Event::Heartbeat { .. } | Event::Memory { .. } | Event::MemoryUse { .. });
        let mut actions = Vec::new();
        self.machine.step(event, self.now, &mut actions);
        self.measured.steps += 1;
        self.idle_wakes = if is_idle && actions.is_empty() { self.idle_wakes + 1 } else { 0 };
        for action in &actions {
            self.trail.action(self.now, action);
        }
        actions
    }

    /// Checks the machine's actions and performs them.
    fn follow(&mut self, actions: Vec<Action>, ended: Ended) -> Result<(), Broken> {
        for action in &actions {
            let turn_most = |device, group| self.machine.turn_most(device, group);
            self.checks.told(action, &turn_most, self.now)?;
        }
        self.view = self.machine.view();
        self.checks.settle(&self.view, self.now)?;
        for action in actions {
            self.perform(action, ended)?;
        }
        Ok(())
    }

    fn perform(&mut self, action: Action, ended: Ended) -> Result<(), Broken> {
        match action {
            Action::Deliver { request, sequence, tokens, .. } => {
                self.measured.tokens += u64::from(tokens);
                self.deliver((request, sequence), ended.batch)?;
            }
            Action::Free { device, request, sequence } => {
                let is_early = self.checks.is_live(request) && self.checks.streams.known((request, sequence)) > 0;
                self.measured.preemptions += u64::from(is_early);
                self.executors[usize::from(device.0)].states.remove(&(request, sequence));
            }
            Action::Start { device, batch, .. } => self.start_batch(usize::from(device.0), batch),
            Action::Complete { request, report } => self.answered(request, &report, ended.begun.unwrap_or(self.now)),
            Action::Refuse { request, .. } => {
                self.measured.refused += 1;
                self.ask_again(request);
            }
            Action::Kill { device, .. } => self.kill(usize::from(device.0)),
            Action::Spawn { device } => self.spawn(usize::from(device.0)),
            Action::Probe { device } => self.start_probe(usize::from(device.0)),
            Action::Load { device, model } => self.load(usize::from(device.0), model),
            Action::Offload { device, model } => self.offload(usize::from(device.0), model),
            Action::GrantVectors { device, collection, bytes } => {
                self.take_vectors(usize::from(device.0), collection, bytes);
            }
            Action::DropVectors { device, collection } => self.drop_vectors(usize::from(device.0), collection),
            Action::RefuseVectors { .. } => {}
            Action::Forget { model } => self.forget(model),
            Action::Rest { device } => self.rest(usize::from(device.0)),
            Action::Trim { .. } | Action::Alert { .. } | Action::Notice { .. } => {}
        }
        Ok(())
    }

    fn answered(&mut self, request: RequestId, report: &Report, begun: Moment) {
        let Ok(entry) = self.checks.ledger.entry(request) else { return };
        self.measured.answers.push(Answer {
            arrived: entry.arrived,
            begun,
            answered: self.now,
            texts: entry.request.sequences.len(),
            device: usize::from(report.device.0),
        });
        self.ask_again(request);
    }

    /// The client of an answered request sends its next one.
    fn ask_again(&mut self, request: RequestId) {
        if let (Some(client), Arrivals::Clients { think, .. }) =
            (self.owners.remove(&request), self.scenario.load.arrivals)
        {
            // One that is refused asks a little later at the earliest, as a client of ours would.
            let pause = Duration::from_micros(10) + think.mul_f64(self.load_chance.unit() * 2.0);
            self.agenda.plan(self.now + pause, Due::Ask(client));
        }
    }

    pub(crate) fn arrive(&mut self) -> Result<(), Broken> {
        let (count, gap) = match self.scenario.load.arrivals {
            Arrivals::Stream { gap } => (1, gap),
            Arrivals::Bursts { size, gap } => (size, gap),
            Arrivals::Clients { .. } => return Ok(()),
        };
        for _ in 0..count {
            self.submit()?;
        }
        if self.submitted < self.scenario.load.requests {
            let gap = Duration::from_secs_f64(self.load_chance.exponential(gap.as_secs_f64()));
            self.agenda.plan(self.now + gap, Due::Arrive);
        }
        Ok(())
    }

    pub(crate) fn ask(&mut self, client: usize) -> Result<(), Broken> {
        self.owners.insert(RequestId(self.submitted as u64), client);
        self.submit()
    }

    fn submit(&mut self) -> Result<(), Broken> {
        if self.submitted == self.scenario.load.requests {
            return Ok(());
        }
        let id = RequestId(self.submitted as u64);
        self.submitted += 1;
        let demand = self.scenario.load.shape.demand(id, self.now, &mut self.load_chance);
        if let Some(after) = demand.cancel_after {
            self.agenda.plan(self.now + after, Due::Cancel(id));
        }
        self.checks.expect(&demand);
        for (number, sequence) in (0..).zip(&demand.request.sequences).filter(|(_, one)| one.is_generated()) {
            self.dialogues.begin((id, number), sequence.tokens, demand.pause);
        }
        self.tell(Event::Submitted(demand.request))?;
        if self.submitted == self.scenario.drain_after {
            self.is_drained = true;
            self.tell(Event::Draining)?;
        }
        Ok(())
    }

    pub(crate) fn cancel(&mut self, request: RequestId) -> Result<(), Broken> {
        let was_live = self.checks.is_live(request);
        self.tell(Event::Cancelled(request))?;
        if was_live {
            self.ask_again(request);
        }
        Ok(())
    }

    /// Whether everything is requested, answered and healthy. Resets the devices that were given up, and waits for them too.
    fn is_over(&mut self) -> Result<bool, Broken> {
        let is_asked = self.submitted == self.scenario.load.requests && self.is_drained;
        if !is_asked || self.now < self.scenario.calm_at {
            return Ok(false);
        }
        if self.end_by.is_none() {
            self.end_by = Some(self.now + self.grace());
        }
        let is_idle = self.view.devices.iter().all(|device| device.batches == 0);
        if self.checks.ledger.live_count() > 0 || !is_idle {
            return Ok(false);
        }
        for at in 0..self.view.devices.len() {
            if let DeviceState::Out(_) = self.view.devices[at].state {
                self.tell(Event::Reset { device: DeviceId(at as u16) })?;
            }
        }
        let is_back = |state: DeviceState| matches!(state, DeviceState::InRotation | DeviceState::Resting);
        let is_settled = self.view.devices.iter().all(|device| is_back(device.state));
        if !is_settled || self.checks.weights.is_awaited() {
            return Ok(false);
        }
        if self.ends_at.is_none() {
            // Something is due then, so that the world gets there.
            let ends_at = self.now + self.scenario.idle_tail;
            self.agenda.plan(ends_at, Due::Tell(Event::Tick));
            self.ends_at = Some(ends_at);
            self.end_by = self.end_by.map(|end_by| end_by + self.scenario.idle_tail);
        }
        let left = self.executors.iter().position(|executor| !executor.states.is_empty());
        if let Some(device) = left {
            let message =
                format!("all is answered, and device {device} has state of {:?}", self.executors[device].states);
            return Err(Broken { rule: Rule::KvSpace, message });
        }
        Ok(self.ends_at.is_some_and(|ends_at| ends_at <= self.now))
    }

    /// Lets everything leave: then every account is empty but those of workers that stay.
    fn wind_down(&mut self) -> Result<(), Broken> {
        self.end_by = Some(self.now + self.weights_grace());
        for device in 0..self.executors.len() {
            for collection in std::mem::take(&mut self.executors[device].vectors).into_keys() {
                self.tell(Event::VectorsDropped { device: DeviceId(device as u16), collection })?;
            }
        }
        for model in 0..self.scenario.models.len() {
            let (model, request) = (ModelId(model as u32), ResidencyRequest::Release);
            self.tell(Event::ResidencyRequested { model, request })?;
        }
        let is_weights = |owner: &Owner| matches!(owner, Owner::Weights(_));
        let has_weights =
            |view: &View| view.devices.iter().any(|device| device.accounts.iter().any(|(owner, _)| is_weights(owner)));
        while has_weights(&self.view) && self.checks.weights.are_some_there() {
            self.advance()?;
        }
        let is_left = |owner: &Owner| !matches!(owner, Owner::Context | Owner::Workspace);
        let left = self.view.devices.iter().position(|device| device.accounts.iter().any(|(owner, _)| is_left(owner)));
        let Some(device) = left else { return Ok(()) };
        let message = format!("all is over, and device {device} has {:?}", self.view.devices[device].accounts);
        Err(Broken { rule: Rule::Accounts, message })
    }

    /// How long it may take without faults until all is answered and every device is back.
    fn grace(&self) -> Duration {
        let recovery = self.scenario.options.recovery;
        // What waits may all have to be computed one by one, on the slowest device.
        let slowest = |tokens: u64| self.executors.iter().map(|at| at.device.cost.of(tokens, 1)).max();
        let sequences = self.checks.ledger.live().flat_map(|entry| {
            let id = entry.request.id;
            (0..).zip(&entry.request.sequences).map(move |(number, sequence)| ((id, number), sequence))
        });
        // What gives way to others is computed again.
        let work = |(name, sequence): (Name, &Sequence)| {
            let prompt = slowest(u64::from(sequence.tokens)).unwrap_or_default();
            let again = if sequence.is_generated() { 10 } else { 1 };
            let next = slowest(sequence.tokens_max()).unwrap_or_default() * sequence.new_tokens_max;
            prompt * again + next + self.dialogues.reading_time(name, sequence.new_tokens_max)
        };
        let work: Duration = sequences.map(work).sum();
        let slowest_batch = self.checks.workers.slowest();
        // A hang that is found now, a start that is given up, a pause, a start that succeeds, and a probe.
        (recovery.overdue_least * 10).max(slowest_batch.mul_f64(10.0 * recovery.overdue_factor))
            + (recovery.silence_max + recovery.start_max + recovery.probe_after_max) * 3
            + work * 3
            + self.weights_grace()
            + Duration::from_secs(5)
    }

    /// How long it may take until all wanted weights are in place: each load may have to be retried after a pause, and each
    /// request may have to wait for others.
    fn weights_grace(&self) -> Duration {
        let slowest = |bytes| self.executors.iter().map(|at| at.device.loads.of(bytes, false).mul_f64(1.5)).max();
        let loads: Duration = self.scenario.models.iter().filter_map(|model| slowest(model.bytes)).sum();
        let turns = (self.checks.ledger.live_count() as u32 + 4).min(40);
        let Keeping { load_max, .. } = self.scenario.options.keeping;
        loads * 4 * turns + self.scenario.options.batching.age_max * turns + load_max * 3 + Duration::from_secs(70)
    }

    /// The rule that is broken at the end.
    fn unsettled(&self) -> Rule {
        let is_answered = self.checks.ledger.live_count() == 0;
        let is_back = |state: DeviceState| matches!(state, DeviceState::InRotation | DeviceState::Resting);
        let are_back = self.view.devices.iter().all(|device| is_back(device.state));
        match (is_answered, are_back) {
            (false, _) => Rule::AllAnswered,
            (true, false) => Rule::ComesBack,
            (true, true) => Rule::Preheats,
        }
    }

    fn state_words(&self) -> String {
        let waiting: Vec<u64> = self.checks.ledger.live().map(|entry| entry.request.id.0).take(10).collect();
        let gpus = self.view.devices.iter().filter(|device| device.location == Location::Worker);
        let states: Vec<DeviceState> = gpus.map(|device| device.state).collect();
        format!("requests {waiting:?} are not answered (the first 10), GPUs are {states:?}")
    }
}
