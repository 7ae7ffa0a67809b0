//! The files of a decoder: a folder of transformers or one GGUF file, what it computes, and its weights by part.
//! Copies no matrix: weights stay in their files until a device takes them over.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use magray_core::EncoderShape;
use magray_device::{BlockLinear, KvFormat};

use super::{
    error::OpenError,
    gguf, gguf_chat,
    names::{self, Part},
    synthetic::SyntheticWeights,
};
use crate::{
    spec::{
        Architecture, GenerateSpec, ModelSpec, SpecError, Task,
        decoder::{ChatTemplates, DecoderSource, DecoderSpec, read_config, read_ends},
    },
    tokenize::{Tokenizer, Vocabulary},
    weights::{Weights, WeightsError, gguf::Gguf},
};

/// A decoder's files.
#[derive(Debug)]
pub struct DecoderFiles {
    spec: DecoderSpec,
    source: Arc<Source>,
    /// Whether vectors are read; else they are zeros.
    is_read: bool,
}

/// The matrices of a layer, as they lie in the files.
pub(super) struct LayerSource {
    pub(super) qkv: BlockLinear,
    pub(super) output: BlockLinear,
    pub(super) gate_up: BlockLinear,
    pub(super) down: BlockLinear,
}

#[derive(Debug)]
enum Source {
    Safetensors(Weights),
    Gguf(Gguf),
    Synthetic(SyntheticWeights),
}

impl DecoderFiles {
    /// Opens a decoder.
    pub fn of(source: &DecoderSource) -> Result<Self, SpecError> {
        match source {
            DecoderSource::Path(path) => Self::open(path),
            DecoderSource::Synthetic(model) => {
                Ok(Self::new(model.spec(), Source::Synthetic(SyntheticWeights::new(*model))))
            }
        }
    }

    /// Opens a folder with `config.json` and safetensors, or a GGUF file.
    pub fn open(path: &Path) -> Result<Self, SpecError> {
        if path.is_dir() {
            let spec = read_config(path)?;
            return Ok(Self::new(spec, Source::Safetensors(Weights::open(path)?)));
        }
        let file = Gguf::open(path)?;
        Ok(Self::new(gguf::spec(&file)?, Source::Gguf(file)))
    }

    fn new(spec: DecoderSpec, source: Source) -> Self {
        Self { spec, source: Arc::new(source), is_read: true }
    }

    /// The same layers without their numbers: for a device that only measures them, or has their weights already.
    pub(crate) fn unread(&self) -> Self {
        Self { spec: self.spec.clone(), source: Arc::clone(&self.source), is_read: false }
    }

    /// What the engine is told of the model.
    pub(crate) fn model_spec(&self) -> Result<ModelSpec, SpecError> {
        let (source, weight_bytes) = match &*self.source {
            Source::Safetensors(weights) => (DecoderSource::Path(weights.folder().to_owned()), weights.bytes()),
            Source::Gguf(file) => (DecoderSource::Path(file.path().to_owned()), file.bytes()),
            Source::Synthetic(weights) => (DecoderSource::Synthetic(weights.model()), weights.model().weight_bytes()),
        };
        let folder = match &source {
            DecoderSource::Path(path) => path.clone(),
            DecoderSource::Synthetic(_) => PathBuf::new(),
        };
        let DecoderSpec { vocab, hidden, ffn, heads, context, .. } = self.spec;
        let shape = EncoderShape { vocab, hidden, layers: self.spec.layers.len(), heads, ffn, positions: context };
        let (decoder, ends) = (self.spec.clone(), self.end_tokens()?);
        Ok(ModelSpec {
            encoder_folder: folder,
            architecture: Architecture::Decoder,
            activation: self.spec.activation,
            norm_eps: self.spec.norms.epsilon,
            type_vocab: 0,
            task: Task::Generate(Box::new(GenerateSpec { source, decoder, weight_bytes, ends })),
            ..ModelSpec::synthetic(shape)
        })
    }

    /// Bytes of keys and values of a token.
    pub fn kv_token_bytes(&self, format: KvFormat) -> u64 {
        self.spec.kv_shape().token_bytes(format) as u64
    }

    /// What the model computes.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Its tokenizer for sequences of up to this many tokens, with the bytes of its tokens; `None` where weights are random.
    pub fn tokenizer(&self, context: usize) -> Result<Option<(Tokenizer, Vocabulary)>, OpenError> {
        match &*self.source {
            Source::Safetensors(weights) => {
                let folder = weights.folder();
                Ok(Some((Tokenizer::open(folder, context)?, Vocabulary::open(folder)?)))
            }
            Source::Gguf(file) => Ok(Some(Tokenizer::from_gguf(&gguf::tokenizer(file)?, context)?)),
            Source::Synthetic(_) => Ok(None),
        }
    }

    /// Its chat templates, as far as the files have any.
    pub fn chat_templates(&self) -> Result<ChatTemplates, SpecError> {
        match &*self.source {
            Source::Safetensors(weights) => ChatTemplates::read(weights.folder()),
            Source::Gguf(file) => Ok(gguf_chat::templates(file)?),
            Source::Synthetic(_) => Ok(ChatTemplates::default()),
        }
    }

    /// The tokens that end an answer, as far as the files say.
    pub fn end_tokens(&self) -> Result<Vec<u32>, SpecError> {
        match &*self.source {
            Source::Safetensors(weights) => read_ends(weights.folder()),
            Source::Gguf(file) => gguf::ends(file),
            Source::Synthetic(_) => Ok(Vec::new()),
        }
    }

    /// The matrices of a layer.
    pub(super) fn layer(&self, layer: usize) -> Result<LayerSource, WeightsError> {
        let spec = &self.spec;
        let (queries, keys) = (spec.heads * spec.head_size, spec.kv_heads * spec.head_size);
        let biases = spec.biases;
        let qkv = match self.has(layer, Part::Qkv) {
            true => vec![(Part::Qkv, queries + 2 * keys)],
            false => vec![(Part::Query, queries), (Part::Key, keys), (Part::Value, keys)],
        };
        let gate_up = match self.has(layer, Part::Gate) {
            true => vec![(Part::Gate, spec.ffn), (Part::Up, spec.ffn)],
            false => vec![(Part::GateUp, 2 * spec.ffn)],
        };
        Ok(LayerSource {
            qkv: self.linear(layer, &qkv, spec.hidden, biases.qkv)?,
            output: self.linear(layer, &[(Part::Output, spec.hidden)], queries, biases.output)?,
            gate_up: self.linear(layer, &gate_up, spec.hidden, biases.ffn)?,
            down: self.linear(layer, &[(Part::Down, spec.hidden)], spec.ffn, biases.ffn)?,
        })
    }

    fn name(&self, layer: usize, part: Part) -> String {
        match &*self.source {
            Source::Safetensors(_) | Source::Synthetic(_) => names::in_safetensors(layer, part, self.spec.norms.after),
            Source::Gguf(_) => names::in_gguf(layer, part),
        }
    }

    /// Whether there is such a tensor.
    pub(super) fn has(&self, layer: usize, part: Part) -> bool {
        let name = format!("{}.weight", self.name(layer, part));
        match &*self.source {
            Source::Safetensors(weights) => weights.has(&name),
            Source::Gguf(file) => file.has(&name),
            Source::Synthetic(_) => part != Part::Qkv,
        }
    }

    /// Matrices of these rows as one layer.
    pub(super) fn linear(
        &self,
        layer: usize,
        parts: &[(Part, usize)],
        inputs: usize,
        bias: bool,
    ) -> Result<BlockLinear, WeightsError> {
        let mut linear = BlockLinear { parts: Vec::new(), bias: Vec::new() };
        for &(part, rows) in parts {
            let name = self.name(layer, part);
            let weight = format!("{name}.weight");
            linear.parts.push(match &*self.source {
                Source::Safetensors(weights) => weights.matrix(&weight, rows, inputs)?,
                Source::Gguf(file) => file.matrix(&weight, rows, inputs)?,
                Source::Synthetic(weights) => weights.matrix(rows, inputs),
            });
            if bias {
                linear.bias.extend(self.floats(&format!("{name}.bias"), rows)?);
            }
        }
        Ok(linear)
    }

    /// The numbers of a norm.
    pub(super) fn vector(&self, layer: usize, part: Part, length: usize) -> Result<Vec<f32>, WeightsError> {
        self.floats(&format!("{}.weight", self.name(layer, part)), length)
    }

    fn floats(&self, name: &str, length: usize) -> Result<Vec<f32>, WeightsError> {
        match &*self.source {
            _ if !self.is_read => Ok(vec![0.0; length]),
            Source::Safetensors(weights) => Ok(weights.tensor(name, &[length])?.to_f32()),
            Source::Gguf(file) => file.vector(name, length),
            Source::Synthetic(_) => Ok(vec![1.0; length]),
        }
    }
}
