//! A model of which workers have a part: the memory of their devices has room for that part, where the whole would not fit.

use super::*;

const PART: PartInWorkers = PartInWorkers { bytes: 1_000, kv_token_bytes: 1 };

/// A CPU and a GPU with room for 1,300 bytes of weights and 200 of the state of sequences.
fn bench(in_workers: Option<PartInWorkers>) -> Bench {
    let spec = |kind, location, memory_max| DeviceSpec {
        kind,
        location,
        slots: 2,
        batch_tokens_max: 4_096,
        batch_tokens_least: 1,
        memory: Budget { memory_max, context: 0, kv_max: 200 },
        is_reserved: false,
    };
    let specs =
        vec![spec(DeviceKind::Cpu, Location::InProcess, u64::MAX), spec(DeviceKind::Gpu, Location::Worker, 1_600)];
    let plan = ModelPlan { bytes: 10_000, kv_token_bytes: 4, in_workers, ..ModelPlan::default() };
    let machine = Machine::new(specs, vec![plan], Options::default());
    let mut bench = Bench { machine, now: Moment::START, next_request: 0, is_obliging: false };
    bench.step(Event::Tick);
    bench
}

/// A prompt for a GPU, which keeps this many tokens at the end.
fn prompt(bench: &mut Bench, tokens: u32) -> Vec<Action> {
    let sequences = vec![Sequence::prompt(tokens - 10, 10)];
    let request = Request { allowed: Allowed::Gpu, sequences, ..bench.request(1) };
    bench.submit(request).1
}

fn account(bench: &Bench, device: usize, owner: Owner) -> u64 {
    let accounts = &bench.machine.view().devices[device].accounts;
    accounts.iter().find(|(found, _)| *found == owner).map_or(0, |(_, bytes)| *bytes)
}

#[test]
fn a_gpu_counts_the_part_of_weights_and_state_that_it_has() {
    let mut bench = bench(Some(PART));
    let mut actions = bench.step(Event::Up { device: GPU });
    actions.extend(prompt(&mut bench, 190));
    let model = ModelId(0);
    assert!(actions.contains(&Action::Load { device: GPU, model }), "{actions:?}");
    let weights = |bench: &Bench| [0, 1].map(|device| account(bench, device, Owner::Weights(model)));
    assert_eq!(weights(&bench), [10_000, PART.bytes]);
    let loaded = Event::Loaded { device: GPU, model, bytes: 900, took: Duration::ZERO, from_host: false };
    let start = only_start(&bench.step(loaded));
    assert_eq!((start.device, weights(&bench)), (GPU, [10_000, 900]));
    assert!((180..=200).contains(&account(&bench, 1, Owner::Kv(model))), "a byte a token");
}

#[test]
fn what_does_not_fit_as_a_whole_does_not_come_and_long_sequences_have_no_space() {
    let mut whole = bench(None);
    let mut actions = whole.step(Event::Up { device: GPU });
    actions.extend(prompt(&mut whole, 40));
    assert!(!actions.iter().any(|action| matches!(action, Action::Load { .. })), "{actions:?}");
    for (in_workers, tokens, has_space) in [(None, 60, false), (Some(PART), 60, true), (Some(PART), 210, false)] {
        let mut bench = bench(in_workers);
        bench.step(Event::Up { device: GPU });
        let actions = prompt(&mut bench, tokens);
        let is_refused = !refusals(&actions).is_empty();
        assert_eq!(is_refused, !has_space, "{tokens} tokens, {in_workers:?}: {actions:?}");
    }
}
