//! The fused operations an encoder is made of, and what they take. Says nothing of how a device does them.

use crate::{Embedding, HeadShape, LinearNumbers, LinearSource, Norm, Place};
use magray_core::{Activation, Pooling, Precision};

/// Token ids of several texts end to end. Nothing is padded.
#[derive(Clone, Copy, Debug)]
pub struct TokenBatch<'a> {
    /// The ids of all texts.
    pub ids: &'a [u32],
    /// The token types of all texts, as long as `ids`; empty for all zero.
    pub types: &'a [u32],
    /// Where each text starts, and the end of the last: one more than there are texts.
    pub offsets: &'a [usize],
}

impl TokenBatch<'_> {
    /// How many texts there are.
    pub fn texts(&self) -> usize {
        self.offsets.len() - 1
    }

    /// How many tokens there are.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// The tokens of the longest text.
    pub fn longest(&self) -> usize {
        self.offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0)
    }

    /// Panics unless the offsets rise from 0 to the number of ids and the types fit: a caller's bug.
    pub(crate) fn check(&self) {
        assert_eq!(self.offsets.first(), Some(&0), "offsets start at 0");
        assert_eq!(self.offsets.last(), Some(&self.ids.len()), "offsets end at the last id");
        assert!(self.offsets.is_sorted(), "offsets rise");
        assert!(self.types.is_empty() || self.types.len() == self.ids.len(), "a type for each id, or none");
    }
}

/// What attention needs to know beside queries, keys and values. `Bias` is a device's [`DistanceBias`].
pub struct AttentionShape<'a, Bias> {
    /// Heads; the width of queries, keys and values is a multiple of it.
    pub heads: usize,
    /// Added to the scores by distance; none for most models.
    pub bias: Option<&'a Bias>,
}

impl<Bias> Clone for AttentionShape<'_, Bias> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Bias> Copy for AttentionShape<'_, Bias> {}

/// A bias of attention scores for each head and each signed distance from query to key.
#[derive(Clone, Debug)]
pub struct DistanceBias {
    pub(crate) values: Vec<f32>,
    pub(crate) reach: usize,
    pub(crate) stride: usize,
}

impl DistanceBias {
    /// Zeros read beyond the last distance, so that vectors may be loaded whole.
    const MARGIN: usize = 64;

    /// Tabulates `bias(head, key - query)` for texts of up to `reach` tokens.
    pub fn tabulate(heads: usize, reach: usize, bias: impl Fn(usize, isize) -> f32) -> Self {
        let stride = 2 * reach + Self::MARGIN;
        let mut values = vec![0.0; heads * stride];
        for (head, row) in values.chunks_exact_mut(stride).enumerate() {
            for (at, value) in row[..2 * reach].iter_mut().enumerate() {
                *value = bias(head, at as isize - reach as isize);
            }
        }
        Self { values, reach, stride }
    }

    /// How many heads it has.
    pub(crate) fn heads(&self) -> usize {
        self.values.len() / self.stride
    }

    /// The biases of some heads.
    pub(crate) fn of_heads(&self, heads: std::ops::Range<usize>) -> Self {
        let values = self.values[heads.start * self.stride..heads.end * self.stride].to_vec();
        Self { values, reach: self.reach, stride: self.stride }
    }

    /// The biases of a query's row: element `j` is for key `j`. At least `keys` and a margin can be read.
    pub(crate) fn row(&self, head: usize, query: usize, keys: usize) -> &[f32] {
        assert!(query <= self.reach && keys <= self.reach, "a text is longer than the bias was made for");
        let start = head * self.stride + self.reach - query;
        &self.values[start..start + keys + Self::MARGIN - 1]
    }
}

/// How a text's vector is made of its tokens' vectors.
#[derive(Clone, Copy, Debug)]
pub struct PoolShape<'a> {
    /// One or more poolings; their results are joined.
    pub ways: &'a [Pooling],
    /// Leading tokens of each text that are left out (a prompt's).
    pub skip: usize,
}

/// A device's operations on packed batches. Inputs and outputs are sized by the caller; a size that does not fit is a bug and
/// panics. A device may go on working after an operation has returned: its failures are reported once, by [`Ops::answer`].
pub trait Ops {
    /// Why there is no answer.
    type Error: std::error::Error;
    /// A matrix of activations: a row for each token (or text).
    type Acts: Rows;
    /// The weights and bias of a linear layer, in the device's form.
    type Linear;
    /// The tables that turn ids into vectors, with the norm that follows.
    type Embedding;
    /// Gain and shift of a layer norm.
    type Norm;
    /// Biases of attention scores.
    type Bias;

    /// Sets how many rows are in use, making room where there is too little.
    fn resize(&mut self, acts: &mut Self::Acts, rows: usize);

    /// Memory of the device that activations hold, where it is not the host's.
    fn room_bytes(_acts: &Self::Acts) -> u64 {
        0
    }

    /// Layer `layer` is next. Where another device has it than the one before it, the activations move there.
    fn enter(&mut self, _layer: usize, _hidden: &mut Self::Acts) {}

    /// The sum of word, position and type vectors, normalised.
    fn embed(&mut self, batch: &TokenBatch<'_>, tables: &Self::Embedding, out: &mut Self::Acts);

    /// `out = activation(x * weights + bias)`.
    fn linear(&mut self, x: &Self::Acts, weights: &Self::Linear, activation: Activation, out: &mut Self::Acts);

    /// `hidden = norm(hidden + x * weights + bias)`.
    fn linear_add_norm(&mut self, x: &Self::Acts, weights: &Self::Linear, norm: &Self::Norm, hidden: &mut Self::Acts);

    /// Each text's tokens attend to each other. A row of `qkv` holds queries, keys and values of all heads.
    fn attention(
        &mut self,
        qkv: &Self::Acts,
        batch: &TokenBatch<'_>,
        shape: AttentionShape<'_, Self::Bias>,
        out: &mut Self::Acts,
    );

    /// One row a text, of 32-bit floats.
    fn pool(&mut self, hidden: &Self::Acts, batch: &TokenBatch<'_>, shape: PoolShape<'_>, out: &mut Self::Acts);

    /// Makes 32-bit rows the answer, scaled to length 1 if `normalize`.
    fn finish(&mut self, acts: &Self::Acts, normalize: bool);

    /// The rows of the last [`Ops::finish`], end to end; waits until they are there.
    fn answer(&mut self) -> Result<&[f32], Self::Error>;
}

/// What a device needs beside [`Ops`] to be one of several for an encoder ([`crate::Tensor`], [`crate::Split`]): activations on their way to
/// the host and back.
pub trait SharedEncoderOps: Ops {
    /// Rows as 32-bit floats, end to end; waits until they are there.
    fn read_rows(&mut self, acts: &Self::Acts) -> Result<Vec<f32>, Self::Error>;

    /// Rows of another device, as many as are in use.
    fn write_rows(&mut self, rows: &[f32], acts: &mut Self::Acts);

    /// `hidden = norm(hidden + rows)`.
    fn add_rows_norm(&mut self, rows: &[f32], norm: &Self::Norm, hidden: &mut Self::Acts);
}

/// What a linear layer of an encoder is: a device that is made of several cuts it accordingly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderRole {
    /// Queries, keys and values side by side.
    Qkv(HeadShape),
    /// Adds what the heads attended to.
    Attended(HeadShape),
    /// The first product of a feed-forward layer.
    Up,
    /// The second.
    Down,
    /// A layer on what was pooled.
    Pooled,
}

/// What activations of an encoder hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderActs {
    /// What layers add to.
    Hidden,
    /// Queries, keys and values.
    Qkv(HeadShape),
    /// What the heads attended to.
    Attended(HeadShape),
    /// The inner numbers of a feed-forward layer.
    Inner,
    /// What is behind the layers.
    Pooled,
}

/// The size of a matrix.
pub trait Rows {
    /// Rows in use.
    fn rows(&self) -> usize;
    /// Length of a row.
    fn columns(&self) -> usize;
}

/// Two matrices of activations.
pub type ActsPair<O> = (<O as Ops>::Acts, <O as Ops>::Acts);

/// A device that packs layers for its operations.
pub trait Device {
    /// Why a layer could not be packed.
    type Error: std::error::Error;
    /// Its operations.
    type Ops: Ops<Error = Self::Error>;

    /// Packs a linear layer.
    fn linear(&self, source: LinearSource<'_>, precision: Precision)
    -> Result<<Self::Ops as Ops>::Linear, Self::Error>;

    /// Packs a linear layer whose numbers are read as they are packed.
    fn linear_of(
        &self,
        source: LinearNumbers,
        precision: Precision,
    ) -> Result<<Self::Ops as Ops>::Linear, Self::Error> {
        let mut weights = Vec::with_capacity(source.outputs() * source.inputs);
        for numbers in &source.weights {
            numbers.append_to(&mut weights);
            // They are packed elsewhere soon; the file's pages would only double the memory in use.
            numbers.release_pages();
        }
        self.linear(LinearSource { weights: &weights, inputs: source.inputs, bias: &source.bias }, precision)
    }

    /// As [`Device::linear_of`], told where in the encoder the layer belongs and what it is: a device that is made of several puts it there,
    /// whole or cut.
    fn layer_linear(
        &self,
        _: Place,
        _: EncoderRole,
        source: LinearNumbers,
        precision: Precision,
    ) -> Result<<Self::Ops as Ops>::Linear, Self::Error> {
        self.linear_of(source, precision)
    }

    /// Takes over a layer norm.
    fn norm(&self, norm: Norm) -> Result<<Self::Ops as Ops>::Norm, Self::Error>;

    /// As [`Device::norm`], told where it belongs.
    fn layer_norm(&self, _: Place, norm: Norm) -> Result<<Self::Ops as Ops>::Norm, Self::Error> {
        self.norm(norm)
    }

    /// Takes over the first layer, for activations of this precision.
    fn embedding(
        &self,
        embedding: Embedding,
        precision: Precision,
    ) -> Result<<Self::Ops as Ops>::Embedding, Self::Error>;

    /// Takes over biases of attention scores.
    fn bias(&self, bias: DistanceBias) -> Result<<Self::Ops as Ops>::Bias, Self::Error>;

    /// Activations, with no rows yet, in the format that layers of this precision take.
    fn acts(&self, precision: Precision, columns: usize) -> <Self::Ops as Ops>::Acts;

    /// Two matrices of activations of which one is used at a time: a device may keep them in the same memory. They are
    /// resized together.
    fn acts_in_turn(&self, precision: Precision, columns: [usize; 2]) -> ActsPair<Self::Ops> {
        (self.acts(precision, columns[0]), self.acts(precision, columns[1]))
    }

    /// As [`Device::acts`], told what they hold; `columns` are those of the whole model.
    fn layer_acts(&self, _: EncoderActs, precision: Precision, columns: usize) -> <Self::Ops as Ops>::Acts {
        self.acts(precision, columns)
    }

    /// As [`Device::acts_in_turn`], told what they hold.
    fn layer_acts_in_turn(
        &self,
        _: [EncoderActs; 2],
        precision: Precision,
        columns: [usize; 2],
    ) -> ActsPair<Self::Ops> {
        self.acts_in_turn(precision, columns)
    }
}
