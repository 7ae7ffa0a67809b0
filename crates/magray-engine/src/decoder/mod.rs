//! Decoders: language models that read tokens and say which comes next, on any device that has their operations.
//! Leaves scheduling, sampling and texts to others; computes one batch of steps and nothing else.

mod constraint;
mod error;
mod files;
mod gguf;
mod gguf_chat;
pub(crate) mod grammar;
mod logprobs;
mod names;
mod sampler;
mod sampling;
mod sizes;
mod synthetic;
#[cfg(test)]
mod tests;
mod text;

pub use constraint::{Constraint, ConstraintError};
pub use error::{LoadDecoderError, OpenError};
pub use files::DecoderFiles;
pub use logprobs::{TOP_LOGPROBS_MAX, TokenLogprobs};
pub(crate) use sampler::{Sampler, Scratch};
pub use sampling::{SPECULATE_MAX, Sampling, SamplingError};
pub(crate) use sizes::{DecoderBytes, LinearBytes, stored_bytes};
pub use text::TextBuilder;

pub use crate::spec::decoder::ChatTemplates;
pub use magray_device::KvFormat;

use magray_device::{ActsRole, AttentionLayer, DecoderDevice, DecoderOps, KvShape, Place, Role, RopeSource, StepBatch};

use crate::spec::decoder::{self, DecoderSpec, RopeLayout};
use files::LayerSource;
use names::Part;

/// What a device's operations have for a linear layer.
type Linear<D> = <<D as DecoderDevice>::Ops as DecoderOps>::Linear;
type Norm<D> = <<D as DecoderDevice>::Ops as DecoderOps>::Norm;
type Rope<D> = <<D as DecoderDevice>::Ops as DecoderOps>::Rope;
type Pages<D> = <<D as DecoderDevice>::Ops as DecoderOps>::Pages;
type Acts<D> = <<D as DecoderDevice>::Ops as DecoderOps>::Acts;

/// A decoder on a device.
pub struct Decoder<D: DecoderDevice> {
    spec: DecoderSpec,
    context: usize,
    table: Linear<D>,
    layers: Vec<Layer<D>>,
    ropes: Vec<Rope<D>>,
    norm: Norm<D>,
    /// None where it is the table.
    head: Option<Linear<D>>,
}

struct Layer<D: DecoderDevice> {
    attention_norm: Norm<D>,
    qkv: Linear<D>,
    query_norm: Option<Norm<D>>,
    key_norm: Option<Norm<D>>,
    output: Linear<D>,
    attention_after: Option<Norm<D>>,
    ffn_norm: Norm<D>,
    gate_up: Linear<D>,
    down: Linear<D>,
    ffn_after: Option<Norm<D>>,
}

/// The activations of a pass; they grow with the tokens of a batch and stay.
pub struct DecoderRoom<D: DecoderDevice> {
    hidden: Acts<D>,
    qkv: Acts<D>,
    attended: Acts<D>,
    gated: Acts<D>,
}

impl<D: DecoderDevice> DecoderRoom<D> {
    /// All of them.
    pub(crate) fn acts(&self) -> [&Acts<D>; 4] {
        let Self { hidden, qkv, attended, gated } = self;
        [hidden, qkv, attended, gated]
    }
}

impl<D: DecoderDevice> Decoder<D> {
    /// Puts the model of these files onto a device, for sequences of up to `context` tokens.
    pub fn load(device: &D, files: &DecoderFiles, context: usize) -> Result<Self, LoadDecoderError<D::Error>> {
        Self::pack(device, files, context)
    }

    /// The same, where `device` packs for the operations of the device that the model will run on.
    pub(crate) fn pack<P: DecoderDevice<Ops = D::Ops, Error = D::Error>>(
        device: &P,
        files: &DecoderFiles,
        context: usize,
    ) -> Result<Self, LoadDecoderError<D::Error>> {
        let spec = files.spec().clone();
        if !(1..=spec.context).contains(&context) {
            return Err(LoadDecoderError::Context { asked: context, most: spec.context });
        }
        let on_device = LoadDecoderError::Device;
        let rope = |rope: &decoder::Rope| {
            let frequencies = rope.frequencies(context);
            let neighbours = rope.layout == RopeLayout::Neighbours;
            device.rope(RopeSource { radians: frequencies.radians, scale: frequencies.scale, neighbours })
        };
        let place = if spec.tied_head { Place::TiedTable } else { Place::Table };
        let table = files.linear(0, &[(Part::Table, spec.vocab)], spec.hidden, false)?;
        let table = device.linear_at(place, Role::Vocabulary, table);
        let head = match spec.tied_head {
            true => None,
            false => {
                let head = files.linear(0, &[(Part::Head, spec.vocab)], spec.hidden, false)?;
                Some(device.linear_at(Place::Head, Role::Vocabulary, head).map_err(on_device)?)
            }
        };
        let loader = Loader { device, files, spec: &spec };
        Ok(Self {
            context,
            table: table.map_err(on_device)?,
            layers: (0..spec.layers.len()).map(|layer| loader.layer(layer)).collect::<Result<_, _>>()?,
            ropes: spec.ropes.iter().map(rope).collect::<Result<_, _>>().map_err(on_device)?,
            norm: loader.norm(Place::Head, (0, Part::FinalNorm), spec.hidden)?,
            head,
            spec,
        })
    }

    /// What it computes.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// The longest sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// What a page of its keys and values takes.
    pub fn kv_shape(&self) -> KvShape {
        self.spec.kv_shape()
    }

    /// Activations for its passes.
    pub fn room(&self, device: &D) -> DecoderRoom<D> {
        let spec = &self.spec;
        let heads = spec.head_shape();
        DecoderRoom {
            hidden: device.acts_for(ActsRole::Hidden, spec.hidden),
            qkv: device.acts_for(ActsRole::Qkv(heads), spec.qkv_columns()),
            attended: device.acts_for(ActsRole::Attended(heads), spec.heads * spec.head_size),
            gated: device.acts_for(ActsRole::Gated, spec.ffn),
        }
    }

    /// Computes new tokens of sequences and puts their keys and values into the pages. The logits of the wanted rows are the
    /// operations' next answer. Ids that the model does not know, and positions beyond the context, are a caller's bug.
    pub fn forward(&self, ops: &mut D::Ops, steps: &StepBatch<'_>, pages: &mut Pages<D>, room: &mut DecoderRoom<D>) {
        let spec = &self.spec;
        for step in steps.steps() {
            assert!(step.start + step.rows.len() <= self.context, "positions within the context");
        }
        let rows = steps.tokens();
        let DecoderRoom { hidden, qkv, attended, gated } = room;
        for acts in [&mut *hidden, &mut *qkv, &mut *attended, &mut *gated] {
            ops.resize(acts, rows);
        }
        ops.embed(steps, &self.table, spec.embedding_scale, hidden);
        for (index, (layer, shape)) in self.layers.iter().zip(&spec.layers).enumerate() {
            let attention = AttentionLayer {
                layer: index,
                heads: spec.heads,
                window: shape.window,
                scale: spec.attention_scale,
                cap: spec.attention_cap,
                rope: &self.ropes[shape.rope],
                query_norm: layer.query_norm.as_ref(),
                key_norm: layer.key_norm.as_ref(),
            };
            ops.enter(steps, index, hidden);
            ops.norm_linear(hidden, &layer.attention_norm, &layer.qkv, qkv);
            ops.rope_append(steps, &attention, qkv, pages);
            ops.attend(steps, &attention, qkv, pages, attended);
            ops.linear_add(attended, &layer.output, layer.attention_after.as_ref(), hidden);
            ops.gated_linear(hidden, &layer.ffn_norm, &layer.gate_up, spec.activation, gated);
            ops.linear_add(gated, &layer.down, layer.ffn_after.as_ref(), hidden);
        }
        ops.logits(steps, hidden, &self.norm, self.head.as_ref().unwrap_or(&self.table), spec.logit_cap);
    }
}

/// Puts the layers of some files onto a device.
struct Loader<'a, P: DecoderDevice> {
    device: &'a P,
    files: &'a DecoderFiles,
    spec: &'a DecoderSpec,
}

impl<P: DecoderDevice> Loader<'_, P> {
    fn layer<D: DecoderDevice<Ops = P::Ops>>(&self, layer: usize) -> Result<Layer<D>, LoadDecoderError<P::Error>> {
        let spec = self.spec;
        let place = Place::Layer(layer);
        let LayerSource { qkv, output, gate_up, down } = self.files.layer(layer)?;
        let linear = |role, source| self.device.linear_at(place, role, source).map_err(LoadDecoderError::Device);
        let heads = spec.head_shape();
        let norm = |part, size| self.norm(place, (layer, part), size);
        let only_if = |there: bool, part, size| there.then(|| norm(part, size)).transpose();
        Ok(Layer {
            attention_norm: norm(Part::AttentionNorm, spec.hidden)?,
            qkv: linear(Role::Qkv(heads), qkv)?,
            query_norm: only_if(spec.norms.heads, Part::QueryNorm, spec.head_size)?,
            key_norm: only_if(spec.norms.heads, Part::KeyNorm, spec.head_size)?,
            output: linear(Role::Attended(heads), output)?,
            attention_after: only_if(spec.norms.after, Part::AttentionAfter, spec.hidden)?,
            ffn_norm: norm(Part::FfnNorm, spec.hidden)?,
            gate_up: linear(Role::Gates, gate_up)?,
            down: linear(Role::Gated, down)?,
            ffn_after: only_if(spec.norms.after, Part::FfnAfter, spec.hidden)?,
        })
    }

    fn norm(
        &self,
        place: Place,
        (layer, part): (usize, Part),
        size: usize,
    ) -> Result<Norm<P>, LoadDecoderError<P::Error>> {
        let mut gain = self.files.vector(layer, part, size)?;
        if self.spec.norms.plus_one {
            gain.iter_mut().for_each(|gain| *gain += 1.0);
        }
        self.device.norm_at(place, gain, self.spec.norms.epsilon).map_err(LoadDecoderError::Device)
    }
}
