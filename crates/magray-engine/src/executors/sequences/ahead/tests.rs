//! What is computed ahead changes no token, whatever comes in between: other sequences, ends, failures, constraints.
//! Takes the portable path, where tokens are the same bit by bit.

use super::super::faulty::{Faulty, FaultyOps, Fed};
use super::super::*;
use crate::decoder::{Constraint, DecoderFiles, Sampling};
use crate::testing::tiny_decoder;
use magray_core::CpuPath;
use magray_device::cpu::Cpu;
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGES: usize = 40;
const NEW: usize = 40;
const KINDS: u64 = 6;

struct Host {
    device: Arc<Faulty>,
    fails: Arc<AtomicBool>,
    sequences: Sequences<Faulty>,
}

impl Host {
    fn new(is_fed: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        tiny_decoder::write(folder.path(), 9).unwrap();
        let files = DecoderFiles::open(folder.path()).unwrap();
        let cpu = Arc::new(Cpu::new(Some(CpuPath::Portable), Some(1)).unwrap());
        let fails = Arc::new(AtomicBool::new(false));
        let fed = is_fed.then(Fed::default);
        let ops = FaultyOps { ops: cpu.decoder(), fails: Arc::clone(&fails), fed };
        let device = Arc::new(Faulty(cpu));
        let decoder = Decoder::load(&*device, &files, tiny_decoder::CONTEXT).unwrap();
        let bounds = SequenceBounds::of(PAGES);
        let mut sequences = Sequences::new(decoder, &device, ops, bounds, vec![tiny_decoder::END]);
        let guides = Guides::new(files.model_spec().unwrap().generates().unwrap());
        guides.prepare();
        sequences.constrain_by(guides);
        Self { device, fails, sequences }
    }

    fn fed(&self) -> &Fed {
        self.sequences.ops.fed.as_ref().unwrap()
    }

    fn go_on(&mut self, steps: &[SequenceStep<'_>]) -> Option<Vec<NewTokens>> {
        let mut new = Vec::new();
        self.sequences.advance(&self.device, steps, &mut new).ok().map(|()| new)
    }
}

/// Sequences of every kind: the likeliest token or a drawn one, free or under a constraint; the last ones are chosen on the host.
fn sampling(kind: u64) -> Sampling {
    let constraint = (kind == 2 || kind == 3 || kind == 5).then(|| {
        let regex = ["([a-z]{2,5} [0-9]{1,3}, ){2,9}end", "[a-f]{30}(x|yy)*", "[a-p ]{40}"][kind as usize % 3];
        Constraint::Regex(regex.to_owned())
    });
    Sampling {
        temperature: if kind % 2 == 1 { 0.9 } else { 0.0 },
        seed: kind,
        ignores_end: constraint.is_none(),
        repetition_penalty: if kind == 4 { 1.2 } else { 1.0 },
        prompt_tokens: prompt(kind).len() as u32,
        constraint,
        ..Sampling::default()
    }
}

fn prompt(kind: u64) -> Vec<u32> {
    (0..20 + 7 * kind as u32).map(|at| (at * 7 + kind as u32 * 31) % 250).collect()
}

/// A sequence as who schedules it knows it.
#[derive(Clone)]
struct Known {
    kind: u64,
    ids: Vec<u32>,
    from: usize,
    is_over: bool,
}

impl Known {
    fn new(kind: u64) -> Self {
        Self { kind, ids: prompt(kind), from: 0, is_over: false }
    }

    fn new_tokens(&self) -> &[u32] {
        &self.ids[prompt(self.kind).len()..]
    }

    fn step<'a>(
        &'a self,
        sampling: &'a Sampling,
        new_tokens_max: u32,
        passes_max: u32,
        goes_on: bool,
    ) -> SequenceStep<'a> {
        let left = (NEW - self.new_tokens().len()) as u32;
        SequenceStep {
            sequence: self.kind,
            from: self.from as u32,
            ids: &self.ids[self.from..],
            new_tokens_max: new_tokens_max.min(left),
            passes_max,
            goes_on: goes_on && left > new_tokens_max,
            sampling: (self.from == 0).then_some(sampling),
        }
    }

    fn take(&mut self, new: &NewTokens) {
        assert_eq!(new.problem, None);
        self.ids.extend(&new.tokens);
        self.from = self.ids.len() - 1;
        self.is_over = new.is_end || self.new_tokens().len() >= NEW;
    }
}

/// The whole answer of one sequence alone, a pass at a time.
fn alone(kind: u64) -> Vec<u32> {
    let (mut host, mut known, sampling) = (Host::new(true), Known::new(kind), sampling(kind));
    while !known.is_over {
        let new = host.go_on(&[known.step(&sampling, 1, 1, false)]).unwrap();
        known.take(&new[0]);
    }
    known.new_tokens().to_vec()
}

#[derive(Clone, Debug)]
struct Turn {
    takes_part: [bool; KINDS as usize],
    is_turned: bool,
    new_tokens_max: u32,
    passes_max: u32,
    goes_on: bool,
    fails: bool,
    freed: Option<usize>,
    trims: bool,
}

fn turn() -> impl Strategy<Value = Turn> {
    let takes_part = prop_oneof![3 => Just([true; KINDS as usize]), 2 => any::<[bool; KINDS as usize]>()];
    let rest = (1..9_u32, 1..6_u32, prop::bool::weighted(0.8), prop::bool::weighted(0.1));
    let interrupted = (prop::option::weighted(0.1, 0..KINDS as usize), prop::bool::weighted(0.05));
    (takes_part, any::<bool>(), rest, interrupted).prop_map(|(takes_part, is_turned, rest, (freed, trims))| {
        let (new_tokens_max, passes_max, goes_on, fails) = rest;
        Turn { takes_part, is_turned, new_tokens_max, passes_max, goes_on, fails, freed, trims }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn no_token_changes_whatever_comes_in_between(
        turns in prop::collection::vec(turn(), 4..30),
        first in 0..2_u64,
    ) {
        // With a sequence that is chosen on the host nothing is fed back: half of the runs have none.
        let kinds: Vec<u64> = (0..KINDS).filter(|kind| first == 0 || *kind != 4).collect();
        let samplings: Vec<Sampling> = (0..KINDS).map(sampling).collect();
        let (mut host, mut all) = (Host::new(true), kinds.iter().map(|kind| Known::new(*kind)).collect::<Vec<_>>());
        for turn in &turns {
            let freed = turn.freed.and_then(|at| all.get_mut(at));
            if let Some(freed) = freed {
                host.sequences.free(freed.kind);
                freed.from = 0;
            }
            if turn.trims {
                host.sequences.trim(&host.device);
            }
            let takes_part = |known: &&Known| !known.is_over && turn.takes_part[known.kind as usize];
            let mut steps: Vec<SequenceStep<'_>> = all
                .iter()
                .filter(takes_part)
                .map(|known| known.step(&samplings[known.kind as usize], turn.new_tokens_max, turn.passes_max, turn.goes_on))
                .collect();
            if turn.is_turned {
                steps.reverse();
            }
            let order: Vec<u64> = steps.iter().map(|step| step.sequence).collect();
            host.fails.store(turn.fails, Ordering::Relaxed);
            match host.go_on(&steps) {
                Some(new) => {
                    for (kind, new) in order.iter().zip(&new) {
                        all.iter_mut().find(|known| known.kind == *kind).unwrap().take(new);
                    }
                }
                None => prop_assert!(turn.fails),
            }
            host.fails.store(false, Ordering::Relaxed);
        }
        for known in &all {
            let wanted = alone(known.kind);
            let found = known.new_tokens();
            prop_assert_eq!(found, &wanted[..found.len()], "kind {}", known.kind);
            prop_assert!(!known.is_over || found.len() == wanted.len());
        }
    }
}

#[test]
fn steps_that_follow_each_other_never_wait_for_the_device() {
    let samplings: Vec<Sampling> = (0..KINDS).map(sampling).collect();
    for kinds in [vec![0, 1], vec![0, 2, 3]] {
        let mut host = Host::new(true);
        let mut all: Vec<Known> = kinds.iter().map(|kind| Known::new(*kind)).collect();
        let mut turns = 0;
        while all.iter().all(|known| !known.is_over) && turns < 6 {
            let step = |known: &Known| known.clone();
            let before: Vec<Known> = all.iter().map(step).collect();
            let steps: Vec<_> =
                before.iter().map(|known| known.step(&samplings[known.kind as usize], 3, 3, true)).collect();
            let new = host.go_on(&steps).unwrap();
            all.iter_mut().zip(&new).for_each(|(known, new)| known.take(new));
            turns += 1;
        }
        assert!(turns >= 4, "{kinds:?}");
        // Each turn has three passes; the one ahead is the first of the next. All but the first of all began before the tokens of the one
        // before were asked for.
        assert_eq!((host.fed().steps, host.fed().overlapped), (3 * turns + 1, 3 * turns), "{kinds:?}");
    }
}

#[test]
fn nothing_is_computed_ahead_of_a_last_step_or_where_others_wait() {
    let sampling = sampling(0);
    for (passes_max, goes_on) in [(3, false), (1, true)] {
        let (mut host, mut known) = (Host::new(true), Known::new(0));
        let new = host.go_on(&[known.step(&sampling, 3, passes_max, goes_on)]).unwrap();
        known.take(&new[0]);
        assert_eq!(host.fed().steps, passes_max as usize);
    }
}

#[test]
fn tokens_under_a_constraint_are_those_that_the_host_chooses() {
    for kind in [2, 5] {
        let free = Sampling { temperature: 0.0, ..sampling(kind) };
        let on_host = Sampling { logprobs: Some(0), ..free.clone() };
        let answer = |sampling: &Sampling, is_fed| {
            let (mut host, mut known) = (Host::new(is_fed), Known::new(kind));
            while !known.is_over {
                let new = host.go_on(&[known.step(sampling, 5, 4, true)]).unwrap();
                known.take(&new[0]);
            }
            known.new_tokens().to_vec()
        };
        let wanted = answer(&on_host, true);
        assert!(wanted.len() > 10);
        assert_eq!((answer(&free, true), answer(&free, false)), (wanted.clone(), wanted));
    }
}

#[test]
fn tokens_that_are_drawn_under_a_constraint_fit_it() {
    let sampling = sampling(3);
    let vocabulary = {
        let folder = tempfile::tempdir().unwrap();
        tiny_decoder::write(folder.path(), 9).unwrap();
        crate::tokenize::Vocabulary::open(folder.path()).unwrap()
    };
    for seed in 0..8 {
        let sampling = Sampling { seed, ..sampling.clone() };
        let (mut host, mut known) = (Host::new(true), Known::new(3));
        while !known.is_over {
            let new = host.go_on(&[known.step(&sampling, 6, 6, true)]).unwrap();
            known.take(&new[0]);
        }
        // Forty tokens may end anywhere.
        let text = vocabulary.text(known.new_tokens());
        let is_fine = |c: char| c.is_ascii_lowercase() || c == ' ' || c.is_ascii_digit();
        let is_part =
            text.trim_end_matches([',', ' ']).split(", ").all(|part| !part.is_empty() && part.chars().all(is_fine));
        assert!(is_part, "{text}");
    }
}
