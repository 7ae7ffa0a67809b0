//! Products with weights, and those that are added to what is there and normalised.

use crate::rig::{Rig, each_rig};
use crate::rows::{Expected, check};
use crate::twin;
use magray_core::Activation;
use magray_device::cpu::Acts;
use magray_device::{Device, LinearSource, Norm, Ops};

/// Random weights for a layer whose outputs are about as large as its inputs.
pub(crate) fn weights(rig: &mut Rig, inputs: usize, outputs: usize) -> Vec<f32> {
    rig.random.normals(inputs * outputs, 1.0 / (inputs as f32).sqrt())
}

#[test]
fn products_with_weights_and_bias() {
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
    each_rig(|rig| {
        for (rows, inputs, outputs) in shapes {
            for with_bias in [true, false] {
                let weights = weights(rig, inputs, outputs);
                let bias = if with_bias { rig.random.normals(outputs, 1.0) } else { Vec::new() };
                let source = LinearSource { weights: &weights, inputs, bias: &bias };
                let layer = rig.cpu.linear(source, rig.precision);
                let x = rig.random.rows(rows, inputs);
                let x = rig.put(&x, 1.0);
                let mut out = rig.acts(rows, outputs);
                rig.ops.linear(&x, &layer, Activation::Identity, &mut out);
                let (got, want) = (rig.get(&out), twin::linear(&rig.get(&x), source));
                check(&got, &want, rig.product_tolerance(), &format!("{} {rows} x {inputs} x {outputs}", rig.name));
            }
        }
    });
}

/// One `linear_add_norm` of new random numbers into buffers that may have been used before.
fn add_and_norm(rig: &mut Rig, rows: usize, x: &mut Acts, hidden: &mut Acts) {
    let (inputs, outputs) = (x.columns(), hidden.columns());
    let (weights, bias) = (weights(rig, inputs, outputs), rig.random.normals(outputs, 1.0));
    let (gain, shift) = (rig.random.normals(outputs, 1.0), rig.random.normals(outputs, 1.0));
    let epsilon = 1e-5f32;
    let source = LinearSource { weights: &weights, inputs, bias: &bias };
    let layer = rig.cpu.linear(source, rig.precision);
    let norm = rig.cpu.norm(Norm::new(gain.clone(), shift.clone(), epsilon));
    let (x_rows, hidden_rows) = (rig.random.rows(rows, inputs), rig.random.rows(rows, outputs));
    rig.put_into(&x_rows, 1.0, x);
    rig.put_into(&hidden_rows, 1.0, hidden);
    let (x_before, before) = (rig.get(x), rig.get(hidden));
    rig.ops.linear_add_norm(x, &layer, &norm, hidden);

    let products = twin::linear(&x_before, source);
    let normed = |(before, products): (&[f32], &Vec<Expected>)| {
        let sum: Vec<f64> = before.iter().zip(products).map(|(&x, p)| f64::from(x) + p.value).collect();
        let normed = twin::layer_norm(&sum, &gain, &shift, f64::from(epsilon));
        let scaled = |(value, gain): (f64, &f32)| Expected { value, scale: f64::from(gain.abs()) + value.abs() };
        normed.into_iter().zip(&gain).map(scaled).collect::<Vec<_>>()
    };
    let want: Vec<_> = before.iter().zip(&products).map(normed).collect();
    let what = format!("{} {rows} rows, {inputs} to {outputs}", rig.name);
    let got = rig.get(hidden);
    check(&got, &want, rig.product_tolerance(), &what);
}

#[test]
fn products_are_added_and_normalised_in_buffers_that_are_used_again() {
    each_rig(|rig| {
        for (inputs, outputs) in [(48, 48), (33, 100), (100, 77), (130, 64), (64, 7)] {
            let (mut x, mut hidden) = (rig.acts(0, inputs), rig.acts(0, outputs));
            for rows in [70, 5, 0, 1, 70, 33] {
                add_and_norm(rig, rows, &mut x, &mut hidden);
            }
        }
    });
}
