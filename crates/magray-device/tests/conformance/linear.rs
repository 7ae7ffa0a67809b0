//! Products with weights, and those that are added to what is there and normalised.

use crate::rig::{Rig, Subject};
use crate::rows::{Expected, Rows, check};
use crate::twin;
use magray_core::Activation;
use magray_device::{LinearSource, Norm, Ops};

conforms!(
    products_of_odd_shapes,
    products_of_the_shapes_of_models,
    products_are_added_and_normalised_in_buffers_that_are_used_again,
    products_as_wide_as_models_are_added_and_normalised,
    products_of_large_batches,
    products_of_large_batches_are_added_and_normalised,
);

/// Rows of a batch around the edges of every block, and more than a wave of blocks.
const ROWS: [usize; 7] = [1, 63, 64, 65, 128, 200, 1000];
/// Rows of batches for which a device takes its largest tiles.
const LARGE: [usize; 2] = [3000, 16_384];
/// Rows between those that are checked: each part of a tile gets its turn.
const STEP: usize = 101;

/// What it costs to make a row and to read it, in multiply-adds.
const ROW_COST: usize = 5_000;

/// Whether a product is for this device: all rows of one that is not large are checked, some of one that is.
fn affords<S: Subject>(rig: &Rig<S>, rows: usize, inputs: usize, outputs: usize) -> bool {
    let checked = if rows < LARGE[0] { rows } else { rows.div_ceil(STEP) };
    rig.affords(checked * inputs * outputs + rows * ROW_COST)
}

/// The rows to check; see [`affords`].
fn checked(rows: &Rows) -> Rows {
    rows.sample(if rows.len() < LARGE[0] { 1 } else { STEP })
}

/// Random weights for a layer whose outputs are about as large as its inputs.
pub(crate) fn weights<S: Subject>(rig: &mut Rig<S>, inputs: usize, outputs: usize) -> Vec<f32> {
    rig.random.normals(inputs * outputs, 1.0 / (inputs as f32).sqrt())
}

/// Products of new random rows with one layer, for each number of rows that the device affords.
fn multiply<S: Subject>(rig: &mut Rig<S>, rows: &[usize], inputs: usize, outputs: usize, with_bias: bool) {
    let rows: Vec<usize> = rows.iter().copied().filter(|&rows| affords(rig, rows, inputs, outputs)).collect();
    if rows.is_empty() {
        return;
    }
    let weights = weights(rig, inputs, outputs);
    let bias = if with_bias { rig.random.normals(outputs, 1.0) } else { Vec::new() };
    let source = LinearSource { weights: &weights, inputs, bias: &bias };
    let layer = rig.linear(source);
    for rows in rows {
        let x = rig.random.rows(rows, inputs);
        let x = rig.put(&x, 1.0);
        let mut out = rig.acts(rows, outputs);
        rig.ops.linear(&x, &layer, Activation::Identity, &mut out);
        let (got, want) = (checked(&rig.get(&out)), twin::linear(&checked(&rig.get(&x)), source));
        let what = format!("{} {rows} x {inputs} x {outputs}, bias: {with_bias}", rig.name);
        check(&got, &want, rig.product_tolerance(inputs), &what);
    }
}

fn products_of_odd_shapes<S: Subject>(rig: &mut Rig<S>) {
    let shapes = [
        (1, 48, 1),
        (5, 48, 2),
        (0, 48, 33),
        (37, 100, 33),
        (3, 100, 1152),
        (33, 7, 65),
        (17, 64, 64),
        (150, 33, 40),
        (113, 200, 2),
        (2, 450, 33),
    ];
    for (rows, inputs, outputs) in shapes {
        for with_bias in [true, false] {
            multiply(rig, &[rows], inputs, outputs, with_bias);
        }
    }
}

fn products_of_the_shapes_of_models<S: Subject>(rig: &mut Rig<S>) {
    let shapes = [
        (64, 64),
        (64, 192),
        (128, 64),
        (192, 320),
        (384, 384),
        (384, 1152),
        (384, 1536),
        (1536, 384),
        (768, 768),
        (1024, 1024),
        (1536, 1536),
        // Inputs that fill no whole step, outputs that fill no whole tile.
        (400, 448),
        (328, 1000),
    ];
    for (inputs, outputs) in shapes {
        multiply(rig, &ROWS, inputs, outputs, inputs != outputs);
    }
}

/// A layer and a norm that its products are added to, as the twin knows them.
struct Added {
    weights: Vec<f32>,
    inputs: usize,
    bias: Vec<f32>,
    gain: Vec<f32>,
    shift: Vec<f32>,
}

impl Added {
    const EPSILON: f32 = 1e-5;

    fn new<S: Subject>(rig: &mut Rig<S>, inputs: usize, outputs: usize) -> Self {
        let weights = weights(rig, inputs, outputs);
        let [bias, gain, shift] = [(); 3].map(|()| rig.random.normals(outputs, 1.0));
        Self { weights, inputs, bias, gain, shift }
    }

    fn source(&self) -> LinearSource<'_> {
        LinearSource { weights: &self.weights, inputs: self.inputs, bias: &self.bias }
    }

    fn norm(&self) -> Norm {
        Norm::new(self.gain.clone(), self.shift.clone(), Self::EPSILON)
    }

    fn expected(&self, x: &Rows, before: &Rows) -> Vec<Vec<Expected>> {
        let products = twin::linear(x, self.source());
        let normed = |(before, products): (&[f32], &Vec<Expected>)| {
            let sum: Vec<f64> = before.iter().zip(products).map(|(&x, p)| f64::from(x) + p.value).collect();
            let normed = twin::layer_norm(&sum, &self.gain, &self.shift, f64::from(Self::EPSILON));
            let scaled = |(value, gain): (f64, &f32)| Expected { value, scale: f64::from(gain.abs()) + value.abs() };
            normed.into_iter().zip(&self.gain).map(scaled).collect()
        };
        before.iter().zip(&products).map(normed).collect()
    }
}

/// `linear_add_norm` of new random rows in the same buffers, for each number of rows that the device affords.
fn add_and_norm<S: Subject>(rig: &mut Rig<S>, rows: &[usize], inputs: usize, outputs: usize) {
    let rows: Vec<usize> = rows.iter().copied().filter(|&rows| affords(rig, rows, inputs, outputs)).collect();
    if rows.is_empty() {
        return;
    }
    let added = Added::new(rig, inputs, outputs);
    let (layer, norm) = (rig.linear(added.source()), rig.norm(added.norm()));
    let (mut x, mut hidden) = (rig.acts(0, inputs), rig.acts(0, outputs));
    for rows in rows {
        let (x_rows, hidden_rows) = (rig.random.rows(rows, inputs), rig.random.rows(rows, outputs));
        rig.put_into(&x_rows, 1.0, &mut x);
        rig.put_into(&hidden_rows, 1.0, &mut hidden);
        let want = added.expected(&checked(&rig.get(&x)), &checked(&rig.get(&hidden)));
        rig.ops.linear_add_norm(&x, &layer, &norm, &mut hidden);
        let got = checked(&rig.get(&hidden));
        let what = format!("{} {rows} rows, {inputs} to {outputs}", rig.name);
        check(&got, &want, rig.product_tolerance(inputs), &what);
    }
}

fn products_are_added_and_normalised_in_buffers_that_are_used_again<S: Subject>(rig: &mut Rig<S>) {
    for (inputs, outputs) in [(48, 48), (33, 100), (100, 77), (130, 64), (64, 7)] {
        add_and_norm(rig, &[70, 5, 0, 1, 70, 33], inputs, outputs);
    }
}

fn products_as_wide_as_models_are_added_and_normalised<S: Subject>(rig: &mut Rig<S>) {
    for (inputs, outputs) in [(64, 384), (384, 384), (1536, 384), (768, 768), (1024, 1024), (128, 1024), (384, 512)] {
        add_and_norm(rig, &ROWS, inputs, outputs);
    }
}

fn products_of_large_batches<S: Subject>(rig: &mut Rig<S>) {
    for (inputs, outputs) in [(384, 1152), (384, 1536), (1536, 384), (768, 768), (768, 3072), (64, 64), (200, 320)] {
        multiply(rig, &LARGE, inputs, outputs, true);
    }
}

fn products_of_large_batches_are_added_and_normalised<S: Subject>(rig: &mut Rig<S>) {
    for (inputs, outputs) in [(384, 384), (1536, 384), (768, 768), (1024, 1024), (320, 512), (100, 77)] {
        add_and_norm(rig, &LARGE, inputs, outputs);
    }
}
