//! NaN and infinities in one row or text change no bit of another's, then or in a later batch.

use crate::linear::weights;
use crate::rig::{Poison, Rig, Texts, each_rig};
use crate::rows::Rows;
use magray_core::{Activation, Pooling};
use magray_device::cpu::Acts;
use magray_device::{AttentionShape, Device, LinearSource, Norm, Ops, PoolShape};
use std::ops::Range;

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// Runs an operation on clean rows, then with spoiled ones, then on the clean ones again, in the same buffers. Output
/// rows outside `touched` are the same in all three; all are when the spoiled ones are gone.
fn isolate(
    rig: &mut Rig,
    input: &Rows,
    spoiled: (&[Poison], usize),
    touched: Range<usize>,
    mut op: impl FnMut(&mut Rig, &Acts) -> Rows,
) {
    let mut acts = rig.acts(0, input.columns);
    let mut run = |rig: &mut Rig, rows: &Rows| {
        rig.put_into(rows, 1.0, &mut acts);
        op(rig, &acts)
    };
    let clean = run(rig, input);
    assert!(clean.values.iter().all(|x| x.is_finite()), "{}: clean rows give finite numbers", rig.name);
    let (poisons, spoiled) = spoiled;
    for poison in poisons {
        let mut poisoned = input.clone();
        poison.spoil(poisoned.row_mut(spoiled));
        let got = run(rig, &poisoned);
        let gone = run(rig, input);
        for row in 0..clean.len() {
            let name = &rig.name;
            if !touched.contains(&row) {
                assert_eq!(bits(got.row(row)), bits(clean.row(row)), "{name}: {poison:?} reached row {row}");
            }
            assert_eq!(bits(gone.row(row)), bits(clean.row(row)), "{name}: {poison:?} stayed in row {row}");
        }
    }
}

#[test]
fn the_poisons_are_what_they_are_called() {
    each_rig(|rig| {
        for poison in Poison::ALL {
            let mut rows = rig.random.rows(2, 48);
            poison.spoil(rows.row_mut(1));
            let acts = rig.put(&rows, 1.0);
            let got = rig.get(&acts);
            assert!(got.row(0).iter().all(|x| x.is_finite()), "{} {poison:?}", rig.name);
            let is_so = |x: &f32| if poison == Poison::Nan { x.is_nan() } else { x.is_infinite() };
            assert!(got.row(1).iter().all(is_so), "{} {poison:?} {:?}", rig.name, got.row(1));
        }
    });
}

#[test]
fn products() {
    each_rig(|rig| {
        for (rows, inputs, outputs) in [(40, 48, 33), (20, 100, 40), (5, 200, 7)] {
            let (weights, bias) = (weights(rig, inputs, outputs), rig.random.normals(outputs, 1.0));
            let layer = rig.cpu.linear(LinearSource { weights: &weights, inputs, bias: &bias }, rig.precision);
            let input = rig.random.rows(rows, inputs);
            let mut out = rig.acts(rows, outputs);
            isolate(rig, &input, (&Poison::ALL, 3), 3..4, |rig, x| {
                rig.ops.linear(x, &layer, Activation::Gelu, &mut out);
                rig.get(&out)
            });
        }
    });
}

#[test]
fn products_added_and_normalised() {
    each_rig(|rig| {
        for (rows, columns) in [(40, 48), (20, 100)] {
            let (weights, bias) = (weights(rig, columns, columns), rig.random.normals(columns, 1.0));
            let source = LinearSource { weights: &weights, inputs: columns, bias: &bias };
            let layer = rig.cpu.linear(source, rig.precision);
            let norm = rig.cpu.norm(Norm::new(vec![1.0; columns], vec![0.0; columns], 1e-12));
            let (input, before) = (rig.random.rows(rows, columns), rig.random.rows(rows, columns));
            let mut hidden = rig.acts(0, columns);
            isolate(rig, &input, (&Poison::ALL, 3), 3..4, |rig, x| {
                rig.put_into(&before, 1.0, &mut hidden);
                rig.ops.linear_add_norm(x, &layer, &norm, &mut hidden);
                rig.get(&hidden)
            });
            let clean = rig.put(&input, 1.0);
            let mut hidden = rig.acts(0, columns);
            isolate(rig, &before, (&Poison::ALL, 3), 3..4, |rig, x| {
                let before = rig.get(x);
                rig.ops.resize(&mut hidden, before.len());
                copy(rig, x, &mut hidden);
                rig.ops.linear_add_norm(&clean, &layer, &norm, &mut hidden);
                rig.get(&hidden)
            });
        }
    });
}

/// `to = from`, by weights that change nothing.
fn copy(rig: &mut Rig, from: &Acts, to: &mut Acts) {
    let columns = from.columns();
    let mut weights = Rows::new(columns, vec![0.0; columns * columns]);
    (0..columns).for_each(|i| weights.row_mut(i)[i] = 1.0);
    let layer = rig.cpu.linear(LinearSource { weights: &weights.values, inputs: columns, bias: &[] }, rig.precision);
    rig.ops.linear(from, &layer, Activation::Identity, to);
}

fn attend(poison: Poison) {
    each_rig(|rig| {
        for (heads, size) in [(3, 12), (2, 32), (3, 16)] {
            let texts = Texts::new(&[3, 1, 33, 32, 5]);
            let input = rig.random.rows(texts.tokens(), 3 * heads * size);
            let mut out = rig.acts(texts.tokens(), heads * size);
            for spoiled in [1, 2] {
                let touched = texts.range(spoiled);
                isolate(rig, &input, (&[poison], touched.start), touched.clone(), |rig, x| {
                    rig.ops.attention(x, &texts.batch(), AttentionShape { heads, bias: None }, &mut out);
                    rig.get(&out)
                });
            }
        }
    });
}

#[test]
fn texts_that_attend_beside_nan() {
    attend(Poison::Nan);
}

#[test]
fn texts_that_attend_beside_infinities() {
    attend(Poison::Infinite);
}

#[test]
fn texts_that_are_pooled() {
    each_rig(|rig| {
        let texts = Texts::new(&[3, 1, 33, 5]);
        let input = rig.random.rows(texts.tokens(), 100);
        isolate(rig, &input, (&Poison::ALL, texts.range(2).start + 1), 2..3, |rig, x| {
            rig.pool(x, &texts, PoolShape { ways: &Pooling::ALL, skip: 0 })
        });
    });
}
