//! Attention within texts of all lengths, side by side.

use crate::rig::{Rig, Subject};
use crate::rows::check;
use crate::texts::Texts;
use crate::twin;
use magray_device::{AttentionShape, DistanceBias, Ops};

conforms!(
    texts_of_all_lengths_attend_within_themselves,
    long_texts_beside_short_ones,
    texts_that_end_beside_the_edge_of_a_block,
    heads_of_every_size,
    no_texts_and_empty_ones,
);

struct Case<'a> {
    heads: usize,
    size: usize,
    lengths: &'a [usize],
    biased: bool,
}

fn attend<S: Subject>(rig: &mut Rig<S>, case: &Case<'_>) {
    let &Case { heads, size, lengths, biased } = case;
    let hidden = heads * size;
    if !rig.affords(lengths.iter().map(|length| 2 * length * length * hidden).sum()) {
        return;
    }
    let texts = Texts::new(lengths);
    let qkv = rig.random.rows(texts.tokens(), 3 * hidden);
    // Large enough that the scores differ by a few: flat weights would hide a wrong score.
    let qkv = rig.put(&qkv, 1.5);
    // Not linear in the distance: softmax would not tell one query's row of such biases from another's.
    let near = |head: usize, distance: isize| {
        let bent = (0.7 * distance as f32).sin() - 0.03 * distance.abs() as f32;
        if biased { (head as f32 + 1.0) * bent } else { 0.0 }
    };
    // No further than needed: nothing beyond may be read.
    let reach = texts.batch().longest();
    let table = biased.then(|| rig.bias(DistanceBias::tabulate(heads, reach, near)));
    let mut out = rig.acts(texts.tokens(), hidden);
    rig.ops.attention(&qkv, &texts.batch(), AttentionShape { heads, bias: table.as_ref() }, &mut out);
    let (got, inputs) = (rig.get(&out), rig.get(&qkv));
    let want = twin::attention(&inputs, &texts.batch(), heads, &near);
    let what = format!("{} {heads} heads of {size}, texts of {lengths:?}, bias: {biased}", rig.name);
    check(&got, &want, rig.stored_tolerance(), &what);
}

fn texts_of_all_lengths_attend_within_themselves<S: Subject>(rig: &mut Rig<S>) {
    for (heads, size) in [(3, 12), (3, 16), (2, 32), (1, 64), (2, 40)] {
        for biased in [false, true] {
            attend(rig, &Case { heads, size, lengths: &[1, 31, 32, 0, 33, 2], biased });
        }
    }
}

fn long_texts_beside_short_ones<S: Subject>(rig: &mut Rig<S>) {
    attend(rig, &Case { heads: 2, size: 16, lengths: &[33, 1, 200, 31, 32], biased: true });
    // One text and one head: a team divides the queries.
    attend(rig, &Case { heads: 1, size: 32, lengths: &[200], biased: true });
    attend(rig, &Case { heads: 1, size: 12, lengths: &[97], biased: false });
    for size in [32, 64, 128] {
        for biased in [false, true] {
            attend(rig, &Case { heads: 2, size, lengths: &[300, 17, 1, 512, 64], biased });
        }
    }
}

fn texts_that_end_beside_the_edge_of_a_block<S: Subject>(rig: &mut Rig<S>) {
    let lengths = [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300];
    for (heads, size) in [(1, 32), (1, 64), (1, 128), (1, 8)] {
        // Alone, where nothing that is read beyond a text belongs to another, and together.
        for length in lengths {
            attend(rig, &Case { heads, size, lengths: &[length], biased: length % 2 == 1 });
        }
        attend(rig, &Case { heads, size, lengths: &lengths, biased: true });
        attend(rig, &Case { heads, size, lengths: &[65, 15, 129, 1, 64, 63], biased: false });
    }
}

fn heads_of_every_size<S: Subject>(rig: &mut Rig<S>) {
    // Whole models' widths, and sizes that no kernel is made for.
    for (heads, size) in [(12, 32), (12, 64), (6, 128), (3, 8), (5, 12), (2, 80), (1, 256), (3, 1)] {
        for biased in [false, true] {
            attend(rig, &Case { heads, size, lengths: &[9, 64, 3, 40], biased });
        }
    }
}

fn no_texts_and_empty_ones<S: Subject>(rig: &mut Rig<S>) {
    for lengths in [&[][..], &[0], &[0, 0, 1, 0]] {
        attend(rig, &Case { heads: 2, size: 16, lengths, biased: true });
    }
    attend(rig, &Case { heads: 1, size: 64, lengths: &[0, 70, 0, 0, 3, 0], biased: false });
}
