//! NaN and infinities in one row or text change no bit of another's, then or in a later batch.

use crate::linear::weights;
use crate::poison::Poison;
use crate::rig::{ActsOf, LinearOf, Rig, Subject};
use crate::rows::Rows;
use crate::texts::Texts;
use magray_core::{Activation, Pooling};
use magray_device::{AttentionShape, LinearSource, Norm, Ops, PoolShape, Rows as _};
use std::ops::Range;

conforms!(
    the_poisons_are_what_they_are_called,
    products,
    products_added_and_normalised,
    texts_that_attend_beside_nan,
    texts_that_attend_beside_infinities,
    texts_that_are_pooled,
);

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// A row that is spoiled, and the rows of the output that may show it.
struct Spoiled {
    row: usize,
    touched: Range<usize>,
}

impl Spoiled {
    fn row_alone(row: usize) -> Self {
        Self { row, touched: row..row + 1 }
    }
}

/// Runs an operation on clean rows, then with spoiled ones, then on the clean ones again, in the same buffers. Output
/// rows that are not touched are the same in all three; all are when the spoiled ones are gone.
fn isolate<S: Subject>(
    rig: &mut Rig<S>,
    input: &Rows,
    poisons: &[Poison],
    spoiled: &Spoiled,
    mut op: impl FnMut(&mut Rig<S>, &ActsOf<S>) -> Rows,
) {
    let mut acts = rig.acts(0, input.columns);
    let mut run = |rig: &mut Rig<S>, rows: &Rows| {
        rig.put_into(rows, 1.0, &mut acts);
        op(rig, &acts)
    };
    let clean = run(rig, input);
    assert!(clean.values.iter().all(|x| x.is_finite()), "{}: clean rows give finite numbers", rig.name);
    for poison in poisons {
        let mut poisoned = input.clone();
        poison.spoil(poisoned.row_mut(spoiled.row));
        let got = run(rig, &poisoned);
        let gone = run(rig, input);
        for row in 0..clean.len() {
            let name = &rig.name;
            if !spoiled.touched.contains(&row) {
                assert_eq!(bits(got.row(row)), bits(clean.row(row)), "{name}: {poison:?} reached row {row}");
            }
            assert_eq!(bits(gone.row(row)), bits(clean.row(row)), "{name}: {poison:?} stayed in row {row}");
        }
    }
}

fn the_poisons_are_what_they_are_called<S: Subject>(rig: &mut Rig<S>) {
    for &poison in Poison::of(rig.subject.stored()) {
        let mut rows = rig.random.rows(2, 48);
        poison.spoil(rows.row_mut(1));
        let acts = rig.put(&rows, 1.0);
        let got = rig.get(&acts);
        assert!(got.row(0).iter().all(|x| x.is_finite()), "{} {poison:?}", rig.name);
        let is_so = |x: &f32| if poison == Poison::Nan { x.is_nan() } else { x.is_infinite() };
        assert!(got.row(1).iter().all(is_so), "{} {poison:?} {:?}", rig.name, got.row(1));
    }
}

fn products<S: Subject>(rig: &mut Rig<S>) {
    let poisons = Poison::of(rig.subject.stored());
    for (rows, inputs, outputs) in [(40, 48, 33), (20, 100, 40), (5, 200, 7), (70, 128, 192)] {
        let (weights, bias) = (weights(rig, inputs, outputs), rig.random.normals(outputs, 1.0));
        let layer = rig.linear(LinearSource { weights: &weights, inputs, bias: &bias });
        let input = rig.random.rows(rows, inputs);
        let mut out = rig.acts(rows, outputs);
        isolate(rig, &input, poisons, &Spoiled::row_alone(3), |rig, x| {
            rig.ops.linear(x, &layer, Activation::Gelu, &mut out);
            rig.get(&out)
        });
    }
}

fn products_added_and_normalised<S: Subject>(rig: &mut Rig<S>) {
    let poisons = Poison::of(rig.subject.stored());
    for (rows, columns) in [(40, 48), (20, 100), (66, 384)] {
        let (weights, bias) = (weights(rig, columns, columns), rig.random.normals(columns, 1.0));
        let layer = rig.linear(LinearSource { weights: &weights, inputs: columns, bias: &bias });
        let norm = rig.norm(Norm::new(vec![1.0; columns], vec![0.0; columns], 1e-12));
        let (input, before) = (rig.random.rows(rows, columns), rig.random.rows(rows, columns));
        let mut hidden = rig.acts(0, columns);
        isolate(rig, &input, poisons, &Spoiled::row_alone(3), |rig, x| {
            rig.put_into(&before, 1.0, &mut hidden);
            rig.ops.linear_add_norm(x, &layer, &norm, &mut hidden);
            rig.get(&hidden)
        });
        let clean = rig.put(&input, 1.0);
        let mut hidden = rig.acts(0, columns);
        let copy = copying_layer(rig, columns);
        isolate(rig, &before, poisons, &Spoiled::row_alone(3), |rig, x| {
            rig.ops.resize(&mut hidden, x.rows());
            rig.ops.linear(x, &copy, Activation::Identity, &mut hidden);
            rig.ops.linear_add_norm(&clean, &layer, &norm, &mut hidden);
            rig.get(&hidden)
        });
    }
}

/// A layer that gives back what it is given.
fn copying_layer<S: Subject>(rig: &Rig<S>, columns: usize) -> LinearOf<S> {
    let mut weights = Rows::new(columns, vec![0.0; columns * columns]);
    (0..columns).for_each(|i| weights.row_mut(i)[i] = 1.0);
    rig.linear(LinearSource { weights: &weights.values, inputs: columns, bias: &[] })
}

fn attend<S: Subject>(rig: &mut Rig<S>, poison: Poison) {
    if !Poison::of(rig.subject.stored()).contains(&poison) {
        return;
    }
    for (heads, size) in [(3, 12), (2, 32), (3, 16), (1, 64), (1, 128)] {
        let texts = Texts::new(&[3, 1, 33, 32, 5]);
        let input = rig.random.rows(texts.tokens(), 3 * heads * size);
        let mut out = rig.acts(texts.tokens(), heads * size);
        for text in [1, 2] {
            let touched = texts.range(text);
            let spoiled = Spoiled { row: touched.start, touched };
            isolate(rig, &input, &[poison], &spoiled, |rig, x| {
                rig.ops.attention(x, &texts.batch(), AttentionShape { heads, bias: None }, &mut out);
                rig.get(&out)
            });
        }
    }
}

fn texts_that_attend_beside_nan<S: Subject>(rig: &mut Rig<S>) {
    attend(rig, Poison::Nan);
}

fn texts_that_attend_beside_infinities<S: Subject>(rig: &mut Rig<S>) {
    attend(rig, Poison::Infinite);
}

fn texts_that_are_pooled<S: Subject>(rig: &mut Rig<S>) {
    let texts = Texts::new(&[3, 1, 33, 5]);
    let input = rig.random.rows(texts.tokens(), 100);
    let spoiled = Spoiled { row: texts.range(2).start + 1, touched: 2..3 };
    isolate(rig, &input, Poison::of(rig.subject.stored()), &spoiled, |rig, x| {
        rig.pool(x, &texts.batch(), PoolShape { ways: &Pooling::ALL, skip: 0 })
    });
}
