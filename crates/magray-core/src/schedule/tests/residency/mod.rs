//! Which models are where: they come when they are asked for, go when nobody needs them, and share what room there is.
//! Loads and offloads are answered by hand here.

mod going;
mod room;
mod sharing;

use super::*;

const GIB: u64 = 1 << 30;
const A: ModelId = ModelId(0);
const B: ModelId = ModelId(1);
const C: ModelId = ModelId(2);

/// A model of a GiB that is not loaded from the start.
fn plan() -> ModelPlan {
    ModelPlan { bytes: GIB, is_preloaded: false, ..ModelPlan::default() }
}

/// Memory with so much room for weights, beside what is kept for passes and for the state of sequences.
fn memory_for(room: u64) -> u64 {
    (room + 4_096).div_ceil(15) * 16
}

/// A report of memory with so much room for weights.
fn room(device: DeviceId, bytes: u64) -> Event {
    Event::Memory { device, report: MemoryReport { free: memory_for(bytes), ..MemoryReport::default() } }
}

/// A CPU and some GPUs with room for this many GiB, their workers up.
fn bench_of(gpus: usize, room_gib: u64, plans: &[ModelPlan], options: Options) -> Bench {
    let spec = |kind, slots, memory_max| {
        let memory = Budget { memory_max, context: 0, kv_max: 4_096 };
        DeviceSpec {
            kind,
            location: if kind == DeviceKind::Cpu { Location::InProcess } else { Location::Worker },
            slots,
            batch_tokens_max: 16_384,
            batch_tokens_least: 1,
            memory,
            is_reserved: false,
        }
    };
    let mut specs = vec![spec(DeviceKind::Cpu, 1, u64::MAX)];
    specs.extend(vec![spec(DeviceKind::Gpu, 2, memory_for(room_gib * GIB)); gpus]);
    let machine = Machine::new(specs, plans.to_vec(), options);
    let mut bench = Bench { machine, now: Moment::START, next_request: 0, is_obliging: false };
    bench.step(Event::Tick);
    bench
}

fn bench(room_gib: u64, plans: &[ModelPlan]) -> Bench {
    let mut bench = bench_of(1, room_gib, plans, Options::default());
    let actions = bench.step(Event::Up { device: GPU });
    assert!(plans.iter().any(|plan| plan.is_preloaded) || actions.is_empty(), "{actions:?}");
    bench
}

/// Loads and offloads among actions.
fn moves(actions: &[Action]) -> Vec<Action> {
    let is_move = |action: &&Action| {
        matches!(action, Action::Load { .. } | Action::Offload { .. } | Action::Forget { .. } | Action::Rest { .. })
    };
    actions.iter().filter(is_move).cloned().collect()
}

fn load(model: ModelId) -> Action {
    Action::Load { device: GPU, model }
}

fn offload(model: ModelId) -> Action {
    Action::Offload { device: GPU, model }
}

impl Bench {
    /// Weights have come, and where a GPU has them, the host keeps its form of them.
    fn loaded(&mut self, device: DeviceId, model: ModelId) -> Vec<Action> {
        if device != CPU {
            self.step(Event::Imaged { model, is_there: true });
        }
        self.step(Event::Loaded { device, model, bytes: GIB, took: Duration::from_millis(100), from_host: true })
    }

    fn forgotten(&mut self, model: ModelId) -> Vec<Action> {
        self.step(Event::Forgotten { model })
    }

    fn offloaded(&mut self, device: DeviceId, model: ModelId) -> Vec<Action> {
        self.step(Event::Offloaded { device, model })
    }

    fn request_residency(&mut self, model: ModelId, request: ResidencyRequest) -> Vec<Action> {
        self.step(Event::ResidencyRequested { model, request })
    }

    fn ask(&mut self, model: ModelId, allowed: Allowed) -> (RequestId, Vec<Action>) {
        let request = Request { group: Group { model, key: 0 }, allowed, ..self.request(1) };
        self.submit(request)
    }

    /// Asks for a model on the GPU, brings it there at once, and computes.
    fn use_once(&mut self, model: ModelId) {
        let (_, mut actions) = self.ask(model, Allowed::Gpu);
        if moves(&actions) == [load(model)] {
            actions = self.loaded(GPU, model);
        }
        let start = only_start(&actions);
        self.finish(start.batch);
    }

    /// Lets the GPU compute some batches of a model, so that nothing of it is tried or guessed any more.
    fn measure_model(&mut self, model: ModelId) {
        for _ in 0..4 {
            let start = only_start(&self.ask(model, Allowed::Gpu).1);
            self.finish(start.batch);
        }
    }

    fn releases(&self, model: ModelId) -> u64 {
        self.machine.view().models[model.0 as usize].releases
    }

    fn at(&self, model: ModelId, device: DeviceId) -> Residency {
        self.machine.view().models[model.0 as usize].residency[usize::from(device.0)]
    }
}

#[test]
fn a_model_comes_with_the_first_request_and_its_batch_starts_when_it_is_there() {
    let mut bench = bench(4, &[plan()]);
    assert_eq!(bench.at(A, GPU), Residency::Unloaded);
    let (id, actions) = bench.ask(A, Allowed::Gpu);
    assert_eq!(actions, [load(A)]);
    assert_eq!(bench.at(A, GPU), Residency::Loading);
    let (other, actions) = bench.ask(A, Allowed::Gpu);
    assert!(actions.is_empty(), "one load is enough");
    let start = only_start(&bench.loaded(GPU, A));
    assert_eq!((start.device, start.requests()), (GPU, vec![id, other]));
    assert_eq!(completions(&bench.finish(start.batch)).len(), 2);
    let view = &bench.machine.view().models[0];
    assert_eq!((view.loads, view.plan.bytes, view.requests), (1, GIB, 0));
}

#[test]
fn what_is_there_from_the_start_comes_in_order_of_priority_as_far_as_there_is_room() {
    let preloaded = |priority| ModelPlan { is_preloaded: true, priority, ..plan() };
    let plans = [preloaded(Priority::Low), preloaded(Priority::Normal), preloaded(Priority::High)];
    let mut bench = bench_of(1, 2, &plans, Options::default());
    assert_eq!(bench.at(A, CPU), Residency::OnDevice);
    assert_eq!(moves(&bench.step(Event::Up { device: GPU })), [load(C)]);
    assert_eq!(moves(&bench.loaded(GPU, C)), [load(B)]);
    assert!(moves(&bench.loaded(GPU, B)).is_empty(), "there is no room for the third");
}

#[test]
fn the_cpu_computes_while_a_gpu_wakes_where_that_is_sooner_and_says_so() {
    let mut bench = bench(4, &[plan()]);
    bench.step(Event::Tick);
    let (_, actions) = bench.ask(A, Allowed::Cpu);
    assert_eq!(moves(&actions), [Action::Load { device: CPU, model: A }]);
    let start = only_start(&bench.loaded(CPU, A));
    bench.finish(start.batch);
    let (_, actions) = bench.ask(A, Allowed::Any);
    assert_eq!(moves(&actions), [load(A)], "the next one finds it there");
    let start = only_start(&actions);
    assert_eq!(start.device, CPU);
    assert_eq!(completions(&bench.finish(start.batch))[0].1.fallback, Some(Fallback::Waking));
    bench.loaded(GPU, A);
    let (_, actions) = bench.ask(A, Allowed::Any);
    assert_eq!(only_start(&actions).device, GPU);
}

#[test]
fn a_request_waits_for_the_gpu_where_the_cpu_would_take_longer() {
    let mut bench = bench(4, &[ModelPlan { is_preloaded: true, ..plan() }]);
    bench.loaded(GPU, A);
    bench.measure(GPU, 2);
    bench.measure(CPU, 400_000);
    bench.request_residency(A, ResidencyRequest::Offload);
    bench.offloaded(GPU, A);
    let (_, actions) = bench.ask(A, Allowed::Any);
    assert_eq!(actions, [load(A)], "a tenth of a second against almost half of one");
    assert_eq!(only_start(&bench.loaded(GPU, A)).device, GPU);
}

#[test]
fn a_load_that_is_late_is_not_waited_for_longer_than_the_cpu_takes() {
    let mut bench = bench(4, &[ModelPlan { is_preloaded: true, ..plan() }]);
    bench.loaded(GPU, A);
    bench.measure(GPU, 2);
    bench.measure(CPU, 400_000);
    bench.request_residency(A, ResidencyRequest::Offload);
    bench.offloaded(GPU, A);
    bench.ask(A, Allowed::Any);
    let started = starts(&bench.pass(Duration::from_secs(2)));
    assert_eq!(started.len(), 1);
    assert_eq!(started[0].device, CPU);
}

#[test]
fn after_three_loads_that_fail_requests_are_refused_until_the_next_try() {
    let mut bench = bench(2, &[plan()]);
    let (id, actions) = bench.ask(A, Allowed::Gpu);
    assert_eq!(actions, [load(A)]);
    let broken = || Event::NotLoaded { device: GPU, model: A, failure: Failure::Transient };
    assert!(bench.step(broken()).is_empty());
    assert_eq!(bench.pass(Duration::from_millis(500)), [load(A)]);
    bench.step(broken());
    assert_eq!(bench.pass(Duration::from_millis(1_000)), [load(A)]);
    let refused = Refused::NoDevice(Fallback::NotLoaded);
    assert_eq!(refusals(&bench.step(broken())), [(id, refused)]);
    let (id, actions) = bench.ask(A, Allowed::Gpu);
    assert_eq!(refusals(&actions), [(id, refused)]);
    let (_, actions) = bench.ask(A, Allowed::Any);
    assert_eq!(moves(&actions), [Action::Load { device: CPU, model: A }]);
    let start = only_start(&bench.loaded(CPU, A));
    assert_eq!(completions(&bench.finish(start.batch))[0].1.fallback, Some(Fallback::NotLoaded));
    assert_eq!(bench.pass(Duration::from_millis(2_000)), [load(A)], "it is still wanted");
    bench.loaded(GPU, A);
    assert_eq!(starts(&bench.ask(A, Allowed::Gpu).1).len(), 1);
    assert_eq!(bench.machine.view().devices[1].failures, 0, "the device is not to blame");
}

#[test]
fn after_a_crash_the_models_come_back_with_the_next_worker() {
    let mut bench = bench(4, &[plan(), plan(), plan()]);
    bench.use_once(A);
    bench.use_once(B);
    bench.request_residency(B, ResidencyRequest::Offload);
    bench.ask(C, Allowed::Gpu);
    let actions = bench.down(GPU, Ending::Crashed);
    assert!(actions.contains(&Action::Spawn { device: GPU }));
    let stages = [A, B, C].map(|model| bench.at(model, GPU));
    assert_eq!(stages, [Residency::OnCpu, Residency::OnCpu, Residency::Unloaded], "the next worker is on its way");
    assert_eq!(moves(&bench.step(Event::Up { device: GPU })), [load(C)], "somebody waits for that one");
    assert_eq!(moves(&bench.loaded(GPU, C)), [load(A)]);
    assert!(moves(&bench.loaded(GPU, A)).is_empty(), "the other one was asked to leave");
}

#[test]
fn a_load_that_takes_too_long_ends_the_worker() {
    let mut bench = bench(4, &[plan()]);
    bench.ask(A, Allowed::Any);
    let actions = bench.pass(Duration::from_secs(120));
    assert!(actions.contains(&Action::Kill { device: GPU, cause: KillCause::LoadOverdue }), "{actions:?}");
    bench.down(GPU, Ending::Ordered);
    bench.step(Event::Up { device: GPU });
    assert_eq!(bench.at(A, GPU), Residency::Loading, "the first time it may be chance");
}

#[test]
fn a_device_that_needs_a_probe_gets_the_smallest_model_first() {
    let plans = [plan(), ModelPlan { bytes: GIB / 2, is_preloaded: true, ..plan() }];
    let mut bench = bench(4, &plans);
    assert_eq!(bench.at(B, GPU), Residency::Loading);
    bench.step(Event::Judged { device: GPU, condition: Condition::Bad(Fault::Overheated) });
    bench.request_residency(B, ResidencyRequest::Offload);
    bench.down(GPU, Ending::Ordered);
    bench.step(Event::Judged { device: GPU, condition: Condition::Fine });
    assert_eq!(bench.step(Event::Up { device: GPU }), [load(B)]);
    assert_eq!(bench.loaded(GPU, B), [Action::Probe { device: GPU }]);
    assert!(bench.request_residency(B, ResidencyRequest::Offload).is_empty(), "not under a probe");
    let actions = bench.step(Event::Probed { device: GPU, passed: true });
    assert_eq!(moves(&actions), [offload(B)]);
}

#[test]
fn the_first_batch_after_a_load_may_wait_for_its_weights_and_is_blamed_only_the_second_time() {
    let mut bench = bench(4, &[plan()]);
    bench.use_once(A);
    bench.measure_model(A);
    bench.request_residency(A, ResidencyRequest::Offload);
    bench.offloaded(GPU, A);
    let (id, _) = bench.ask(A, Allowed::Gpu);
    let mut blamed = 0;
    for round in 1..=4 {
        bench.loaded(GPU, A);
        assert!(
            starts(&bench.pass(Duration::from_millis(1_990))).is_empty() && bench.state(GPU) == DeviceState::InRotation
        );
        let actions = bench.pass(Duration::from_millis(20));
        assert!(actions.contains(&Action::Kill { device: GPU, cause: KillCause::Overdue }), "{actions:?}");
        let refused = refusals(&bench.down(GPU, Ending::Ordered));
        if !refused.is_empty() {
            assert_eq!(refused, [(id, Refused::Poison)]);
            blamed = round;
            break;
        }
        bench.pass(Duration::from_secs(40));
        bench.step(Event::Up { device: GPU });
    }
    assert_eq!(blamed, 3, "one worker more than usual");
}

#[test]
fn news_that_nobody_asked_for_changes_nothing() {
    let mut bench = bench(1, &[plan()]);
    let loaded = |device, model| Event::Loaded { device, model, bytes: 1, took: Duration::ZERO, from_host: false };
    assert!(bench.step(loaded(GPU, A)).is_empty());
    assert!(bench.offloaded(GPU, A).is_empty() && bench.forgotten(A).is_empty());
    assert!(bench.step(Event::NotLoaded { device: GPU, model: A, failure: Failure::Sticky }).is_empty());
    assert!(bench.step(loaded(DeviceId(9), A)).is_empty() && bench.step(loaded(GPU, ModelId(9))).is_empty());
    assert!(bench.request_residency(ModelId(9), ResidencyRequest::Release).is_empty());
    assert_eq!(bench.at(A, GPU), Residency::Unloaded);
}
