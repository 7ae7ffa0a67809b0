//! The operations once more, in plain loops over 64-bit floats. Fast at nothing.

use crate::rows::{Expected, Rows};
use magray_core::{Activation, Pooling};
use magray_device::{LinearSource, TokenBatch};

pub(crate) fn layer_norm(x: &[f64], gain: &[f32], shift: &[f32], epsilon: f64) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    let deviation = (variance + epsilon).sqrt();
    let scaled =
        |((x, &gain), &shift): ((&f64, &f32), &f32)| (x - mean) / deviation * f64::from(gain) + f64::from(shift);
    x.iter().zip(gain).zip(shift).map(scaled).collect()
}

/// Outputs whose sums are kept side by side: this is where most of the suite's time goes.
const BESIDE: usize = 32;
/// Multiply-adds that are worth a thread.
const SHARE: usize = 20_000_000;

/// The products of rows with weights and the bias. Errors are measured by what such a sum is expected to be, and is.
pub(crate) fn linear(x: &Rows, source: LinearSource<'_>) -> Vec<Vec<Expected>> {
    let weights: Vec<_> =
        source.weights.chunks(source.inputs * BESIDE).map(|w| Beside::new(w, source.inputs)).collect();
    let row = |x: &[f32]| {
        let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let expected_of = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64).sqrt();
        let products = weights.iter().flat_map(|beside| beside.products(&x));
        let expected = |(i, (sum, length)): (usize, (f64, f64))| {
            let value = sum + source.bias.get(i).map_or(0.0, |&b| f64::from(b));
            Expected { value, scale: expected_of * length + value.abs() }
        };
        products.enumerate().map(expected).collect::<Vec<_>>()
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (x.len() * source.weights.len()).div_ceil(SHARE).clamp(1, cores);
    std::thread::scope(|scope| {
        let values = x.values.chunks(x.len().div_ceil(threads).max(1) * x.columns);
        let parts: Vec<_> =
            values.map(|part| scope.spawn(|| part.chunks_exact(x.columns).map(row).collect())).collect();
        parts.into_iter().flat_map(|part| -> Vec<_> { part.join().expect("the twin does not panic") }).collect()
    })
}

/// The weights of neighbouring outputs.
struct Beside {
    /// Those of each input.
    columns: Vec<[f64; BESIDE]>,
    /// The length of each output's weights.
    lengths: Vec<f64>,
}

impl Beside {
    fn new(weights: &[f32], inputs: usize) -> Self {
        let mut columns = vec![[0.0; BESIDE]; inputs];
        for (output, weights) in weights.chunks_exact(inputs).enumerate() {
            columns.iter_mut().zip(weights).for_each(|(column, &w)| column[output] = f64::from(w));
        }
        let length = |w: &[f32]| w.iter().map(|&w| f64::from(w).powi(2)).sum::<f64>().sqrt();
        Self { columns, lengths: weights.chunks_exact(inputs).map(length).collect() }
    }

    /// The product of a row with each output's weights, and the length of these.
    fn products(&self, x: &[f64]) -> impl Iterator<Item = (f64, f64)> {
        let mut sums = [0.0; BESIDE];
        for (x, column) in x.iter().zip(&self.columns) {
            sums.iter_mut().zip(column).for_each(|(sum, w)| *sum += x * w);
        }
        sums.into_iter().zip(self.lengths.iter().copied())
    }
}

pub(crate) fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Identity => x,
        Activation::Relu => x.max(0.0),
        Activation::Gelu => 0.5 * x * erfc(-x / std::f64::consts::SQRT_2),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
    }
}

/// The complement of the error function: the integral of its derivative by Simpson's rule, to about 1e-12.
fn erfc(x: f64) -> f64 {
    const STEPS: usize = 400;
    let end = x.abs().min(6.0);
    let step = end / STEPS as f64;
    let weight = |i: usize| if i == 0 || i == STEPS { 1.0 } else { 2.0 + 2.0 * (i % 2) as f64 };
    let sum: f64 = (0..=STEPS).map(|i| weight(i) * (-(i as f64 * step).powi(2)).exp()).sum();
    let erf = sum * step / 3.0 * 2.0 / std::f64::consts::PI.sqrt();
    if x < 0.0 { 1.0 + erf } else { 1.0 - erf }
}

/// Attention of texts' rows of queries, keys and values; `bias(head, distance)` is added to the scores.
pub(crate) fn attention(
    qkv: &Rows,
    batch: &TokenBatch<'_>,
    heads: usize,
    bias: &dyn Fn(usize, isize) -> f32,
) -> Vec<Vec<Expected>> {
    let hidden = qkv.columns / 3;
    let size = hidden / heads;
    let mut out = vec![vec![Expected { value: 0.0, scale: 0.0 }; hidden]; qkv.len()];
    for text in batch.offsets.windows(2) {
        let tokens = text[0]..text[1];
        for head in 0..heads {
            let part = |token: usize, which: usize| &qkv.row(token)[which * hidden + head * size..][..size];
            let squares = tokens.clone().flat_map(|t| part(t, 2)).map(|&v| f64::from(v).powi(2)).sum::<f64>();
            let scale = (squares / (tokens.len() * size) as f64).sqrt();
            for query in tokens.clone() {
                let score = |key: usize| {
                    let products = part(query, 0).iter().zip(part(key, 1)).map(|(&q, &k)| f64::from(q) * f64::from(k));
                    products.sum::<f64>() / (size as f64).sqrt() + f64::from(bias(head, key as isize - query as isize))
                };
                let scores: Vec<f64> = tokens.clone().map(score).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mut sums = vec![0.0; size];
                for (key, weight) in tokens.clone().zip(&weights) {
                    for (sum, &v) in sums.iter_mut().zip(part(key, 2)) {
                        *sum += weight / total * f64::from(v);
                    }
                }
                for (d, value) in sums.into_iter().enumerate() {
                    out[query][head * size + d] = Expected { value, scale };
                }
            }
        }
    }
    out
}

/// One text's rows, without the skipped ones, as one.
pub(crate) fn pool(rows: &[&[f32]], way: Pooling, skip: usize) -> Vec<f64> {
    let kept = &rows[skip..];
    let rank = |i: usize| (skip + i + 1) as f64;
    let column = |c: usize| {
        let values = || kept.iter().map(|row| f64::from(row[c]));
        match way {
            Pooling::Cls => f64::from(kept[0][c]),
            Pooling::Last => f64::from(kept[kept.len() - 1][c]),
            Pooling::Max => values().fold(f64::NEG_INFINITY, f64::max),
            Pooling::Mean => values().sum::<f64>() / kept.len() as f64,
            Pooling::MeanSqrtLen => values().sum::<f64>() / (kept.len() as f64).sqrt(),
            Pooling::WeightedMean => {
                let weighted: f64 = values().enumerate().map(|(i, x)| rank(i) * x).sum();
                weighted / (0..kept.len()).map(rank).sum::<f64>()
            }
        }
    };
    (0..rows[0].len()).map(column).collect()
}
