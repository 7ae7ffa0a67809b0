//! Sequences on two devices: tokens are those of one, whatever is shared, proposed, runs out or fails on the way.
//! Takes the portable path, where they are so bit by bit.

use super::faulty::{Faulty, FaultyOps, Told};
use super::*;
use crate::decoder::{DecoderFiles, Sampling};
use crate::testing::tiny_decoder;
use magray_core::CpuPath;
use magray_device::cpu::Cpu;
use magray_device::{Split, SplitError};
use std::sync::atomic::{AtomicBool, Ordering};

const PAGES: usize = 24;

fn cpu() -> Arc<Cpu> {
    Arc::new(Cpu::new(Some(CpuPath::Portable), Some(1)).unwrap())
}

struct Host<D: DecoderDevice> {
    device: Arc<D>,
    sequences: Sequences<D>,
}

impl<D: DecoderDevice> Host<D> {
    fn new(device: Arc<D>, ops: D::Ops) -> Self {
        let folder = tempfile::tempdir().unwrap();
        tiny_decoder::write(folder.path(), 9).unwrap();
        let files = DecoderFiles::open(folder.path()).unwrap();
        let decoder = Decoder::load(&*device, &files, tiny_decoder::CONTEXT).unwrap();
        let bounds = SequenceBounds::of(PAGES);
        let sequences = Sequences::new(decoder, &device, ops, bounds, vec![tiny_decoder::END]);
        Self { device, sequences }
    }

    fn go_on(&mut self, steps: &[SequenceStep<'_>]) -> Result<Vec<NewTokens>, StepError<D::Error>> {
        let mut new = Vec::new();
        self.sequences.advance(&self.device, steps, &mut new).map(|()| new)
    }
}

fn whole() -> Host<Cpu> {
    let cpu = cpu();
    let ops = cpu.decoder();
    Host::new(cpu, ops)
}

fn parted() -> Host<Split<Arc<Cpu>, Arc<Cpu>>> {
    let (first, last) = (cpu(), cpu());
    let ops = [first.decoder(), last.decoder()];
    let device = Split::new(first, last, 1);
    let [first, last] = ops;
    let ops = device.ops(first, last);
    Host::new(Arc::new(device), ops)
}

fn text(seed: u32, shared: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| (at * 7 + if at < shared { 0 } else { seed * 31 }) % 256).collect()
}

fn sampling(seed: u32) -> Sampling {
    Sampling {
        temperature: if seed.is_multiple_of(2) { 0.0 } else { 0.9 },
        repetition_penalty: 1.1,
        seed: u64::from(seed),
        ignores_end: true,
        ..Sampling::default()
    }
}

/// Six texts with one beginning, two at a time and in chunks, each going on by some tokens; the last two begin anew in between. Everything
/// that came of it, with what was found in pages that were there.
fn script<D: DecoderDevice>(host: &mut Host<D>) -> Vec<NewTokens> {
    let mut all = Vec::new();
    for pair in [[0, 1], [2, 3], [4, 5]] {
        let texts = pair.map(|seed| text(seed, 70, 90 + 20 * seed));
        let samplings = pair.map(sampling);
        let step = |at: usize, from: usize, to: usize, new_tokens_max| SequenceStep {
            sequence: u64::from(pair[at]),
            from: from as u32,
            ids: &texts[at][from..to],
            new_tokens_max,
            passes_max: 3,
            goes_on: false,
            sampling: (from == 0).then_some(&samplings[at]),
        };
        let ends = texts.each_ref().map(Vec::len);
        all.extend(host.go_on(&[step(0, 0, 64, 0), step(1, 0, ends[1], 8)]).unwrap());
        all.extend(host.go_on(&[step(0, 64, ends[0], 8)]).unwrap());
        if pair == [4, 5] {
            // As after preemption: what is known comes again.
            pair.iter().for_each(|seed| host.sequences.free(u64::from(*seed)));
            all.extend(host.go_on(&[step(1, 0, ends[1], 8), step(0, 0, ends[0], 8)]).unwrap());
        }
        for at in [0, 1] {
            let known = all.iter().rev().find(|new| !new.tokens.is_empty()).unwrap().tokens.clone();
            let again = SequenceStep { ids: &known, ..step(at, 0, 0, 4) };
            // Another text, of tokens that the model made.
            all.extend(host.go_on(&[SequenceStep { sequence: 100, sampling: Some(&samplings[at]), ..again }]).unwrap());
        }
        pair.iter().for_each(|seed| host.sequences.free(u64::from(*seed)));
        host.sequences.free(100);
    }
    all
}

#[test]
fn tokens_of_two_devices_are_those_of_one() {
    let (wanted, found) = (script(&mut whole()), script(&mut parted()));
    assert_eq!(found, wanted);
    assert!(wanted.iter().any(|new| new.cached > 0), "beginnings are shared");
}

#[test]
fn proposed_tokens_are_verified_on_both_devices() {
    // Few tokens come again and again, and what was chosen becomes likelier: it soon goes round.
    let prompt: Vec<u32> = (0..40).map(|at| (at % 7 * 37 + 55) % 250).collect();
    let sampling = |speculate| Sampling {
        repetition_penalty: 0.3,
        prompt_tokens: 40,
        speculate: Some(speculate),
        ignores_end: true,
        ..Sampling::default()
    };
    fn answer<D: DecoderDevice>(mut host: Host<D>, prompt: &[u32], sampling: &Sampling) -> (Vec<u32>, u32) {
        let (mut ids, mut from, mut accepted) = (prompt.to_vec(), 0, 0);
        while ids.len() < prompt.len() + 60 {
            let step = SequenceStep {
                sequence: 1,
                from: from as u32,
                ids: &ids[from..],
                new_tokens_max: 12,
                passes_max: 3,
                goes_on: false,
                sampling: (from == 0).then_some(sampling),
            };
            let new = host.go_on(&[step]).unwrap().remove(0);
            accepted += new.accepted;
            ids.extend(&new.tokens);
            from = ids.len() - 1;
        }
        ids.truncate(prompt.len() + 60);
        (ids, accepted)
    }
    let (plain, none) = answer(whole(), &prompt, &sampling(0));
    let (found, accepted) = answer(parted(), &prompt, &sampling(8));
    assert_eq!((found, none), (plain, 0));
    assert!(accepted > 0, "some of them are right");
}

#[test]
fn pages_run_out_and_come_back_on_both_devices() {
    let mut host = parted();
    let (long, other) = (text(1, 0, 500), text(2, 0, 300));
    let step = |sequence, ids: &'static [u32]| SequenceStep {
        sequence,
        from: 0,
        ids,
        new_tokens_max: 1,
        passes_max: 1,
        goes_on: false,
        sampling: None,
    };
    let (long, other): (&'static [u32], &'static [u32]) = (long.leak(), other.leak());
    host.go_on(&[step(1, long)]).unwrap();
    assert!(matches!(host.go_on(&[step(2, other)]), Err(StepError::NoPages)));
    host.sequences.free(1);
    assert_eq!(host.go_on(&[step(2, other)]).unwrap(), whole().go_on(&[step(2, other)]).unwrap());
    host.sequences.free(2);
    host.sequences.trim(&host.device);
    assert!(host.sequences.pages.made.is_none());
}

#[test]
fn a_step_that_fails_on_either_device_can_be_given_again() {
    let fails = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let [first, last] = fails.each_ref().map(|fails| {
        let cpu = cpu();
        let ops = FaultyOps { ops: cpu.decoder(), fails: Arc::clone(fails), fed: None };
        (Arc::new(Faulty(cpu)), ops)
    });
    let device = Split::new(first.0, last.0, 1);
    let ops = device.ops(first.1, last.1);
    let (mut host, mut calm) = (Host::new(Arc::new(device), ops), whole());
    // The likeliest token is chosen by the device, a drawn one by its logits.
    for (seed, drawn) in [(2, 0.0), (3, 0.8)] {
        let sampling = Sampling { temperature: drawn, seed, ignores_end: true, ..Sampling::default() };
        let (ids, mut from) = (text(seed as u32, 0, 50), 0);
        let mut known = ids.clone();
        for round in 0..4 {
            let step = SequenceStep {
                sequence: seed,
                from: from as u32,
                ids: &known[from..],
                new_tokens_max: 3,
                passes_max: 3,
                goes_on: false,
                sampling: (from == 0).then_some(&sampling),
            };
            let wanted = calm.go_on(&[step]).unwrap();
            fails[round % 2].store(true, Ordering::Relaxed);
            let failed = host.go_on(&[step]).expect_err("it was told to fail");
            let is_first = matches!(failed, StepError::Device(SplitError::First(Told)));
            assert_eq!(is_first, round % 2 == 0, "{failed}");
            assert_eq!(host.go_on(&[step]).unwrap(), wanted, "round {round}");
            known.extend(&wanted[0].tokens);
            from = known.len() - 1;
        }
    }
}
