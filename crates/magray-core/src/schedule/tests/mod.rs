//! The machine from outside: events in, actions out, with the time set by hand.
//! Looks into no part of it; what a part does alone is tested beside it.

mod admission;
mod batches;
mod callers;
mod parts;
mod placement;
mod poison;
mod properties;
mod recovery;
mod requests;
mod residency;
mod turns;

use super::*;
use crate::ledger::{Budget, CollectionId, MemoryReport, Owner};
use std::collections::VecDeque;
use std::time::Duration;

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const GPU2: DeviceId = DeviceId(2);

/// A machine, its clock and what it said last.
struct Bench {
    machine: Machine,
    now: Moment,
    next_request: u64,
    /// Whether weights come and go at once, without a word of it in the actions.
    is_obliging: bool,
}

impl Bench {
    /// A CPU and some GPUs of two slots, their workers asked for but not up.
    fn starting(gpus: usize, options: Options) -> (Self, Vec<Action>) {
        let mut specs = vec![DeviceSpec {
            kind: DeviceKind::Cpu,
            location: Location::InProcess,
            slots: 1,
            batch_tokens_max: 4_096,
            batch_tokens_least: 1,
            memory: Budget { kv_max: 4_096, ..Budget::UNBOUNDED },
            is_reserved: false,
        }];
        specs.extend(vec![
            DeviceSpec {
                kind: DeviceKind::Gpu,
                location: Location::Worker,
                slots: 2,
                batch_tokens_max: 16_384,
                batch_tokens_least: 1,
                memory: Budget { kv_max: 4_096, ..Budget::UNBOUNDED },
                is_reserved: false,
            };
            gpus
        ]);
        let mut bench = Self {
            machine: Machine::new(specs, vec![ModelPlan::default()], options),
            now: Moment::START,
            next_request: 0,
            is_obliging: true,
        };
        let actions = bench.step(Event::Tick);
        (bench, actions)
    }

    /// The same with all workers up.
    fn up(gpus: usize, options: Options) -> Self {
        let (mut bench, _) = Self::starting(gpus, options);
        for gpu in 1..=gpus {
            bench.step(Event::Up { device: DeviceId(u16::try_from(gpu).unwrap()) });
        }
        bench
    }

    fn step(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.machine.step(event, self.now, &mut actions);
        self.oblige(&mut actions);
        actions
    }

    /// Brings and takes away weights at once.
    fn oblige(&mut self, actions: &mut Vec<Action>) {
        let mut at = 0;
        while self.is_obliging && at < actions.len() {
            let event = match actions[at] {
                Action::Load { device, model } => {
                    Event::Loaded { device, model, bytes: 0, took: Duration::ZERO, from_host: true }
                }
                Action::Offload { device, model } => Event::Offloaded { device, model },
                Action::Forget { model } => Event::Forgotten { model },
                _ => {
                    at += 1;
                    continue;
                }
            };
            actions.remove(at);
            self.machine.step(event, self.now, actions);
        }
    }

    /// Lets time pass, calling whenever the machine asks for it. GPUs give signs of life meanwhile.
    fn pass(&mut self, time: Duration) -> Vec<Action> {
        self.pass_with(time, true)
    }

    fn pass_with(&mut self, time: Duration, beats: bool) -> Vec<Action> {
        let end = self.now + time;
        let mut actions = Vec::new();
        let mut beat = self.now + Duration::from_millis(200);
        loop {
            let wake = self.machine.next_wake().unwrap_or(end).min(end).min(if beats { beat } else { end });
            self.now = self.now.max(wake);
            if beats && self.now >= beat {
                beat = beat + Duration::from_millis(200);
                for device in [GPU, GPU2] {
                    self.machine.step(Event::Heartbeat { device }, self.now, &mut actions);
                }
                self.oblige(&mut actions);
            }
            self.machine.step(Event::Tick, self.now, &mut actions);
            self.oblige(&mut actions);
            if self.now >= end {
                return actions;
            }
        }
    }

    fn submit(&mut self, request: Request) -> (RequestId, Vec<Action>) {
        let id = request.id;
        (id, self.step(Event::Submitted(request)))
    }

    /// A request of this many texts of 20 tokens.
    fn request(&mut self, texts: usize) -> Request {
        self.next_request += 1;
        Request {
            id: RequestId(self.next_request),
            group: Group { model: crate::schedule::ModelId(0), key: 0 },
            sequences: vec![Sequence::one_step(20); texts],
            caller: CallerId(0),
            priority: Priority::Normal,
            deadline: None,
            allowed: Allowed::Any,
        }
    }

    /// A request that only GPUs may compute.
    fn gpu_request(&mut self, texts: usize) -> Request {
        Request { allowed: Allowed::Gpu, ..self.request(texts) }
    }

    fn finish(&mut self, batch: BatchId) -> Vec<Action> {
        self.step(Event::Finished { batch, compute: Duration::from_micros(200), outcomes: Vec::new() })
    }

    fn fail(&mut self, batch: BatchId, failure: Failure) -> Vec<Action> {
        self.step(Event::Failed { batch, failure })
    }

    fn down(&mut self, device: DeviceId, ending: Ending) -> Vec<Action> {
        self.step(Event::Down { device, ending })
    }

    fn state(&self, device: DeviceId) -> DeviceState {
        self.machine.view().devices[usize::from(device.0)].state
    }

    /// Lets every device in rotation compute some batches, so that nothing is tried or guessed any more.
    fn measure(&mut self, device: DeviceId, micros_per_text: u64) {
        for texts in [1, 8, 32, 128, 512, 64, 16, 4] {
            let request = Request { allowed: Allowed::Only(device), ..self.request(texts) };
            let (_, actions) = self.submit(request);
            let mut open = VecDeque::from(starts(&actions));
            while let Some(start) = open.pop_front() {
                let texts: u64 = start.steps.iter().map(|step| u64::try_from(step.sequences.len()).unwrap()).sum();
                let compute = Duration::from_micros(100 + micros_per_text * texts);
                // No longer than the machine would wait for a batch.
                self.now = self.now + compute.min(Duration::from_millis(500));
                for device in [GPU, GPU2] {
                    open.extend(starts(&self.step(Event::Heartbeat { device })));
                }
                open.extend(starts(&self.step(Event::Finished { batch: start.batch, compute, outcomes: Vec::new() })));
            }
        }
        assert_eq!(self.machine.view().requests, 0);
    }
}

/// A batch that was started.
#[derive(Clone, Debug)]
struct Start {
    device: DeviceId,
    batch: BatchId,
    steps: Vec<Step>,
}

impl Start {
    fn requests(&self) -> Vec<RequestId> {
        let mut requests: Vec<RequestId> = self.steps.iter().map(|step| step.request).collect();
        requests.dedup();
        requests
    }

    fn texts(&self) -> usize {
        self.steps.iter().map(|step| step.sequences.len()).sum()
    }
}

/// Sequences of one step each.
fn one_steps(tokens: &[u32]) -> Vec<Sequence> {
    tokens.iter().map(|&tokens| Sequence::one_step(tokens)).collect()
}

fn starts(actions: &[Action]) -> Vec<Start> {
    let start = |action: &Action| match action {
        Action::Start { device, batch, steps, .. } => {
            Some(Start { device: *device, batch: *batch, steps: steps.clone() })
        }
        _ => None,
    };
    actions.iter().filter_map(start).collect()
}

/// The only batch that was started.
fn only_start(actions: &[Action]) -> Start {
    let started = starts(actions);
    assert_eq!(started.len(), 1, "{actions:?}");
    started[0].clone()
}

fn refusals(actions: &[Action]) -> Vec<(RequestId, Refused)> {
    let refusal = |action: &Action| match action {
        Action::Refuse { request, refused } => Some((*request, *refused)),
        _ => None,
    };
    actions.iter().filter_map(refusal).collect()
}

fn completions(actions: &[Action]) -> Vec<(RequestId, Report)> {
    let completion = |action: &Action| match action {
        Action::Complete { request, report } => Some((*request, report.clone())),
        _ => None,
    };
    actions.iter().filter_map(completion).collect()
}

fn alerts(actions: &[Action]) -> Vec<(DeviceId, Change)> {
    let alert = |action: &Action| match action {
        Action::Alert { device, change } => Some((*device, *change)),
        _ => None,
    };
    actions.iter().filter_map(alert).collect()
}

fn left(reason: Fallback) -> Change {
    Change::Left { reason, is_permanent: false }
}
