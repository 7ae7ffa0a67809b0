//! The functions after a product, over everything that reaches them.

use crate::rig::{Rig, Subject};
use crate::rows::Rows;
use crate::twin;
use magray_core::{Activation, Precision};
use magray_device::{LinearSource, Ops};

conforms!(functions_from_minus_to_plus_thirty);

const ALL: [Activation; 6] = [
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Relu,
    Activation::Silu,
    Activation::Tanh,
    Activation::Identity,
];

fn functions_from_minus_to_plus_thirty<S: Subject>(rig: &mut Rig<S>) {
    // The widths are those of different kernels where a device has several.
    for columns in [120, 128] {
        // A ramp, whose ends normalised are the square root of three, and rows of every size that is common.
        let mut x = rig.random.rows(4, columns);
        x.row_mut(0).iter_mut().enumerate().for_each(|(i, x)| *x = i as f32 - (columns - 1) as f32 / 2.0);
        for gain in [17.5, 1.0, 1e-3] {
            let acts = rig.put(&x, gain);
            let x = rig.get(&acts);
            // Each output is one input: nothing is rounded on the way to the function but by bytes.
            let mut weights = Rows::new(columns, vec![0.0; columns * columns]);
            (0..columns).for_each(|i| weights.row_mut(i)[i] = 1.0);
            let layer = rig.linear(LinearSource { weights: &weights.values, inputs: columns, bias: &[] });
            for activation in ALL {
                let mut out = rig.acts(x.len(), columns);
                rig.ops.linear(&acts, &layer, activation, &mut out);
                let got = rig.get(&out);
                x.iter().zip(got.iter()).for_each(|(x, got)| check_row(rig, activation, x, got));
            }
        }
    }
}

fn check_row<S: Subject>(rig: &Rig<S>, activation: Activation, x: &[f32], got: &[f32]) {
    let largest = x.iter().fold(0.0f64, |m, &x| m.max(f64::from(x.abs())));
    for (&x, &got) in x.iter().zip(got) {
        let x = f64::from(x);
        let want = twin::activate(activation, x);
        // No function is steeper than 1.13.
        let steepest = 1.13;
        let argument = match rig.subject.precision() {
            // Half a step of the row's bytes, and the scale itself.
            Precision::Int8 => largest / 240.0,
            // Eleven bits are left of the argument.
            Precision::Tf32 => x.abs() / 2048.0,
            Precision::F32 | Precision::F16 | Precision::Bf16 => 0.0,
        };
        let allowed = 4e-7 * (x.abs() + want.abs() + 1.0)
            + steepest * argument
            + rig.subject.stored().rounding(want)
            + rig.subject.function_tolerance() * x.abs();
        let name = &rig.name;
        assert!((f64::from(got) - want).abs() <= allowed, "{name} {activation:?} of {x}: {got} is not {want}");
    }
}
