//! One row a text, in every way, and how rows are read.

use crate::rig::{Texts, each_rig};
use crate::rows::{Expected, Tolerance, check};
use crate::twin;
use magray_core::{Pooling, Precision};
use magray_device::{Device, Ops, PoolShape};

const EXACT: Tolerance = Tolerance { row: 2e-6, element: 5e-6 };

#[test]
fn every_way_with_and_without_a_prompt() {
    each_rig(|rig| {
        for (columns, lengths) in [(100, &[4, 31, 200, 5][..]), (48, &[33]), (7, &[4, 4]), (64, &[])] {
            let texts = Texts::new(lengths);
            let hidden = rig.random.rows(texts.tokens(), columns);
            let hidden = rig.put(&hidden, 1.0);
            let rows = rig.get(&hidden);
            for ways in Pooling::ALL.chunks(1).chain([&Pooling::ALL[..], &[Pooling::Mean, Pooling::Cls]]) {
                for skip in [0, 1, 3] {
                    let got = rig.pool(&hidden, &texts, PoolShape { ways, skip });
                    let text = |text: usize| {
                        let rows: Vec<&[f32]> = texts.range(text).map(|token| rows.row(token)).collect();
                        let pooled = ways.iter().flat_map(|&way| twin::pool(&rows, way, skip));
                        pooled.map(|value| Expected { value, scale: 1.0 + value.abs() }).collect()
                    };
                    let want: Vec<Vec<Expected>> = (0..texts.count()).map(text).collect();
                    check(&got, &want, EXACT, &format!("{} {columns} columns, {ways:?}, skip {skip}", rig.name));
                }
            }
        }
    });
}

#[test]
fn rows_are_read_as_they_are_or_at_length_one() {
    each_rig(|rig| {
        for (count, columns, gain) in [(1, 7, 0.0), (3, 33, 3.0), (2, 1152, 1.0), (0, 48, 1.0)] {
            let texts = Texts::new(&vec![1; count]);
            let rows = rig.random.rows(count, columns);
            // Without gain the row is zero, and stays so at whatever length.
            let acts = rig.put(&rows, gain);
            let mut pooled = rig.cpu.acts(Precision::F32, columns);
            rig.ops.resize(&mut pooled, count);
            rig.ops.pool(&acts, &texts.batch(), PoolShape { ways: &[Pooling::Mean], skip: 0 }, &mut pooled);
            let (mut plain, mut unit) = (vec![f32::NAN; count * columns], vec![f32::NAN; count * columns]);
            rig.ops.read(&pooled, false, &mut plain);
            rig.ops.read(&pooled, true, &mut unit);
            for (plain, unit) in plain.chunks_exact(columns).zip(unit.chunks_exact(columns)) {
                let length = plain.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt().max(1e-12);
                for (&plain, &unit) in plain.iter().zip(unit) {
                    let error = (f64::from(plain) / length - f64::from(unit)).abs();
                    assert!(error < 1e-6, "{}: {plain} of length {length} became {unit}", rig.name);
                }
            }
        }
    });
}
