//! Two models and room for one, with requests of both: how often weights move, and who waits.
//! Everything takes time here: loads, offloads and batches.

use super::*;

const LOAD: Duration = Duration::from_millis(100);
const OFFLOAD: Duration = Duration::from_millis(20);

/// A bench on which what was ordered happens after its time.
struct Timed {
    bench: Bench,
    due: Vec<(Moment, Event)>,
    answered: Vec<RequestId>,
    /// How long the CPU and the GPU take for a batch, or a pass of a turn.
    paces: [Duration; 2],
}

impl Timed {
    fn new(options: Options, paces: [Duration; 2]) -> Self {
        let mut bench = bench_of(1, 1, &[plan(), plan()], options);
        bench.step(Event::Up { device: GPU });
        Self { bench, due: Vec::new(), answered: Vec::new(), paces }
    }

    fn submit(&mut self, model: ModelId, allowed: Allowed, sequences: Vec<Sequence>) -> RequestId {
        let request = Request { group: Group { model, key: 0 }, allowed, sequences, ..self.bench.request(1) };
        let (id, actions) = self.bench.submit(request);
        self.order(actions);
        id
    }

    fn run(&mut self, time: Duration) {
        let end = self.bench.now + time;
        while self.bench.now < end {
            self.due.sort_by_key(|(at, _)| *at);
            // What is ordered meanwhile begins no later than this after it.
            let soon = self.bench.now + Duration::from_millis(1);
            let next = self.due.first().map_or(end, |(at, _)| *at).min(end).min(soon);
            let mut actions = self.bench.pass(next.since(self.bench.now));
            actions.extend(self.bench.step(Event::Heartbeat { device: GPU }));
            self.order(actions);
            while let Some(at) = self.due.iter().position(|(at, _)| *at <= self.bench.now) {
                let (_, event) = self.due.remove(at);
                let actions = self.bench.step(event);
                self.order(actions);
            }
        }
    }

    fn order(&mut self, actions: Vec<Action>) {
        for action in actions {
            let event = match action {
                Action::Load { device, model } => {
                    (LOAD, Event::Loaded { device, model, bytes: GIB, took: LOAD, from_host: true })
                }
                Action::Offload { device, model } => (OFFLOAD, Event::Offloaded { device, model }),
                Action::Start { device, batch, steps, passes, .. } => {
                    let compute = self.paces[usize::from(device == GPU)] * passes;
                    let outcomes = steps.iter().filter_map(outcome).collect();
                    (compute, Event::Finished { batch, compute, outcomes })
                }
                Action::Deliver { request, sequence, tokens, .. } => {
                    (Duration::ZERO, Event::Read { request, sequence, tokens })
                }
                Action::Complete { request, .. } => {
                    self.answered.push(request);
                    continue;
                }
                _ => continue,
            };
            self.due.push((self.bench.now + event.0, event.1));
        }
    }
}

fn outcome(step: &Step) -> Option<Outcome> {
    match &step.span {
        Span::Part { new_tokens_max, .. } => Some(Outcome::Tokens(*new_tokens_max)),
        Span::Whole => None,
    }
}

/// Weights of both models that came to the GPU so far.
fn loads(timed: &Timed) -> [u64; 2] {
    let models = timed.bench.machine.view().models;
    [models[0].loads, models[1].loads]
}

#[test]
fn a_model_came_back_again_and_again_before_the_one_that_it_had_left_for() {
    let mut timed = Timed::new(Options::default(), [Duration::from_secs(1), Duration::from_millis(50)]);
    for _ in 0..200 {
        timed.submit(A, Allowed::Gpu, vec![Sequence::one_step(10_000)]);
    }
    timed.run(Duration::from_secs(1));
    let late = timed.submit(B, Allowed::Gpu, vec![Sequence::one_step(10_000)]);
    timed.run(Duration::from_secs(1));
    assert!(timed.answered.contains(&late) && timed.answered.len() < 100, "older requests of the other still wait");
    timed.run(Duration::from_secs(20));
    assert_eq!((timed.answered.len(), loads(&timed)), (201, [2, 1]));
}

#[test]
fn a_long_answer_kept_a_second_language_model_away_until_its_end() {
    let mut timed = Timed::new(Options::default(), [Duration::from_secs(1), Duration::from_millis(5)]);
    let long = timed.submit(A, Allowed::Gpu, vec![Sequence::prompt(10, 1_000)]);
    timed.run(Duration::from_secs(1));
    let short = timed.submit(B, Allowed::Gpu, vec![Sequence::prompt(10, 20)]);
    timed.run(Duration::from_secs(1));
    assert_eq!((timed.answered.as_slice(), loads(&timed)), ([short].as_slice(), [2, 1]));
    timed.run(Duration::from_secs(10));
    assert_eq!((timed.answered.as_slice(), loads(&timed)), ([short, long].as_slice(), [2, 1]));
}

#[test]
fn two_models_made_each_other_leave_for_ever_while_the_gpu_computed_nothing() {
    // Where devices take turns, the GPU waits for the CPU, whose batch takes a minute.
    let options = Options { placement: Placement::RoundRobin, ..Options::default() };
    let mut timed = Timed::new(options, [Duration::from_secs(60), Duration::from_millis(5)]);
    timed.submit(A, Allowed::Cpu, vec![Sequence::one_step(100)]);
    timed.submit(B, Allowed::Cpu, vec![Sequence::one_step(100)]);
    timed.run(Duration::from_secs(1));
    // The GPU computes the first of these, and it is the CPU's turn.
    for model in [A, B] {
        timed.submit(model, Allowed::Any, vec![Sequence::one_step(100)]);
    }
    timed.run(Duration::from_secs(1));
    for model in [A, B] {
        timed.submit(model, Allowed::Any, vec![Sequence::one_step(100)]);
    }
    timed.run(Duration::from_secs(50));
    let moves: u64 = loads(&timed).iter().sum();
    assert!(moves < 30, "{moves}");
    timed.run(Duration::from_secs(200));
    assert_eq!(timed.answered.len(), 6);
}
