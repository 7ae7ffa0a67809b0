//! Tokens that are chosen behind their step, under masks: each must be the likeliest that its mask allows, or drawn among those.

use crate::cuda::each_set;
use crate::decoder_model::{Kind, Model, PLAIN, Sequences, numbers};
use crate::draws::fault;
use magray_core::CpuPath;
use magray_device::cpu::Cpu;
use magray_device::{CHOSEN, Choice, DecoderDevice, DecoderOps, Mask};
use std::sync::Arc;

const ROWS: usize = 8;

/// A mask of about this part of all tokens; there is one at least. Its end may be missing: what it does not say is ruled out.
fn mask(vocab: usize, part: f32, seed: u64) -> Vec<u32> {
    let mut mask = vec![0; vocab.div_ceil(32)];
    for (id, number) in numbers(vocab, seed).into_iter().enumerate() {
        mask[id / 32] |= u32::from(number * 0.5 + 0.5 < part) << (id % 32);
    }
    let sure = seed as usize % vocab;
    mask[sure / 32] |= 1 << (sure % 32);
    if part < 0.5 {
        mask.truncate(sure / 32 + 1);
    }
    mask
}

/// The likeliest of those that a mask allows.
fn expected(logits: &[f32], mask: Mask<'_>) -> u32 {
    let allowed = |id: usize| mask.is_none_or(|mask| mask.get(id / 32).is_some_and(|word| word >> (id % 32) & 1 == 1));
    let allowed = (0..logits.len()).filter(|id| allowed(*id));
    allowed
        .fold(None, |best: Option<usize>, id| Some(best.filter(|best| logits[*best] >= logits[id]).unwrap_or(id)))
        .map_or(u32::MAX, |id| id as u32)
}

fn masks_of(vocab: usize, round: u64) -> Vec<Option<Vec<u32>>> {
    let part = |row: usize| [0.0, 0.001, 0.02, 0.3, 0.5, 0.9, 1.0][row % 7];
    let of = |row: usize| (row != 5).then(|| mask(vocab, part(row), round * 100 + row as u64));
    (0..ROWS).map(of).collect()
}

fn check<D: DecoderDevice>(device: &D, mut ops: D::Ops, name: &str) {
    for vocab in [33, 400, 5_003] {
        let mut model = Model::new(device, Kind { vocab, ..PLAIN }, 20, 3);
        let mut sequences = Sequences::new(ROWS, 20);
        for round in 0..6 {
            assert!(ops.choose_later(false), "{name} chooses under masks");
            let batch = sequences.advance(&[1; ROWS], vocab, round);
            model.forward(&mut ops, &batch.steps());
            let plain = ops.answer().expect("a step that was done").to_vec();
            // The same step again: keys and values are written over with what they are.
            let masks = masks_of(vocab, round);
            let masks: Vec<Mask<'_>> = masks.iter().map(|mask| mask.as_deref()).collect();
            ops.choose_later(true);
            model.forward(&mut ops, &batch.steps());
            ops.choose_under(&masks);
            let chosen = ops.chosen().expect("a step that was done");
            let wanted: Vec<u32> =
                plain.chunks_exact(vocab).zip(&masks).map(|(logits, mask)| expected(logits, *mask)).collect();
            assert_eq!(chosen, wanted, "{name}, {vocab} tokens, round {round}");
            // Rows without a mask keep their logits.
            let free = ops.answer_rows(&[5], vocab).expect("a row of the step");
            assert_eq!(free, plain[5 * vocab..][..vocab], "{name}");
        }
    }
}

#[test]
fn the_likeliest_that_masks_allow_are_taken_on_cpu() {
    for path in [CpuPath::Portable, *magray_device::cpu::available_paths().last().expect("a path")] {
        let cpu = Arc::new(Cpu::new(Some(path), Some(2)).expect("a CPU"));
        check(&*cpu, cpu.decoder(), &format!("{path}"));
    }
}

#[test]
fn the_likeliest_that_masks_allow_are_taken_on_cuda() {
    each_set(|cuda, name| check(&**cuda, cuda.decoder().expect("the GPU gives a stream"), name));
}

#[test]
fn tokens_are_drawn_under_masks_and_fed_to_steps_that_began_before_they_were_asked_for_on_cuda() {
    each_set(|cuda, name| {
        let vocab = 5_003;
        let mut model = Model::new(&**cuda, Kind { vocab, ..PLAIN }, 20, 3);
        let mut ops = cuda.decoder().expect("the GPU gives a stream");
        let mut sequences = Sequences::new(ROWS, 20);
        for round in 0..8_u64 {
            let batch = sequences.advance(&[1; ROWS], vocab, round);
            model.forward(&mut ops, &batch.steps());
            let plain = ops.answer().expect("a step that was done").to_vec();
            let masks = masks_of(vocab, round);
            let masks: Vec<Mask<'_>> = masks.iter().map(|mask| mask.as_deref()).collect();
            let draw = |row: usize| (round * 8 + row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let of = |row| Choice { temperature: 1.5, top_k: 0, top_p: 1.0, min_p: 0.0, draw: draw(row) };
            let choices: Vec<Choice> = (0..ROWS).map(of).collect();
            ops.choose_later(true);
            ops.draw_by(&choices);
            model.forward(&mut ops, &batch.steps());
            ops.choose_under(&masks);
            // Begun before the tokens are asked for: it is fed what is drawn.
            let next = sequences.advance(&[1; ROWS], vocab, round + 50);
            let mut fed = next.steps();
            let ids: Vec<u32> = (0..ROWS as u32).map(|row| CHOSEN | row).collect();
            fed.ids = &ids;
            model.forward(&mut ops, &fed);
            let drawn = ops.chosen().expect("the first step's tokens");
            for (row, ((logits, mask), token)) in plain.chunks_exact(vocab).zip(&masks).zip(&drawn).enumerate() {
                let mut logits = logits.to_vec();
                mask.iter().for_each(|mask| magray_device::rule_out(&mut logits, mask));
                let wrong = fault(&logits, &choices[row], *token as usize);
                assert_eq!(wrong, None, "{name}, round {round}, row {row}");
                assert!(logits[*token as usize] > magray_device::RULED_OUT, "{name}: a token that was ruled out");
            }
            let found = ops.answer().expect("the second step's logits").to_vec();
            fed.ids = &drawn;
            model.forward(&mut ops, &fed);
            assert_eq!(ops.answer().expect("the same step"), found, "{name}: it was fed other tokens");
        }
    });
}

#[test]
fn wrong_choices_are_seen() {
    let logits = [0.0, 3.0, 2.0, 1.0];
    assert_eq!(
        [expected(&logits, None), expected(&logits, Some(&[0b1101])), expected(&logits, Some(&[0b1]))],
        [1, 2, 0]
    );
    assert_eq!(expected(&[2.0, 2.0], None), 0, "the first of equals");
}
