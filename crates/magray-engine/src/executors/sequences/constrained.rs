//! Log probabilities against the logits of the exact path, and constrained sequences whose steps fail or begin again.
//! Uses models of random weights: no text makes sense here.

use super::*;
use crate::decoder::{Constraint, DecoderFiles, Sampling};
use crate::testing::tiny_decoder;
use crate::tokenize::Vocabulary;
use magray_core::CpuPath;
use magray_device::StepBatch;
use magray_device::cpu::Cpu;

const PAGES: usize = 16;

/// A decoder with its sequences and its tokens.
struct Host {
    cpu: Arc<Cpu>,
    sequences: Sequences<Cpu>,
    vocabulary: Vocabulary,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        tiny_decoder::write(folder.path(), 9).unwrap();
        let files = DecoderFiles::open(folder.path()).unwrap();
        let cpu = Arc::new(Cpu::new(Some(CpuPath::Portable), Some(1)).unwrap());
        let decoder = Decoder::load(&*cpu, &files, tiny_decoder::CONTEXT).unwrap();
        let mut sequences =
            Sequences::new(decoder, &cpu, cpu.decoder(), SequenceBounds::of(PAGES), vec![tiny_decoder::END]);
        let spec = files.model_spec().unwrap();
        let guides = Guides::new(spec.generates().unwrap());
        let vocabulary = Vocabulary::open(folder.path()).unwrap();
        // The folder goes at the end: what it has of tokens is read before.
        guides.prepare();
        sequences.constrain_by(guides);
        Self { cpu, sequences, vocabulary }
    }

    fn step(&mut self, from: u32, ids: &[u32], new_tokens_max: u32, sampling: &Sampling) -> NewTokens {
        let step = SequenceStep {
            sequence: 1,
            from,
            ids,
            new_tokens_max,
            passes_max: u32::MAX,
            goes_on: false,
            sampling: Some(sampling),
        };
        let mut new = Vec::new();
        self.sequences.advance(&self.cpu, &[step], &mut new).unwrap();
        new.remove(0)
    }

    /// The whole answer, by steps of this many tokens.
    fn answer(&mut self, prompt: &[u32], known: &[u32], step_tokens: u32, sampling: &Sampling) -> Vec<u32> {
        let mut ids = [prompt, known].concat();
        let mut from = 0;
        while ids.len() < prompt.len() + 80 {
            let new = self.step(from, &ids[from as usize..], step_tokens, sampling);
            assert_eq!(new.problem, None);
            ids.extend(&new.tokens);
            from = ids.len() as u32 - 1;
            if new.is_end {
                break;
            }
        }
        ids.split_off(prompt.len())
    }
}

/// The logits of a token of a sequence, computed anew.
fn logits_after(ids: &[u32]) -> Vec<f32> {
    let Host { cpu, mut sequences, .. } = Host::new();
    let pages: Vec<u32> = (0..PAGES as u32).collect();
    let batch = StepBatch {
        ids,
        offsets: &[0, ids.len()],
        starts: &[0],
        pages: &pages,
        page_offsets: &[0, pages.len()],
        logit_rows: &[ids.len() - 1],
    };
    let mut memory = cpu.pages(sequences.decoder.kv_shape(), PAGES).unwrap();
    sequences.decoder.forward(&mut sequences.ops, &batch, &mut memory, &mut sequences.room);
    sequences.ops.answer().unwrap().to_vec()
}

#[test]
fn log_probabilities_are_those_of_the_plain_softmax() {
    let mut host = Host::new();
    let mut ids: Vec<u32> = (0..40).collect();
    let sampling = Sampling {
        temperature: 1.5,
        top_k: 40,
        repetition_penalty: 1.4,
        logit_bias: vec![(7, 3.0)],
        ignores_end: true,
        logprobs: Some(5),
        prompt_tokens: 40,
        ..Sampling::default()
    };
    let new = host.step(0, &ids, 6, &sampling);
    assert_eq!((new.tokens.len(), new.logprobs.len()), (6, 6));
    for (token, told) in new.tokens.iter().zip(&new.logprobs) {
        let logits = logits_after(&ids);
        let total: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        let expected = |id: u32| f64::from(logits[id as usize]) - total.ln();
        assert!((f64::from(told.chosen) - expected(*token)).abs() < 1e-4, "{} for {}", told.chosen, expected(*token));
        let mut sorted: Vec<u32> = (0..logits.len() as u32).collect();
        sorted.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
        assert_eq!(told.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), sorted[..5]);
        for (id, logprob) in &told.top {
            assert!((f64::from(*logprob) - expected(*id)).abs() < 1e-4, "{logprob} for {}", expected(*id));
        }
        assert!(told.top.iter().map(|(_, logprob)| logprob.exp()).sum::<f32>() <= 1.0);
        ids.push(*token);
    }
    let silent = host.step(0, &ids, 3, &Sampling { logprobs: None, ..sampling });
    assert!(silent.logprobs.is_empty());
}

#[test]
fn however_an_answer_is_cut_into_steps_or_taken_over_it_is_the_same() {
    let prompt: Vec<u32> = (60..95).collect();
    let constraint = Some(Constraint::Regex("([a-z]{2,5} [0-9]{1,3}, ){2,4}end".to_owned()));
    for seed in 0..6 {
        let sampling = Sampling {
            temperature: 1.0,
            seed,
            prompt_tokens: 35,
            constraint: constraint.clone(),
            ..Sampling::default()
        };
        let mut host = Host::new();
        let whole = host.answer(&prompt, &[], 1, &sampling);
        let text = host.vocabulary.text(&whole);
        assert!(text.ends_with(", end") && text.split(", ").count() <= 5, "{text}");
        assert_eq!(host.answer(&prompt, &[], 4, &sampling), whole);
        for known in [1, whole.len() / 2, whole.len() - 1] {
            let again = Host::new().answer(&prompt, &whole[..known], 3, &sampling);
            assert_eq!(again, whole, "seed {seed}, after {known}");
        }
    }
}

#[test]
fn a_constrained_step_that_fails_can_be_given_again() {
    let prompt: Vec<u32> = (0..30).collect();
    let constraint = Some(Constraint::Regex("[a-f]{300}".to_owned()));
    let sampling = Sampling { temperature: 1.0, prompt_tokens: 30, constraint, ..Sampling::default() };
    let mut calm = Host::new();
    let expected = calm.step(0, &prompt, 40, &sampling).tokens;
    let mut host = Host::new();
    let first = host.step(0, &prompt, 10, &sampling).tokens;
    assert_eq!(first, expected[..10]);
    // Another sequence has a state that is missing: the whole turn fails, after tokens were chosen or before.
    let ids = [first[9]];
    let one = SequenceStep {
        sequence: 1,
        from: 39,
        ids: &ids,
        new_tokens_max: 5,
        passes_max: u32::MAX,
        goes_on: false,
        sampling: None,
    };
    let lost = SequenceStep { sequence: 2, from: 7, ..one };
    assert!(host.sequences.advance(&host.cpu, &[one, lost], &mut Vec::new()).is_err());
    let again = host.step(39, &ids, 30, &sampling).tokens;
    assert_eq!(again, expected[10..]);
    let text = host.vocabulary.text(&expected);
    assert!(text.bytes().all(|byte| (b'a'..=b'f').contains(&byte)), "{text}");
}

#[test]
fn a_constraint_that_cannot_be_followed_ends_its_sequence_alone() {
    let mut host = Host::new();
    let prompt: Vec<u32> = (0..30).collect();
    let broken = Some(Constraint::Regex("(a".to_owned()));
    let broken = Sampling { prompt_tokens: 30, constraint: broken, ..Sampling::default() };
    let free = Sampling { prompt_tokens: 30, temperature: 0.5, ignores_end: true, ..Sampling::default() };
    let step = |sequence, sampling| SequenceStep {
        sequence,
        from: 0,
        ids: &prompt,
        new_tokens_max: 8,
        passes_max: u32::MAX,
        goes_on: false,
        sampling,
    };
    let mut new = Vec::new();
    host.sequences.advance(&host.cpu, &[step(1, Some(&broken)), step(2, Some(&free))], &mut new).unwrap();
    assert!(new[0].is_end && new[0].tokens.is_empty());
    assert!(new[0].problem.as_ref().is_some_and(|problem| problem.contains("regular expression")), "{new:?}");
    assert_eq!((new[1].tokens.len(), new[1].is_end), (8, false));
}
