//! The functions after a product, over everything that reaches them.

use crate::rig::each_rig;
use crate::rows::Rows;
use crate::twin;
use magray_core::{Activation, CpuPath, Precision};
use magray_device::{Device, LinearSource, Ops};

const ALL: [Activation; 6] = [
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Relu,
    Activation::Silu,
    Activation::Tanh,
    Activation::Identity,
];

#[test]
fn functions_from_minus_to_plus_thirty() {
    const COLUMNS: usize = 120;
    each_rig(|rig| {
        // A ramp, whose ends normalised are the square root of three, and rows of every size that is common.
        let mut x = rig.random.rows(4, COLUMNS);
        x.row_mut(0).iter_mut().enumerate().for_each(|(i, x)| *x = i as f32 - (COLUMNS - 1) as f32 / 2.0);
        for gain in [17.5, 1.0, 1e-3] {
            let acts = rig.put(&x, gain);
            let x = rig.get(&acts);
            // Each output is one input: nothing is rounded on the way to the function but by bytes.
            let mut weights = Rows::new(COLUMNS, vec![0.0; COLUMNS * COLUMNS]);
            (0..COLUMNS).for_each(|i| weights.row_mut(i)[i] = 1.0);
            let source = LinearSource { weights: &weights.values, inputs: COLUMNS, bias: &[] };
            let layer = rig.cpu.linear(source, rig.precision);
            for activation in ALL {
                let mut out = rig.acts(x.len(), COLUMNS);
                rig.ops.linear(&acts, &layer, activation, &mut out);
                for (x, got) in x.iter().zip(rig.get(&out).iter()) {
                    let largest = x.iter().fold(0.0f64, |m, &x| m.max(f64::from(x.abs())));
                    for (&x, &got) in x.iter().zip(got) {
                        let x = f64::from(x);
                        let want = twin::activate(activation, x);
                        let mut allowed = 4e-7 * (x.abs() + want.abs()) + 4e-7;
                        if rig.cpu.path() == CpuPath::Amx && rig.precision != Precision::F32 {
                            allowed += want.abs() / 256.0 + 1e-4 * x.abs();
                        }
                        if rig.precision == Precision::Int8 {
                            // Half a step of the row's bytes, and no function is steeper than 1.13.
                            allowed += 1.2 * largest / 254.0;
                        }
                        let name = &rig.name;
                        assert!(
                            (f64::from(got) - want).abs() <= allowed,
                            "{name} {activation:?} of {x}: {got} is not {want}"
                        );
                    }
                }
            }
        }
    });
}
