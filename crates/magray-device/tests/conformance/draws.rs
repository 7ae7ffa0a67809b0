//! Tokens that a GPU draws: each must be one that its cut-offs leave, at the place of its draw among them.

use crate::cuda::each_set;
use crate::decoder_model::{Kind, Model, PLAIN, Sequences};
use magray_device::{Choice, DecoderOps};

/// Weights are rounded to a part of 2^30, sums to more of them.
const ROUNDING: f64 = 1e-4;

/// What is wrong with a token that was drawn from these logits.
pub(crate) fn fault(logits: &[f32], choice: &Choice, token: usize) -> Option<String> {
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    if choice.temperature == 0.0 {
        let best = logits.iter().position(|logit| *logit == most);
        return (best != Some(token)).then(|| format!("{token} instead of {best:?}"));
    }
    let weight = |logit: &f32| (f64::from(logit - most) / f64::from(choice.temperature)).exp();
    let weights: Vec<f64> = logits.iter().map(weight).collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
    order.retain(|id| weights[*id] >= f64::from(choice.min_p));
    if choice.top_k > 0 {
        order.truncate(choice.top_k as usize);
    }
    let kept: f64 = order.iter().map(|id| weights[*id]).sum();
    let mut left = kept * f64::from(choice.top_p);
    let enough = order.iter().position(|id| {
        left -= weights[*id];
        left <= ROUNDING * kept
    });
    order.truncate(enough.map_or(order.len(), |at| at + 1));
    let lightest = order.last().map_or(0.0, |id| weights[*id]);
    if weights[token] < lightest * (1.0 - ROUNDING) {
        return Some(format!("{token} weighs {}, and the lightest that is left {lightest}", weights[token]));
    }
    order.sort_unstable();
    let total: f64 = order.iter().map(|id| weights[*id]).sum();
    let before: f64 = order.iter().filter(|id| **id < token).map(|id| weights[*id]).sum();
    let (at, width) = (choice.draw as f64 / 2f64.powi(64) * total, weights[token]);
    // One token more or less at the edge of a cut-off moves all behind it.
    let slack = ROUNDING * total + if choice.top_p < 1.0 { lightest } else { 0.0 };
    (at < before - slack || at > before + width + slack)
        .then(|| format!("{token} at {before} + {width}, drawn at {at}"))
}

#[test]
fn tokens_are_drawn_by_their_weights_on_cuda() {
    each_set(|cuda, name| {
        for vocab in [33, 400, 5_003, 70_001] {
            let mut model = Model::new(&**cuda, Kind { vocab, ..PLAIN }, 20, 3);
            let mut ops = cuda.decoder().expect("the GPU gives a stream");
            let mut sequences = Sequences::new(8, 20);
            for round in 0..12_u64 {
                let batch = sequences.advance(&[1; 8], vocab, round);
                let of = |row: u64| {
                    let draw = (round * 8 + row + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let warm = Choice { temperature: 0.7, top_k: 0, top_p: 1.0, min_p: 0.0, draw };
                    match row {
                        0 => Choice { temperature: 0.0, ..warm },
                        1 => warm,
                        2 => Choice { temperature: 2.5, ..warm },
                        3 => Choice { top_k: 5, ..warm },
                        4 => Choice { top_p: 0.6, ..warm },
                        5 => Choice { min_p: 0.3, temperature: 1.5, ..warm },
                        6 => Choice { top_k: 40, top_p: 0.9, min_p: 0.01, ..warm },
                        _ => Choice { top_k: 1, draw: u64::MAX, ..warm },
                    }
                };
                let choices: Vec<Choice> = (0..8).map(of).collect();
                assert!(ops.draw_by(&choices), "a GPU draws");
                model.forward(&mut ops, &batch.steps());
                let drawn = ops.chosen().expect("a step that was done");
                let logits = ops.answer().expect("its logits are there").to_vec();
                let rows = logits.chunks_exact(vocab).zip(&choices).zip(&drawn);
                for (row, ((logits, choice), token)) in rows.enumerate() {
                    let fault = fault(logits, choice, *token as usize);
                    assert_eq!(fault, None, "{name}, {vocab} tokens, round {round}, row {row}: {choice:?}");
                }
                let some = ops.answer_rows(&[1, 4, 5], vocab).expect("rows of the last step");
                let expected = [1, 4, 5].map(|row| &logits[row * vocab..][..vocab]).concat();
                assert_eq!(some, expected, "{name}: some of the rows");
                // The next step takes the likeliest again, and may be fed.
                let next = sequences.advance(&[1; 8], vocab, round + 100);
                model.forward(&mut ops, &next.steps());
                let likeliest = ops.chosen().expect("a step that was done");
                let logits = ops.answer().expect("its logits are there");
                let expected: Vec<u32> = logits.chunks_exact(vocab).map(magray_device::most_likely).collect();
                assert_eq!(likeliest, expected, "{name}");
            }
        }
    });
}

#[test]
fn wrong_draws_are_seen() {
    let logits = [0.0, 3.0, 2.0, 1.0];
    let choice = Choice { temperature: 1.0, top_k: 2, top_p: 1.0, min_p: 0.0, draw: 1 << 62 };
    assert_eq!(fault(&logits, &choice, 1), None);
    assert!(fault(&logits, &choice, 2).is_some_and(|fault| fault.contains("drawn at")));
    assert!(fault(&logits, &choice, 3).is_some_and(|fault| fault.contains("lightest")));
    assert!(fault(&logits, &Choice { temperature: 0.0, ..choice }, 2).is_some());
}
