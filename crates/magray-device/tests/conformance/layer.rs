//! A whole encoder of one layer, from ids to unit vectors, as models string the operations together.
//! Has no twin: what is compared are its own answers to the same text.

use crate::linear::weights;
use crate::rig::{ActsOf, BiasOf, EmbeddingOf, LinearOf, NormOf, OpsOf, Rig, Subject};
use crate::rows::Rows;
use magray_core::{Activation, Pooling, Precision};
use magray_device::{
    AttentionShape, Device, DistanceBias, Embedding, LinearSource, Norm, Ops, PoolShape, Table, TokenBatch,
};

/// The sizes of an encoder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) heads: usize,
    pub(crate) hidden: usize,
    pub(crate) ffn: usize,
    pub(crate) outputs: usize,
}

impl Sizes {
    /// No size fills a tile of any device.
    pub(crate) const ODD: Self = Self { heads: 3, hidden: 48, ffn: 100, outputs: 20 };
    /// Those of a small model that is often used.
    pub(crate) const MODEL: Self = Self { heads: 12, hidden: 384, ffn: 1536, outputs: 384 };

    /// Multiply-adds of a token, but for attention.
    pub(crate) fn token_cost(self) -> usize {
        self.hidden * (4 * self.hidden + 2 * self.ffn)
    }
}

/// Ids of words; the next one is that of a vector of NaN.
const WORDS: usize = 90;
/// Tokens of the longest text.
const LONGEST: usize = 512;

/// An encoder on a device.
pub(crate) struct Encoder<S: Subject> {
    sizes: Sizes,
    embedding: EmbeddingOf<S>,
    qkv: LinearOf<S>,
    attention_out: LinearOf<S>,
    up: LinearOf<S>,
    down: LinearOf<S>,
    norm: NormOf<S>,
    bias: BiasOf<S>,
    dense: LinearOf<S>,
}

/// The activations of a pass, kept from one to the next.
pub(crate) struct Room<S: Subject> {
    hidden: ActsOf<S>,
    qkv: ActsOf<S>,
    context: ActsOf<S>,
    up: ActsOf<S>,
    pooled: ActsOf<S>,
    dense: ActsOf<S>,
}

impl<S: Subject> Encoder<S> {
    pub(crate) fn new(rig: &mut Rig<S>, sizes: Sizes) -> Self {
        let Sizes { heads, hidden, ffn, outputs } = sizes;
        let precision = rig.subject.precision();
        // Models keep what softmax sharpens out of bytes.
        let before_softmax = if precision == Precision::Int8 { Precision::Bf16 } else { precision };
        let mut linear = |inputs, outputs, precision| {
            let (weights, bias) = (weights(rig, inputs, outputs), rig.random.normals(outputs, 0.1));
            rig.linear_in(LinearSource { weights: &weights, inputs, bias: &bias }, precision)
        };
        let (qkv, attention_out) = (linear(hidden, 3 * hidden, before_softmax), linear(hidden, hidden, precision));
        let (up, down) = (linear(hidden, ffn, precision), linear(ffn, hidden, precision));
        let dense = linear(hidden, outputs, Precision::F32);
        let mut random = |rows| rig.random.rows(rows, hidden).values;
        let mut words = random(WORDS);
        words.resize((WORDS + 1) * hidden, f32::NAN);
        let tables = Embedding {
            words: Table::new(words, hidden),
            positions: Table::new(random(LONGEST), hidden),
            types: Some(Table::new(random(2), hidden)),
            norm: Norm::new(vec![1.0; hidden], vec![0.0; hidden], 1e-12),
            first_position: 0,
        };
        let bent = |head: usize, distance: isize| (head as f32 - 1.0) * 0.01 * distance.abs() as f32;
        Self {
            sizes,
            embedding: rig.embedding(tables),
            qkv,
            attention_out,
            up,
            down,
            norm: rig.norm(Norm::new(vec![1.0; hidden], vec![0.0; hidden], 1e-12)),
            bias: rig.bias(DistanceBias::tabulate(heads, LONGEST, bent)),
            dense,
        }
    }

    pub(crate) fn room(&self, rig: &Rig<S>) -> Room<S> {
        let acts = |columns| rig.subject.device().acts(rig.subject.precision(), columns);
        let f32 = |columns| rig.subject.device().acts(Precision::F32, columns);
        let Sizes { hidden, ffn, outputs, .. } = self.sizes;
        Room {
            hidden: acts(hidden),
            qkv: acts(3 * hidden),
            context: acts(hidden),
            up: acts(ffn),
            pooled: f32(hidden),
            dense: f32(outputs),
        }
    }

    /// Numbers in a text's vector.
    pub(crate) fn outputs(&self) -> usize {
        self.sizes.outputs
    }

    /// One pass over a batch, up to the finish.
    pub(crate) fn forward(&self, ops: &mut OpsOf<S>, room: &mut Room<S>, batch: &TokenBatch<'_>, skip: usize) {
        for acts in [&mut room.hidden, &mut room.qkv, &mut room.context, &mut room.up] {
            ops.resize(acts, batch.tokens());
        }
        for acts in [&mut room.pooled, &mut room.dense] {
            ops.resize(acts, batch.texts());
        }
        let shape = AttentionShape { heads: self.sizes.heads, bias: Some(&self.bias) };
        ops.embed(batch, &self.embedding, &mut room.hidden);
        ops.linear(&room.hidden, &self.qkv, Activation::Identity, &mut room.qkv);
        ops.attention(&room.qkv, batch, shape, &mut room.context);
        ops.linear_add_norm(&room.context, &self.attention_out, &self.norm, &mut room.hidden);
        ops.linear(&room.hidden, &self.up, Activation::Gelu, &mut room.up);
        ops.linear_add_norm(&room.up, &self.down, &self.norm, &mut room.hidden);
        ops.pool(&room.hidden, batch, PoolShape { ways: &[Pooling::Mean], skip }, &mut room.pooled);
        ops.linear(&room.pooled, &self.dense, Activation::Tanh, &mut room.dense);
        ops.finish(&room.dense, true);
    }

    /// A unit vector a text.
    pub(crate) fn run(&self, rig: &mut Rig<S>, room: &mut Room<S>, batch: &TokenBatch<'_>, skip: usize) -> Rows {
        self.forward(&mut rig.ops, room, batch, skip);
        Rows::new(self.sizes.outputs, rig.ops.answer().expect("the device answers").to_vec())
    }
}

/// Random texts for an [`Encoder`].
#[derive(Clone)]
pub(crate) struct Batch {
    ids: Vec<u32>,
    types: Vec<u32>,
    offsets: Vec<usize>,
}

impl Batch {
    pub(crate) fn new<S: Subject>(rig: &mut Rig<S>, lengths: &[usize]) -> Self {
        let mut offsets = vec![0];
        for length in lengths {
            offsets.push(offsets[offsets.len() - 1] + length);
        }
        let tokens = offsets[lengths.len()];
        let mut below = |end| (0..tokens).map(|_| rig.random.below(end) as u32).collect();
        Self { ids: below(WORDS), types: below(2), offsets }
    }

    pub(crate) fn tokens(&self) -> TokenBatch<'_> {
        TokenBatch { ids: &self.ids, types: &self.types, offsets: &self.offsets }
    }

    pub(crate) fn lengths(&self) -> Vec<usize> {
        self.offsets.windows(2).map(|text| text[1] - text[0]).collect()
    }

    /// The same texts, but that one begins with NaN.
    pub(crate) fn spoiled(&self, text: usize) -> Self {
        let mut spoiled = self.clone();
        spoiled.ids[self.offsets[text]] = WORDS as u32;
        spoiled
    }

    /// Texts of the same lengths, of which this one alone is the same.
    pub(crate) fn in_other_company<S: Subject>(&self, rig: &mut Rig<S>, text: usize) -> Self {
        let mut other = self.clone();
        let range = self.offsets[text]..self.offsets[text + 1];
        for (at, id) in other.ids.iter_mut().enumerate().filter(|(at, _)| !range.contains(at)) {
            *id = (self.ids[at] + 1 + rig.random.below(WORDS - 1) as u32) % WORDS as u32;
        }
        other
    }

    /// One of the texts, alone.
    pub(crate) fn only(&self, text: usize) -> Self {
        let range = self.offsets[text]..self.offsets[text + 1];
        Self {
            ids: self.ids[range.clone()].to_vec(),
            types: self.types[range.clone()].to_vec(),
            offsets: vec![0, range.len()],
        }
    }
}
