//! Each rule that no sabotage of the machine breaks is broken here by hand: the books must notice.

mod weights;

use super::rule::Verdict;
use super::{Checks, Rule};
use crate::load::{Arrivals, Demand, Load, Shape};
use crate::scenario::{Cost, Device, Loads, Model, Scenario};
use magray_core::ledger::{Budget, MemoryReport};
use magray_core::schedule::{
    Action, Allowed, BatchId, CallerId, Change, DeviceId, DeviceKind, DeviceSpec, DeviceState, DeviceView, Ending,
    Event, Failure, Fallback, Group, KillCause, Limits, Location, MemoryStep, ModelId, ModelPlan, ModelView, Moment,
    Options, Priority, Refused, Report, Request, RequestId, Sequence, Span, Step, View,
};
use std::time::Duration;

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);
const MODEL: ModelId = ModelId(0);
const OTHER: ModelId = ModelId(1);

/// Memory of which this much is left for weights beside the reserve for passes.
fn memory_for(room: u64) -> u64 {
    room.saturating_add(room.div_ceil(15))
}

/// A memory report with this much left for weights on the GPU.
fn room(bytes: u64) -> Event {
    Event::Memory { device: GPU, report: MemoryReport { free: memory_for(bytes), ..MemoryReport::default() } }
}

/// The books of a small world with one CPU and one GPU, and a clock that the test moves.
struct Books {
    checks: Checks,
    now: Moment,
}

impl Books {
    fn new() -> Self {
        Self::with_room(u64::MAX)
    }

    /// With this much memory for weights on the GPU.
    fn with_room(room: u64) -> Self {
        let memory_max = |kind| if kind == DeviceKind::Gpu { memory_for(room) } else { u64::MAX };
        let device = |kind| Device {
            spec: DeviceSpec {
                kind,
                location: if kind == DeviceKind::Cpu { Location::InProcess } else { Location::Worker },
                slots: 2,
                batch_tokens_max: 100,
                batch_tokens_least: 1,
                memory: Budget { memory_max: memory_max(kind), context: 0, kv_max: 0 },
                is_reserved: false,
            },
            cost: Cost { fixed_us: 1.0, token_us: 1.0, text_us: 1.0 },
            start: Duration::ZERO,
            loads: Loads::QUICK,
            ranks: 1,
        };
        let plan = ModelPlan { bytes: 60, ..ModelPlan::default() };
        let options =
            Options { limits: Limits { requests_max: 2, tokens_max: 200, wait_max: None }, ..Options::default() };
        let load = Load {
            requests: 0,
            arrivals: Arrivals::Stream { gap: Duration::ZERO },
            shape: Shape::plain((1, 1), (1, 1)),
        };
        let devices = vec![device(DeviceKind::Cpu), device(DeviceKind::Gpu)];
        let models = vec![Model { plan, bytes: 60 }, Model { plan, bytes: 60 }];
        let scenario = Scenario { models, models_known: 2, ..Scenario::without_faults(0, devices, options, load) };
        Self { checks: Checks::new(&scenario), now: Moment::START }
    }

    /// With a worker on the GPU.
    fn with_worker() -> Self {
        let mut books = Self::new();
        books.told(Action::Spawn { device: GPU }).expect("a first worker is in order");
        books.hear(Event::Up { device: GPU });
        books.bring(MODEL);
        books
    }

    /// A model's weights come to the GPU.
    fn bring(&mut self, model: ModelId) {
        self.told(Action::Load { device: GPU, model }).expect("there is room");
        self.hear(Event::Loaded { device: GPU, model, bytes: 60, took: Duration::from_millis(1), from_host: false });
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// Time passes, with heartbeats of the GPU's worker.
    fn live_on(&mut self, time: Duration) {
        self.wait(time);
        self.hear(Event::Heartbeat { device: GPU });
    }

    fn submit(&mut self, id: u64, tokens: &[u32]) {
        self.ask(id, tokens, Allowed::Any);
    }

    fn ask(&mut self, id: u64, tokens: &[u32], allowed: Allowed) {
        let request = Request {
            id: RequestId(id),
            group: Group { model: MODEL, key: 1 },
            sequences: tokens.iter().map(|tokens| Sequence::one_step(*tokens)).collect(),
            caller: CallerId(0),
            priority: Priority::Normal,
            deadline: None,
            allowed,
        };
        self.checks.expect(&Demand {
            request: request.clone(),
            poison: None,
            cancel_after: None,
            pause: Duration::ZERO,
        });
        self.hear(Event::Submitted(request));
    }

    fn hear(&mut self, event: Event) {
        self.checks.heard(&event, self.now);
    }

    fn told(&mut self, action: Action) -> Verdict {
        self.checks.told(&action, &|_, _| Duration::MAX, self.now)
    }

    fn start(&mut self, batch: u64, device: DeviceId, sequences: std::ops::Range<u32>) -> Verdict {
        let steps = vec![Step { request: RequestId(0), sequences, span: Span::Whole }];
        let expected = Duration::from_micros(1);
        self.told(Action::Start { device, batch: BatchId(batch), steps, passes: 1, expected, is_followed: false })
    }

    fn finish(&mut self, batch: u64) {
        self.hear(Event::Finished { batch: BatchId(batch), compute: Duration::from_micros(1), outcomes: Vec::new() });
    }

    fn fail(&mut self, batch: u64, failure: Failure) {
        self.hear(Event::Failed { batch: BatchId(batch), failure });
    }

    /// Settles with a true view of requests and batches, and this state of the GPU.
    fn settle(&mut self, gpu: DeviceState) -> Verdict {
        let view = self.view(gpu);
        self.checks.settle(&view, self.now)
    }

    fn view(&self, gpu: DeviceState) -> View {
        let device = |id: DeviceId, kind, state| DeviceView {
            is_reserved: false,
            kind,
            location: if kind == DeviceKind::Cpu { Location::InProcess } else { Location::Worker },
            state,
            is_ending: false,
            weight: 1.0,
            speed: None,
            memory_step: MemoryStep::Roomy,
            batches: self.checks.batches.on(id).count(),
            kv_max: 0,
            memory_capacity: self.checks.weights.accounts(id).1,
            accounts: self.checks.weights.accounts(id).0.into_iter().collect(),
            batches_finished: 0,
            texts_finished: 0,
            busy: Duration::ZERO,
            failures: 0,
            failures_total: 0,
            restarts: 0,
            recovery_attempts: 0,
            preemptions: 0,
        };
        let live = || self.checks.ledger.live();
        let model = |id: ModelId| ModelView {
            plan: self.checks.weights.plan(id),
            idle: Duration::ZERO,
            requests: live().filter(|entry| entry.request.group.model == id).count(),
            residency: [CPU, GPU].map(|at| self.checks.weights.residency(at, id, &self.checks.workers)).to_vec(),
            loads: 0,
            offloads: 0,
            departures: vec![0; 2],
            releases: 0,
        };
        View {
            requests: live().count(),
            tokens: live().map(|entry| entry.tokens).sum(),
            waiting: 0,
            wait: None,
            devices: vec![device(CPU, DeviceKind::Cpu, DeviceState::InRotation), device(GPU, DeviceKind::Gpu, gpu)],
            models: [MODEL, OTHER].map(model).to_vec(),
        }
    }
}

fn report(device: DeviceId) -> Report {
    Report { device, batch_texts: 1, queued: Duration::ZERO, computed: Duration::ZERO, replays: 0, fallback: None }
}

#[track_caller]
fn breaks(verdict: Verdict, rule: Rule) {
    assert_eq!(verdict.map_err(|broken| broken.rule), Err(rule));
}

#[test]
fn a_request_that_was_never_made_is_found() {
    let refused = Refused::Draining;
    breaks(Books::new().told(Action::Refuse { request: RequestId(9), refused }), Rule::AskedOnly);
}

#[test]
fn a_text_in_two_batches_is_found() {
    let mut books = Books::with_worker();
    books.submit(0, &[10, 10]);
    assert_eq!(books.start(0, GPU, 0..1), Ok(()));
    breaks(books.start(1, CPU, 0..2), Rule::TextsOnce);
}

#[test]
fn a_text_that_is_computed_again_after_it_was_is_found() {
    let mut books = Books::with_worker();
    books.submit(0, &[10, 10]);
    assert_eq!(books.start(0, GPU, 0..1), Ok(()));
    books.finish(0);
    breaks(books.start(1, GPU, 0..1), Rule::TextsOnce);
}

#[test]
fn a_report_of_the_wrong_device_or_without_its_fallback_is_found() {
    let finished = |device| {
        let mut books = Books::with_worker();
        books.submit(0, &[10]);
        assert_eq!(books.start(0, device, 0..1), Ok(()));
        assert_eq!(books.settle(DeviceState::Starting).map_err(|broken| broken.rule), Ok(()));
        books.finish(0);
        books
    };
    let complete = |report| Action::Complete { request: RequestId(0), report };
    breaks(finished(CPU).told(complete(report(GPU))), Rule::HonestReport);
    // No GPU was in rotation when the CPU got it.
    breaks(finished(CPU).told(complete(report(CPU))), Rule::HonestReport);
    let honest = Report { fallback: Some(Fallback::Starting), ..report(CPU) };
    assert_eq!(finished(CPU).told(complete(honest)), Ok(()));
}

#[test]
fn a_refusal_without_its_reason_is_found() {
    let full = |retry_after| Refused::Full { retry_after };
    for refused in [full(Duration::from_secs(1)), Refused::TooLarge, Refused::Expired, Refused::Draining] {
        let mut books = Books::new();
        books.submit(0, &[10]);
        breaks(books.told(Action::Refuse { request: RequestId(0), refused }), Rule::HonestRefusal);
    }
    let mut books = Books::new();
    (0..3).for_each(|id| books.submit(id, &[10]));
    let mut refuse = |retry_after| books.told(Action::Refuse { request: RequestId(2), refused: full(retry_after) });
    breaks(refuse(Duration::from_secs(61)), Rule::HonestRefusal);
    assert_eq!(refuse(Duration::from_secs(1)), Ok(()));
}

#[test]
fn a_large_batch_after_memory_was_full_is_found() {
    let mut books = Books::with_worker();
    books.submit(0, &[10; 8]);
    assert_eq!(books.start(0, GPU, 0..4), Ok(()));
    books.fail(0, Failure::OutOfMemory);
    assert_eq!(books.told(Action::Trim { device: GPU }), Ok(()));
    assert_eq!(books.start(1, GPU, 0..2), Ok(()));
    breaks(books.start(2, GPU, 2..5), Rule::MemoryCap);
}

#[test]
fn memory_that_is_never_freed_is_found() {
    let mut books = Books::with_worker();
    books.submit(0, &[10]);
    assert_eq!(books.start(0, GPU, 0..1), Ok(()));
    books.fail(0, Failure::OutOfMemory);
    breaks(books.settle(DeviceState::InRotation), Rule::WorkerOrder);
    breaks(books.told(Action::Trim { device: CPU }), Rule::WorkerOrder);
}

#[test]
fn work_that_waits_beside_idle_devices_is_found() {
    let mut books = Books::with_worker();
    books.submit(0, &[10]);
    breaks(books.settle(DeviceState::InRotation), Rule::NoIdling);
}

#[test]
fn a_request_that_starves_is_found() {
    let mut books = Books::with_worker();
    books.submit(0, &[10, 10]);
    assert_eq!(books.start(0, CPU, 0..1), Ok(()));
    assert_eq!(books.settle(DeviceState::Starting), Ok(()));
    // The GPU lives, the CPU computes something that never ends, and no device takes the other text.
    (0..5).for_each(|_| {
        books.wait(Duration::from_millis(200));
        books.hear(Event::Heartbeat { device: GPU });
    });
    breaks(books.settle(DeviceState::Starting), Rule::Starves);
}

#[test]
fn a_kill_without_its_reason_is_found() {
    let causes =
        [KillCause::Overdue, KillCause::Silent, KillCause::Sticky, KillCause::RuledOut, KillCause::StartOverdue];
    for cause in causes {
        breaks(Books::with_worker().told(Action::Kill { device: GPU, cause }), Rule::HonestKill);
    }
    let mut books = Books::with_worker();
    books.wait(Duration::from_millis(1500));
    assert_eq!(books.told(Action::Kill { device: GPU, cause: KillCause::Silent }), Ok(()));
    // And once is enough.
    breaks(books.told(Action::Kill { device: GPU, cause: KillCause::Silent }), Rule::WorkerOrder);
}

#[test]
fn workers_that_cannot_be_started_or_probed_are_found() {
    breaks(Books::with_worker().told(Action::Spawn { device: GPU }), Rule::WorkerOrder);
    breaks(Books::new().told(Action::Spawn { device: CPU }), Rule::WorkerOrder);
    breaks(Books::new().told(Action::Probe { device: GPU }), Rule::WorkerOrder);
    let mut books = Books::with_worker();
    books.submit(0, &[10]);
    assert_eq!(books.start(0, GPU, 0..1), Ok(()));
    breaks(books.told(Action::Probe { device: GPU }), Rule::WorkerOrder);
}

#[test]
fn a_loop_of_workers_that_do_not_start_is_found() {
    let mut books = Books::new();
    for _ in 0..4 {
        assert_eq!(books.told(Action::Spawn { device: GPU }), Ok(()));
        books.hear(Event::Down { device: GPU, ending: Ending::NotStarted });
    }
    breaks(books.told(Action::Spawn { device: GPU }), Rule::CrashLoop);
    books.wait(Duration::from_millis(500));
    assert_eq!(books.told(Action::Spawn { device: GPU }), Ok(()));
}

#[test]
fn a_device_that_is_given_up_too_soon_is_found() {
    for is_permanent in [false, true] {
        let mut books = Books::with_worker();
        let change = Change::Left { reason: Fallback::Unhealthy, is_permanent };
        assert_eq!(books.told(Action::Alert { device: GPU, change }), Ok(()));
        let state = match is_permanent {
            true => DeviceState::Out(Fallback::Unhealthy),
            false => DeviceState::Recovering(Fallback::Unhealthy),
        };
        breaks(books.settle(state), Rule::NotGivenUp);
    }
}

#[test]
fn news_that_is_missing_or_none_is_found() {
    breaks(Books::with_worker().told(Action::Alert { device: GPU, change: Change::Returned }), Rule::Alerts);
    let mut books = Books::with_worker();
    assert_eq!(books.settle(DeviceState::InRotation), Ok(()));
    books.hear(Event::Down { device: GPU, ending: Ending::Crashed });
    breaks(books.settle(DeviceState::Recovering(Fallback::Unhealthy)), Rule::Alerts);
}

#[test]
fn a_view_that_is_not_so_is_found() {
    let mut books = Books::with_worker();
    let view = View { requests: 1, ..books.view(DeviceState::InRotation) };
    breaks(books.checks.settle(&view, Moment::START), Rule::HonestView);
    let mut view = books.view(DeviceState::InRotation);
    view.devices[0].batches = 1;
    breaks(books.checks.settle(&view, Moment::START), Rule::HonestView);
    // Without a worker no GPU is in rotation.
    breaks(Books::new().settle(DeviceState::InRotation), Rule::HonestView);
}
