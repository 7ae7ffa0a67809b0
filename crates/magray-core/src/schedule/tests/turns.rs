//! Sequences of many steps: prompts in chunks, turns, slow readers, state that gives way, and what is lost with a worker.

use super::*;

/// A machine with one GPU that keeps this many tokens, of a byte each, and turns of this time.
fn bench(kv_max: u64, turn_max: Duration) -> Bench {
    bench_beside_cpu(0, kv_max, turn_max)
}

/// The same, where the CPU keeps tokens too.
fn bench_beside_cpu(cpu_kv_max: u64, kv_max: u64, turn_max: Duration) -> Bench {
    let generation = Generation { turn_max, unread_max: 4 };
    bench_with(cpu_kv_max, kv_max, Options { generation, ..Options::default() })
}

fn bench_with(cpu_kv_max: u64, kv_max: u64, options: Options) -> Bench {
    let spec = |kind, kv_max| DeviceSpec {
        kind,
        location: if kind == DeviceKind::Cpu { Location::InProcess } else { Location::Worker },
        slots: 2,
        batch_tokens_max: 4_096,
        batch_tokens_least: 1,
        memory: Budget { kv_max, ..Budget::UNBOUNDED },
        is_reserved: false,
    };
    let specs = vec![spec(DeviceKind::Cpu, cpu_kv_max), spec(DeviceKind::Gpu, kv_max)];
    let machine = Machine::new(specs, vec![ModelPlan::default()], options);
    let mut bench = Bench { machine, now: Moment::START, next_request: 0, is_obliging: true };
    bench.step(Event::Tick);
    bench.step(Event::Up { device: GPU });
    bench
}

const LONG: Duration = Duration::from_secs(1);

impl Bench {
    fn prompt(&mut self, tokens: u32, new_tokens_max: u32) -> (RequestId, Vec<Action>) {
        let request = Request { sequences: vec![Sequence::prompt(tokens, new_tokens_max)], ..self.request(1) };
        self.submit(request)
    }

    /// Ends a turn, a token for each step that may give one, and lets all of them be read.
    fn turn(&mut self, start: &Start) -> Vec<Action> {
        let mut actions = self.turn_unread(start);
        for (request, sequence, tokens) in delivered(&actions) {
            actions.extend(self.step(Event::Read { request, sequence, tokens }));
        }
        actions
    }

    fn turn_unread(&mut self, start: &Start) -> Vec<Action> {
        self.turn_within(start, Duration::from_micros(100))
    }

    /// A turn that took this long to compute.
    fn turn_within(&mut self, start: &Start, compute: Duration) -> Vec<Action> {
        self.now = self.now + Duration::from_millis(1).max(compute);
        let outcomes = start.steps.iter().map(|step| Outcome::Tokens(part(step).1.min(1))).collect();
        self.step(Event::Finished { batch: start.batch, compute, outcomes })
    }
}

fn part(step: &Step) -> (std::ops::Range<u32>, u32) {
    match &step.span {
        Span::Part { tokens, new_tokens_max } => (tokens.clone(), *new_tokens_max),
        Span::Whole => panic!("{step:?} is no part"),
    }
}

fn delivered(actions: &[Action]) -> Vec<(RequestId, u32, u32)> {
    let delivery = |action: &Action| match action {
        Action::Deliver { request, sequence, tokens, .. } => Some((*request, *sequence, *tokens)),
        _ => None,
    };
    actions.iter().filter_map(delivery).collect()
}

fn freed(actions: &[Action]) -> Vec<RequestId> {
    let free = |action: &Action| match action {
        Action::Free { request, .. } => Some(*request),
        _ => None,
    };
    actions.iter().filter_map(free).collect()
}

#[test]
fn a_prompt_is_computed_in_chunks_and_then_token_by_token() {
    let mut bench = bench(10_000, LONG);
    let (id, actions) = bench.prompt(2_000, 3);
    let mut start = only_start(&actions);
    let mut computed = 0;
    loop {
        let (tokens, new) = part(&start.steps[0]);
        assert_eq!(tokens.start, computed, "a chunk begins where the one before it ended");
        computed = tokens.end;
        let actions = bench.turn(&start);
        if new > 0 {
            assert_eq!(delivered(&actions), [(id, 0, 1)]);
        }
        if !completions(&actions).is_empty() {
            assert_eq!(freed(&actions), [id]);
            break;
        }
        start = only_start(&actions);
    }
    // The state of the last token is never needed.
    assert_eq!(computed, 2_002);
    assert_eq!((bench.machine.view().requests, bench.machine.view().devices[1].kv_bytes()), (0, 0));
}

/// Whatever is in a turn, a pass of it takes ten times as long as a turn may.
fn slow_turn(bench: &mut Bench, start: &Start) -> Vec<Action> {
    let tokens: usize = start.steps.iter().map(|step| part(step).0.len()).sum();
    let compute = Duration::from_millis(10) + Duration::from_micros(20) * tokens as u32;
    let mut actions = bench.turn_within(start, compute);
    for (request, sequence, tokens) in delivered(&actions) {
        actions.extend(bench.step(Event::Read { request, sequence, tokens }));
    }
    actions
}

#[test]
fn where_a_pass_takes_longer_than_a_turn_prompts_have_chunks_and_sequences_go_on_together() {
    let mut bench = bench(100_000, Duration::from_millis(1));
    let (_, actions) = bench.prompt(1_000, 1);
    let mut start = only_start(&actions);
    let mut chunks = Vec::new();
    loop {
        chunks.push(part(&start.steps[0]).0.len());
        let actions = slow_turn(&mut bench, &start);
        if !completions(&actions).is_empty() {
            break;
        }
        start = only_start(&actions);
    }
    assert!(chunks.len() < 12, "{chunks:?}");
    let (_, actions) = bench.prompt(4, 50);
    let mut start = only_start(&actions);
    for _ in 0..3 {
        bench.prompt(4, 50);
    }
    let mut together = 0;
    for _ in 0..20 {
        start = only_start(&slow_turn(&mut bench, &start));
        together = together.max(start.steps.len());
    }
    assert_eq!(together, 4);
}

#[test]
fn chunks_of_a_prompt_share_turns_with_single_tokens_within_the_time_of_a_turn() {
    let mut bench = bench(100_000, Duration::from_micros(150));
    let (talking, actions) = bench.prompt(4, 200);
    let mut start = only_start(&actions);
    let (reading, _) = bench.prompt(3_000, 1);
    let mut mixed = 0;
    for _ in 0..100 {
        let actions = bench.turn(&start);
        for action in &actions {
            if let Action::Start { expected, .. } = action {
                assert!(*expected <= Duration::from_micros(151), "{expected:?}");
            }
        }
        start = only_start(&actions);
        assert!(start.requests().contains(&talking), "a prompt stops nobody: {start:?}");
        mixed += usize::from(start.requests().contains(&reading));
    }
    assert!(mixed > 1, "the prompt takes {mixed} turns");
}

#[test]
fn what_came_last_gives_way_and_is_computed_again_from_all_its_tokens() {
    let mut bench = bench(100, LONG);
    let (first, actions) = bench.prompt(40, 60);
    let mut start = only_start(&actions);
    let (second, _) = bench.prompt(30, 60);
    let mut preempted = false;
    let mut last = None;
    let mut ended = Vec::new();
    for _ in 0..200 {
        let actions = bench.turn(&start);
        ended.extend(completions(&actions).into_iter().map(|(id, _)| id));
        preempted |= freed(&actions).contains(&second) && !ended.contains(&second);
        assert!(bench.machine.view().devices[1].kv_bytes() <= 100);
        let Some(next) = starts(&actions).pop() else { break };
        if let Some(step) = next.steps.iter().find(|step| step.request == second) {
            let (tokens, _) = part(step);
            assert!(tokens.start == 0 || Some(tokens.start) == last, "{tokens:?} after {last:?}");
            assert!(tokens.start > 0 || last.is_none_or(|last| tokens.end > last), "nothing known is forgotten");
            last = Some(tokens.end);
        }
        start = next;
    }
    assert!(preempted);
    assert_eq!(ended, [first, second]);
    assert_eq!(bench.machine.view().devices[1].kv_bytes(), 0);
}

#[test]
fn a_worker_that_dies_takes_the_state_along_and_no_token() {
    let mut bench = bench(10_000, LONG);
    let (_, actions) = bench.prompt(10, 20);
    let mut start = only_start(&actions);
    for _ in 0..5 {
        start = only_start(&bench.turn(&start));
    }
    assert_eq!(part(&start.steps[0]).0, 14..15);
    bench.down(GPU, Ending::Killed);
    assert_eq!(bench.machine.view().devices[1].kv_bytes(), 0);
    let again = only_start(&bench.step(Event::Up { device: GPU }));
    assert_eq!(part(&again.steps[0]).0, 0..15, "what was delivered is a prompt now");
}

#[test]
fn a_sequence_leaves_the_cpu_when_the_gpu_that_it_was_on_is_back() {
    let mut bench = bench_beside_cpu(10_000, 10_000, LONG);
    let (_, actions) = bench.prompt(10, 500);
    let mut start = only_start(&actions);
    assert_eq!(start.device, GPU);
    for _ in 0..5 {
        start = only_start(&bench.turn(&start));
    }
    let mut start = only_start(&bench.down(GPU, Ending::Killed));
    assert_eq!((start.device, part(&start.steps[0]).0), (CPU, 0..15), "it does not wait for the worker");
    let slow = |bench: &mut Bench, start: &Start| {
        let actions = bench.turn_within(start, Duration::from_millis(20));
        let reads = delivered(&actions).into_iter();
        let read = reads.flat_map(|(request, sequence, tokens)| bench.step(Event::Read { request, sequence, tokens }));
        let read: Vec<Action> = read.collect();
        only_start(&[actions, read].concat())
    };
    for known in 15..20 {
        start = slow(&mut bench, &start);
        assert_eq!((start.device, part(&start.steps[0]).0), (CPU, known..known + 1));
    }
    bench.step(Event::Up { device: GPU });
    bench.pass(Duration::from_millis(600));
    bench.step(Event::Probed { device: GPU, passed: true });
    let back = slow(&mut bench, &start);
    assert_eq!((back.device, part(&back.steps[0]).0), (GPU, 0..21), "all known tokens are computed again");
    assert_eq!(bench.machine.view().devices[0].kv_bytes(), 0);
}

#[test]
fn a_slow_reader_pauses_its_own_sequence_and_no_other() {
    let mut bench = bench(10_000, LONG);
    let (slow, actions) = bench.prompt(10, 20);
    let mut start = only_start(&actions);
    for _ in 0..3 {
        start = only_start(&bench.turn_unread(&start));
    }
    assert!(starts(&bench.turn_unread(&start)).is_empty(), "four tokens are unread");
    let (other, actions) = bench.prompt(10, 20);
    start = only_start(&actions);
    assert_eq!(start.requests(), [other]);
    bench.step(Event::Read { request: slow, sequence: 0, tokens: 1 });
    assert_eq!(only_start(&bench.turn(&start)).requests(), [slow, other]);
}

#[test]
fn a_paused_sequence_gives_way_to_a_prompt_that_has_no_space() {
    let mut bench = bench(100, LONG);
    let (slow, actions) = bench.prompt(60, 20);
    let mut start = only_start(&actions);
    for _ in 0..3 {
        start = only_start(&bench.turn_unread(&start));
    }
    bench.turn_unread(&start);
    let (_, actions) = bench.prompt(60, 20);
    assert_eq!(freed(&actions), [slow]);
    assert_eq!(starts(&actions).len(), 1);
}

#[test]
fn the_state_of_a_cancelled_sequence_is_freed_when_its_step_has_ended() {
    let mut bench = bench(10_000, LONG);
    let (id, actions) = bench.prompt(10, 20);
    let start = only_start(&actions);
    assert!(freed(&bench.step(Event::Cancelled(id))).is_empty());
    let actions = bench.turn(&start);
    assert_eq!((freed(&actions), delivered(&actions)), (vec![id], Vec::new()));
    assert_eq!((bench.machine.view().requests, bench.machine.view().devices[1].kv_bytes()), (0, 0));
}

#[test]
fn a_sequence_that_no_device_has_space_for_is_refused_at_once() {
    let mut bench = bench(100, LONG);
    let (id, actions) = bench.prompt(60, 41);
    assert_eq!(refusals(&actions), [(id, Refused::TooLarge)]);
    assert!(refusals(&bench.prompt(60, 40).1).is_empty());
}

#[test]
fn a_model_that_leaves_its_device_takes_the_state_of_its_sequences_along() {
    let mut bench = bench(10_000, LONG);
    bench.is_obliging = true;
    let (id, actions) = bench.prompt(10, 20);
    let start = only_start(&actions);
    bench.step(Event::ResidencyRequested { model: ModelId(0), request: ResidencyRequest::Offload });
    let actions = bench.turn_unread(&start);
    assert_eq!(freed(&actions), [id]);
    // It is wanted again at once, and computed from its beginning.
    assert_eq!(part(&only_start(&actions).steps[0]).0, 0..11);
}

#[test]
fn a_sequence_that_goes_on_after_a_worker_was_lost_is_not_refused_when_another_is() {
    let mut bench = bench(10_000, LONG);
    let (id, actions) = bench.prompt(10, 20);
    assert_eq!(starts(&actions).len(), 1);
    for lost in 0..6 {
        let actions = bench.down(GPU, Ending::Crashed);
        assert_eq!(refusals(&actions), [], "after {lost} workers");
        let mut actions = bench.step(Event::Up { device: GPU });
        actions.extend(bench.pass(Duration::from_millis(600)));
        actions.extend(bench.step(Event::Probed { device: GPU, passed: true }));
        bench.step(Event::Reset { device: GPU });
        let start = only_start(&actions);
        assert_eq!(start.requests(), [id]);
        assert_eq!(starts(&bench.turn(&start)).len(), 1);
    }
    // One that never does is.
    bench.down(GPU, Ending::Crashed);
    bench.step(Event::Up { device: GPU });
    assert_eq!(refusals(&bench.down(GPU, Ending::Crashed)), [(id, Refused::Poison)]);
}

#[test]
fn a_prompt_that_would_wait_too_long_for_space_is_told_when_it_will_not() {
    let limits = Limits { wait_max: Some(Duration::from_millis(100)), ..Limits::default() };
    let generation = Generation { turn_max: LONG, unread_max: 4 };
    let mut bench = bench_with(0, 1_000, Options { limits, generation, ..Options::default() });
    let refused = |actions: &[Action]| match refusals(actions)[..] {
        [] => None,
        [(_, Refused::Full { retry_after })] => Some(retry_after),
        ref other => panic!("{other:?}"),
    };
    // Ten of these fill the space; each has a token in a millisecond.
    let mut start = only_start(&bench.prompt(10, 90).1);
    (1..10).for_each(|_| assert_eq!(refused(&bench.prompt(10, 90).1), None));
    for _ in 0..20 {
        start = only_start(&bench.turn(&start));
    }
    let waiting = (0..100).take_while(|_| refused(&bench.prompt(10, 90).1).is_none()).count();
    assert!((5..15).contains(&waiting), "{waiting} wait up to 100 ms where ten take 90 ms");
    let told = refused(&bench.prompt(10, 290).1).expect("there is no space for the small ones either");
    assert!(told <= Duration::from_millis(60), "{told:?}");
    let (until, mut actions) = (bench.now + told, Vec::new());
    while bench.now < until {
        actions = bench.turn(&start);
        start = only_start(&actions);
    }
    assert_eq!(refused(&bench.prompt(10, 290).1), None, "{actions:?}");
}

#[test]
fn several_answers_of_a_prompt_are_taken_together_or_refused_together() {
    let limits = Limits { requests_max: 20, tokens_max: 10_000, wait_max: None };
    let new_bench = || bench_with(0, 1_000_000, Options { limits, ..Options::default() });
    let sketch = |jobs: u32, tokens: u64| Sketch {
        caller: CallerId(0),
        tokens: u64::from(jobs) * tokens,
        new_tokens: u64::from(jobs) * tokens,
        jobs,
        mark: Some(1),
        is_here: true,
        coming: Coming::default(),
        priority: Priority::Normal,
        allowed: Allowed::Any,
    };
    let mut taken = 0;
    for (jobs, tokens) in
        [(10, 250), (10, 280), (10, 300), (10, 500), (4, 700), (4, 800), (2, 1_400), (2, 1_700), (15, 10), (20, 10)]
    {
        let mut bench = new_bench();
        match bench.machine.would_take(&sketch(jobs, tokens), bench.now) {
            Ok(_) => {
                taken += 1;
                for answer in 0..jobs {
                    let (_, actions) = bench.prompt(tokens as u32, tokens as u32);
                    assert!(refusals(&actions).is_empty(), "answer {answer} of {jobs} of {tokens} tokens");
                }
            }
            // It may come again for ever, and nothing else is there.
            Err(refused) => assert_eq!(refused, Refused::TooLarge, "{jobs} of {tokens} tokens"),
        }
    }
    assert!((3..8).contains(&taken), "{taken}");
}
