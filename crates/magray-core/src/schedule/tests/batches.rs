//! What goes into a batch, how large it is, and when it starts.

use super::*;

/// A bench without GPUs whose CPU is busy with one text; what comes next has to wait.
fn busy(options: Options) -> (Bench, BatchId) {
    let mut bench = Bench::up(0, options);
    bench.measure(CPU, 1);
    let request = bench.request(1);
    let (_, actions) = bench.submit(request);
    (bench, only_start(&actions).batch)
}

fn with_batching(batching: Batching) -> Options {
    Options { batching, ..Options::default() }
}

#[test]
fn what_came_while_the_device_was_busy_goes_together() {
    let (mut bench, batch) = busy(Options::default());
    let ids: Vec<RequestId> = (0..5)
        .map(|_| {
            let request = bench.request(1);
            let (id, actions) = bench.submit(request);
            assert!(actions.is_empty());
            id
        })
        .collect();
    assert_eq!(only_start(&bench.finish(batch)).requests(), ids);
}

#[test]
fn requests_that_come_at_once_go_together_to_an_idle_device() {
    let mut bench = Bench::up(0, Options::default());
    bench.measure(CPU, 1);
    let requests = [bench.request(1), bench.request(2)];
    let ids = requests.clone().map(|request| request.id);
    let mut actions = Vec::new();
    bench.machine.step_all(requests.map(Event::Submitted), bench.now, &mut actions);
    assert_eq!(only_start(&actions).requests(), ids);
}

#[test]
fn groups_do_not_mix() {
    let (mut bench, batch) = busy(Options::default());
    let requests: Vec<Request> = (0..4)
        .map(|nth| Request { group: Group { model: crate::schedule::ModelId(0), key: nth % 2 }, ..bench.request(1) })
        .collect();
    requests.into_iter().for_each(|request| drop(bench.submit(request)));
    let first = only_start(&bench.finish(batch));
    let second = only_start(&bench.finish(first.batch));
    assert_eq!([first.texts(), second.texts()], [2, 2]);
    assert_eq!(first.requests(), [RequestId(bench.next_request - 3), RequestId(bench.next_request - 1)]);
}

#[test]
fn a_batch_keeps_to_its_bounds_and_a_large_request_is_split() {
    let (mut bench, mut batch) = busy(with_batching(Batching { texts_max: 100, ..Batching::default() }));
    let request = bench.request(250);
    let (id, _) = bench.submit(request);
    let mut seen = Vec::new();
    loop {
        let actions = bench.finish(batch);
        let Some(start) = starts(&actions).pop() else {
            assert_eq!(completions(&actions)[0].0, id);
            break;
        };
        assert!(start.texts() <= 100);
        seen.extend(start.steps[0].sequences.clone());
        batch = start.batch;
    }
    assert_eq!(seen, (0..250).collect::<Vec<u32>>());
}

#[test]
fn a_text_longer_than_a_batch_goes_alone() {
    let (mut bench, batch) = busy(Options::default());
    let long = Request { sequences: one_steps(&[9_000]), caller: CallerId(1), ..bench.request(1) };
    let (long, _) = bench.submit(long);
    let short = Request { caller: CallerId(2), ..bench.request(1) };
    let (short, _) = bench.submit(short);
    let first = only_start(&bench.finish(batch));
    assert_eq!(first.requests(), [long]);
    assert_eq!(only_start(&bench.finish(first.batch)).requests(), [short]);
}

#[test]
fn a_short_text_of_another_caller_does_not_pass_one_that_does_not_fit() {
    let (mut bench, batch) = busy(Options::default());
    let ids = [3_000, 3_000, 30].map(|tokens| {
        let request = bench.request(1);
        let caller = CallerId(request.id.0);
        bench.submit(Request { sequences: one_steps(&[tokens]), caller, ..request }).0
    });
    let first = only_start(&bench.finish(batch));
    assert_eq!(first.requests(), [ids[0]]);
    assert_eq!(only_start(&bench.finish(first.batch)).requests(), [ids[1], ids[2]]);
}

#[test]
fn urgent_ones_go_first_but_nobody_waits_longer_than_the_age_bound() {
    for (wait, first) in [(Duration::ZERO, Priority::High), (Duration::from_millis(200), Priority::Low)] {
        let (mut bench, batch) = busy(with_batching(Batching { texts_max: 1, ..Batching::default() }));
        let low = Request { priority: Priority::Low, ..bench.request(1) };
        let (low, _) = bench.submit(low);
        bench.now = bench.now + wait;
        let high = Request { priority: Priority::High, ..bench.request(1) };
        let (high, _) = bench.submit(high);
        let wanted = if first == Priority::High { high } else { low };
        assert_eq!(only_start(&bench.finish(batch)).requests(), [wanted]);
    }
}

#[test]
fn the_second_slot_waits_for_a_full_batch_or_the_end_of_the_first() {
    let mut bench = Bench::up(1, Options::default());
    bench.measure(GPU, 2);
    let request = bench.gpu_request(500);
    let (_, actions) = bench.submit(request);
    assert_eq!(starts(&actions).len(), 1);
    let more = bench.gpu_request(4);
    let (_, actions) = bench.submit(more);
    assert!(actions.is_empty(), "a small batch can still grow: {actions:?}");
    // 100 us + 500 texts of 2 us each: the end is near after a millisecond.
    let end = bench.now + Duration::from_micros(1_100);
    let wake = bench.machine.next_wake().unwrap();
    assert!(
        (Duration::from_micros(50)..Duration::from_micros(250)).contains(&end.since(wake)),
        "{:?}",
        end.since(wake)
    );
    bench.now = wake;
    assert_eq!(only_start(&bench.step(Event::Tick)).texts(), 4);
}

#[test]
fn the_second_slot_takes_a_full_batch_at_once_and_there_is_no_third() {
    let mut bench = Bench::up(1, Options::default());
    bench.measure(GPU, 2);
    let request = bench.gpu_request(2_000);
    let (_, actions) = bench.submit(request);
    assert_eq!(starts(&actions).iter().map(Start::texts).collect::<Vec<_>>(), [512, 512]);
}

#[test]
fn batches_stop_growing_where_the_fixed_cost_is_a_small_part() {
    // A batch costs 0.1 ms and 0.1 ms a text: of 20 texts, 5 % are fixed, of 200 texts half a percent.
    for (texts, wanted) in [(10, 10..=10), (40, 18..=21), (5_000, 180..=210)] {
        let mut bench = Bench::up(0, with_batching(Batching { texts_max: 100_000, ..Batching::default() }));
        bench.measure(CPU, 100);
        let request = bench.request(texts);
        let taken = only_start(&bench.submit(request).1).texts();
        assert!(wanted.contains(&taken), "{taken} of {texts}");
    }
}

#[test]
fn the_last_digit_of_a_time_left_the_last_text_behind() {
    for micros in 1..100 {
        let mut bench = Bench::up(0, Options::default());
        bench.measure(CPU, micros);
        for texts in 2..12 {
            let request = bench.request(texts);
            let start = only_start(&bench.submit(request).1);
            assert_eq!(start.texts(), texts, "at {micros} us a text");
            bench.step(Event::Finished {
                batch: start.batch,
                compute: Duration::from_micros(100 + micros * texts as u64),
                outcomes: Vec::new(),
            });
        }
    }
}

#[test]
fn fixed_batches_wait_for_their_number_or_their_time() {
    let sizing = Sizing::Fixed { texts: 3, timeout: Duration::from_millis(5) };
    let mut bench = Bench::up(0, with_batching(Batching { sizing, ..Batching::default() }));
    for _ in 0..2 {
        let request = bench.request(1);
        assert!(bench.submit(request).1.is_empty());
    }
    let request = bench.request(1);
    let start = only_start(&bench.submit(request).1);
    assert_eq!(start.texts(), 3);
    bench.finish(start.batch);
    let request = bench.request(1);
    assert!(bench.submit(request).1.is_empty());
    assert_eq!(bench.machine.next_wake(), Some(bench.now + Duration::from_millis(5)));
    assert_eq!(only_start(&bench.pass(Duration::from_millis(5))).texts(), 1);
}

#[test]
fn nobody_was_woken_when_age_alone_gave_an_unmeasured_group_the_next_slot() {
    let mut bench = Bench::up(1, Options::default());
    bench.measure(GPU, 2);
    let request = bench.gpu_request(1);
    bench.submit(request);
    let unmeasured = Request { group: Group { model: crate::schedule::ModelId(0), key: 7 }, ..bench.gpu_request(1) };
    let (id, actions) = bench.submit(unmeasured);
    assert!(actions.is_empty(), "its cost is unknown, and the device is busy");
    let started = only_start(&bench.pass(Duration::from_millis(200)));
    assert_eq!(started.requests(), [id]);
}
