//! How much work is taken: what lies ahead of a request is bounded by time, and large requests are not starved.
//! The CPU alone computes here, at a speed that batches tell behind which others wait.

use super::*;

/// A CPU of which nothing is known.
fn unmeasured() -> Bench {
    let limits = Limits { wait_max: Some(Duration::from_millis(20)), ..Limits::default() };
    Bench::up(0, Options { limits, ..Options::default() })
}

/// A CPU that computes 20 tokens in 200 us, and may have 2,000 tokens ahead of a request.
fn measured() -> Bench {
    let mut bench = unmeasured();
    let first = bench.request(1_000);
    let mut running = starts(&bench.submit(first).1).pop();
    while let Some(batch) = running {
        running = compute(&mut bench, &batch);
    }
    bench
}

/// A request of this many texts of 20 tokens: whether it is taken, and the batch that it starts.
fn come(bench: &mut Bench, texts: usize) -> (bool, Option<Start>) {
    come_as(bench, Priority::Normal, texts)
}

fn come_as(bench: &mut Bench, priority: Priority, texts: usize) -> (bool, Option<Start>) {
    let request = Request { priority, ..bench.request(texts) };
    let actions = bench.submit(request).1;
    match refusals(&actions)[..] {
        [] => (true, starts(&actions).pop()),
        [(_, Refused::Full { .. })] => (false, None),
        ref other => panic!("{other:?}"),
    }
}

fn is_taken(bench: &mut Bench, texts: usize) -> bool {
    come(bench, texts).0
}

/// Submits requests of one text until one is refused. How many were taken, and the batch that runs.
fn fill(bench: &mut Bench) -> (usize, Option<Start>) {
    let (mut taken, mut running) = (0, None);
    loop {
        let (is_taken, started) = come(bench, 1);
        running = running.or(started);
        if !is_taken {
            return (taken, running);
        }
        taken += 1;
    }
}

/// Submits as many requests of one text as are taken; the batch that runs.
fn fill_exactly(bench: &mut Bench) -> Start {
    (0..100).fold(None, |running: Option<Start>, _| running.or(come(bench, 1).1)).unwrap()
}

/// Computes a batch at the speed of the first one; the next one.
fn compute(bench: &mut Bench, batch: &Start) -> Option<Start> {
    let compute = Duration::from_micros(200) * u32::try_from(batch.texts()).unwrap();
    starts(&bench.step(Event::Finished { batch: batch.batch, compute, outcomes: Vec::new() })).pop()
}

#[test]
fn what_lies_ahead_is_bounded_by_time() {
    assert_eq!(fill(&mut measured()).0, 100, "100 texts of 20 tokens are 20 ms of work");
}

#[test]
fn a_request_is_taken_by_what_lies_ahead_of_it_and_not_by_its_own_size() {
    let mut bench = measured();
    // A second of work: too long to stand before others, and nobody's fault.
    let (is_large_taken, started) = come(&mut bench, 5_000);
    assert!(is_large_taken);
    // What is computed of it lies ahead of nobody any more.
    let (mut batch, mut computed) = (started.unwrap(), 0);
    while 5_000 - computed > 99 {
        assert!(!is_taken(&mut bench, 100), "{computed} texts are computed");
        computed += batch.texts();
        batch = compute(&mut bench, &batch).unwrap();
    }
    assert_eq!(bench.machine.view().tokens, 100_000, "it is held whole until its end");
    assert!(is_taken(&mut bench, 1));
}

#[test]
fn before_a_speed_is_known_no_wait_is_predicted() {
    let mut bench = unmeasured();
    let batches = (0..40).filter(|_| is_taken(&mut bench, 4_096 / 20)).count();
    assert_eq!(batches, 40, "all that the queue has room for");
}

#[test]
fn small_requests_starved_a_large_one() {
    let mut bench = measured();
    let running = fill_exactly(&mut bench);
    assert!(!is_taken(&mut bench, 30));
    // One text is computed, and its room is kept for the large one.
    let next = compute(&mut bench, &running).unwrap();
    assert!(!is_taken(&mut bench, 1));
    assert!(is_taken(&mut bench, 30));
    assert!(!is_taken(&mut bench, 1), "the queue is full again");
    let mut running = Some(next);
    while let Some(batch) = running {
        running = compute(&mut bench, &batch);
    }
    assert_eq!(fill(&mut bench).0, 100, "nothing is kept any more");
}

#[test]
fn room_is_not_kept_for_ever_for_one_that_does_not_come_back() {
    let mut bench = measured();
    let running = fill_exactly(&mut bench);
    assert!(!is_taken(&mut bench, 30));
    compute(&mut bench, &running);
    assert!(!is_taken(&mut bench, 1));
    bench.pass(Duration::from_secs(1));
    assert!(is_taken(&mut bench, 1));
}

#[test]
fn those_that_come_when_told_are_taken_before_others() {
    let mut bench = measured();
    let mut running = fill(&mut bench).1;
    let ask = |bench: &mut Bench, mark: u64| {
        let (caller, tokens, priority, allowed) = (CallerId(0), 400, Priority::Normal, Allowed::Any);
        let (new_tokens, is_here, coming) = (0, true, Coming::default());
        let sketch =
            Sketch { caller, tokens, new_tokens, jobs: 1, mark: Some(mark), is_here, coming, priority, allowed };
        match bench.machine.would_take(&sketch, bench.now) {
            Ok(_) => None,
            Err(Refused::Full { retry_after }) => Some(bench.now + retry_after),
            Err(other) => panic!("{other:?}"),
        }
    };
    let told: Vec<_> = (0..5).map(|mark| ask(&mut bench, mark).unwrap()).collect();
    assert!(told.is_sorted() && told[0] < told[4], "one after the other: {told:?}");
    assert_eq!(ask(&mut bench, 0), Some(told[0]), "the same again");
    for (mark, due) in told.iter().enumerate() {
        while let Some(batch) = running.take_if(|_| bench.now < *due) {
            running = compute(&mut bench, &batch);
        }
        bench.pass(due.since(bench.now));
        assert_eq!(ask(&mut bench, mark as u64), None, "{mark}");
        let (is_taken, started) = come(&mut bench, 20);
        assert!(is_taken);
        running = running.or(started);
    }
}

#[test]
fn a_quarter_of_the_room_is_left_to_small_requests() {
    let mut bench = measured();
    let mut running = fill(&mut bench).1;
    // More than there ever is room for.
    assert!(!is_taken(&mut bench, 10_000));
    while let Some(batch) = running {
        running = compute(&mut bench, &batch);
    }
    assert_eq!(fill(&mut bench).0, 25);
    assert!(is_taken(&mut bench, 10_000));
}

#[test]
fn those_who_were_told_to_come_count_as_if_they_were_there() {
    let mut bench = measured();
    assert!(is_taken(&mut bench, 1));
    let now = bench.now;
    let mut would_take = |tokens, coming_tokens| {
        let (caller, priority, allowed) = (CallerId(0), Priority::Normal, Allowed::Any);
        let coming = Coming { requests: coming_tokens / 20, tokens: coming_tokens, new_tokens: 0 };
        let mark = Some(tokens);
        let sketch = Sketch { caller, tokens, new_tokens: 0, jobs: 1, mark, is_here: false, coming, priority, allowed };
        bench.machine.would_take(&sketch, now).is_ok()
    };
    assert!(would_take(500, 1_000));
    assert!(!would_take(500, 1_980));
    // It was turned away like one that was submitted.
    assert!(!would_take(20, 1_500));
    assert!(would_take(20, 1_400));
}

#[test]
fn a_queue_that_is_full_for_others_takes_what_is_urgent() {
    let mut bench = measured();
    fill(&mut bench);
    assert!(!come_as(&mut bench, Priority::Low, 1).0);
    // Only what is as urgent lies ahead of it.
    assert!(come_as(&mut bench, Priority::High, 99).0);
    assert!(come_as(&mut bench, Priority::High, 1).0);
    assert!(!come_as(&mut bench, Priority::High, 1).0, "20 ms of urgent work are there");
}

#[test]
fn low_requests_leave_half_of_the_queue_to_others() {
    let mut bench = measured();
    let low = (0..).take_while(|_| come_as(&mut bench, Priority::Low, 1).0).count();
    assert_eq!(low, 50);
    assert_eq!(fill(&mut bench).0, 50);
    let limits = Limits { requests_max: 5, ..Limits::default() };
    let mut bench = Bench::up(0, Options { limits, ..Options::default() });
    let low = (0..).take_while(|_| come_as(&mut bench, Priority::Low, 1).0).count();
    assert_eq!((low, fill(&mut bench).0), (3, 2));
    assert!(!come_as(&mut bench, Priority::High, 1).0, "the bounds hold for all");
}

#[test]
fn a_large_low_request_that_was_refused_keeps_no_room_from_others() {
    let mut bench = measured();
    let running = fill(&mut bench).1.unwrap();
    assert!(!come_as(&mut bench, Priority::Low, 30).0);
    compute(&mut bench, &running);
    assert!(is_taken(&mut bench, 1));
}

#[test]
fn tokens_that_are_free_would_be_taken_of_anyone() {
    let mut bench = Bench::up(1, Options::default());
    bench.measure(CPU, 1);
    bench.measure(GPU, 1);
    let tokens = bench.machine.free_tokens();
    assert!(tokens > 0);
    for priority in [Priority::Low, Priority::Normal, Priority::High] {
        for allowed in [Allowed::Any, Allowed::Gpu, Allowed::Only(CPU)] {
            let (caller, new_tokens, is_here, coming) = (CallerId(9), 0, false, Coming::default());
            let sketch =
                Sketch { caller, tokens, new_tokens, jobs: 1, mark: Some(1), is_here, coming, priority, allowed };
            assert!(bench.machine.would_take(&sketch, bench.now).is_ok());
        }
    }
    bench.step(Event::Draining);
    assert_eq!(bench.machine.free_tokens(), 0);
}

#[test]
fn small_batches_say_nothing_of_the_time_that_a_gpu_takes_for_large_ones() {
    let limits = Limits { wait_max: Some(Duration::from_millis(20)), ..Limits::default() };
    let mut bench = Bench::up(1, Options { limits, ..Options::default() });
    let large = |bench: &mut Bench| Request { sequences: vec![Sequence::one_step(256); 100], ..bench.gpu_request(0) };
    // One text of 20 tokens in 200 us: at this speed 2,000 tokens would be all that 20 ms have room for.
    let first = bench.gpu_request(1);
    let start = only_start(&bench.submit(first).1);
    bench.finish(start.batch);
    for _ in 0..3 {
        let request = large(&mut bench);
        assert!(refusals(&bench.submit(request).1).is_empty());
    }
}

#[test]
fn small_batches_say_nothing_of_the_time_that_a_cpu_takes_for_large_ones() {
    let limits = Limits { wait_max: Some(Duration::from_millis(500)), ..Limits::default() };
    let options = Options { limits, ..Options::default() };
    let mut bench = Bench::up(0, Options::default());
    let cpu = DeviceSpec {
        kind: DeviceKind::Cpu,
        location: Location::InProcess,
        slots: 2,
        batch_tokens_max: 4_096,
        batch_tokens_least: 512,
        memory: Budget::UNBOUNDED,
        is_reserved: false,
    };
    bench.machine = Machine::new(vec![cpu], vec![ModelPlan::default()], options);
    bench.step(Event::Tick);
    // One text of 20 tokens in 10 ms: at this speed 1,000 tokens would be all that 500 ms have room for.
    let first = bench.request(1);
    let start = only_start(&bench.submit(first).1);
    bench.step(Event::Finished { batch: start.batch, compute: Duration::from_millis(10), outcomes: Vec::new() });
    for _ in 0..3 {
        let request = Request { sequences: vec![Sequence::one_step(256); 100], ..bench.request(0) };
        assert!(refusals(&bench.submit(request).1).is_empty());
    }
}
