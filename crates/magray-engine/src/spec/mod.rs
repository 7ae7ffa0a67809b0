//! Reads what a model is from the files beside its weights.
//! Never opens the weights, never guesses: a setting that would change the answer and is not known is refused.

mod config;
pub mod decoder;
mod error;
mod onnx;
mod sentence;
mod settings;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

pub use error::SpecError;
pub use magray_core::{Activation, Pooling};
pub(crate) use onnx::{InputMeaning, OnnxInput};
pub use onnx::{OnnxSpec, find_graph};

use magray_core::{EncoderShape, Precision};
use magray_device::KvFormat;

/// All that a model's files say about it, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The folder of `config.json`, the weights and the tokenizer: the model's own or one inside it.
    pub encoder_folder: PathBuf,
    /// Whose layers the encoder has.
    pub architecture: Architecture,
    /// The encoder's sizes.
    pub shape: EncoderShape,
    /// The function of the feed-forward layers.
    pub activation: Activation,
    /// The epsilon of all layer norms.
    pub norm_eps: f32,
    /// The token id that stands for nothing; RoBERTa and MPNet count positions from the one after it.
    pub pad_id: u32,
    /// Rows of the token type table; 0 where the architecture has none.
    pub type_vocab: usize,
    /// Rows of MPNet's table of relative positions; 0 for the others.
    pub relative_attention_buckets: usize,
    /// The longest text that the model reads, special tokens included.
    pub max_tokens: usize,
    /// Whether texts are put into lower case, whatever the tokenizer's own file says of it.
    pub lowercase: bool,
    /// What is made of the encoder's output.
    pub task: Task,
    /// Texts to put before an input, by name.
    pub prompts: BTreeMap<String, String>,
    /// The name of the prompt that is used where none is asked for; always a key of `prompts`.
    pub default_prompt: Option<String>,
    /// The graph of a model in ONNX form.
    pub onnx: Option<OnnxSpec>,
}

impl ModelSpec {
    /// A model of random weights of this shape, for benchmarks and tests.
    pub(crate) fn synthetic(shape: EncoderShape) -> Self {
        Self {
            encoder_folder: PathBuf::new(),
            architecture: Architecture::Bert,
            shape,
            activation: Activation::Gelu,
            norm_eps: 1e-12,
            pad_id: 0,
            type_vocab: 2,
            relative_attention_buckets: 0,
            max_tokens: shape.positions,
            lowercase: false,
            task: Task::Embed(EmbedSpec {
                pooling: vec![Pooling::Mean],
                dense: Vec::new(),
                normalize: true,
                include_prompt: true,
                assumed: false,
            }),
            prompts: Default::default(),
            default_prompt: None,
            onnx: None,
        }
    }

    /// What the model makes of a text.
    pub fn does(&self) -> Does {
        match &self.task {
            Task::Embed(_) => Does::Embed,
            Task::Classify(classify) if classify.labels.len() == 1 => Does::Rank,
            Task::Classify(_) => Does::Classify,
            Task::Generate(_) => Does::Generate,
        }
    }

    /// What its weights take in this precision, about.
    pub fn weight_bytes(&self, precision: Precision) -> u64 {
        match (&self.task, &self.onnx) {
            (Task::Generate(generate), _) => generate.weight_bytes,
            (_, Some(onnx)) => onnx.bytes,
            _ => self.shape.weight_bytes(precision),
        }
    }

    /// What there is to say of a model that generates.
    pub fn generates(&self) -> Option<&GenerateSpec> {
        match &self.task {
            Task::Generate(generate) => Some(generate),
            _ => None,
        }
    }

    /// Numbers in a text's answer: the vector's dimensions, or the labels.
    pub fn outputs(&self) -> usize {
        match &self.task {
            Task::Classify(classify) => classify.labels.len(),
            Task::Generate(_) => 0,
            Task::Embed(embed) => {
                embed.dense.last().map_or(self.shape.hidden * embed.pooling.len(), |dense| dense.out_features)
            }
        }
    }
}

/// The encoders that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// BERT, and with it MiniLM, BGE, E5, GTE.
    Bert,
    /// RoBERTa, XLM-RoBERTa and CamemBERT: BERT with positions counted from `pad_id + 1`.
    Roberta,
    /// DistilBERT: no token types, no pooler, names of its own.
    DistilBert,
    /// MPNet: no token types, a learnt bias for relative positions.
    MpNet,
    /// Whatever a graph in ONNX form computes: ONNX Runtime alone does.
    Onnx,
    /// A language model, as its [`decoder::DecoderSpec`] says.
    Decoder,
}

impl Architecture {
    /// The position of a text's first token in the position table.
    pub fn first_position(self, pad_id: u32) -> usize {
        match self {
            Self::Bert | Self::DistilBert | Self::Onnx | Self::Decoder => 0,
            Self::Roberta | Self::MpNet => pad_id as usize + 1,
        }
    }
}

/// What is made of the encoder's output.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// One vector a text.
    Embed(EmbedSpec),
    /// One number a label for each text or pair of texts.
    Classify(ClassifySpec),
    /// Tokens that follow a text.
    Generate(Box<GenerateSpec>),
}

/// What a model makes of a text, as far as callers care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// A vector.
    Embed,
    /// One number for a pair of texts: how well they fit.
    Rank,
    /// One number for each of several labels.
    Classify,
    /// Tokens that follow it.
    Generate,
}

impl Does {
    /// One word for programs; it never changes its meaning.
    pub fn code(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Rank => "rank",
            Self::Classify => "classify",
            Self::Generate => "generate",
        }
    }
}

/// How a text goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateSpec {
    /// Where its weights come from.
    pub source: decoder::DecoderSource,
    /// What is computed.
    pub decoder: decoder::DecoderSpec,
    /// What its weights take as they are stored.
    pub weight_bytes: u64,
    /// The tokens that end an answer.
    pub ends: Vec<u32>,
}

impl GenerateSpec {
    /// Bytes of keys and values of a token.
    pub fn kv_token_bytes(&self, format: KvFormat) -> u64 {
        self.decoder.kv_shape().token_bytes(format) as u64
    }
}

/// How a text's vector is made of its tokens' vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbedSpec {
    /// The ways of pooling, at least one; the results of several are joined in this order.
    pub pooling: Vec<Pooling>,
    /// Layers after the pooling, in order.
    pub dense: Vec<DenseSpec>,
    /// Whether the vector is scaled to length 1 at the end.
    pub normalize: bool,
    /// Whether the tokens of the prompt are pooled too.
    pub include_prompt: bool,
    /// True where the folder has no sentence-transformers files: mean pooling and normalisation are then taken
    /// for granted, and the user should be told.
    pub assumed: bool,
}

impl EmbedSpec {
    /// What is taken for granted where the folder does not tell.
    fn assumed() -> Self {
        let pooling = vec![Pooling::Mean];
        Self { pooling, dense: Vec::new(), normalize: true, include_prompt: true, assumed: true }
    }

    /// The length of the vectors that come out, for an encoder of this width.
    pub fn dimensions(&self, hidden: usize) -> usize {
        self.dense.last().map_or(hidden * self.pooling.len(), |dense| dense.out_features)
    }
}

/// One layer after the pooling: `activation(weight * x + bias)`.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseSpec {
    /// Where its weights are: `linear.weight`, and `linear.bias` where `bias` says so.
    pub folder: PathBuf,
    /// Columns of its weight.
    pub in_features: usize,
    /// Rows of its weight.
    pub out_features: usize,
    /// Whether it has a bias.
    pub bias: bool,
    /// What follows the multiplication.
    pub activation: Activation,
}

/// How the labels' numbers are made of the first token's vector.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassifySpec {
    /// The labels' names, in the order of the numbers; at least one.
    pub labels: Vec<String>,
    /// The layers between.
    pub head: ClassifyHead,
}

/// The layers of a classification head; each ends with one row a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassifyHead {
    /// BERT: `pooler.dense`, tanh, `classifier`.
    Pooler,
    /// RoBERTa and MPNet: `classifier.dense`, tanh, `classifier.out_proj`.
    DenseTanh,
    /// DistilBERT: `pre_classifier`, relu, `classifier`.
    PreClassifierRelu,
}

impl ModelSpec {
    /// Reads the model folder `dir`.
    ///
    /// The model classifies when the first of its `architectures` ends in `ForSequenceClassification` and no
    /// sentence-transformers file asks for pooling; otherwise it embeds.
    pub fn read(dir: &Path) -> Result<Self, SpecError> {
        let modules = sentence::read_modules(dir)?;
        let encoder_folder = modules.as_ref().map_or_else(|| dir.to_owned(), |modules| modules.encoder_folder.clone());
        let encoder = config::read(&encoder_folder)?;
        let classifies = encoder.classifies && modules.as_ref().is_none_or(|modules| modules.pooling.is_none());
        let task = if classifies {
            let head = match encoder.architecture {
                Architecture::Bert | Architecture::Onnx | Architecture::Decoder => ClassifyHead::Pooler,
                Architecture::Roberta | Architecture::MpNet => ClassifyHead::DenseTanh,
                Architecture::DistilBert => ClassifyHead::PreClassifierRelu,
            };
            Task::Classify(ClassifySpec { labels: encoder.labels, head })
        } else {
            Task::Embed(match &modules {
                Some(modules) => sentence::read_embedding(dir, modules, encoder.shape.hidden)?,
                None => EmbedSpec::assumed(),
            })
        };
        let first = encoder.architecture.first_position(encoder.pad_id);
        let limits = sentence::read_limits(&encoder_folder, encoder.shape.positions - first)?;
        let (prompts, default_prompt) = sentence::read_prompts(dir)?;
        Ok(Self {
            encoder_folder,
            architecture: encoder.architecture,
            shape: encoder.shape,
            activation: encoder.activation,
            norm_eps: encoder.norm_eps,
            pad_id: encoder.pad_id,
            type_vocab: encoder.type_vocab,
            relative_attention_buckets: encoder.relative_attention_buckets,
            max_tokens: limits.max_tokens,
            lowercase: limits.lowercase,
            task,
            prompts,
            default_prompt,
            onnx: None,
        })
    }
}
