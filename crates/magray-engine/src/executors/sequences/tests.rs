//! Sequences that share beginnings, run out of pages, end and begin again.
//! Takes the portable path: what is computed again is the same bit by bit.

use super::*;
use crate::decoder::{DecoderFiles, Sampling};
use crate::testing::tiny_decoder;
use magray_core::CpuPath;
use magray_device::cpu::Cpu;
use std::sync::Arc;

const PAGES: usize = 24;

fn host() -> (Arc<Cpu>, Sequences<Cpu>) {
    let folder = tempfile::tempdir().unwrap();
    tiny_decoder::write(folder.path(), 9).unwrap();
    let files = DecoderFiles::open(folder.path()).unwrap();
    let cpu = Arc::new(Cpu::new(Some(CpuPath::Portable), Some(1)).unwrap());
    let decoder = Decoder::load(&*cpu, &files, tiny_decoder::CONTEXT).unwrap();
    let sequences = Sequences::new(decoder, &cpu, cpu.decoder(), SequenceBounds::of(PAGES), vec![tiny_decoder::END]);
    (cpu, sequences)
}

/// A text that goes on; `shared` of its tokens are those of every other.
fn text(seed: u32, shared: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| (at * 7 + if at < shared { 0 } else { seed * 31 }) % 256).collect()
}

fn go_on(
    (cpu, host): &mut (Arc<Cpu>, Sequences<Cpu>),
    sequence: u64,
    from: u32,
    ids: &[u32],
    new_tokens_max: u32,
) -> Result<Vec<u32>, StepError<std::convert::Infallible>> {
    let sampling = Sampling { temperature: 1.0, repetition_penalty: 1.2, ignores_end: true, ..Sampling::default() };
    let step = SequenceStep {
        sequence,
        from,
        ids,
        new_tokens_max,
        passes_max: u32::MAX,
        goes_on: false,
        sampling: Some(&sampling),
    };
    let mut new = Vec::new();
    host.advance(cpu, &[step], &mut new).map(|()| new.remove(0).tokens)
}

#[test]
fn a_beginning_that_was_seen_before_changes_nothing_and_is_not_computed() {
    let mut warm = host();
    let all = |seed| text(seed, 100, 150);
    for seed in 0..4 {
        let mut cold = host();
        let expected = go_on(&mut cold, 1, 0, &all(seed), 40).unwrap();
        assert_eq!(go_on(&mut warm, u64::from(seed), 0, &all(seed), 40).unwrap(), expected, "seed {seed}");
    }
    // In parts, and after all have ended.
    (0..4).for_each(|seed| warm.1.free(seed));
    let mut cold = host();
    let expected = go_on(&mut cold, 1, 0, &all(2), 40).unwrap();
    assert!(go_on(&mut warm, 9, 0, &all(2)[..64], 0).unwrap().is_empty());
    assert_eq!(go_on(&mut warm, 9, 64, &all(2)[64..], 40).unwrap(), expected);
    let (_, table) = warm.1.pages.made.as_mut().unwrap();
    assert!(table.find(None, &all(0)[..PAGE_TOKENS]).is_some());
}

#[test]
fn a_step_that_finds_no_page_can_be_given_again() {
    let mut host = host();
    let long = text(1, 0, 500);
    assert!(go_on(&mut host, 1, 0, &long, 0).unwrap().is_empty());
    let other = text(2, 0, 300);
    assert!(go_on(&mut host, 2, 0, &other[..64], 0).unwrap().is_empty());
    assert!(matches!(go_on(&mut host, 2, 64, &other[64..], 1), Err(StepError::NoPages)));
    assert!(matches!(go_on(&mut host, 2, 64, &other[64..], 1), Err(StepError::NoPages)));
    host.1.free(1);
    let again = go_on(&mut host, 2, 64, &other[64..], 1).unwrap();
    assert_eq!(again, go_on(&mut self::host(), 1, 0, &other, 1).unwrap());
    assert!(matches!(go_on(&mut host, 2, 7, &[1], 1), Err(StepError::StateMissing)));
}

#[test]
fn pages_come_back_when_sequences_end() {
    let mut host = host();
    for round in 0..30 {
        let ids = text(round, 40, 200);
        assert_eq!(go_on(&mut host, u64::from(round), 0, &ids, 20).unwrap().len(), 20, "round {round}");
        host.1.free(u64::from(round));
    }
    host.1.trim(&host.0);
    assert!(host.1.pages.made.is_none());
}

#[test]
fn sequences_and_pages_go_with_the_weights_and_begin_anew_after_them() {
    let mut host = host();
    let ids = text(3, 40, 200);
    let expected = go_on(&mut host, 1, 0, &ids, 20).unwrap();
    host.1.rest().unwrap();
    assert!(host.1.pages.made.is_none() && host.1.states.is_empty());
    // What followed is not known here any more: it is given again from the start.
    let end = (ids.len() + expected.len() - 1) as u32;
    assert!(matches!(go_on(&mut host, 1, end, &expected[19..], 5), Err(StepError::StateMissing)));
    assert_eq!(go_on(&mut host, 1, 0, &ids, 20).unwrap(), expected);
    // Memory that steps had taken comes again too.
    host.1.trim(&host.0);
    let known: Vec<u32> = ids.iter().chain(&expected).copied().collect();
    let further = go_on(&mut host, 1, end, &expected[19..], 5).unwrap();
    assert_eq!(go_on(&mut host, 2, 0, &known, 5).unwrap(), further);
}
