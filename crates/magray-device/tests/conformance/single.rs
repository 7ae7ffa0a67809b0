//! A whole layer: a text alone, in a batch and on a team gives the same vector.

use crate::linear::weights;
use crate::rig::{Rig, Texts, each_rig};
use crate::rows::Rows;
use magray_core::{Activation, Pooling};
use magray_device::cpu::Linear;
use magray_device::{AttentionShape, Device, DistanceBias, LinearSource, Norm, Ops, PoolShape};

const HEADS: usize = 3;
const HIDDEN: usize = 48;
const FFN: usize = 100;

struct Layer {
    qkv: Linear,
    attention_out: Linear,
    up: Linear,
    down: Linear,
    norm: Norm,
    bias: DistanceBias,
}

impl Layer {
    fn new(rig: &mut Rig) -> Self {
        let mut linear = |inputs, outputs| {
            let (weights, bias) = (weights(rig, inputs, outputs), rig.random.normals(outputs, 0.1));
            rig.cpu.linear(LinearSource { weights: &weights, inputs, bias: &bias }, rig.precision)
        };
        Self {
            qkv: linear(HIDDEN, 3 * HIDDEN),
            attention_out: linear(HIDDEN, HIDDEN),
            up: linear(HIDDEN, FFN),
            down: linear(FFN, HIDDEN),
            norm: Norm::new(vec![1.0; HIDDEN], vec![0.0; HIDDEN], 1e-12),
            bias: DistanceBias::tabulate(HEADS, 200, |head, distance| {
                (head as f32 - 1.0) * 0.01 * distance.abs() as f32
            }),
        }
    }

    /// A vector a text.
    fn run(&self, rig: &mut Rig, tokens: &Rows, texts: &Texts) -> Rows {
        let mut hidden = rig.put(tokens, 1.0);
        let rows = tokens.len();
        let (mut qkv, mut context) = (rig.acts(rows, 3 * HIDDEN), rig.acts(rows, HIDDEN));
        let mut up = rig.acts(rows, FFN);
        let shape = AttentionShape { heads: HEADS, bias: Some(&self.bias) };
        rig.ops.linear(&hidden, &self.qkv, Activation::Identity, &mut qkv);
        rig.ops.attention(&qkv, &texts.batch(), shape, &mut context);
        rig.ops.linear_add_norm(&context, &self.attention_out, &self.norm, &mut hidden);
        rig.ops.linear(&hidden, &self.up, Activation::Gelu, &mut up);
        rig.ops.linear_add_norm(&up, &self.down, &self.norm, &mut hidden);
        rig.pool(&hidden, texts, PoolShape { ways: &[Pooling::Mean], skip: 0 })
    }
}

fn same(got: &[f32], want: &[f32], what: &str) {
    let error = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(error < 1e-5 && got.iter().all(|x| x.is_finite()), "{what}: {error:.1e} apart");
}

#[test]
fn a_text_alone_and_in_a_batch() {
    each_rig(|rig| {
        let lengths = [7, 1, 200, 31, 33, 32, 2];
        let layer = Layer::new(rig);
        let texts = Texts::new(&lengths);
        let tokens = rig.random.rows(texts.tokens(), HIDDEN);
        let together = layer.run(rig, &tokens, &texts);
        for (text, &length) in lengths.iter().enumerate() {
            let range = texts.range(text);
            let own = Rows::new(HIDDEN, tokens.values[range.start * HIDDEN..range.end * HIDDEN].to_vec());
            let alone = layer.run(rig, &own, &Texts::new(&[length]));
            same(together.row(text), alone.row(0), &format!("{} text {text} of {length}", rig.name));
        }
        rig.change_threads();
        let elsewhere = layer.run(rig, &tokens, &texts);
        for text in 0..texts.count() {
            same(together.row(text), elsewhere.row(text), &format!("{} text {text} on other threads", rig.name));
        }
    });
}
