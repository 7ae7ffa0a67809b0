//! Models that compete for room: who leaves, who stays, and that everybody has a turn.

use super::*;

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
    bench.request_residency(A, ResidencyRequest::Priority(Priority::Normal));
    assert_eq!(bench.at(A, GPU), Residency::Leaving);
    let mut bench = bench_with_priorities(Priority::Low, Priority::High);
    bench.use_once(A);
    bench.request_residency(A, ResidencyRequest::Pin(true));
    bench.pass(Duration::from_secs(100));
    let (id, actions) = bench.ask(B, Allowed::Gpu);
    assert_eq!(refusals(&actions), [(id, Refused::NoDevice(Fallback::OutOfMemory))]);
    assert_eq!(bench.at(A, GPU), Residency::OnDevice, "nor by idleness");
}

impl Bench {
    fn ask_urgently(&mut self, model: ModelId) -> (RequestId, Vec<Action>) {
        let request = Request {
            group: Group { model, key: 0 },
            allowed: Allowed::Gpu,
            priority: Priority::High,
            ..self.request(1)
        };
        self.submit(request)
    }
}

#[test]
fn a_high_request_evicts_a_model_that_just_came_or_computes_others() {
    let mut bench = bench(1, &[plan(), plan()]);
    bench.use_once(A);
    assert_eq!(bench.ask_urgently(B).1, [offload(A)], "it came a moment ago");
    assert_eq!(bench.offloaded(GPU, A), [load(B)]);
    let urgent = only_start(&bench.loaded(GPU, B)).batch;
    assert!(bench.ask(A, Allowed::Gpu).1.is_empty(), "an urgent batch runs");
    bench.finish(urgent);
    let mut bench = self::bench(1, &[plan(), plan()]);
    bench.use_once(A);
    let running = only_start(&bench.ask(A, Allowed::Gpu).1).batch;
    assert!(bench.ask(B, Allowed::Gpu).1.is_empty(), "it would wait until it has grown old");
    assert!(bench.ask_urgently(B).1.is_empty(), "nothing leaves under a batch");
    assert_eq!(bench.finish(running).last(), Some(&offload(A)));
}

#[test]
fn a_preheat_of_high_priority_evicts_as_a_high_request_does() {
    let mut bench = bench(1, &[plan(), plan()]);
    bench.use_once(A);
    assert!(bench.request_residency(B, ResidencyRequest::Preheat(Priority::Normal)).is_empty());
    assert_eq!(bench.request_residency(B, ResidencyRequest::Preheat(Priority::High)), [offload(A)]);
    bench.offloaded(GPU, A);
    bench.loaded(GPU, B);
    assert_eq!(bench.ask_urgently(A).1, [offload(B)], "it counts no more than before when it is there");
}

#[test]
fn a_high_request_evicts_neither_the_pinned_nor_what_counts_as_much() {
    let mut bench = bench(1, &[ModelPlan { priority: Priority::High, ..plan() }, plan()]);
    bench.use_once(A);
    assert!(bench.ask_urgently(B).1.is_empty());
    assert_eq!(bench.pass(Duration::from_millis(200)), [offload(A)], "as among equals");
    let mut bench = self::bench(1, &[plan(), plan()]);
    bench.use_once(A);
    let urgent = only_start(&bench.ask_urgently(A).1).batch;
    bench.ask_urgently(B);
    assert!(bench.pass(Duration::from_millis(150)).is_empty(), "both have urgent work");
    bench.finish(urgent);
    assert_eq!(bench.at(A, GPU), Residency::Leaving);
    let mut bench = self::bench(1, &[plan(), plan()]);
    bench.use_once(A);
    bench.request_residency(A, ResidencyRequest::Pin(true));
    assert_eq!(refusals(&bench.ask_urgently(B).1).len(), 1);
}

#[test]
fn a_model_with_urgent_work_is_not_evicted_for_one_with_plain_work() {
    let mut bench = bench(1, &[plan(), plan()]);
    bench.use_once(A);
    bench.pass(Duration::from_secs(1));
    let urgent = only_start(&bench.ask_urgently(A).1).batch;
    bench.ask(B, Allowed::Gpu);
    assert!(bench.pass(Duration::from_millis(300)).is_empty(), "although that has waited long");
    assert_eq!(moves(&bench.finish(urgent)), [offload(A)]);
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
    assert!(bench.step(room(GPU, 3 * GIB)).is_empty());
    assert_eq!(bench.step(room(GPU, 2 * GIB)), [offload(A)]);
    assert_eq!(bench.step(room(GPU, GIB)), [offload(B)]);
    assert!(bench.step(room(GPU, 4 * GIB)).is_empty());
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
fn a_device_at_rest_is_not_thought_full_because_of_what_its_last_worker_told() {
    let mut bench = bench(4, &[plan(), ModelPlan { bytes: 3 * GIB, ..plan() }]);
    bench.step(room(GPU, GIB));
    assert_eq!(refusals(&bench.ask(B, Allowed::Gpu).1).len(), 1);
    bench.request_residency(A, ResidencyRequest::Release);
    bench.down(GPU, Ending::Rested);
    assert_eq!(bench.ask(B, Allowed::Gpu).1, [Action::Spawn { device: GPU }]);
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
fn one_model_alone_is_tried_although_memory_ran_out_and_a_report_ends_the_doubt() {
    let mut bench = bench(3, &[plan(), plan()]);
    bench.step(room(GPU, 2 * GIB));
    bench.use_once(A);
    bench.pass(Duration::from_secs(1));
    bench.ask(B, Allowed::Gpu);
    let full = |model| Event::NotLoaded { device: GPU, model, failure: Failure::OutOfMemory };
    bench.step(full(B));
    assert!(bench.step(room(GPU, 2 * GIB)).is_empty(), "a report of the same says nothing new");
    assert_eq!(bench.pass(Duration::from_millis(500)), [offload(A)]);
    assert_eq!(bench.offloaded(GPU, A), [load(B)], "it is alone");
    bench.loaded(GPU, B);
    assert!(
        bench.request_residency(A, ResidencyRequest::Preheat(Priority::Normal)).is_empty(),
        "there is believed to be room for one"
    );
    assert_eq!(bench.step(room(GPU, 3 * GIB)), [load(A)]);
}

#[test]
fn vectors_are_granted_what_is_free_and_leave_for_a_model() {
    let mut bench = bench(3, &[plan(), plan()]);
    let collection = CollectionId(7);
    let ask = |bytes| Event::VectorsAsked { device: GPU, collection, bytes };
    bench.use_once(A);
    assert_eq!(bench.step(ask(GIB)), [Action::GrantVectors { device: GPU, collection, bytes: GIB }]);
    assert_eq!(bench.step(ask(GIB)), [Action::GrantVectors { device: GPU, collection, bytes: GIB }]);
    let refused = bench.step(ask(2 * GIB));
    let is_refused = |action: &Action| matches!(action, Action::RefuseVectors { missing, .. } if *missing > GIB);
    assert!(refused.len() == 1 && is_refused(&refused[0]), "{refused:?}");
    bench.request_residency(A, ResidencyRequest::Pin(true));
    assert_eq!(bench.ask(B, Allowed::Gpu).1, [Action::DropVectors { device: GPU, collection }]);
    assert_eq!(bench.step(ask(1)), [Action::RefuseVectors { device: GPU, collection, missing: 1 }]);
    let accounts = || [(Owner::Weights(A), GIB), (Owner::Vectors(collection), 2 * GIB)];
    assert_eq!(bench.machine.view().devices[1].accounts, accounts());
    assert_eq!(bench.step(Event::VectorsDropped { device: GPU, collection }), [load(B)]);
    let nowhere = Event::VectorsAsked { device: DeviceId(9), collection, bytes: 1 };
    assert_eq!(bench.step(nowhere), [Action::RefuseVectors { device: DeviceId(9), collection, missing: 1 }]);
}

#[test]
fn vectors_that_do_not_leave_in_time_end_the_worker() {
    let mut bench = bench(2, &[plan(), plan()]);
    let collection = CollectionId(7);
    bench.step(Event::VectorsAsked { device: GPU, collection, bytes: 2 * GIB });
    assert_eq!(bench.ask(A, Allowed::Any).1, [Action::DropVectors { device: GPU, collection }]);
    let actions = bench.pass(Duration::from_secs(120));
    assert!(actions.contains(&Action::Kill { device: GPU, cause: KillCause::LoadOverdue }), "{actions:?}");
    bench.down(GPU, Ending::Ordered);
    assert!(bench.machine.view().devices[1].accounts.is_empty());
}
