//! Proposed tokens change nothing of what is chosen, however steps are cut, fail or are taken over.
//! Random models rarely repeat themselves: prompts and penalties are made so that some proposals are right and some wrong.

use super::*;
use crate::decoder::{Constraint, DecoderFiles, Sampling};
use crate::testing::tiny_decoder;
use magray_core::CpuPath;
use magray_device::cpu::Cpu;
use proptest::prelude::*;

const PAGES: usize = 48;
const NEW: usize = 60;

struct Host {
    cpu: Arc<Cpu>,
    sequences: Sequences<Cpu>,
}

impl Host {
    fn new(seed: u64, path: CpuPath, kv: KvFormat) -> Self {
        let folder = tempfile::tempdir().unwrap();
        tiny_decoder::write(folder.path(), seed).unwrap();
        let files = DecoderFiles::open(folder.path()).unwrap();
        let cpu = Arc::new(Cpu::new(Some(path), Some(1)).unwrap());
        let decoder = Decoder::load(&*cpu, &files, tiny_decoder::CONTEXT).unwrap();
        let bounds = SequenceBounds { kv, ..SequenceBounds::of(PAGES) };
        let mut sequences = Sequences::new(decoder, &cpu, cpu.decoder(), bounds, vec![tiny_decoder::END]);
        let guides = Guides::new(files.model_spec().unwrap().generates().unwrap());
        guides.prepare();
        sequences.constrain_by(guides);
        Self { cpu, sequences }
    }

    fn step(&mut self, step: SequenceStep<'_>) -> NewTokens {
        let mut new = Vec::new();
        self.sequences.advance(&self.cpu, &[step], &mut new).unwrap();
        new.remove(0)
    }
}

/// An answer, and what was proposed for it.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    ids: Vec<u32>,
    logprobs: usize,
    proposed: u32,
    accepted: u32,
}

/// How an answer comes about.
#[derive(Clone, Copy, Debug)]
struct Way {
    chunk: usize,
    step_tokens: u32,
    /// After this many tokens another host takes over.
    taken_over_after: usize,
    /// Every step fails once, after its tokens were chosen or before.
    fails: bool,
}

const PLAIN: Way = Way { chunk: 1000, step_tokens: 16, taken_over_after: 1000, fails: false };

fn answer(make: &dyn Fn() -> Host, prompt: &[u32], sampling: &Sampling, way: Way) -> Answer {
    let (mut host, mut all) = (make(), Answer::default());
    let (mut ids, mut from) = (prompt.to_vec(), 0);
    while ids.len() < prompt.len() + NEW {
        let left = (prompt.len() + NEW - ids.len()) as u32;
        let to = ids.len().min(from + way.chunk);
        let new_tokens_max = if to == ids.len() { way.step_tokens.min(left) } else { 0 };
        let step = SequenceStep {
            sequence: 1,
            from: from as u32,
            ids: &ids[from..to],
            new_tokens_max,
            passes_max: 3,
            goes_on: false,
            sampling: (from == 0).then_some(sampling),
        };
        if way.fails && from > 0 {
            let lost = SequenceStep { sequence: 2, from: 7, ids: &ids[..1], ..step };
            let mut none = Vec::new();
            assert!(host.sequences.advance(&host.cpu, &[step, lost], &mut none).is_err());
        }
        let new = host.step(step);
        assert_eq!(new.problem, None);
        assert!(new.tokens.len() <= new_tokens_max as usize);
        assert!(new.accepted <= new.proposed && (new.proposed == 0 || sampling.speculate > Some(0)));
        ids.extend(&new.tokens);
        all.logprobs += new.logprobs.len();
        all.proposed += new.proposed;
        all.accepted += new.accepted;
        from = if new_tokens_max == 0 { to } else { ids.len() - 1 };
        if new.is_end {
            break;
        }
        if ids.len() - prompt.len() >= way.taken_over_after {
            let more = rest(&mut make(), &ids, prompt.len(), sampling);
            all.ids = [&ids[prompt.len()..], &more].concat();
            return all;
        }
    }
    all.ids = ids.split_off(prompt.len());
    all
}

/// What another host adds to a sequence that it knows nothing of.
fn rest(host: &mut Host, known: &[u32], prompt: usize, sampling: &Sampling) -> Vec<u32> {
    let (mut ids, mut from) = (known.to_vec(), 0);
    while ids.len() < prompt + NEW {
        let left = (prompt + NEW - ids.len()) as u32;
        let (sampling, sequence) = ((from == 0).then_some(sampling), 1);
        let new = host.step(SequenceStep {
            sequence,
            from: from as u32,
            ids: &ids[from..],
            new_tokens_max: left.min(16),
            passes_max: 3,
            goes_on: false,
            sampling,
        });
        ids.extend(&new.tokens);
        from = ids.len() - 1;
        if new.is_end {
            break;
        }
    }
    ids.split_off(known.len())
}

/// A prompt of a few tokens that come again and again.
fn prompt(tokens: usize, period: usize, seed: u32) -> Vec<u32> {
    (0..tokens).map(|at| ((at % period) as u32 * 37 + seed * 11) % 250).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn proposals_change_no_token(
        (model, seed, speculate) in (0_u64..4, 0_u64..1000, 1_u8..=15),
        (tokens, period) in (2_usize..120, 1_usize..40),
        (chunk, step_tokens, taken_over_after, fails) in (1_usize..70, 1_u32..=16, 1_usize..80, any::<bool>()),
        (temperature, penalty, logprobs) in (
            prop::sample::select(vec![0.0_f32, 0.2, 1.0]),
            prop::sample::select(vec![1.0_f32, 0.7]),
            prop::sample::select(vec![None, Some(2_u8)]),
        ),
        kv in prop::sample::select(vec![KvFormat::Halves, KvFormat::Bytes]),
    ) {
        let prompt = prompt(tokens, period, seed as u32);
        let make = || Host::new(model, CpuPath::Portable, kv);
        let sampling = Sampling {
            temperature,
            seed,
            // Below 1: what was there comes again.
            repetition_penalty: penalty,
            logprobs,
            prompt_tokens: tokens as u32,
            ignores_end: true,
            ..Sampling::default()
        };
        let plain = answer(&make, &prompt, &sampling, PLAIN);
        let way = Way { chunk, step_tokens, taken_over_after, fails };
        let sampling = Sampling { speculate: Some(speculate), ..sampling };
        let other = answer(&make, &prompt, &sampling, way);
        prop_assert_eq!(&other.ids, &plain.ids);
        let whole = answer(&make, &prompt, &sampling, PLAIN);
        prop_assert_eq!(&whole.ids, &plain.ids);
        prop_assert_eq!(whole.logprobs, plain.logprobs);
    }
}

#[test]
fn what_repeats_itself_takes_fewer_passes_on_every_path() {
    for path in magray_device::cpu::available_paths() {
        let make = || Host::new(3, path, KvFormat::Halves);
        // What was chosen becomes likelier: it soon goes round.
        let sampling =
            Sampling { repetition_penalty: 0.3, prompt_tokens: 40, ignores_end: true, ..Sampling::default() };
        let prompt = prompt(40, 7, 5);
        let plain = answer(&make, &prompt, &sampling, PLAIN);
        let sampling = Sampling { speculate: Some(8), ..sampling };
        let fast = answer(&make, &prompt, &sampling, PLAIN);
        assert_eq!(fast.ids, plain.ids, "{path}");
        assert!(fast.accepted > NEW as u32 / 2, "{path}: {} of {}", fast.accepted, fast.proposed);
        assert_eq!((plain.proposed, plain.accepted), (0, 0));
    }
}

#[test]
fn a_constraint_holds_where_tokens_are_proposed() {
    let make = || Host::new(9, CpuPath::Portable, KvFormat::Halves);
    let constraint = Some(Constraint::Regex("(ab|abc){10,20}z".to_owned()));
    let prompt: Vec<u32> = (60..95).collect();
    let mut accepted = 0;
    for seed in 0..6 {
        let sampling = Sampling {
            temperature: 1.0,
            seed,
            prompt_tokens: 35,
            constraint: constraint.clone(),
            ..Sampling::default()
        };
        let plain = answer(&make, &prompt, &sampling, PLAIN);
        let sampling = Sampling { speculate: Some(6), ..sampling };
        let fast = answer(&make, &prompt, &sampling, Way { fails: true, ..PLAIN });
        assert_eq!(fast.ids, plain.ids, "seed {seed}");
        accepted += fast.accepted;
    }
    assert!(accepted > 0);
}
