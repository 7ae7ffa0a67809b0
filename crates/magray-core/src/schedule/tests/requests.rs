//! What is taken, refused, expired and cancelled.
//! Every request here gets one answer, or none because nobody waits for it.

use super::*;

#[test]
fn a_text_is_computed_at_once_and_answered_once() {
    let mut bench = Bench::up(1, Options::default());
    let request = bench.request(1);
    let (id, actions) = bench.submit(request);
    let start = only_start(&actions);
    assert_eq!((start.device, start.requests()), (GPU, vec![id]));
    bench.now = bench.now + Duration::from_micros(300);
    let actions = bench.finish(start.batch);
    let (answered, report) = completions(&actions)[0].clone();
    assert_eq!((answered, report.device, report.batch_texts, report.fallback), (id, GPU, 1, None));
    assert_eq!((report.queued, report.computed), (Duration::ZERO, Duration::from_micros(300)));
    assert!(bench.finish(start.batch).is_empty(), "the same batch again is no news");
    assert_eq!(bench.machine.view().requests, 0);
}

#[test]
fn more_requests_than_the_bound_are_refused_with_a_time_to_come_back() {
    let limits = Limits { requests_max: 2, tokens_max: 1_000, wait_max: None };
    let mut bench = Bench::up(0, Options { limits, ..Options::default() });
    let answers: Vec<_> = (0..3)
        .flat_map(|_| {
            let request = bench.request(1);
            refusals(&bench.submit(request).1)
        })
        .collect();
    let Refused::Full { retry_after } = answers[0].1 else { panic!("{answers:?}") };
    assert!((Duration::from_millis(10)..=Duration::from_secs(5)).contains(&retry_after));
    assert_eq!(answers.len(), 1);
}

#[test]
fn tokens_are_bounded_and_a_request_beyond_them_is_too_large() {
    let limits = Limits { requests_max: 100, tokens_max: 100, wait_max: None };
    let mut bench = Bench::up(0, Options { limits, ..Options::default() });
    let requests = [bench.request(6), bench.request(4), bench.request(3)];
    let [large, fits, over] = requests.map(|request| refusals(&bench.submit(request).1));
    assert_eq!(large[0].1, Refused::TooLarge);
    assert!(fits.is_empty());
    assert!(matches!(over[0].1, Refused::Full { .. }));
}

#[test]
fn a_deadline_passes_in_the_queue_in_a_batch_and_at_the_door() {
    let mut bench = Bench::up(0, Options::default());
    let deadline = Some(bench.now + Duration::from_millis(5));
    let running = Request { deadline, ..bench.request(1) };
    let (running, actions) = bench.submit(running);
    let start = only_start(&actions);
    let waiting = Request { deadline, ..bench.request(1) };
    let (waiting, actions) = bench.submit(waiting);
    assert!(actions.is_empty());
    let refused = refusals(&bench.pass(Duration::from_millis(5)));
    assert_eq!(refused, [(running, Refused::Expired), (waiting, Refused::Expired)]);
    assert!(completions(&bench.finish(start.batch)).is_empty(), "an expired request is not answered again");
    let late = Request { deadline, ..bench.request(1) };
    assert_eq!(refusals(&bench.submit(late).1)[0].1, Refused::Expired);
    assert_eq!(bench.machine.view().tokens, 0);
}

#[test]
fn an_answer_at_the_deadline_comes_too_late() {
    let mut bench = Bench::up(0, Options::default());
    let request = Request { deadline: Some(bench.now + Duration::from_millis(5)), ..bench.request(1) };
    let (id, actions) = bench.submit(request);
    bench.now = bench.now + Duration::from_millis(5);
    let actions = bench.finish(only_start(&actions).batch);
    assert_eq!(actions, [Action::Refuse { request: id, refused: Refused::Expired }]);
}

#[test]
fn a_cancelled_request_disappears_and_its_room_is_free_when_its_batch_ends() {
    let mut bench = Bench::up(0, Options::default());
    let (running, waiting) = (bench.request(1), bench.request(2));
    let (running, actions) = bench.submit(running);
    let (waiting, _) = bench.submit(waiting);
    assert!(bench.step(Event::Cancelled(waiting)).is_empty());
    assert!(bench.step(Event::Cancelled(running)).is_empty());
    assert_eq!((bench.machine.view().requests, bench.machine.view().tokens), (1, 20));
    assert!(bench.finish(only_start(&actions).batch).is_empty());
    assert_eq!((bench.machine.view().requests, bench.machine.view().tokens), (0, 0));
    assert!(bench.step(Event::Cancelled(running)).is_empty());
}

#[test]
fn while_draining_what_was_taken_is_answered_and_nothing_more_is_taken() {
    let mut bench = Bench::up(0, Options::default());
    let (first, second) = (bench.request(1), bench.request(1));
    let (_, actions) = bench.submit(first);
    bench.step(Event::Draining);
    assert_eq!(refusals(&bench.submit(second).1)[0].1, Refused::Draining);
    assert_eq!(completions(&bench.finish(only_start(&actions).batch)).len(), 1);
}

#[test]
fn a_request_for_a_gpu_is_refused_where_there_is_none() {
    let mut bench = Bench::up(0, Options::default());
    let gpu = bench.gpu_request(1);
    let nowhere = Request { allowed: Allowed::Only(DeviceId(9)), ..bench.request(1) };
    for request in [gpu, nowhere] {
        assert_eq!(refusals(&bench.submit(request).1)[0].1, Refused::NoDevice(Fallback::Lost));
    }
}

#[test]
fn a_request_for_a_gpu_waits_for_one_that_starts() {
    let (mut bench, actions) = Bench::starting(1, Options::default());
    assert_eq!(actions, [Action::Spawn { device: GPU }]);
    let request = bench.gpu_request(1);
    assert!(bench.submit(request).1.is_empty());
    let actions = bench.step(Event::Up { device: GPU });
    assert_eq!(only_start(&actions).device, GPU);
    assert!(alerts(&actions).is_empty(), "the first start is no news");
}

#[test]
fn a_request_without_a_deadline_does_not_wait_for_ever_for_a_gpu() {
    let (mut bench, _) = Bench::starting(1, Options::default());
    let gpu = bench.gpu_request(1);
    let timed = Request { deadline: Some(bench.now + Duration::from_secs(100)), ..bench.gpu_request(1) };
    let (gpu, _) = bench.submit(gpu);
    let (timed, _) = bench.submit(timed);
    let refused = refusals(&bench.pass(Duration::from_secs(61)));
    assert_eq!(refused.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [gpu]);
    let refused = refusals(&bench.pass(Duration::from_secs(40)));
    assert_eq!(refused, [(timed, Refused::Expired)]);
}

#[test]
fn others_run_on_the_cpu_while_the_gpu_starts_and_say_so() {
    let (mut bench, _) = Bench::starting(1, Options::default());
    let request = bench.request(1);
    let (_, actions) = bench.submit(request);
    let start = only_start(&actions);
    assert_eq!(start.device, CPU);
    let (_, report) = completions(&bench.finish(start.batch))[0].clone();
    assert_eq!(report.fallback, Some(Fallback::Starting));
    let cpu = Request { allowed: Allowed::Cpu, ..bench.request(1) };
    let (_, actions) = bench.submit(cpu);
    let (_, report) = completions(&bench.finish(only_start(&actions).batch))[0].clone();
    assert_eq!(report.fallback, None, "who asks for the CPU does not fall back to it");
}
