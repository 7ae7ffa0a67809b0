//! One row a text, in every way, and how rows are read.

use crate::rig::{Rig, Subject};
use crate::rows::{Expected, Tolerance, check};
use crate::texts::Texts;
use crate::twin;
use magray_core::{Pooling, Precision};
use magray_device::{Ops, PoolShape};

conforms!(every_way_with_and_without_a_prompt, rows_are_read_as_they_are_or_at_length_one);

const EXACT: Tolerance = Tolerance { row: 2e-6, element: 5e-6 };

fn every_way_with_and_without_a_prompt<S: Subject>(rig: &mut Rig<S>) {
    for (columns, lengths) in [(100, &[4, 31, 200, 5][..]), (48, &[33]), (7, &[4, 4]), (384, &[65, 4]), (64, &[])] {
        let texts = Texts::new(lengths);
        let hidden = rig.random.rows(texts.tokens(), columns);
        let hidden = rig.put(&hidden, 1.0);
        let rows = rig.get(&hidden);
        for ways in Pooling::ALL.chunks(1).chain([&Pooling::ALL[..], &[Pooling::Mean, Pooling::Cls]]) {
            for skip in [0, 1, 3] {
                let got = rig.pool(&hidden, &texts.batch(), PoolShape { ways, skip });
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
}

fn rows_are_read_as_they_are_or_at_length_one<S: Subject>(rig: &mut Rig<S>) {
    for (count, columns, gain) in [(1, 7, 0.0), (3, 33, 3.0), (2, 1152, 1.0), (0, 48, 1.0), (65, 384, 0.5)] {
        let texts = Texts::new(&vec![1; count]);
        let rows = rig.random.rows(count, columns);
        // Without gain the row is zero, and stays so at whatever length.
        let acts = rig.put(&rows, gain);
        let mut pooled = rig.acts_in(Precision::F32, count, columns);
        rig.ops.pool(&acts, &texts.batch(), PoolShape { ways: &[Pooling::Mean], skip: 0 }, &mut pooled);
        let (plain, unit) = (rig.read(&pooled, false), rig.read(&pooled, true));
        for (plain, unit) in plain.iter().zip(unit.iter()) {
            let length = plain.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt().max(1e-12);
            assert_eq!(length > 1e-12, gain > 0.0, "{}: rows are zero without gain alone", rig.name);
            for (&plain, &unit) in plain.iter().zip(unit) {
                let error = (f64::from(plain) / length - f64::from(unit)).abs();
                assert!(error < 1e-6, "{}: {plain} of length {length} became {unit}", rig.name);
            }
        }
    }
}
