//! Encoder models, written once over a device's fused operations. Knows no device and no thread.

mod names;
mod relative;
mod source;
#[cfg(test)]
mod tests;

pub(crate) use source::{Synthetic, TensorSource, Unread};

use crate::spec::{Architecture, ClassifyHead, ModelSpec, Task};
use crate::weights::WeightsError;
use magray_core::{Activation, EncoderShape, Pooling, Precision};
use magray_device::{
    AttentionShape, Device, DistanceBias, Embedding, EncoderActs, EncoderRole, HeadShape, LinearNumbers, Norm, Ops,
    Place, PoolShape, TokenBatch,
};
use names::LayerNames;

type Packed<D> = <<D as Device>::Ops as Ops>::Linear;
type Acts<D> = <<D as Device>::Ops as Ops>::Acts;

/// A model's layers on a device.
pub(crate) struct Model<D: Device> {
    embedding: <D::Ops as Ops>::Embedding,
    layers: Vec<Layer<D>>,
    bias: Option<<D::Ops as Ops>::Bias>,
    activation: Activation,
    heads: usize,
    hidden: usize,
    ffn: usize,
    precision: Precision,
    head: HeadLayers<D>,
}

/// What follows the encoder.
struct HeadLayers<D: Device> {
    pooling: Vec<Pooling>,
    /// Layers on the pooled vectors, in 32 bits: they are few and small, and what they round is the answer itself.
    dense: Vec<Dense<D>>,
    normalize: bool,
}

struct Layer<D: Device> {
    qkv: Packed<D>,
    attention_out: Packed<D>,
    attention_norm: <D::Ops as Ops>::Norm,
    up: Packed<D>,
    down: Packed<D>,
    out_norm: <D::Ops as Ops>::Norm,
}

struct Dense<D: Device> {
    linear: Packed<D>,
    activation: Activation,
    outputs: usize,
}

/// Why a model could not be put on a device.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PackError<E: std::error::Error> {
    /// Its files are wrong.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The device refused.
    #[error("{0}")]
    Device(E),
}

/// The activations of one forward pass at a time, kept from pass to pass.
pub(crate) struct Workspace<D: Device> {
    hidden: Acts<D>,
    qkv: Acts<D>,
    context: Acts<D>,
    up: Acts<D>,
    pooled: Acts<D>,
    dense: Vec<Acts<D>>,
}

impl<D: Device> Model<D> {
    /// Packs the tensors that the spec asks for, in the order in which a pass uses them. `device` packs for the operations
    /// of the device that the model will run on.
    pub(crate) fn pack<P: Device<Ops = D::Ops, Error = D::Error>>(
        device: &P,
        spec: &ModelSpec,
        source: &dyn TensorSource,
        precision: Precision,
    ) -> Result<Self, PackError<D::Error>> {
        let shape = spec.shape;
        let packer = Packer { device, source, precision, epsilon: spec.norm_eps };
        let types = match spec.type_vocab {
            0 => None,
            rows => Some(source.table("embeddings.token_type_embeddings.weight", rows, shape.hidden)?),
        };
        let tables = Embedding {
            words: source.table("embeddings.word_embeddings.weight", shape.vocab, shape.hidden)?,
            positions: source.table("embeddings.position_embeddings.weight", shape.positions, shape.hidden)?,
            types,
            norm: packer.norm_source("embeddings.LayerNorm", shape.hidden)?,
            first_position: spec.architecture.first_position(spec.pad_id),
        };
        let embedding = device.embedding(tables, precision).map_err(PackError::Device)?;
        let bias = match spec.architecture {
            Architecture::MpNet => Some(device.bias(packer.distance_bias(spec)?).map_err(PackError::Device)?),
            _ => None,
        };
        let layer = |i| packer.layer(i, &LayerNames::of(spec.architecture, i), spec);
        let layers = (0..shape.layers).map(layer).collect::<Result<Vec<_>, _>>()?;
        let head = packer.head(spec)?;
        Ok(Self {
            embedding,
            layers,
            bias,
            activation: spec.activation,
            heads: shape.heads,
            hidden: shape.hidden,
            ffn: shape.ffn,
            precision,
            head,
        })
    }

    /// Numbers in a text's answer: the vector's dimensions, or the labels.
    pub(crate) fn outputs(&self) -> usize {
        self.head.dense.last().map_or(self.hidden * self.head.pooling.len(), |dense| dense.outputs)
    }

    /// Room for passes; it grows with the batches and then stays.
    pub(crate) fn workspace(&self, device: &D) -> Workspace<D> {
        let heads = head_shape(self.heads, self.hidden);
        let acts = |role, columns| device.layer_acts(role, self.precision, columns);
        // Queries, keys and values are used up before the feed-forward layer begins.
        let roles = [EncoderActs::Qkv(heads), EncoderActs::Inner];
        let (qkv, up) = device.layer_acts_in_turn(roles, self.precision, [3 * self.hidden, self.ffn]);
        Workspace {
            hidden: acts(EncoderActs::Hidden, self.hidden),
            qkv,
            context: acts(EncoderActs::Attended(heads), self.hidden),
            up,
            pooled: device.acts(Precision::F32, self.hidden * self.head.pooling.len()),
            dense: self.head.dense.iter().map(|dense| device.acts(Precision::F32, dense.outputs)).collect(),
        }
    }

    /// One pass over a batch; `skip` leading tokens of each text are not pooled. The answer has one row a text.
    pub(crate) fn forward(&self, ops: &mut D::Ops, work: &mut Workspace<D>, batch: &TokenBatch<'_>, skip: usize) {
        let last = self.pool(ops, work, batch, skip);
        ops.finish(last, self.head.normalize);
    }

    /// As [`Model::forward`], with rows that are not scaled to length 1.
    pub(crate) fn forward_unscaled(
        &self,
        ops: &mut D::Ops,
        work: &mut Workspace<D>,
        batch: &TokenBatch<'_>,
        skip: usize,
    ) {
        let last = self.pool(ops, work, batch, skip);
        ops.finish(last, false);
    }

    /// The rows of texts, up to what scales them.
    fn pool<'w>(
        &self,
        ops: &mut D::Ops,
        work: &'w mut Workspace<D>,
        batch: &TokenBatch<'_>,
        skip: usize,
    ) -> &'w Acts<D> {
        for acts in std::iter::once(&mut work.pooled).chain(&mut work.dense) {
            ops.resize(acts, batch.texts());
        }
        self.encode(ops, work, batch);
        ops.pool(&work.hidden, batch, PoolShape { ways: &self.head.pooling, skip }, &mut work.pooled);
        let mut last = &work.pooled;
        for (dense, acts) in self.head.dense.iter().zip(&mut work.dense) {
            ops.linear(last, &dense.linear, dense.activation, acts);
            last = acts;
        }
        last
    }

    /// One pass over a batch; the answer has one row a token, as the last layer leaves it. `rows` has the columns of a
    /// token, and `offsets` says that each token is a text of its own: pooled by itself it stays as it is, in 32 bits.
    pub(crate) fn forward_tokens(
        &self,
        ops: &mut D::Ops,
        (work, rows): (&mut Workspace<D>, &mut Acts<D>),
        batch: &TokenBatch<'_>,
        offsets: &[usize],
    ) {
        ops.resize(rows, batch.tokens());
        self.encode(ops, work, batch);
        let single = TokenBatch { offsets, ..*batch };
        ops.pool(&work.hidden, &single, PoolShape { ways: &[Pooling::Mean], skip: 0 }, rows);
        ops.finish(rows, false);
    }

    /// Numbers of a token.
    pub(crate) fn hidden(&self) -> usize {
        self.hidden
    }

    /// The layers, up to what is pooled.
    fn encode(&self, ops: &mut D::Ops, work: &mut Workspace<D>, batch: &TokenBatch<'_>) {
        for acts in [&mut work.hidden, &mut work.qkv, &mut work.context, &mut work.up] {
            ops.resize(acts, batch.tokens());
        }
        let attention = AttentionShape { heads: self.heads, bias: self.bias.as_ref() };
        ops.embed(batch, &self.embedding, &mut work.hidden);
        for (index, layer) in self.layers.iter().enumerate() {
            ops.enter(index, &mut work.hidden);
            ops.linear(&work.hidden, &layer.qkv, Activation::Identity, &mut work.qkv);
            ops.attention(&work.qkv, batch, attention, &mut work.context);
            ops.linear_add_norm(&work.context, &layer.attention_out, &layer.attention_norm, &mut work.hidden);
            ops.linear(&work.hidden, &layer.up, self.activation, &mut work.up);
            ops.linear_add_norm(&work.up, &layer.down, &layer.out_norm, &mut work.hidden);
        }
    }
}

impl<D: Device> Workspace<D> {
    /// Memory of the device that it holds.
    pub(crate) fn bytes(&self) -> u64 {
        // The feed-forward layer's may be that of queries, keys and values: the larger counts for both.
        let in_turn = D::Ops::room_bytes(&self.qkv).max(D::Ops::room_bytes(&self.up));
        let others = [&self.hidden, &self.context, &self.pooled].into_iter().chain(&self.dense);
        in_turn + others.map(D::Ops::room_bytes).sum::<u64>()
    }
}

/// Where a linear layer belongs, what it is, and how it is packed.
#[derive(Clone, Copy)]
struct LinearPlace {
    place: Place,
    role: EncoderRole,
    precision: Precision,
}

fn head_shape(heads: usize, hidden: usize) -> HeadShape {
    HeadShape { heads, kv_heads: heads, head_size: hidden / heads }
}

/// Reads and packs a model's parts.
struct Packer<'a, D> {
    device: &'a D,
    source: &'a dyn TensorSource,
    precision: Precision,
    epsilon: f32,
}

impl<P: Device> Packer<'_, P> {
    fn layer<D: Device<Ops = P::Ops>>(
        &self,
        layer: usize,
        names: &LayerNames,
        spec: &ModelSpec,
    ) -> Result<Layer<D>, PackError<P::Error>> {
        let EncoderShape { hidden, ffn, heads, .. } = spec.shape;
        let (place, heads, precision) = (Place::Layer(layer), head_shape(heads, hidden), self.precision);
        let qkv = [&*names.query, &names.key, &names.value];
        let norm = |name: &str| {
            let norm = self.norm_source(name, hidden)?;
            self.device.layer_norm(place, norm).map_err(PackError::Device)
        };
        let of = |role, precision| LinearPlace { place, role, precision };
        Ok(Layer {
            qkv: self.linear(&qkv, [hidden, hidden], of(EncoderRole::Qkv(heads), before_softmax(precision)))?,
            attention_out: self.linear(
                &[&names.attention_out],
                [hidden, hidden],
                of(EncoderRole::Attended(heads), precision),
            )?,
            attention_norm: norm(&names.attention_norm)?,
            up: self.linear(&[&names.up], [ffn, hidden], of(EncoderRole::Up, precision))?,
            down: self.linear(&[&names.down], [hidden, ffn], of(EncoderRole::Down, precision))?,
            out_norm: norm(&names.out_norm)?,
        })
    }

    /// Several layers of the same shape become one, their outputs side by side.
    fn linear(
        &self,
        names: &[&str],
        [outputs, inputs]: [usize; 2],
        LinearPlace { place, role, precision }: LinearPlace,
    ) -> Result<Packed<P>, PackError<P::Error>> {
        let (mut weights, mut bias) = (Vec::new(), Vec::new());
        for name in names {
            weights.push(self.source.numbers(&format!("{name}.weight"), &[outputs, inputs])?);
            self.source.append(&format!("{name}.bias"), &[outputs], &mut bias)?;
        }
        let source = LinearNumbers { weights, inputs, bias };
        self.device.layer_linear(place, role, source, precision).map_err(PackError::Device)
    }

    fn norm_source(&self, name: &str, columns: usize) -> Result<Norm, WeightsError> {
        let (mut gain, mut shift) = (Vec::new(), Vec::new());
        self.source.append(&format!("{name}.weight"), &[columns], &mut gain)?;
        self.source.append(&format!("{name}.bias"), &[columns], &mut shift)?;
        Ok(Norm::new(gain, shift, self.epsilon))
    }

    fn distance_bias(&self, spec: &ModelSpec) -> Result<DistanceBias, WeightsError> {
        let (buckets, heads) = (spec.relative_attention_buckets, spec.shape.heads);
        let mut table = Vec::new();
        self.source.append("encoder.relative_attention_bias.weight", &[buckets, heads], &mut table)?;
        let bias = |head, distance| table[relative::bucket(distance, buckets) * heads + head];
        Ok(DistanceBias::tabulate(heads, spec.max_tokens, bias))
    }

    fn head<D: Device<Ops = P::Ops>>(&self, spec: &ModelSpec) -> Result<HeadLayers<D>, PackError<P::Error>> {
        let hidden = spec.shape.hidden;
        let dense = |name: &str, outputs, activation| {
            let of = LinearPlace { place: Place::Head, role: EncoderRole::Pooled, precision: Precision::F32 };
            let linear = self.linear(&[name], [outputs, hidden], of)?;
            Ok::<_, PackError<P::Error>>(Dense { linear, activation, outputs })
        };
        match &spec.task {
            Task::Classify(classify) => {
                let (first, activation, last) = match classify.head {
                    ClassifyHead::Pooler => ("pooler.dense", Activation::Tanh, "classifier"),
                    ClassifyHead::DenseTanh => ("classifier.dense", Activation::Tanh, "classifier.out_proj"),
                    ClassifyHead::PreClassifierRelu => ("pre_classifier", Activation::Relu, "classifier"),
                };
                let labels = classify.labels.len();
                let layers = vec![dense(first, hidden, activation)?, dense(last, labels, Activation::Identity)?];
                Ok(HeadLayers { pooling: vec![Pooling::Cls], dense: layers, normalize: false })
            }
            Task::Generate(_) => unreachable!("decoders are not packed as encoders"),
            Task::Embed(embed) => {
                let mut layers = Vec::new();
                for layer in &embed.dense {
                    let weights = self.source.beside(&layer.folder)?;
                    let shape = [layer.out_features, layer.in_features];
                    let numbers = vec![weights.numbers("linear.weight", &shape)?];
                    let mut bias = Vec::new();
                    if layer.bias {
                        weights.append("linear.bias", &[layer.out_features], &mut bias)?;
                    }
                    let source = LinearNumbers { weights: numbers, inputs: layer.in_features, bias };
                    let linear = self.device.linear_of(source, Precision::F32).map_err(PackError::Device)?;
                    layers.push(Dense { linear, activation: layer.activation, outputs: layer.out_features });
                }
                Ok(HeadLayers { pooling: embed.pooling.clone(), dense: layers, normalize: embed.normalize })
            }
        }
    }
}

/// The precision of queries, keys and values. The softmax between them turns small errors into large ones: with this
/// layer too in int8 the worst vector of STS-B has a cosine of 0.994, with it in bf16 0.997.
fn before_softmax(precision: Precision) -> Precision {
    match precision {
        Precision::Int8 => Precision::Bf16,
        other => other,
    }
}
