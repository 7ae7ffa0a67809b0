//! The world's side of devices: workers start, compute, fail, hang and die, and the machine is told of it.
//! Does what a real supervisor does, with the same races: what is told arrives later, in order for each device.

use crate::check::Broken;
use crate::scenario::Intervention;
use crate::trouble::{Discovery, Kind};
use crate::worker::{ActiveFaults, Job, JobOutcome, Phase, Work};
use crate::world::{Due, World};
use magray_core::ledger::CollectionId;
use magray_core::schedule::{
    BatchId, Condition, DeviceId, Ending, Event, Failure, Fault, Location, MemoryUse, ModelId, RequestId,
};
use std::time::Duration;

/// The interval of workers' heartbeats.
const HEARTBEAT: Duration = Duration::from_millis(200);

/// Tokens of the known text that a probe computes.
const PROBE_TOKENS: u64 = 8;

/// The part of a batch's time after which the first thread of a CPU has nothing to do.
const SPARE_AFTER: f64 = 0.9;

impl World {
    pub(crate) fn happen(&mut self, due: Due) -> Result<(), Broken> {
        match due {
            Due::Arrive => self.arrive(),
            Due::Ask(client) => self.ask(client),
            Due::Cancel(request) => self.cancel(request),
            Due::Read(name) => self.read(name),
            Due::Tell(event) => {
                self.tell(event)?;
                self.tell_stale()
            }
            Due::Ready { device, generation } => {
                self.ready(device, generation);
                Ok(())
            }
            Due::JobEnds { device, generation, outcome, time } => {
                if self.executors[device].generation == generation {
                    self.end_job(device, outcome, time)?;
                }
                Ok(())
            }
            Due::Dies { device, generation, ending } => {
                if self.executors[device].generation == generation {
                    self.die(device, ending);
                }
                Ok(())
            }
            Due::Beat { device, generation } => {
                self.beat(device, generation);
                Ok(())
            }
            Due::TroubleBegins(at) => {
                self.begin_trouble(at);
                Ok(())
            }
            Due::TroubleEnds(at) => {
                self.end_trouble(at);
                Ok(())
            }
            Due::LoadEnds { order, end } => {
                self.end_load(order, end);
                Ok(())
            }
            Due::OffloadEnds(order) => {
                self.end_offload(order);
                Ok(())
            }
            Due::Intervene(Intervention::ResidencyRequest(model, request)) => {
                self.tell(Event::ResidencyRequested { model, request })
            }
            Due::Imaged { order, image } => {
                self.imaged(order, image);
                Ok(())
            }
            Due::Intervene(Intervention::AddModel) => {
                let plan = self.scenario.models[self.models_known].plan;
                self.models_known += 1;
                self.tell(Event::ModelAdded { plan })
            }
            Due::Intervene(Intervention::RemoveModel(model)) => self.tell(Event::ModelRemoved { model }),
            Due::Intervene(Intervention::Memory(device, bytes)) => {
                self.memories[usize::from(device.0)] = bytes;
                if matches!(self.executors[usize::from(device.0)].phase, Phase::Ready | Phase::Broken) {
                    self.report_memory(usize::from(device.0));
                }
                Ok(())
            }
            Due::Intervene(Intervention::MemoryUse(device, used)) => {
                self.tell(Event::MemoryUse { device, memory: MemoryUse { used, total: 1000 } })
            }
            Due::Intervene(Intervention::Vectors(device, collection, bytes)) => {
                self.want_vectors(device, collection, bytes)
            }
            Due::VectorsLeft { device, generation, collection } => {
                self.end_drop(device, generation, collection);
                Ok(())
            }
        }
    }

    /// Delivers a device's event later, and in order.
    pub(crate) fn report(&mut self, device: usize, event: Event) {
        let mut delay = self.scenario.latency.mul_f64(self.chance.unit());
        if self.scenario.stale > 0.0 && self.chance.is(0.02) {
            delay *= 50;
        }
        let executor = &mut self.executors[device];
        executor.told_until = executor.told_until.max(self.now + delay);
        self.agenda.plan(executor.told_until, Due::Tell(event));
    }

    pub(crate) fn faults(&self, device: usize) -> ActiveFaults<'_> {
        ActiveFaults { troubles: &self.scenario.troubles, device, now: self.now }
    }

    pub(crate) fn spawn(&mut self, device: usize) {
        let start = self.executors[device].device.start.mul_f64(self.chance.between(0.5, 1.5));
        let (has_vanished, no_start) = (self.faults(device).has_vanished(), self.faults(device).no_start());
        let executor = &mut self.executors[device];
        assert_eq!(executor.phase, Phase::Absent, "the books allow a worker only where there is none");
        executor.phase = Phase::Starting;
        executor.generation += 1;
        let generation = executor.generation;
        let dies = |ending| Due::Dies { device, generation, ending };
        match (has_vanished, no_start) {
            (true, _) => self.agenda.plan(self.now + start / 10, dies(Ending::Lost)),
            (false, Some(false)) => self.agenda.plan(self.now + start / 2, dies(Ending::NotStarted)),
            // Silent until it is ended.
            (false, Some(true)) => {}
            (false, None) => self.agenda.plan(self.now + start, Due::Ready { device, generation }),
        }
    }

    fn ready(&mut self, device: usize, generation: u64) {
        let executor = &mut self.executors[device];
        if executor.generation != generation || executor.phase != Phase::Starting {
            return;
        }
        executor.phase = Phase::Ready;
        executor.is_beating = true;
        let id = DeviceId(device as u16);
        self.report_memory(device);
        self.report(device, Event::Up { device: id });
        self.agenda.plan(self.now + HEARTBEAT, Due::Beat { device, generation });
    }

    fn beat(&mut self, device: usize, generation: u64) {
        let executor = &self.executors[device];
        if executor.generation == generation && executor.is_beating {
            self.report(device, Event::Heartbeat { device: DeviceId(device as u16) });
            if self.chance.is(0.3) {
                self.report_memory(device);
            }
            let pause = HEARTBEAT.mul_f64(self.chance.between(0.9, 1.1));
            self.agenda.plan(self.now + pause, Due::Beat { device, generation });
        }
    }

    pub(crate) fn start_batch(&mut self, device: usize, batch: BatchId) {
        let Some(entry) = self.checks.batch(batch) else { return };
        let poison = entry.steps.iter().find_map(|step| {
            let poison = self.checks.ledger.entry(step.request).ok()?.poison?;
            step.sequences.contains(&poison.text).then_some(poison)
        });
        let (tokens, texts, passes) = (entry.tokens, u64::from(entry.texts), entry.passes);
        self.enqueue(device, Job { what: Work::Batch(batch), tokens, texts, passes, poison });
    }

    pub(crate) fn start_probe(&mut self, device: usize) {
        self.enqueue(device, Job { what: Work::Probe, tokens: PROBE_TOKENS, texts: 1, passes: 1, poison: None });
    }

    fn enqueue(&mut self, device: usize, job: Job) {
        // A worker that is gone, and the machine does not know yet, gets nothing more.
        if self.executors[device].phase != Phase::Absent {
            self.executors[device].jobs.push_back(job);
            self.begin_job(device);
        }
    }

    fn begin_job(&mut self, device: usize) {
        let executor = &self.executors[device];
        let can_compute = matches!(executor.phase, Phase::Ready | Phase::Broken) && !executor.is_computing;
        let Some(job) = executor.jobs.front().copied().filter(|_| can_compute) else { return };
        let faults = ActiveFaults { troubles: &self.scenario.troubles, device, now: self.now };
        let (outcome, time) = executor.outcome(&job, &faults, self.scenario.noise, &mut self.chance);
        let generation = executor.generation;
        self.checks
            .workers
            .note_cost(DeviceId(device as u16), time.max(executor.device.cost.of(job.tokens, job.texts)));
        if let Work::Batch(batch) = job.what {
            self.begun.insert(batch, self.now);
        }
        self.executors[device].is_computing = true;
        if self.executors[device].device.spec.location == Location::InProcess {
            // Its threads do not all end at once.
            let device = DeviceId(device as u16);
            self.agenda.plan(self.now + time.mul_f64(SPARE_AFTER), Due::Tell(Event::Spare { device }));
        }
        self.agenda.plan(self.now + time, Due::JobEnds { device, generation, outcome, time });
    }

    fn end_job(&mut self, device: usize, outcome: JobOutcome, time: Duration) -> Result<(), Broken> {
        match outcome {
            JobOutcome::Crash => {
                self.die(device, Ending::Crashed);
                return Ok(());
            }
            JobOutcome::Hang { is_silent } => {
                self.executors[device].phase = Phase::Stuck;
                self.executors[device].is_beating &= !is_silent;
                return Ok(());
            }
            JobOutcome::Fail(Failure::Sticky) => self.executors[device].phase = Phase::Broken,
            JobOutcome::Fail(_) | JobOutcome::Finish => {}
        }
        let executor = &mut self.executors[device];
        executor.is_computing = false;
        let Some(job) = executor.jobs.pop_front() else { return Ok(()) };
        let event = match (job.what, outcome) {
            (Work::Probe, outcome) => {
                Event::Probed { device: DeviceId(device as u16), passed: outcome == JobOutcome::Finish }
            }
            (Work::Batch(batch), JobOutcome::Fail(failure)) => Event::Failed { batch, failure },
            (Work::Batch(batch), _) => {
                executor.busy += time;
                let steps = self.checks.batch(batch).map(|entry| entry.steps.clone()).unwrap_or_default();
                let outcomes = self.compute_steps(device, batch, (&steps, job.passes))?;
                Event::Finished { batch, compute: time, outcomes }
            }
        };
        self.report(device, event);
        self.begin_job(device);
        Ok(())
    }

    pub(crate) fn kill(&mut self, device: usize) {
        let executor = &self.executors[device];
        // One that is gone already is told of anyway.
        if executor.phase != Phase::Absent {
            let generation = executor.generation;
            let pause = Duration::from_secs_f64(self.chance.magnitude(1e-5, 5e-3));
            self.agenda.plan(self.now + pause, Due::Dies { device, generation, ending: Ending::Ordered });
        }
    }

    pub(crate) fn die(&mut self, device: usize, ending: Ending) {
        let lost = self.executors[device].end();
        self.report(device, Event::Down { device: DeviceId(device as u16), ending });
        for job in lost {
            let Work::Batch(batch) = job.what else { continue };
            self.begun.remove(&batch);
            // An answer that was in the pipe when its worker ended.
            if self.chance.is((self.scenario.stale * 5.0).min(0.5)) {
                self.report(
                    device,
                    Event::Finished { batch, compute: Duration::from_micros(100), outcomes: Vec::new() },
                );
            }
        }
    }

    fn begin_trouble(&mut self, at: usize) {
        let trouble = self.scenario.troubles[at];
        let phase = self.executors[trouble.device].phase;
        match trouble.kind {
            Kind::Killed if phase == Phase::Starting => self.die(trouble.device, Ending::NotStarted),
            Kind::Killed if phase != Phase::Absent => self.die(trouble.device, Ending::Killed),
            Kind::Vanished { found: Discovery::WorkerExit } if phase != Phase::Absent => {
                self.die(trouble.device, Ending::Lost)
            }
            Kind::Hot { .. } | Kind::Ruled { .. } | Kind::Vanished { found: Discovery::Telemetry } => {
                self.judge(trouble.device);
            }
            _ => {}
        }
    }

    fn end_trouble(&mut self, at: usize) {
        let trouble = self.scenario.troubles[at];
        if let Kind::Hot { .. } | Kind::Ruled { .. } | Kind::Vanished { found: Discovery::Telemetry } = trouble.kind {
            self.judge(trouble.device);
        }
    }

    /// Reports the telemetry of a device.
    fn judge(&mut self, device: usize) {
        let mut condition = Condition::Fine;
        for kind in self.faults(device).kinds() {
            condition = match (condition, kind) {
                (Condition::Bad(fault), _) => Condition::Bad(fault),
                (_, Kind::Ruled { fault }) => Condition::Bad(fault),
                (_, Kind::Vanished { found: Discovery::Telemetry }) => Condition::Bad(Fault::Lost),
                (_, Kind::Hot { weight }) => Condition::Hot { weight },
                (before, _) => before,
            };
        }
        self.report(device, Event::Judged { device: DeviceId(device as u16), condition });
    }

    /// Sometimes reports something outdated or never asked for: it must have no effect.
    fn tell_stale(&mut self) -> Result<(), Broken> {
        if self.scenario.stale == 0.0 || !self.chance.is(self.scenario.stale) {
            return Ok(());
        }
        let device = DeviceId(self.chance.whole(0, self.executors.len() as u64 - 1) as u16);
        let is_gpu = self.executors[usize::from(device.0)].device.spec.location == Location::Worker;
        let workers = &self.checks.workers;
        let batch = if self.spent.is_empty() { BatchId(u64::MAX) } else { *self.chance.pick(&self.spent) };
        let model = ModelId(self.chance.whole(0, self.scenario.models.len() as u64 - 1) as u32);
        let weights = &self.checks.weights;
        let event = match self.chance.whole(0, 12) {
            0 => Event::Finished { batch, compute: Duration::from_millis(1), outcomes: Vec::new() },
            1 => Event::Failed { batch, failure: Failure::Transient },
            2 => Event::Failed { batch, failure: Failure::Sticky },
            3 if is_gpu && workers.is_up(device) => Event::Up { device },
            4 if is_gpu && !workers.has_worker(device) => Event::Down { device, ending: Ending::Crashed },
            5 if is_gpu && !workers.has_worker(device) => Event::Heartbeat { device },
            6 if is_gpu && !workers.is_probing(device) => Event::Probed { device, passed: self.chance.is(0.5) },
            7 => {
                let request = RequestId(self.chance.bits());
                Event::Cancelled(request)
            }
            8 if is_gpu => Event::Reset { device },
            9 if !weights.is_loading(device, model) => {
                Event::Loaded { device, model, bytes: 1, took: Duration::from_millis(1), from_host: true }
            }
            10 if !weights.is_loading(device, model) => Event::NotLoaded { device, model, failure: Failure::Sticky },
            11 if !weights.is_leaving(device, model) => Event::Offloaded { device, model },
            // Reported a second time, and without a request.
            12 if !weights.is_forgetting(model) => Event::Forgotten { model },
            12 => Event::VectorsDropped { device, collection: CollectionId(u32::MAX) },
            13 => Event::VectorsUsed { device, collection: CollectionId(u32::MAX) },
            _ => Event::Tick,
        };
        self.tell(event)
    }
}
