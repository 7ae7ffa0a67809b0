//! Word, position and type vectors, summed and normalised.

use crate::rig::{Texts, each_rig};
use crate::rows::{Expected, Rows, check};
use crate::twin;
use magray_device::{Device, Embedding, Norm, Ops, Table};

#[test]
fn tables_are_summed_and_normalised() {
    const FIRST_POSITION: usize = 2;
    each_rig(|rig| {
        for (columns, lengths) in
            [(48, &[5, 1, 0, 33][..]), (100, &[1]), (7, &[2, 9]), (64, &[3]), (32, &[]), (33, &[0])]
        {
            for with_types in [false, true] {
                let words = rig.random.rows(50, columns);
                let positions = rig.random.rows(40, columns);
                let types = rig.random.rows(2, columns);
                let (gain, shift) = (rig.random.normals(columns, 1.0), rig.random.normals(columns, 1.0));
                let epsilon = 1e-5f32;
                let mut texts = Texts::new(lengths);
                texts.ids = texts.ids.iter().map(|_| rig.random.below(50) as u32).collect();
                let type_ids: Vec<u32> = texts.ids.iter().map(|_| rig.random.below(2) as u32).collect();
                let mut batch = texts.batch();
                if with_types {
                    batch.types = &type_ids;
                }
                let table = |rows: &Rows| Table::new(rows.values.clone(), columns);
                let embedding = rig.cpu.embedding(Embedding {
                    words: table(&words),
                    positions: table(&positions),
                    types: with_types.then(|| table(&types)),
                    norm: Norm::new(gain.clone(), shift.clone(), epsilon),
                    first_position: FIRST_POSITION,
                });
                // The operations are new: see `reuse` for models of several widths on the same ones.
                rig.renew();
                let mut out = rig.acts(texts.tokens(), columns);
                rig.ops.embed(&batch, &embedding, &mut out);

                let mut want = Vec::new();
                for text in 0..texts.count() {
                    for (place, token) in texts.range(text).enumerate() {
                        let row =
                            |table: &Rows, at: usize| table.row(at).iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
                        let mut sum = row(&words, texts.ids[token] as usize);
                        let mut add = |x: Vec<f64>| sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
                        add(row(&positions, FIRST_POSITION + place));
                        if with_types {
                            add(row(&types, type_ids[token] as usize));
                        }
                        let normed = twin::layer_norm(&sum, &gain, &shift, f64::from(epsilon));
                        want.push(
                            normed.into_iter().map(|value| Expected { value, scale: 1.0 + value.abs() }).collect(),
                        );
                    }
                }
                let got = rig.get(&out);
                check(
                    &got,
                    &want,
                    rig.stored_tolerance(),
                    &format!("{} {columns} columns, types: {with_types}", rig.name),
                );
            }
        }
    });
}
