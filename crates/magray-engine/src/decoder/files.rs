//! The files of a decoder: a folder of transformers or one GGUF file, what it computes, and its weights by part.
//! Copies no matrix: weights stay in their files until a device takes them over.

use std::path::Path;

use magray_device::BlockLinear;

use super::{
    error::OpenError,
    gguf,
    names::{self, Part},
};
use crate::{
    spec::decoder::{DecoderSpec, read_config},
    tokenize::{Tokenizer, Vocabulary},
    weights::{Weights, WeightsError, gguf::Gguf},
};

/// A decoder's files.
#[derive(Debug)]
pub struct DecoderFiles {
    spec: DecoderSpec,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Safetensors(Weights),
    Gguf(Gguf),
}

impl DecoderFiles {
    /// Opens a folder with `config.json` and safetensors, or a GGUF file.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        if path.is_dir() {
            let spec = read_config(path)?;
            return Ok(Self { spec, source: Source::Safetensors(Weights::open(path)?) });
        }
        let file = Gguf::open(path)?;
        Ok(Self { spec: gguf::spec(&file)?, source: Source::Gguf(file) })
    }

    /// What the model computes.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Its tokenizer for sequences of up to this many tokens, with the bytes of its tokens where the file lists them.
    pub fn tokenizer(&self, context: usize) -> Result<(Tokenizer, Option<Vocabulary>), OpenError> {
        match &self.source {
            Source::Safetensors(weights) => Ok((Tokenizer::open(weights.folder(), context)?, None)),
            Source::Gguf(file) => {
                let (tokenizer, vocabulary) = Tokenizer::from_gguf(&gguf::tokenizer(file)?, context)?;
                Ok((tokenizer, Some(vocabulary)))
            }
        }
    }

    /// The token that ends an answer, where the file says.
    pub fn end_token(&self) -> Result<Option<u32>, OpenError> {
        match &self.source {
            Source::Safetensors(_) => Ok(None),
            Source::Gguf(file) => Ok(file.number("tokenizer.ggml.eos_token_id")?.and_then(|id| u32::try_from(id).ok())),
        }
    }

    fn name(&self, layer: usize, part: Part) -> String {
        match &self.source {
            Source::Safetensors(_) => names::in_safetensors(layer, part, self.spec.norms.after),
            Source::Gguf(_) => names::in_gguf(layer, part),
        }
    }

    /// Whether there is such a tensor.
    pub(super) fn has(&self, layer: usize, part: Part) -> bool {
        let name = format!("{}.weight", self.name(layer, part));
        match &self.source {
            Source::Safetensors(weights) => weights.has(&name),
            Source::Gguf(file) => file.has(&name),
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
            linear.parts.push(match &self.source {
                Source::Safetensors(weights) => weights.matrix(&weight, rows, inputs)?,
                Source::Gguf(file) => file.matrix(&weight, rows, inputs)?,
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
        match &self.source {
            Source::Safetensors(weights) => Ok(weights.tensor(name, &[length])?.to_f32()),
            Source::Gguf(file) => file.vector(name, length),
        }
    }
}
