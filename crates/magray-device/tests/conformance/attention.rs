//! Attention within texts of all lengths, side by side.

use crate::rig::{Rig, Texts, each_rig};
use crate::rows::check;
use crate::twin;
use magray_device::{AttentionShape, DistanceBias, Ops};

struct Case<'a> {
    heads: usize,
    size: usize,
    lengths: &'a [usize],
    biased: bool,
}

fn attend(rig: &mut Rig, case: &Case<'_>) {
    let &Case { heads, size, lengths, biased } = case;
    let texts = Texts::new(lengths);
    let hidden = heads * size;
    let qkv = rig.random.rows(texts.tokens(), 3 * hidden);
    // Large enough that the scores differ by a few: flat weights would hide a wrong score.
    let qkv = rig.put(&qkv, 1.5);
    // Not linear in the distance: softmax would not tell one query's row of such biases from another's.
    let near = |head: usize, distance: isize| {
        let bent = (0.7 * distance as f32).sin() - 0.03 * distance.abs() as f32;
        if biased { (head as f32 + 1.0) * bent } else { 0.0 }
    };
    let table = DistanceBias::tabulate(heads, 200, near);
    let mut out = rig.acts(texts.tokens(), hidden);
    let shape = AttentionShape { heads, bias: biased.then_some(&table) };
    rig.ops.attention(&qkv, &texts.batch(), shape, &mut out);
    let (got, inputs) = (rig.get(&out), rig.get(&qkv));
    let want = twin::attention(&inputs, &texts.batch(), heads, &near);
    let what = format!("{} {heads} heads of {size}, texts of {lengths:?}, bias: {biased}", rig.name);
    check(&got, &want, rig.stored_tolerance(), &what);
}

#[test]
fn texts_of_all_lengths_attend_within_themselves() {
    each_rig(|rig| {
        for (heads, size) in [(3, 12), (3, 16), (2, 32), (1, 64), (2, 40)] {
            for biased in [false, true] {
                attend(rig, &Case { heads, size, lengths: &[1, 31, 32, 0, 33, 2], biased });
            }
        }
    });
}

#[test]
fn long_texts_beside_short_ones() {
    each_rig(|rig| {
        attend(rig, &Case { heads: 2, size: 16, lengths: &[33, 1, 200, 31, 32], biased: true });
        // One text and one head: a team divides the queries.
        attend(rig, &Case { heads: 1, size: 32, lengths: &[200], biased: true });
        attend(rig, &Case { heads: 1, size: 12, lengths: &[97], biased: false });
    });
}

#[test]
fn no_texts_and_empty_ones() {
    each_rig(|rig| {
        for lengths in [&[][..], &[0], &[0, 0, 1, 0]] {
            attend(rig, &Case { heads: 2, size: 16, lengths, biased: true });
        }
    });
}
