//! Which models are where: they come when they are asked for, go when nobody needs them, and share what room there is.
//! Loads and offloads are answered by hand here.

use super::*;

const GIB: u64 = 1 << 30;
const A: ModelId = ModelId(0);
const B: ModelId = ModelId(1);
const C: ModelId = ModelId(2);

/// A model of a GiB that is not loaded from the start.
fn plan() -> ModelPlan {
    ModelPlan { bytes: GIB, is_preloaded: false, ..ModelPlan::default() }
}

/// A CPU and some GPUs with room for so many GiB, their workers up.
fn bench_of(gpus: usize, room_gib: u64, plans: &[ModelPlan], options: Options) -> Bench {
    let spec = |kind, slots, weights_max| DeviceSpec { kind, slots, batch_tokens_max: 16_384, weights_max };
    let mut specs = vec![spec(DeviceKind::Cpu, 1, u64::MAX)];
    specs.extend(vec![spec(DeviceKind::Gpu, 2, room_gib * GIB); gpus]);
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
    fn loaded(&mut self, device: DeviceId, model: ModelId) -> Vec<Action> {
        self.step(Event::Loaded { device, model, bytes: GIB, took: Duration::from_millis(100) })
    }

    fn offloaded(&mut self, device: DeviceId, model: ModelId) -> Vec<Action> {
        self.step(Event::Offloaded { device, model })
    }

    fn wish(&mut self, model: ModelId, wish: Wish) -> Vec<Action> {
        self.step(Event::Wished { model, wish })
    }

    fn ask(&mut self, model: ModelId, allowed: Allowed) -> (RequestId, Vec<Action>) {
        let request = Request { group: Group { model, way: 0 }, allowed, ..self.request(1) };
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
    bench.wish(A, Wish::Offload);
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
    bench.wish(A, Wish::Offload);
    bench.offloaded(GPU, A);
    bench.ask(A, Allowed::Any);
    let started = starts(&bench.pass(Duration::from_secs(2)));
    assert_eq!(started.len(), 1);
    assert_eq!(started[0].device, CPU);
}

#[test]
fn the_model_with_which_least_is_lost_makes_room() {
    let mut bench = bench(2, &[plan(), plan(), plan()]);
    bench.use_once(A);
    bench.pass(Duration::from_secs(1));
    bench.use_once(B);
    bench.pass(Duration::from_secs(1));
    let (_, actions) = bench.ask(C, Allowed::Gpu);
    assert_eq!(actions, [offload(A)], "it was idle for longer");
    assert_eq!(bench.offloaded(GPU, A), [load(C)]);
    assert_eq!(bench.at(A, GPU), Residency::OnCpu);
    assert_eq!(only_start(&bench.loaded(GPU, C)).device, GPU);
}

#[test]
fn a_model_that_just_came_stays_for_twice_the_time_it_took() {
    let mut bench = bench(1, &[plan(), plan()]);
    bench.use_once(A);
    let (_, actions) = bench.ask(B, Allowed::Gpu);
    assert!(actions.is_empty(), "{actions:?}");
    assert!(bench.pass(Duration::from_millis(199)).is_empty());
    assert_eq!(bench.pass(Duration::from_millis(1)), [offload(A)]);
    let mut bench = bench_with_priorities(Priority::Normal, Priority::High);
    bench.use_once(A);
    assert_eq!(bench.ask(B, Allowed::Gpu).1, [offload(A)], "unless the other one is more important");
}

fn bench_with_priorities(a: Priority, b: Priority) -> Bench {
    bench(1, &[ModelPlan { priority: a, ..plan() }, ModelPlan { priority: b, ..plan() }])
}

#[test]
fn nobody_is_pushed_out_who_is_pinned_or_more_important() {
    let mut bench = bench_with_priorities(Priority::High, Priority::Normal);
    bench.use_once(A);
    bench.pass(Duration::from_secs(10));
    assert!(bench.ask(B, Allowed::Gpu).1.is_empty());
    bench.wish(A, Wish::Priority(Priority::Normal));
    assert_eq!(bench.at(A, GPU), Residency::Leaving);
    let mut bench = bench_with_priorities(Priority::Low, Priority::High);
    bench.use_once(A);
    bench.wish(A, Wish::Pin(true));
    bench.pass(Duration::from_secs(100));
    let (id, actions) = bench.ask(B, Allowed::Gpu);
    assert_eq!(refusals(&actions), [(id, Refused::NoDevice(Fallback::OutOfMemory))]);
    assert_eq!(bench.at(A, GPU), Residency::OnDevice, "nor by idleness");
}

#[test]
fn a_busy_model_leaves_after_its_last_batch_for_a_request_that_has_waited_long() {
    let mut bench = bench(1, &[plan(), plan()]);
    bench.use_once(A);
    bench.pass(Duration::from_secs(1));
    let (_, actions) = bench.ask(A, Allowed::Gpu);
    let running = only_start(&actions).batch;
    bench.ask(B, Allowed::Gpu);
    assert!(bench.pass(Duration::from_millis(300)).is_empty());
    let (_, actions) = bench.ask(A, Allowed::Gpu);
    assert!(starts(&actions).is_empty(), "it is on its way out");
    assert_eq!(bench.finish(running).last(), Some(&offload(A)));
    assert_eq!(bench.offloaded(GPU, A), [load(B)]);
    let start = only_start(&bench.loaded(GPU, B));
    bench.pass(Duration::from_millis(250));
    assert_eq!(moves(&bench.finish(start.batch)), [offload(B)], "and the first one has its turn again");
    assert_eq!(bench.offloaded(GPU, B), [load(A)]);
    assert_eq!(starts(&bench.loaded(GPU, A)).len(), 1);
}

#[test]
fn a_model_that_can_never_fit_is_computed_elsewhere_or_refused() {
    let mut bench = bench(1, &[ModelPlan { bytes: 2 * GIB, is_preloaded: true, ..plan() }]);
    let (id, actions) = bench.ask(A, Allowed::Gpu);
    assert_eq!(refusals(&actions), [(id, Refused::NoDevice(Fallback::OutOfMemory))]);
    let (_, actions) = bench.ask(A, Allowed::Any);
    let start = only_start(&actions);
    assert_eq!(start.device, CPU);
    assert_eq!(completions(&bench.finish(start.batch))[0].1.fallback, Some(Fallback::OutOfMemory));
    let (id, actions) = bench.ask(A, Allowed::Only(DeviceId(9)));
    assert_eq!(refusals(&actions), [(id, Refused::NoDevice(Fallback::Lost))]);
    let (id, actions) = bench.ask(ModelId(7), Allowed::Any);
    assert_eq!(refusals(&actions), [(id, Refused::NoDevice(Fallback::NotLoaded))], "nobody knows that model");
}

#[test]
fn room_that_shrinks_makes_the_worst_leave() {
    let mut bench = bench(3, &[plan(), plan(), plan()]);
    for model in [A, B, C] {
        bench.use_once(model);
        bench.pass(Duration::from_secs(1));
    }
    let room = |bytes| Event::Room { device: GPU, bytes };
    assert!(bench.step(room(3 * GIB)).is_empty());
    assert_eq!(bench.step(room(2 * GIB)), [offload(A)]);
    assert_eq!(bench.step(room(GIB)), [offload(B)]);
    assert!(bench.step(room(4 * GIB)).is_empty());
}

#[test]
fn a_full_memory_makes_others_leave_before_it_is_tried_again() {
    let mut bench = bench(2, &[plan(), plan()]);
    bench.use_once(A);
    bench.pass(Duration::from_secs(1));
    bench.ask(B, Allowed::Gpu);
    let full = Event::NotLoaded { device: GPU, model: B, failure: Failure::OutOfMemory };
    assert_eq!(bench.step(full), [Action::Trim { device: GPU }]);
    assert!(bench.pass(Duration::from_millis(499)).is_empty());
    assert_eq!(bench.pass(Duration::from_millis(1)), [offload(A)]);
    assert_eq!(bench.offloaded(GPU, A), [load(B)]);
    assert_eq!(starts(&bench.loaded(GPU, B)).len(), 1);
    assert_eq!(bench.machine.view().devices[1].failures_total, 0);
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
fn a_model_leaves_when_nobody_has_used_it_for_its_time() {
    let mut bench = bench(2, &[plan()]);
    bench.use_once(A);
    assert!(bench.pass(Duration::from_secs(59)).is_empty());
    bench.use_once(A);
    assert!(bench.pass(Duration::from_secs(59)).is_empty());
    assert_eq!(bench.pass(Duration::from_secs(1)), [offload(A)]);
    bench.offloaded(GPU, A);
    assert_eq!(bench.at(A, GPU), Residency::OnCpu);
    bench.wish(A, Wish::IdleTimeout(None));
    bench.use_once(A);
    assert!(bench.pass(Duration::from_secs(1_000)).is_empty());
    assert_eq!(bench.wish(A, Wish::IdleTimeout(Some(Duration::from_secs(5)))), [offload(A)]);
    assert_eq!(bench.machine.view().models[0].plan.idle_timeout, Some(Duration::from_secs(5)));
}

#[test]
fn a_model_that_is_not_to_stay_leaves_after_each_use_but_not_before_it_was_used() {
    let mut bench = bench(2, &[ModelPlan { offload_after_use: true, ..plan() }]);
    let (_, actions) = bench.ask(A, Allowed::Gpu);
    assert_eq!(actions, [load(A)]);
    let start = only_start(&bench.loaded(GPU, A));
    let (_, _) = bench.ask(A, Allowed::Gpu);
    let start = only_start(&bench.finish(start.batch));
    assert_eq!(moves(&bench.finish(start.batch)), [offload(A)]);
    bench.offloaded(GPU, A);
    assert_eq!(bench.wish(A, Wish::Preheat), [load(A)]);
    assert!(bench.loaded(GPU, A).is_empty());
    let start = only_start(&bench.ask(A, Allowed::Gpu).1);
    assert_eq!(moves(&bench.finish(start.batch)), [offload(A)]);
}

#[test]
fn a_worker_without_weights_rests_and_the_next_request_wakes_it_without_counting_a_failure() {
    let mut bench = bench(2, &[plan()]);
    bench.use_once(A);
    bench.pass(Duration::from_secs(60));
    bench.offloaded(GPU, A);
    assert!(bench.pass(Duration::from_secs(299)).is_empty());
    assert_eq!(bench.pass(Duration::from_secs(1)), [Action::Rest { device: GPU }]);
    assert_eq!(bench.state(GPU), DeviceState::Resting);
    let (_, actions) = bench.ask(A, Allowed::Gpu);
    assert!(actions.is_empty(), "the old one is not gone yet: {actions:?}");
    assert_eq!(bench.down(GPU, Ending::Rested), [Action::Spawn { device: GPU }]);
    assert_eq!(bench.at(A, GPU), Residency::OnCpuCold);
    assert_eq!(bench.step(Event::Up { device: GPU }), [load(A)]);
    assert_eq!(starts(&bench.loaded(GPU, A)).len(), 1);
    let view = &bench.machine.view().devices[1];
    assert_eq!((view.restarts, view.recovery_attempts, view.failures_total), (0, 0, 0));
}

#[test]
fn a_worker_that_does_not_end_when_asked_is_ended_by_force_and_rests() {
    let mut bench = bench(2, &[plan()]);
    assert_eq!(bench.wish(A, Wish::Release), [Action::Rest { device: GPU }]);
    let actions = bench.pass(Duration::from_secs(5));
    assert_eq!(actions, [Action::Kill { device: GPU, cause: KillCause::Overdue }]);
    assert!(bench.down(GPU, Ending::Ordered).is_empty());
    assert_eq!(bench.state(GPU), DeviceState::Resting);
    assert_eq!(bench.wish(A, Wish::Preheat), [Action::Spawn { device: GPU }]);
}

#[test]
fn a_worker_that_cannot_be_woken_is_trouble_like_any() {
    let mut bench = bench(2, &[plan()]);
    bench.wish(A, Wish::Release);
    bench.down(GPU, Ending::Rested);
    assert_eq!(bench.ask(A, Allowed::Gpu).1, [Action::Spawn { device: GPU }]);
    let actions = bench.down(GPU, Ending::NotStarted);
    assert_eq!(alerts(&actions), [(GPU, left(Fallback::Unhealthy))]);
    assert!(bench.pass(Duration::from_millis(500)).contains(&Action::Spawn { device: GPU }));
    let actions = bench.step(Event::Up { device: GPU });
    assert_eq!(alerts(&actions), [(GPU, Change::Returned)]);
    assert_eq!(moves(&actions), [load(A)]);
}

#[test]
fn an_offload_waits_for_the_batch_and_what_waits_brings_the_model_back() {
    let mut bench = bench(2, &[plan()]);
    bench.use_once(A);
    let running = only_start(&bench.ask(A, Allowed::Gpu).1).batch;
    assert!(bench.wish(A, Wish::Offload).is_empty());
    assert!(bench.ask(A, Allowed::Gpu).1.is_empty(), "no batch starts any more");
    assert_eq!(moves(&bench.finish(running)), [offload(A)]);
    assert_eq!(bench.offloaded(GPU, A), [load(A)]);
    assert_eq!(starts(&bench.loaded(GPU, A)).len(), 1);
}

#[test]
fn a_release_takes_a_model_out_of_all_memory_and_its_worker_rests() {
    let mut bench = bench(2, &[ModelPlan { is_preloaded: true, ..plan() }]);
    bench.loaded(GPU, A);
    let cpu_offload = Action::Offload { device: CPU, model: A };
    assert_eq!(bench.wish(A, Wish::Release), [cpu_offload, offload(A)]);
    assert!(bench.offloaded(CPU, A).is_empty());
    let actions = bench.offloaded(GPU, A);
    assert_eq!(actions, [Action::Forget { model: A }, Action::Rest { device: GPU }]);
    assert_eq!((bench.at(A, CPU), bench.at(A, GPU)), (Residency::Unloaded, Residency::Unloaded));
    bench.down(GPU, Ending::Rested);
    let (_, actions) = bench.ask(A, Allowed::Any);
    assert!(actions.contains(&Action::Spawn { device: GPU }), "{actions:?}");
}

#[test]
fn a_release_during_a_load_is_done_when_that_is_over() {
    let mut bench = bench(2, &[plan()]);
    bench.ask(A, Allowed::Gpu);
    assert!(bench.wish(A, Wish::Release).is_empty());
    assert_eq!(bench.loaded(GPU, A), [offload(A)]);
    assert_eq!(bench.offloaded(GPU, A), [Action::Forget { model: A }, load(A)], "somebody waits for it");
}

#[test]
fn a_preheat_loads_pushes_idle_ones_out_and_wakes() {
    let mut bench = bench(1, &[plan(), plan()]);
    bench.use_once(A);
    bench.pass(Duration::from_secs(10));
    assert_eq!(bench.wish(B, Wish::Preheat), [offload(A)]);
    assert_eq!(bench.offloaded(GPU, A), [load(B)]);
    assert!(bench.loaded(GPU, B).is_empty());
    assert_eq!(bench.at(B, GPU), Residency::OnDevice);
    bench.pass(Duration::from_secs(59));
    assert_eq!(bench.at(B, GPU), Residency::OnDevice);
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.at(B, GPU), Residency::Leaving, "nobody used it");
}

#[test]
fn without_a_gpu_wishes_do_what_they_can() {
    let mut bench = bench_of(0, 1, &[plan()], Options::default());
    assert_eq!(bench.wish(A, Wish::Preheat), [Action::Load { device: CPU, model: A }]);
    bench.loaded(CPU, A);
    assert!(bench.wish(A, Wish::Offload).is_empty());
    assert_eq!(bench.wish(A, Wish::Release), [Action::Offload { device: CPU, model: A }]);
    assert_eq!(bench.offloaded(CPU, A), [Action::Forget { model: A }]);
}

#[test]
fn after_a_crash_the_models_come_back_with_the_next_worker() {
    let mut bench = bench(4, &[plan(), plan(), plan()]);
    bench.use_once(A);
    bench.use_once(B);
    bench.wish(B, Wish::Offload);
    bench.ask(C, Allowed::Gpu);
    let actions = bench.down(GPU, Ending::Crashed);
    assert!(actions.contains(&Action::Spawn { device: GPU }));
    let stages = [A, B, C].map(|model| bench.at(model, GPU));
    assert_eq!(stages, [Residency::OnCpuCold, Residency::OnCpuCold, Residency::Unloaded]);
    assert_eq!(moves(&bench.step(Event::Up { device: GPU })), [load(C)], "somebody waits for that one");
    assert_eq!(moves(&bench.loaded(GPU, C)), [load(A)]);
    assert!(moves(&bench.loaded(GPU, A)).is_empty(), "the other one was wished away");
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
    bench.wish(B, Wish::Offload);
    bench.down(GPU, Ending::Ordered);
    bench.step(Event::Judged { device: GPU, condition: Condition::Fine });
    assert_eq!(bench.step(Event::Up { device: GPU }), [load(B)]);
    assert_eq!(bench.loaded(GPU, B), [Action::Probe { device: GPU }]);
    assert!(bench.wish(B, Wish::Offload).is_empty(), "not under a probe");
    let actions = bench.step(Event::Probed { device: GPU, passed: true });
    assert_eq!(moves(&actions), [offload(B)]);
}

#[test]
fn the_hosts_memory_is_let_go_of_after_its_time() {
    let keeping = Keeping { host: Some(Duration::from_secs(100)), worker: None, ..Keeping::default() };
    let plan = ModelPlan { is_preloaded: true, ..plan() };
    let mut bench = bench_of(1, 4, &[plan], Options { keeping, ..Options::default() });
    bench.step(Event::Up { device: GPU });
    bench.loaded(GPU, A);
    bench.pass(Duration::from_secs(60));
    bench.offloaded(GPU, A);
    assert!(bench.pass(Duration::from_secs(39)).is_empty());
    assert_eq!(bench.pass(Duration::from_secs(1)), [Action::Offload { device: CPU, model: A }]);
    assert_eq!(bench.offloaded(CPU, A), [Action::Forget { model: A }]);
    assert!(bench.pass(Duration::from_secs(1_000)).is_empty());
}

#[test]
fn models_in_turn_over_room_for_one_are_all_answered() {
    let mut bench = bench(1, &[plan(), plan(), plan()]);
    let mut waiting: Vec<RequestId> = Vec::new();
    let mut actions = Vec::new();
    for model in [A, B, C, A, B, C] {
        let (id, more) = bench.ask(model, Allowed::Gpu);
        waiting.push(id);
        actions.extend(more);
    }
    for _ in 0..200 {
        for action in std::mem::take(&mut actions) {
            actions.extend(match action {
                Action::Load { device, model } => bench.loaded(device, model),
                Action::Offload { device, model } => bench.offloaded(device, model),
                Action::Start { batch, .. } => bench.finish(batch),
                Action::Complete { request, .. } => {
                    waiting.retain(|&id| id != request);
                    Vec::new()
                }
                _ => Vec::new(),
            });
        }
        actions.extend(bench.pass(Duration::from_millis(50)));
    }
    assert!(waiting.is_empty(), "{waiting:?}");
    assert!(bench.machine.view().models.iter().all(|model| model.loads == 1), "nobody came twice");
}

#[test]
fn news_that_nobody_asked_for_changes_nothing() {
    let mut bench = bench(1, &[plan()]);
    assert!(bench.loaded(GPU, A).is_empty());
    assert!(bench.offloaded(GPU, A).is_empty());
    assert!(bench.step(Event::NotLoaded { device: GPU, model: A, failure: Failure::Sticky }).is_empty());
    assert!(bench.loaded(DeviceId(9), A).is_empty() && bench.loaded(GPU, ModelId(9)).is_empty());
    assert!(bench.wish(ModelId(9), Wish::Release).is_empty());
    assert_eq!(bench.at(A, GPU), Residency::Unloaded);
}
