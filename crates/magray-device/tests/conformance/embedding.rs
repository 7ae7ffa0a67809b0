//! Word, position and type vectors, summed and normalised.

use crate::rig::{Rig, Subject};
use crate::rows::{Expected, Rows, check};
use crate::texts::Texts;
use crate::twin;
use magray_device::{Embedding, Norm, Ops, Table};

conforms!(tables_are_summed_and_normalised);

const FIRST_POSITION: usize = 2;
const EPSILON: f32 = 1e-5;

/// A first layer as the twin knows it.
struct Tables {
    words: Rows,
    positions: Rows,
    types: Option<Rows>,
    gain: Vec<f32>,
    shift: Vec<f32>,
}

impl Tables {
    fn new<S: Subject>(rig: &mut Rig<S>, columns: usize, with_types: bool) -> Self {
        Self {
            words: rig.exact_rows(50, columns),
            positions: rig.exact_rows(70, columns),
            types: with_types.then(|| rig.exact_rows(2, columns)),
            gain: rig.random.normals(columns, 1.0),
            shift: rig.random.normals(columns, 1.0),
        }
    }

    fn embedding(&self) -> Embedding {
        let table = |rows: &Rows| Table::new(rows.values.clone(), rows.columns);
        Embedding {
            words: table(&self.words),
            positions: table(&self.positions),
            types: self.types.as_ref().map(table),
            norm: Norm::new(self.gain.clone(), self.shift.clone(), EPSILON),
            first_position: FIRST_POSITION,
        }
    }

    /// The row of a word at a place in its text.
    fn row(&self, word: u32, place: usize, token_type: u32) -> Vec<Expected> {
        let mut rows = vec![self.words.row(word as usize), self.positions.row(FIRST_POSITION + place)];
        rows.extend(self.types.as_ref().map(|types| types.row(token_type as usize)));
        let sum: Vec<f64> = (0..self.gain.len()).map(|c| rows.iter().map(|row| f64::from(row[c])).sum()).collect();
        let normed = twin::layer_norm(&sum, &self.gain, &self.shift, f64::from(EPSILON));
        normed.into_iter().map(|value| Expected { value, scale: 1.0 + value.abs() }).collect()
    }
}

fn tables_are_summed_and_normalised<S: Subject>(rig: &mut Rig<S>) {
    for (columns, lengths) in [
        (48, &[5, 1, 0, 33][..]),
        (100, &[1]),
        (7, &[2, 9]),
        (64, &[3]),
        (32, &[]),
        (33, &[0]),
        (384, &[65, 1, 20]),
        (1024, &[3, 2]),
    ] {
        for with_types in [false, true] {
            let tables = Tables::new(rig, columns, with_types);
            let mut texts = Texts::new(lengths);
            texts.ids.iter_mut().for_each(|id| *id = rig.random.below(50) as u32);
            let types: Vec<u32> = texts.ids.iter().map(|_| rig.random.below(2) as u32).collect();
            let mut batch = texts.batch();
            if with_types {
                batch.types = &types;
            }
            // The operations are new: see `reuse` for models of several widths on the same ones.
            rig.renew();
            let mut out = rig.acts(texts.tokens(), columns);
            let packed = rig.embedding(tables.embedding());
            rig.ops.embed(&batch, &packed, &mut out);

            let places = (0..texts.count()).flat_map(|text| texts.range(text).enumerate());
            let want: Vec<_> = places.map(|(place, at)| tables.row(texts.ids[at], place, types[at])).collect();
            let got = rig.get(&out);
            let what = format!("{} {columns} columns, types: {with_types}", rig.name);
            check(&got, &want, rig.stored_tolerance(), &what);
        }
    }
}
