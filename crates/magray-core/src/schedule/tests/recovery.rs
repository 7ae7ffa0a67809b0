//! Workers that fail in all their ways: nothing is lost, and devices leave and return as they should.

use super::*;

/// A measured GPU that computes a request of this many texts, which only a GPU may compute.
fn computing(texts: usize) -> (Bench, RequestId, Start) {
    let mut bench = Bench::up(1, Options::default());
    bench.measure(GPU, 2);
    let request = bench.gpu_request(texts);
    let (id, actions) = bench.submit(request);
    (bench, id, only_start(&actions))
}

fn spawned(actions: &[Action]) -> bool {
    actions.contains(&Action::Spawn { device: GPU })
}

fn killed(actions: &[Action], cause: KillCause) -> bool {
    actions.contains(&Action::Kill { device: GPU, cause })
}

#[test]
fn a_crash_respawns_at_once_and_the_batch_runs_again() {
    let (mut bench, id, _) = computing(3);
    let actions = bench.down(GPU, Ending::Crashed);
    assert!(spawned(&actions));
    assert_eq!(alerts(&actions), [(GPU, left(Fallback::Unhealthy))]);
    assert_eq!(bench.state(GPU), DeviceState::Recovering(Fallback::Unhealthy));
    let actions = bench.step(Event::Up { device: GPU });
    assert_eq!(alerts(&actions), [(GPU, Change::Returned)]);
    let (answered, report) = completions(&bench.finish(only_start(&actions).batch))[0].clone();
    assert_eq!((answered, report.replays), (id, 1));
    assert_eq!(bench.machine.view().devices[1].failures, 0, "a worker that had worked is no failure of the device");
    assert_eq!(bench.machine.view().devices[1].restarts, 1);
}

#[test]
fn what_may_run_anywhere_falls_back_to_the_cpu_at_once() {
    let mut bench = Bench::up(1, Options::default());
    bench.measure(GPU, 2);
    let request = bench.request(1);
    let (_, actions) = bench.submit(request);
    assert_eq!(only_start(&actions).device, GPU);
    let start = only_start(&bench.down(GPU, Ending::Killed));
    assert_eq!(start.device, CPU);
    let (_, report) = completions(&bench.finish(start.batch))[0].clone();
    assert_eq!(report.fallback, Some(Fallback::Unhealthy));
}

#[test]
fn news_of_a_worker_that_is_gone_is_ignored() {
    let (mut bench, _, start) = computing(1);
    bench.down(GPU, Ending::Crashed);
    assert!(bench.finish(start.batch).is_empty());
    assert!(bench.fail(start.batch, Failure::Sticky).is_empty());
    assert!(bench.down(GPU, Ending::Ordered).is_empty(), "nobody ordered the new one to end");
    let again = only_start(&bench.step(Event::Up { device: GPU }));
    assert!(bench.step(Event::Up { device: GPU }).is_empty());
    assert!(bench.step(Event::Probed { device: GPU, passed: false }).is_empty());
    assert!(bench.step(Event::Up { device: DeviceId(40) }).is_empty());
    assert_eq!(completions(&bench.finish(again.batch)).len(), 1);
}

#[test]
fn a_full_memory_halves_the_batch_and_is_no_failure() {
    let (mut bench, id, start) = computing(400);
    let actions = bench.fail(start.batch, Failure::OutOfMemory);
    assert!(actions.contains(&Action::Trim { device: GPU }));
    let smaller = starts(&actions);
    assert!(smaller.iter().all(|start| start.texts() <= 200 && start.device == GPU), "{smaller:?}");
    let mut open = smaller;
    let mut answered = Vec::new();
    while let Some(start) = open.pop() {
        let actions = bench.finish(start.batch);
        open.extend(starts(&actions));
        answered.extend(completions(&actions));
    }
    assert_eq!(answered[0].0, id);
    assert_eq!(bench.machine.view().devices[1].failures, 0);
    for _ in 0..8 {
        let request = bench.gpu_request(1);
        let (_, actions) = bench.submit(request);
        bench.finish(only_start(&actions).batch);
    }
    let request = bench.gpu_request(400);
    let (_, actions) = bench.submit(request);
    assert!(starts(&actions)[0].texts() > 200, "after good batches it is tried with more");
}

#[test]
fn a_single_text_that_does_not_fit_goes_to_the_cpu_or_is_refused() {
    let (mut bench, id, start) = computing(1);
    let refused = refusals(&bench.fail(start.batch, Failure::OutOfMemory));
    assert_eq!(refused, [(id, Refused::NoDevice(Fallback::OutOfMemory))]);
    let request = bench.request(1);
    let (_, actions) = bench.submit(request);
    let start = only_start(&bench.fail(only_start(&actions).batch, Failure::OutOfMemory));
    assert_eq!(start.device, CPU);
    let (_, report) = completions(&bench.finish(start.batch))[0].clone();
    assert_eq!(report.fallback, Some(Fallback::OutOfMemory));
}

#[test]
fn only_the_text_that_does_not_fit_leaves_the_gpu() {
    let mut bench = Bench::up(1, Options::default());
    bench.measure(GPU, 2);
    bench.measure(CPU, 4_000);
    let request = Request { sequences: one_steps(&[10_000, 10_000, 10]), ..bench.request(0) };
    let (_, actions) = bench.submit(request);
    let mut open = starts(&actions);
    let mut devices = Vec::new();
    while let Some(start) = open.pop() {
        let is_first = start.steps[0].sequences == (0..1) && start.device == GPU;
        let actions = if is_first { bench.fail(start.batch, Failure::OutOfMemory) } else { bench.finish(start.batch) };
        devices.extend(start.steps.iter().map(|step| (step.sequences.clone(), start.device)));
        open.extend(starts(&actions));
    }
    assert!(devices.contains(&(0..1, CPU)), "{devices:?}");
    assert!(devices.iter().all(|(texts, device)| texts.start == 0 || *device == GPU), "{devices:?}");
    assert_eq!(bench.machine.view().requests, 0);
}

#[test]
fn a_batch_that_hangs_is_replayed_only_when_its_worker_is_gone() {
    let (mut bench, id, start) = computing(1);
    let actions = bench.pass(Duration::from_millis(999));
    assert!(actions.is_empty(), "{actions:?}");
    let actions = bench.pass(Duration::from_millis(10));
    assert!(killed(&actions, KillCause::Overdue));
    assert!(starts(&actions).is_empty() && !spawned(&actions));
    assert!(spawned(&bench.down(GPU, Ending::Ordered)));
    assert_eq!(only_start(&bench.step(Event::Up { device: GPU })).requests(), [id]);
    assert!(bench.finish(start.batch).is_empty(), "the first try does not count any more");
}

#[test]
fn an_answer_that_comes_before_the_end_of_a_hung_worker_still_counts() {
    let (mut bench, id, start) = computing(1);
    bench.pass(Duration::from_millis(1_010));
    assert_eq!(completions(&bench.finish(start.batch))[0].0, id);
    assert!(starts(&bench.down(GPU, Ending::Ordered)).is_empty());
}

#[test]
fn a_silent_worker_is_ended_and_a_late_driver_is_no_silence() {
    let mut bench = Bench::up(1, Options::default());
    let actions = bench.pass_with(Duration::from_millis(1_500), false);
    assert!(killed(&actions, KillCause::Silent));
    let mut bench = Bench::up(1, Options::default());
    bench.now = bench.now + Duration::from_secs(10);
    assert!(bench.step(Event::Tick).is_empty(), "signs of life may lie unread");
    let actions = bench.pass_with(Duration::from_millis(1_500), false);
    assert!(killed(&actions, KillCause::Silent));
}

#[test]
fn a_driver_that_was_late_took_a_living_worker_with_a_late_batch_for_dead() {
    let options = || {
        let recovery = Recovery { overdue_least: Duration::from_secs(5), ..Recovery::default() };
        Options { recovery, ..Options::default() }
    };
    // A batch of some milliseconds is late after the first tenths of a second.
    let late = || {
        let mut bench = Bench::up(1, options());
        bench.measure(GPU, 2);
        let request = bench.gpu_request(1);
        let (_, actions) = bench.submit(request);
        assert_eq!(starts(&actions).len(), 1);
        bench.step(Event::Heartbeat { device: GPU });
        bench
    };
    let mut bench = late();
    assert!(!killed(&bench.pass_with(Duration::from_millis(599), false), KillCause::Silent));
    assert!(killed(&bench.pass_with(Duration::from_millis(2), false), KillCause::Silent), "the driver was in time");
    // Stalled once, for longer than a worker may be silent.
    let mut bench = late();
    bench.now = bench.now + Duration::from_secs(1);
    assert!(!killed(&bench.step(Event::Tick), KillCause::Silent));
    assert!(!killed(&bench.pass_with(Duration::from_millis(199), false), KillCause::Silent));
    assert!(killed(&bench.pass_with(Duration::from_millis(600), false), KillCause::Silent));
    // A little late, again and again.
    let mut bench = late();
    let begin = bench.now;
    let mut actions = Vec::new();
    while !killed(&actions, KillCause::Silent) {
        let wake = bench.machine.next_wake().unwrap();
        bench.now = wake.max(bench.now) + Duration::from_millis(40);
        actions = bench.step(Event::Tick);
    }
    let silent = bench.now.since(begin);
    assert!(silent > Duration::from_millis(800), "{silent:?}: nothing that lay unread could be told");
    assert!(silent < Duration::from_millis(1_200), "{silent:?}: it is dead all the same");
}

#[test]
fn transient_failures_climb_the_ladder_and_a_probe_brings_the_device_back() {
    let (mut bench, _, mut start) = computing(1);
    for failures in 1..=3 {
        start = only_start(&bench.fail(start.batch, Failure::Transient));
        assert_eq!(bench.machine.view().devices[1].failures, failures);
    }
    let actions = bench.fail(start.batch, Failure::Transient);
    assert_eq!(alerts(&actions), [(GPU, left(Fallback::Unhealthy))]);
    assert!(starts(&actions).is_empty());
    assert!(bench.pass(Duration::from_millis(499)).is_empty());
    assert_eq!(bench.pass(Duration::from_millis(1)), [Action::Probe { device: GPU }]);
    assert!(killed(&bench.step(Event::Probed { device: GPU, passed: false }), KillCause::Sticky));
    assert!(bench.down(GPU, Ending::Ordered).is_empty());
    assert!(bench.pass(Duration::from_millis(999)).is_empty(), "twice as long");
    assert!(spawned(&bench.pass(Duration::from_millis(1))));
    assert_eq!(bench.step(Event::Up { device: GPU }), [Action::Probe { device: GPU }]);
    let actions = bench.step(Event::Probed { device: GPU, passed: true });
    assert_eq!(alerts(&actions), [(GPU, Change::Returned)]);
    assert_eq!(bench.machine.view().devices[1].failures, 3);
    let actions = bench.fail(only_start(&actions).batch, Failure::Transient);
    assert_eq!(alerts(&actions), [(GPU, left(Fallback::Unhealthy))], "no second chance");
}

#[test]
fn probes_that_fail_end_with_a_device_out_until_it_is_reset() {
    let (mut bench, id, mut start) = computing(1);
    for _ in 1..=3 {
        start = only_start(&bench.fail(start.batch, Failure::Transient));
    }
    bench.fail(start.batch, Failure::Transient);
    let mut actions = Vec::new();
    assert_eq!(bench.pass(Duration::from_millis(500)), [Action::Probe { device: GPU }]);
    for _ in 0..2 {
        bench.step(Event::Probed { device: GPU, passed: false });
        bench.down(GPU, Ending::Ordered);
        assert!(spawned(&bench.pass(Duration::from_secs(5))));
        assert_eq!(bench.step(Event::Up { device: GPU }), [Action::Probe { device: GPU }]);
    }
    actions.extend(bench.step(Event::Probed { device: GPU, passed: false }));
    assert_eq!(bench.state(GPU), DeviceState::Out(Fallback::Unhealthy));
    assert!(alerts(&actions).contains(&(GPU, Change::Left { reason: Fallback::Unhealthy, is_permanent: true })));
    assert_eq!(refusals(&actions), [(id, Refused::NoDevice(Fallback::Unhealthy))]);
    assert!(killed(&actions, KillCause::RuledOut));
    assert!(!spawned(&bench.down(GPU, Ending::Ordered)));
    assert!(bench.pass(Duration::from_secs(100)).is_empty());
    let request = bench.gpu_request(1);
    assert_eq!(refusals(&bench.submit(request).1)[0].1, Refused::NoDevice(Fallback::Unhealthy));
    assert!(spawned(&bench.step(Event::Reset { device: GPU })));
    assert_eq!(bench.step(Event::Up { device: GPU }), [Action::Probe { device: GPU }]);
    assert_eq!(alerts(&bench.step(Event::Probed { device: GPU, passed: true })), [(GPU, Change::Returned)]);
}

#[test]
fn a_request_that_fails_twice_prefers_another_device_and_ends_on_the_cpu() {
    let mut bench = Bench::up(2, Options::default());
    bench.measure(GPU, 2);
    bench.measure(GPU2, 4);
    let request = bench.request(1);
    let (_, actions) = bench.submit(request);
    let mut used = Vec::new();
    let mut start = only_start(&actions);
    for _ in 0..4 {
        used.push(start.device);
        start = only_start(&bench.fail(start.batch, Failure::Transient));
    }
    assert_eq!(used[..3], [GPU, GPU, GPU2]);
    assert_eq!(start.device, CPU);
    let (_, report) = completions(&bench.finish(start.batch))[0].clone();
    assert_eq!((report.replays, report.fallback), (4, Some(Fallback::Unhealthy)));
}

#[test]
fn a_crash_loop_is_bounded() {
    let (mut bench, _) = Bench::starting(1, Options::default());
    let mut spawns = 0;
    for _ in 0..50 {
        bench.step(Event::Up { device: GPU });
        let mut actions = bench.down(GPU, Ending::Crashed);
        actions.extend(bench.pass(Duration::from_secs(5)));
        spawns += u32::from(spawned(&actions));
    }
    assert_eq!(bench.state(GPU), DeviceState::Out(Fallback::Unhealthy));
    assert_eq!(spawns, 6);
}

#[test]
fn a_worker_that_does_not_start_is_tried_again_and_again_later() {
    let (mut bench, _) = Bench::starting(1, Options::default());
    let actions = bench.down(GPU, Ending::NotStarted);
    assert_eq!(alerts(&actions), [(GPU, left(Fallback::Unhealthy))]);
    assert!(!spawned(&actions) && spawned(&bench.pass(Duration::from_millis(500))));
    let actions = bench.pass(Duration::from_secs(60));
    assert!(killed(&actions, KillCause::StartOverdue));
    assert!(!spawned(&bench.down(GPU, Ending::Ordered)) && spawned(&bench.pass(Duration::from_secs(1))));
    assert_eq!(alerts(&bench.step(Event::Up { device: GPU })), [(GPU, Change::Returned)]);
}

#[test]
fn wrong_answers_take_a_device_out_and_replace_its_worker_before_the_probe() {
    let (mut bench, _, start) = computing(1);
    let actions = bench.fail(start.batch, Failure::WrongAnswer);
    assert!(killed(&actions, KillCause::Sticky));
    assert_eq!(alerts(&actions), [(GPU, left(Fallback::WrongAnswers))]);
    assert!(spawned(&bench.down(GPU, Ending::Ordered)));
    assert!(bench.step(Event::Up { device: GPU }).is_empty());
    assert_eq!(bench.pass(Duration::from_millis(500)), [Action::Probe { device: GPU }]);
    let actions = bench.step(Event::Probed { device: GPU, passed: true });
    assert_eq!(starts(&actions).len(), 1);
    assert_eq!(bench.machine.view().devices[1].failures, 1);
}

#[test]
fn a_device_ruled_out_loses_its_batches_at_once_and_returns_by_a_probe() {
    let mut bench = Bench::up(1, Options::default());
    bench.measure(GPU, 2);
    let request = bench.request(1);
    let (_, actions) = bench.submit(request);
    assert_eq!(only_start(&actions).device, GPU);
    let bad = Condition::Bad(Fault::Xid(79));
    let actions = bench.step(Event::Judged { device: GPU, condition: bad });
    assert!(killed(&actions, KillCause::RuledOut));
    assert_eq!(alerts(&actions), [(GPU, left(Fallback::Ruled(Fault::Xid(79))))]);
    assert_eq!(only_start(&actions).device, CPU);
    assert!(bench.down(GPU, Ending::Ordered).is_empty());
    assert!(bench.pass(Duration::from_secs(50)).is_empty());
    assert!(bench.step(Event::Judged { device: GPU, condition: bad }).is_empty());
    assert!(spawned(&bench.step(Event::Judged { device: GPU, condition: Condition::Fine })));
    assert_eq!(bench.step(Event::Up { device: GPU }), [Action::Probe { device: GPU }]);
    assert_eq!(alerts(&bench.step(Event::Probed { device: GPU, passed: true })), [(GPU, Change::Returned)]);
}

#[test]
fn a_lost_device_is_looked_for_again_and_never_given_up() {
    let (mut bench, _, start) = computing(1);
    let actions = bench.fail(start.batch, Failure::Lost);
    assert_eq!(alerts(&actions), [(GPU, left(Fallback::Lost))]);
    assert!(!spawned(&bench.down(GPU, Ending::Ordered)));
    for ending in [Ending::Lost, Ending::NotStarted].repeat(10) {
        assert!(spawned(&bench.pass(Duration::from_secs(31))));
        bench.down(GPU, ending);
        assert_eq!(bench.state(GPU), DeviceState::Recovering(Fallback::Lost));
    }
    bench.pass(Duration::from_secs(31));
    assert_eq!(bench.step(Event::Up { device: GPU }), [Action::Probe { device: GPU }]);
    let actions = bench.step(Event::Probed { device: GPU, passed: true });
    assert_eq!(alerts(&actions), [(GPU, Change::Returned)]);
}

#[test]
fn a_probe_that_hangs_ends_the_worker() {
    let (mut bench, _, start) = computing(1);
    bench.fail(start.batch, Failure::WrongAnswer);
    bench.down(GPU, Ending::Ordered);
    bench.step(Event::Up { device: GPU });
    assert!(bench.pass(Duration::from_secs(1)).contains(&Action::Probe { device: GPU }));
    assert!(killed(&bench.pass(Duration::from_secs(6)), KillCause::Overdue));
}

#[test]
fn a_device_given_up_by_an_earlier_process_is_not_started_before_a_reset() {
    let specs = vec![DeviceSpec {
        kind: DeviceKind::Gpu,
        location: Location::Worker,
        slots: 2,
        batch_tokens_max: 16_384,
        batch_tokens_least: 1,
        memory: Budget { kv_max: 4_096, ..Budget::UNBOUNDED },
        is_reserved: false,
    }];
    let mut machine = Machine::new(specs, vec![ModelPlan::default()], Options::default());
    let device = DeviceId(0);
    let mut actions = Vec::new();
    machine.step(Event::GivenUp { device }, Moment::START, &mut actions);
    assert!(actions.is_empty());
    machine.step(Event::Reset { device }, Moment::START, &mut actions);
    assert_eq!(actions, [Action::Spawn { device }]);
    machine.step(Event::GivenUp { device }, Moment::START, &mut actions);
    assert_eq!(actions[1..], [Action::Kill { device, cause: KillCause::RuledOut }]);
    assert!(machine.view().devices[0].state.is_settled());
}

/// A GPU whose batch is late, and whose last sign of life came just now.
fn late() -> Bench {
    let (mut bench, ..) = computing(1);
    bench.pass(Duration::from_millis(200));
    bench.step(Event::Heartbeat { device: GPU });
    bench
}

#[test]
fn silence_while_the_driver_itself_was_away_ends_no_worker_with_a_late_batch() {
    let least = Recovery::default().late_silence_max;
    for away_ms in [450, 500, 550] {
        let mut bench = late();
        let said = bench.now;
        // The driver does something, and then nothing for a while: it is back when the silence would have lasted too long.
        bench.now = bench.now + Duration::from_millis(610 - away_ms);
        bench.step(Event::Cancelled(RequestId(999)));
        bench.now = said + Duration::from_millis(610);
        assert!(bench.now.since(said) > least);
        let actions = bench.step(Event::Tick);
        assert!(!killed(&actions, KillCause::Silent), "{away_ms} ms: what was said meanwhile has not been read");
        bench.step(Event::Heartbeat { device: GPU });
        let actions = bench.pass(Duration::from_millis(300));
        assert!(!killed(&actions, KillCause::Silent), "{away_ms} ms");
    }
}

#[test]
fn silence_while_the_driver_was_there_ends_a_worker_with_a_late_batch_in_time() {
    let (mut bench, said) = (late(), Duration::from_millis(1));
    let least = Recovery::default().late_silence_max;
    assert!(!killed(&bench.pass_with(least - said, false), KillCause::Silent));
    assert!(killed(&bench.pass_with(2 * said, false), KillCause::Silent));
}

#[test]
fn a_driver_that_was_away_sees_a_silent_worker_a_little_later() {
    let mut bench = late();
    bench.now = bench.now + Duration::from_millis(700);
    assert!(!killed(&bench.step(Event::Tick), KillCause::Silent));
    assert!(killed(&bench.pass_with(Duration::from_secs(1), false), KillCause::Silent));
}
