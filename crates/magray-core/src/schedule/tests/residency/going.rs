//! Models that go: by idleness, by request, out of all memory; and workers that rest.

use super::*;

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
    bench.request_residency(A, ResidencyRequest::IdleTimeout(None));
    bench.use_once(A);
    assert!(bench.pass(Duration::from_secs(1_000)).is_empty());
    assert_eq!(bench.request_residency(A, ResidencyRequest::IdleTimeout(Some(Duration::from_secs(5)))), [offload(A)]);
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
    assert_eq!(bench.request_residency(A, ResidencyRequest::Preheat(Priority::Normal)), [load(A)]);
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
    assert_eq!(bench.step(Event::Up { device: GPU }), [load(A)]);
    assert_eq!(starts(&bench.loaded(GPU, A)).len(), 1);
    let view = &bench.machine.view().devices[1];
    assert_eq!((view.restarts, view.recovery_attempts, view.failures_total), (0, 0, 0));
}

#[test]
fn a_worker_that_does_not_end_when_asked_is_ended_by_force_and_rests() {
    let mut bench = bench(2, &[plan()]);
    assert_eq!(bench.request_residency(A, ResidencyRequest::Release), [Action::Rest { device: GPU }]);
    let actions = bench.pass(Duration::from_secs(5));
    assert_eq!(actions, [Action::Kill { device: GPU, cause: KillCause::Overdue }]);
    assert!(bench.down(GPU, Ending::Ordered).is_empty());
    assert_eq!(bench.state(GPU), DeviceState::Resting);
    assert_eq!(
        bench.request_residency(A, ResidencyRequest::Preheat(Priority::Normal)),
        [Action::Spawn { device: GPU }]
    );
}

#[test]
fn a_worker_that_cannot_be_woken_is_trouble_like_any() {
    let mut bench = bench(2, &[plan()]);
    bench.request_residency(A, ResidencyRequest::Release);
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
fn a_model_whose_last_request_is_refused_for_want_of_it_still_leaves_in_time() {
    let mut bench = bench_of(2, 2, &[plan()], Options::default());
    bench.step(Event::Up { device: GPU });
    bench.step(Event::Up { device: GPU2 });
    bench.use_once(A);
    let (_, actions) = bench.ask(A, Allowed::Only(GPU2));
    assert_eq!(moves(&actions), [Action::Load { device: GPU2, model: A }]);
    bench.pass(Duration::from_secs(30));
    bench.step(room(GPU2, 1));
    let broken = Event::NotLoaded { device: GPU2, model: A, failure: Failure::OutOfMemory };
    assert_eq!(refusals(&bench.step(broken)).len(), 1, "it is found out of reach when weights are looked at");
    assert!(bench.pass(Duration::from_secs(59)).is_empty());
    assert_eq!(bench.pass(Duration::from_secs(1)), [offload(A)]);
}

#[test]
fn an_offload_waits_for_the_batch_and_what_waits_brings_the_model_back() {
    let mut bench = bench(2, &[plan()]);
    bench.use_once(A);
    let running = only_start(&bench.ask(A, Allowed::Gpu).1).batch;
    assert!(bench.request_residency(A, ResidencyRequest::Offload).is_empty());
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
    assert_eq!(bench.request_residency(A, ResidencyRequest::Release), [cpu_offload, offload(A)]);
    assert!(bench.offloaded(CPU, A).is_empty());
    let actions = bench.offloaded(GPU, A);
    assert_eq!(actions, [Action::Forget { model: A }, Action::Rest { device: GPU }]);
    assert_eq!((bench.at(A, CPU), bench.at(A, GPU)), (Residency::Unloaded, Residency::Unloaded));
    bench.down(GPU, Ending::Rested);
    bench.forgotten(A);
    let (_, actions) = bench.ask(A, Allowed::Any);
    assert!(actions.contains(&Action::Spawn { device: GPU }), "{actions:?}");
}

#[test]
fn a_release_during_a_load_is_done_when_that_is_over() {
    let mut bench = bench(2, &[plan()]);
    bench.ask(A, Allowed::Gpu);
    assert!(bench.request_residency(A, ResidencyRequest::Release).is_empty());
    assert_eq!(bench.loaded(GPU, A), [offload(A)]);
    assert_eq!(bench.offloaded(GPU, A), [Action::Forget { model: A }]);
    assert!(
        bench.request_residency(A, ResidencyRequest::Preheat(Priority::Normal)).is_empty(),
        "not before it is forgotten, whoever wants it"
    );
    assert_eq!(bench.forgotten(A), [load(A)], "somebody waits for it");
    assert!(bench.forgotten(A).is_empty(), "once is enough");
}

#[test]
fn a_preheat_loads_pushes_idle_ones_out_and_wakes() {
    let mut bench = bench(1, &[plan(), plan()]);
    bench.use_once(A);
    bench.pass(Duration::from_secs(10));
    assert_eq!(bench.request_residency(B, ResidencyRequest::Preheat(Priority::Normal)), [offload(A)]);
    assert_eq!(bench.offloaded(GPU, A), [load(B)]);
    assert!(bench.loaded(GPU, B).is_empty());
    assert_eq!(bench.at(B, GPU), Residency::OnDevice);
    bench.pass(Duration::from_secs(59));
    assert_eq!(bench.at(B, GPU), Residency::OnDevice);
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.at(B, GPU), Residency::Leaving, "nobody used it");
}

#[test]
fn without_a_gpu_residency_requests_do_what_they_can() {
    let mut bench = bench_of(0, 1, &[plan()], Options::default());
    assert_eq!(
        bench.request_residency(A, ResidencyRequest::Preheat(Priority::Normal)),
        [Action::Load { device: CPU, model: A }]
    );
    bench.loaded(CPU, A);
    assert!(bench.request_residency(A, ResidencyRequest::Offload).is_empty());
    assert_eq!(bench.request_residency(A, ResidencyRequest::Release), [Action::Offload { device: CPU, model: A }]);
    assert_eq!(bench.offloaded(CPU, A), [Action::Forget { model: A }]);
    let view = &bench.machine.view().models[0];
    assert_eq!((view.loads, view.offloads), (1, 1), "a machine without a GPU told of none");
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
    bench.forgotten(A);
    assert!(bench.pass(Duration::from_secs(1_000)).is_empty());
}

#[test]
fn weights_are_cold_only_when_the_worker_is_gone() {
    let mut bench = bench(4, &[plan()]);
    bench.use_once(A);
    bench.pass(Duration::from_secs(60));
    bench.offloaded(GPU, A);
    assert_eq!(bench.pass(Duration::from_secs(300)), [Action::Rest { device: GPU }]);
    assert_eq!(bench.at(A, GPU), Residency::OnCpu, "it has not ended yet");
    bench.down(GPU, Ending::Rested);
    assert_eq!(bench.at(A, GPU), Residency::OnCpuCold);
}

#[test]
fn weights_are_in_the_hosts_memory_when_that_is_told_and_not_before() {
    let mut bench = bench(4, &[plan()]);
    bench.ask(A, Allowed::Gpu);
    let loaded = |from_host| Event::Loaded {
        device: GPU,
        model: A,
        bytes: GIB,
        took: Duration::from_millis(if from_host { 20 } else { 4_000 }),
        from_host,
    };
    let start = only_start(&bench.step(loaded(false)));
    bench.finish(start.batch);
    bench.request_residency(A, ResidencyRequest::Offload);
    bench.offloaded(GPU, A);
    assert_eq!(bench.at(A, GPU), Residency::Unloaded, "nobody has said that an image was made");
    bench.step(Event::Imaged { model: A, is_there: true });
    assert_eq!(bench.at(A, GPU), Residency::OnCpu);
    bench.step(Event::Imaged { model: A, is_there: false });
    assert_eq!(bench.at(A, GPU), Residency::Unloaded);
    assert!(bench.step(Event::Imaged { model: ModelId(9), is_there: true }).is_empty());
}

#[test]
fn a_release_of_one_model_does_not_hurry_a_worker_that_others_use() {
    let mut bench = bench(4, &[plan(), plan()]);
    bench.use_once(A);
    bench.use_once(B);
    bench.request_residency(A, ResidencyRequest::Release);
    bench.offloaded(GPU, A);
    bench.forgotten(A);
    assert_eq!(bench.pass(Duration::from_secs(60)), [offload(B)]);
    assert!(bench.offloaded(GPU, B).is_empty(), "it rests when it has had no weights for its time");
    assert_eq!(bench.pass(Duration::from_secs(300)), [Action::Rest { device: GPU }]);
}

#[test]
fn a_release_that_is_done_at_once_is_told_although_the_model_comes_right_after() {
    let mut bench = bench_of(1, 2, &[plan()], Options::default());
    bench.ask(A, Allowed::Gpu);
    assert!(bench.request_residency(A, ResidencyRequest::Release).is_empty(), "nothing of it is in any memory");
    assert_eq!(bench.step(Event::Up { device: GPU }), [load(A)], "somebody waits for it");
    assert_eq!((bench.at(A, GPU), bench.releases(A)), (Residency::Loading, 1));
}

#[test]
fn a_release_is_told_once_and_not_before_the_weights_are_forgotten() {
    let mut bench = bench(2, &[plan()]);
    bench.use_once(A);
    bench.request_residency(A, ResidencyRequest::Release);
    bench.offloaded(GPU, A);
    assert_eq!((bench.at(A, GPU), bench.releases(A)), (Residency::Unloaded, 0), "it is being forgotten");
    bench.forgotten(A);
    assert_eq!(bench.releases(A), 1);
    bench.forgotten(A);
    assert_eq!(bench.releases(A), 1);
}

#[test]
fn what_leaves_with_its_worker_has_left_too() {
    let mut bench = bench(2, &[plan()]);
    bench.use_once(A);
    bench.ask(A, Allowed::Gpu);
    bench.request_residency(A, ResidencyRequest::Offload);
    bench.down(GPU, Ending::Crashed);
    bench.step(Event::Up { device: GPU });
    let view = &bench.machine.view().models[0];
    assert_eq!((view.offloads, &view.departures), (0, &vec![0, 1]));
    assert_eq!(bench.at(A, GPU), Residency::Loading, "somebody waits for it");
}

#[test]
fn a_rest_that_was_put_off_for_a_request_comes_when_the_cpu_has_computed_that() {
    let large = ModelPlan { bytes: 4 * GIB, ..plan() };
    let mut bench = bench(2, &[plan(), large]);
    bench.use_once(A);
    bench.ask(B, Allowed::Any);
    let running = only_start(&bench.loaded(CPU, B)).batch;
    bench.ask(B, Allowed::Any);
    bench.request_residency(A, ResidencyRequest::Release);
    assert_eq!(bench.offloaded(GPU, A), [Action::Forget { model: A }], "somebody waits who might need the worker");
    assert!(bench.forgotten(A).is_empty() && bench.machine.view().devices[1].is_ending);
    let last = only_start(&bench.finish(running)).batch;
    assert_eq!(moves(&bench.finish(last)), [Action::Rest { device: GPU }]);
}

#[test]
fn a_model_that_is_added_while_others_are_served_comes_like_them() {
    let mut bench = bench(4, &[plan()]);
    bench.use_once(A);
    assert_eq!(refusals(&bench.ask(B, Allowed::Any).1).len(), 1, "nobody knows it yet");
    assert!(bench.step(Event::ModelAdded { plan: plan() }).is_empty());
    assert_eq!(bench.at(B, GPU), Residency::Unloaded);
    bench.use_once(B);
    let preloaded = ModelPlan { is_preloaded: true, ..plan() };
    let actions = bench.step(Event::ModelAdded { plan: preloaded });
    assert_eq!(actions, [load(C), Action::Load { device: CPU, model: C }], "before anybody asks");
}

#[test]
fn a_model_that_is_removed_is_taken_out_of_all_memory_and_what_waits_for_it_is_refused() {
    let mut bench = bench(4, &[plan(), plan()]);
    bench.use_once(A);
    bench.use_once(B);
    let (answered, actions) = bench.ask(A, Allowed::Gpu);
    let running = only_start(&actions).batch;
    bench.step(Event::ResidencyRequested { model: A, request: ResidencyRequest::Offload });
    let (waiting, _) = bench.ask(A, Allowed::Gpu);
    let actions = bench.step(Event::ModelRemoved { model: A });
    assert_eq!(refusals(&actions), [(waiting, Refused::NoDevice(Fallback::NotLoaded))]);
    let actions = bench.finish(running);
    assert_eq!(completions(&actions)[0].0, answered, "what ran is answered");
    assert_eq!(moves(&actions), [offload(A)]);
    assert_eq!(bench.offloaded(GPU, A), [Action::Forget { model: A }]);
    bench.forgotten(A);
    assert_eq!(bench.machine.view().devices[1].accounts, [(Owner::Weights(B), GIB)]);
    let (id, actions) = bench.ask(A, Allowed::Any);
    assert_eq!(refusals(&actions), [(id, Refused::NoDevice(Fallback::NotLoaded))]);
    assert!(bench.request_residency(A, ResidencyRequest::Preheat(Priority::Normal)).is_empty());
    assert!(bench.step(Event::ModelRemoved { model: A }).is_empty(), "once is enough");
    bench.use_once(B);
}

#[test]
fn a_model_that_is_removed_while_it_is_loaded_leaves_when_that_is_over() {
    let mut bench = bench(4, &[plan()]);
    let (id, actions) = bench.ask(A, Allowed::Gpu);
    assert_eq!(actions, [load(A)]);
    assert_eq!(refusals(&bench.step(Event::ModelRemoved { model: A }))[0].0, id);
    assert_eq!(bench.loaded(GPU, A), [offload(A)]);
    bench.offloaded(GPU, A);
    assert!(bench.machine.view().devices[1].accounts.is_empty());
}

#[test]
fn each_move_has_its_reason() {
    let mut bench = bench(2, &[plan()]);
    let reason = |bench: &Bench| bench.machine.moved_for(GPU, A).map(MoveReason::code);
    bench.ask(A, Allowed::Gpu);
    assert_eq!(reason(&bench), Some("needed"));
    let mut bench = self::bench(2, &[plan()]);
    assert_eq!(reason(&bench), None);
    bench.request_residency(A, ResidencyRequest::Preheat(Priority::Normal));
    assert_eq!(reason(&bench), Some("preheated"));
    bench.loaded(GPU, A);
    bench.request_residency(A, ResidencyRequest::Offload);
    assert_eq!(reason(&bench), Some("requested"));
    bench.offloaded(GPU, A);
    bench.use_once(A);
    bench.pass(Duration::from_secs(61));
    assert_eq!(reason(&bench), Some("idle"));
}

#[test]
fn weights_that_came_for_a_probe_stayed_although_their_model_was_released() {
    let mut bench = bench(2, &[plan()]);
    bench.use_once(A);
    bench.request_residency(A, ResidencyRequest::Release);
    bench.offloaded(GPU, A);
    bench.forgotten(A);
    bench.down(GPU, Ending::Rested);
    bench.request_residency(A, ResidencyRequest::IdleTimeout(None));
    bench.step(Event::Judged { device: GPU, condition: Condition::Bad(Fault::Overheated) });
    bench.step(Event::Judged { device: GPU, condition: Condition::Fine });
    bench.step(Event::Up { device: GPU });
    assert_eq!(bench.loaded(GPU, A), [Action::Probe { device: GPU }], "there is nothing else to probe it with");
    let actions = bench.step(Event::Probed { device: GPU, passed: true });
    assert_eq!(moves(&actions), [offload(A)]);
    assert_eq!(moves(&bench.offloaded(GPU, A))[0], Action::Forget { model: A });
}

#[test]
fn an_image_that_was_completed_while_it_was_forgotten_was_forgotten_again() {
    let keeping = Keeping { host: Some(Duration::from_secs(1)), ..Keeping::default() };
    let mut bench = bench_of(1, 2, &[plan()], Options { keeping, ..Options::default() });
    bench.step(Event::Up { device: GPU });
    bench.use_once(A);
    bench.request_residency(A, ResidencyRequest::Release);
    assert!(bench.offloaded(GPU, A).contains(&Action::Forget { model: A }));
    bench.step(Event::Imaged { model: A, is_there: true });
    bench.forgotten(A);
    assert!(moves(&bench.pass(Duration::from_secs(2))).is_empty());
    assert_eq!(bench.releases(A), 1);
}
