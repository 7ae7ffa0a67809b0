//! Which device gets what: the one that is done first, by what was measured.

use super::*;

/// GPUs that were measured at this many microseconds a text.
fn measured(speeds: [u64; 2], options: Options) -> Bench {
    let mut bench = Bench::up(2, options);
    bench.measure(GPU, speeds[0]);
    bench.measure(GPU2, speeds[1]);
    bench
}

#[test]
fn a_text_goes_to_the_faster_idle_device() {
    for (speeds, wanted) in [([2, 40], GPU), ([40, 2], GPU2)] {
        let mut bench = measured(speeds, Options::default());
        let request = bench.gpu_request(16);
        assert_eq!(only_start(&bench.submit(request).1).device, wanted);
    }
}

#[test]
fn a_text_waits_for_the_faster_device_if_that_is_done_sooner() {
    let mut bench = measured([2, 400], Options::default());
    let first = bench.gpu_request(16);
    bench.submit(first);
    let second = bench.gpu_request(16);
    assert!(bench.submit(second).1.is_empty());
}

#[test]
fn the_slower_device_is_used_when_that_is_done_sooner() {
    let mut bench = measured([20, 40], Options::default());
    let first = bench.gpu_request(100);
    let used: Vec<DeviceId> = starts(&bench.submit(first).1).iter().map(|start| start.device).collect();
    assert_eq!(used, [GPU, GPU2], "both halves of the work are done sooner so");
    let mut bench = measured([20, 40], Options::default());
    let first = Request { allowed: Allowed::Only(GPU), ..bench.request(100) };
    bench.submit(first);
    let second = bench.gpu_request(1);
    assert_eq!(only_start(&bench.submit(second).1).device, GPU2);
}

#[test]
fn a_slow_device_takes_no_more_than_it_does_while_the_fast_one_does_the_rest() {
    let mut bench = measured([2, 40], Options::default());
    let request = bench.gpu_request(3_000);
    let started = starts(&bench.submit(request).1);
    let texts = |device| started.iter().filter(|start| start.device == device).map(Start::texts).sum::<usize>();
    assert_eq!(texts(GPU), 1_024, "{started:?}");
    // All in all about 6.3 ms of the fast one: no more than 155 texts of the slow one.
    assert!((20..=155).contains(&texts(GPU2)), "{}", texts(GPU2));
}

#[test]
fn a_slow_device_takes_what_would_wait_longest() {
    let mut bench = measured([2, 5_000], Options::default());
    let request = bench.gpu_request(3_000);
    let started = starts(&bench.submit(request).1);
    let slow = started.iter().find(|start| start.device == GPU2).unwrap();
    assert_eq!(slow.steps.last().unwrap().sequences.end, 3_000);
}

#[test]
fn a_device_that_was_never_measured_is_tried_once_and_nobody_waits_for_it() {
    let mut bench = Bench::up(2, Options::default());
    bench.measure(GPU, 20);
    let request = bench.gpu_request(1);
    assert_eq!(only_start(&bench.submit(request).1).device, GPU2);
    let request = bench.gpu_request(1);
    assert_eq!(only_start(&bench.submit(request).1).device, GPU);
    let request = bench.gpu_request(1);
    assert!(bench.submit(request).1.is_empty());
}

#[test]
fn a_batch_that_hangs_does_not_keep_the_next_waiting_for_its_device() {
    let mut bench = measured([2, 4_000], Options::default());
    let request = Request { allowed: Allowed::Only(GPU), ..bench.request(200) };
    bench.submit(request);
    let request = bench.gpu_request(8);
    assert!(bench.submit(request).1.is_empty());
    let started = starts(&bench.pass(Duration::from_millis(20)));
    assert!(!started.is_empty(), "it was expected after half a millisecond");
}

#[test]
fn a_hot_device_is_reckoned_slower() {
    let mut bench = measured([10, 14], Options::default());
    bench.step(Event::Judged { device: GPU, condition: Condition::Hot { weight: 0.5 } });
    assert!((bench.machine.view().devices[1].weight - 0.5).abs() < 1e-9);
    let request = bench.gpu_request(1);
    assert_eq!(only_start(&bench.submit(request).1).device, GPU2);
}

#[test]
fn in_turn_means_one_after_the_other_whatever_their_speeds() {
    let options = Options { placement: Placement::RoundRobin, ..Options::default() };
    let mut bench = measured([2, 400], options);
    let mut used = Vec::new();
    for _ in 0..4 {
        let request = bench.gpu_request(1);
        let start = only_start(&bench.submit(request).1);
        used.push(start.device);
        bench.finish(start.batch);
    }
    assert_eq!(used, [GPU, GPU2, GPU, GPU2]);
}

#[test]
fn a_request_for_one_device_goes_nowhere_else() {
    let mut bench = measured([2, 400], Options::default());
    let request = Request { allowed: Allowed::Only(GPU2), ..bench.request(1) };
    assert_eq!(only_start(&bench.submit(request).1).device, GPU2);
}

#[test]
fn a_model_that_is_assigned_to_a_device_is_computed_there_and_by_the_cpu_where_that_cannot_be() {
    let mut bench = measured([2, 400], Options::default());
    for _ in 0..3 {
        let request = Request { allowed: Allowed::Rather(GPU2), ..bench.request(1) };
        let start = only_start(&bench.submit(request).1);
        assert_eq!(start.device, GPU2, "neither the faster GPU nor the idle CPU");
        bench.finish(start.batch);
    }
    let request = Request { allowed: Allowed::Rather(GPU2), ..bench.request(1) };
    bench.submit(request);
    let start = only_start(&bench.down(GPU2, Ending::Killed));
    assert_eq!(start.device, CPU);
    let (_, report) = completions(&bench.finish(start.batch))[0].clone();
    assert_eq!(report.fallback, Some(Fallback::Unhealthy));
}

#[test]
fn a_device_whose_memory_is_full_is_trimmed_gets_less_and_then_only_what_the_cpu_may_not_compute() {
    let mut bench = Bench::up(1, Options::default());
    bench.measure(GPU, 2);
    let full = MemoryUse { used: 996, total: 1_000 };
    let mut told = Vec::new();
    for _ in 0..9 {
        let actions = bench.step(Event::MemoryUse { device: GPU, memory: full });
        let trims = actions.iter().filter(|action| matches!(action, Action::Trim { device: GPU })).count();
        let step = actions.iter().find_map(|action| match action {
            Action::Notice { notice: Notice::Memory { step, .. }, .. } => Some(*step),
            _ => None,
        });
        assert_eq!(trims, usize::from(step.is_some()), "{actions:?}");
        told.extend(step);
    }
    assert_eq!(told, [MemoryStep::Trimmed, MemoryStep::Reduced, MemoryStep::Avoided]);
    assert!((bench.machine.view().devices[1].weight - 0.5).abs() < 1e-9);
    let request = bench.request(1);
    let start = only_start(&bench.submit(request).1);
    assert_eq!(start.device, CPU);
    assert_eq!(completions(&bench.finish(start.batch))[0].1.fallback, Some(Fallback::OutOfMemory));
    let request = bench.gpu_request(1);
    let start = only_start(&bench.submit(request).1);
    assert_eq!(start.device, GPU, "nothing else may compute it");
    bench.finish(start.batch);
    for _ in 0..12 {
        bench.step(Event::MemoryUse { device: GPU, memory: MemoryUse { used: 100, total: 1_000 } });
    }
    assert!((bench.machine.view().devices[1].weight - 1.0).abs() < 1e-9);
    let request = bench.request(8);
    assert_eq!(only_start(&bench.submit(request).1).device, GPU);
}

#[test]
fn a_model_is_computed_at_its_home_alone_and_no_other_model_there() {
    let spec = |kind, location, is_reserved| DeviceSpec {
        kind,
        location,
        slots: 2,
        batch_tokens_max: 4_096,
        batch_tokens_least: 1,
        memory: Budget::UNBOUNDED,
        is_reserved,
    };
    let specs = vec![
        spec(DeviceKind::Cpu, Location::InProcess, false),
        spec(DeviceKind::Gpu, Location::Worker, false),
        spec(DeviceKind::Cpu, Location::Worker, true),
    ];
    let plans = vec![ModelPlan::default(), ModelPlan { home: Some(GPU2), ..ModelPlan::default() }];
    let machine = Machine::new(specs, plans, Options::default());
    let mut bench = Bench { machine, now: Moment::START, next_request: 0, is_obliging: true };
    bench.step(Event::Tick);
    for device in [GPU, GPU2] {
        bench.step(Event::Up { device });
    }
    let residency = bench.machine.view().models.into_iter().map(|model| model.residency).collect::<Vec<_>>();
    let there = |model: usize| residency[model].iter().map(|on| *on == Residency::OnDevice).collect::<Vec<_>>();
    assert_eq!((there(0), there(1)), (vec![true, true, false], vec![false, false, true]));
    for allowed in [Allowed::Any, Allowed::Cpu, Allowed::Only(GPU2)] {
        let mut request = Request { allowed, ..bench.request(1) };
        request.group.model = ModelId(1);
        let start = only_start(&bench.submit(request).1);
        assert_eq!(start.device, GPU2, "{allowed:?}");
        bench.finish(start.batch);
    }
    let elsewhere = Request { allowed: Allowed::Only(GPU2), ..bench.request(1) };
    assert!(starts(&bench.submit(elsewhere).1).is_empty());
    // What the home's worker had goes to its next worker, and to no other device.
    let mut request = bench.request(1);
    request.group.model = ModelId(1);
    bench.submit(request);
    let actions = bench.step(Event::Down { device: GPU2, ending: Ending::Killed });
    assert!(starts(&actions).is_empty(), "{actions:?}");
    bench.pass(Duration::from_secs(1));
    assert_eq!(only_start(&bench.step(Event::Up { device: GPU2 })).device, GPU2);
}
