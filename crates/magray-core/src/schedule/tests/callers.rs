//! How callers share the devices: by tokens, whatever the number of their requests, and without waiting for the long ones.
//! The CPU alone computes here, 20 tokens in 100 us, in slices of 2 ms.

use super::*;

/// A batch costs 0.1 ms and 0.1 ms a text of 20 tokens.
fn bench(limits: Limits) -> Bench {
    let slices = Some(Slices { cpu: Duration::from_millis(2), gpu: Duration::from_millis(2) });
    let batching = Batching { slices, ..Batching::default() };
    let mut bench = Bench::up(0, Options { batching, limits, ..Options::default() });
    bench.measure(CPU, 100);
    bench
}

fn from(bench: &mut Bench, caller: u64, texts: usize) -> (RequestId, Option<Start>) {
    let request = Request { caller: CallerId(caller), ..bench.request(texts) };
    let (id, actions) = bench.submit(request);
    assert!(refusals(&actions).is_empty(), "{actions:?}");
    (id, starts(&actions).pop())
}

fn next(bench: &mut Bench, batch: &Start) -> Option<Start> {
    let compute = Duration::from_micros(100 + 100 * batch.texts() as u64);
    bench.now = bench.now + compute;
    starts(&bench.step(Event::Finished { batch: batch.batch, compute, outcomes: Vec::new() })).pop()
}

/// Texts of each request in a batch.
fn parts(batch: &Start) -> Vec<(RequestId, usize)> {
    batch.steps.iter().map(|step| (step.request, step.sequences.len())).collect()
}

#[test]
fn a_long_request_of_one_caller_held_up_the_short_ones_of_another() {
    let mut bench = bench(Limits::default());
    let (long, started) = from(&mut bench, 1, 500);
    let started = started.unwrap();
    assert!(started.texts() <= 20, "a slice is 2 ms");
    let (short, _) = from(&mut bench, 2, 1);
    let second = next(&mut bench, &started).unwrap();
    assert_eq!(parts(&second)[0], (short, 1));
    assert_eq!(parts(&second)[1].0, long, "the rest of the batch is not wasted");
    assert!(second.texts() <= 15, "what is short does not wait for a whole slice");
}

#[test]
fn a_long_request_of_a_caller_held_up_its_own_short_ones() {
    let mut bench = bench(Limits::default());
    let (_, started) = from(&mut bench, 1, 500);
    let (short, _) = from(&mut bench, 1, 1);
    let second = next(&mut bench, &started.unwrap()).unwrap();
    assert_eq!(parts(&second)[0], (short, 1));
}

#[test]
fn requests_of_equal_length_of_one_caller_go_one_after_the_other() {
    let mut bench = bench(Limits::default());
    let (first, started) = from(&mut bench, 1, 100);
    let (second, _) = from(&mut bench, 1, 100);
    let (mut running, mut ended) = (started, Vec::new());
    while let Some(batch) = running {
        ended.extend(parts(&batch).last().map(|part| part.0));
        running = next(&mut bench, &batch);
    }
    assert!(ended.is_sorted(), "{ended:?}");
    assert_eq!((ended[0], ended[ended.len() - 1]), (first, second));
}

#[test]
fn more_requests_at_a_time_bring_no_more() {
    let mut bench = bench(Limits::default());
    let (_, mut running) = from(&mut bench, 1, 400);
    let (mut many, mut one) = (0, 0);
    let greedy: Vec<RequestId> = (0..20).map(|_| from(&mut bench, 2, 20).0).collect();
    for _ in 0..20 {
        let batch = running.take().unwrap();
        for (id, texts) in parts(&batch) {
            *if greedy.contains(&id) { &mut many } else { &mut one } += texts;
        }
        running = next(&mut bench, &batch);
    }
    assert!(usize::abs_diff(many, one) <= 40, "{many} and {one} texts");
}

#[test]
fn a_caller_that_asks_again_at_once_does_not_go_before_one_that_waits() {
    let mut bench = bench(Limits::default());
    let (waits, running) = from(&mut bench, 1, 400);
    let (mut running, mut texts) = (running.unwrap(), 0);
    from(&mut bench, 2, 15);
    for _ in 0..20 {
        running = next(&mut bench, &running).unwrap();
        let own = parts(&running).iter().filter(|part| part.0 == waits).map(|part| part.1).sum::<usize>();
        texts += own;
        if own < running.texts() {
            from(&mut bench, 2, 15);
        }
    }
    assert!(texts >= 120, "{texts} of about 300 texts");
}

#[test]
fn a_short_request_is_taken_beside_more_than_may_wait() {
    let limits = Limits { wait_max: Some(Duration::from_millis(20)), ..Limits::default() };
    let mut bench = bench(limits);
    // Half a second of work, whose own size does not count.
    from(&mut bench, 1, 5_000);
    from(&mut bench, 2, 1);
    from(&mut bench, 1, 1);
    let again = Request { caller: CallerId(1), ..bench.request(5_000) };
    let refused = refusals(&bench.submit(again).1);
    assert!(matches!(refused[..], [(_, Refused::Full { .. })]), "{refused:?}");
}

#[test]
fn a_refused_caller_finds_room_when_it_was_told_to() {
    let limits = Limits { wait_max: Some(Duration::from_millis(20)), ..Limits::default() };
    let mut bench = bench(limits);
    let (_, running) = from(&mut bench, 1, 2_000);
    let ask = |bench: &mut Bench| {
        let (tokens, caller, priority, allowed) = (40_000, CallerId(1), Priority::Normal, Allowed::Any);
        let sketch = Sketch {
            caller,
            tokens,
            new_tokens: 0,
            jobs: 1,
            mark: Some(1),
            is_here: false,
            coming: Coming::default(),
            priority,
            allowed,
        };
        let now = bench.now;
        bench.machine.would_take(&sketch, now)
    };
    let Err(Refused::Full { retry_after }) = ask(&mut bench) else { panic!("there is work for 0.2 s") };
    let (begun, mut running) = (bench.now, running.unwrap());
    while ask(&mut bench).is_err() {
        running = next(&mut bench, &running).unwrap();
    }
    let ratio = bench.now.since(begun).as_secs_f64() / retry_after.as_secs_f64();
    assert!((0.5..2.0).contains(&ratio), "{ratio}: {retry_after:?}");
}

#[test]
fn a_caller_leaves_room_to_others() {
    let mut bench = bench(Limits { requests_max: 1_000, tokens_max: 1_000, wait_max: None });
    let taken = (0..50).take_while(|_| {
        let request = Request { caller: CallerId(1), ..bench.request(1) };
        refusals(&bench.submit(request).1).is_empty()
    });
    assert_eq!(taken.count(), 37, "three quarters of 1,000 tokens");
    from(&mut bench, 2, 1);
}
