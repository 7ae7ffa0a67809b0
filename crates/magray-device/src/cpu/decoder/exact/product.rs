//! Products of rows with weights in blocks: threads take outputs, read their weights once and multiply them with all rows.
//! Sums in one order, whatever rows are beside each other.

use super::StoredLinear;
use crate::cpu::ThreadPool;
use magray_core::Activation;
use std::sync::{Mutex, PoisonError};

/// Outputs that a thread takes at once.
const OUTPUTS_AT_ONCE: usize = 16;

/// Multiplies all rows of `x` with the weights; `sums` gets those of an output beside each other.
pub(super) fn multiply(pool: &ThreadPool, x: &[f32], weights: &StoredLinear, sums: &mut Vec<f32>) {
    let columns = weights.inputs();
    let rows = x.len() / columns;
    assert_eq!(x.len(), rows * columns, "the layer takes rows of another length");
    sums.resize(rows * weights.outputs(), 0.0);
    if rows == 0 {
        return;
    }
    let blocks = Mutex::new(sums.chunks_mut(OUTPUTS_AT_ONCE * rows).enumerate());
    pool.run(&|_| {
        let mut row = vec![0.0; columns];
        loop {
            let taken = blocks.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((block, sums)) = taken else { return };
            for (i, sums) in sums.chunks_exact_mut(rows).enumerate() {
                let output = block * OUTPUTS_AT_ONCE + i;
                weights.read(output, &mut row);
                let bias = weights.bias(output);
                for (sum, x) in sums.iter_mut().zip(x.chunks_exact(columns)) {
                    *sum = dot(&row, x) + bias;
                }
            }
        }
    });
}

/// Puts sums that stand by outputs into rows.
pub(super) fn by_rows(sums: &[f32], rows: usize, out: &mut [f32]) {
    assert_eq!(sums.len(), out.len(), "as many numbers on both sides");
    let outputs = sums.len() / rows.max(1);
    for (output, sums) in sums.chunks_exact(rows.max(1)).enumerate() {
        for (row, sum) in sums.iter().enumerate() {
            out[row * outputs + output] = *sum;
        }
    }
}

/// The sum of products, in lanes that compilers make vectors of.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    let mut lanes = [0.0f32; 16];
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}

/// The function of a gate.
pub(super) fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = std::f32::consts::FRAC_2_PI.sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        other => panic!("{other:?} is no gate's function: descriptions are checked when they are read"),
    }
}
