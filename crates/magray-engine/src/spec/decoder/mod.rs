//! What a decoder computes, in one description for all architectures: sizes, norms, rope, windows, caps.
//! Names no tensors and no architecture: what two models compute alike is described alike.

mod chat_template;
mod config;
mod rope;
mod source;
#[cfg(test)]
mod tests;

pub use chat_template::ChatTemplates;
pub(crate) use chat_template::{TEMPLATE_BYTES_MAX, TEMPLATES_MAX};
pub use config::{read_config, read_ends};
pub use rope::{Frequencies, Rope, RopeLayout, Scaling};
pub use source::{DecoderSource, SyntheticDecoder, UnknownShape};

use magray_core::Activation;
use magray_device::{HeadShape, KvShape};

use super::SpecError;

// Far above every published decoder, and low enough that no product of two overflows or asks for absurd memory: what
// lies within these limits and is not true fails at the shapes of the weights.
pub(crate) const VOCAB_MAX: usize = 1 << 24;
pub(crate) const WIDTH_MAX: usize = 1 << 18;
pub(crate) const LAYERS_MAX: usize = 1 << 10;
pub(crate) const HEADS_MAX: usize = 1 << 12;
pub(crate) const CONTEXT_MAX: usize = 1 << 24;

/// A decoder: layers of attention to what came before and of gated feed-forward, each added to what it read.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderSpec {
    /// Tokens that it knows.
    pub vocab: usize,
    /// Numbers of a token between the layers.
    pub hidden: usize,
    /// Numbers inside of a feed-forward layer.
    pub ffn: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; each serves `heads / kv_heads` heads of queries.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_size: usize,
    /// The layers.
    pub layers: Vec<LayerSpec>,
    /// The longest sequence that it was made for.
    pub context: usize,
    /// Which norms there are.
    pub norms: NormSpec,
    /// The ways that positions turn queries and keys; layers name theirs by its index.
    pub ropes: Vec<Rope>,
    /// The function of the gate.
    pub activation: Activation,
    /// What scores of attention are multiplied with.
    pub attention_scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub attention_cap: Option<f32>,
    /// Logits become `cap * tanh(logit / cap)`.
    pub logit_cap: Option<f32>,
    /// What the vectors of tokens are multiplied with.
    pub embedding_scale: f32,
    /// Which products add a bias.
    pub biases: BiasSpec,
    /// Whether the table of tokens is also the last product.
    pub tied_head: bool,
}

/// What differs between layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// A token attends to this many tokens, itself included; to all where there is none.
    pub window: Option<usize>,
    /// The index of its rope.
    pub rope: usize,
}

/// Root mean square norms and their places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// Added to the mean square.
    pub epsilon: f32,
    /// Whether gains are stored without the 1 that belongs to them.
    pub plus_one: bool,
    /// Whether what a layer computed is normalised before it is added, beside what it reads.
    pub after: bool,
    /// Whether each head of queries and keys is normalised.
    pub heads: bool,
}

/// Which products add a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BiasSpec {
    /// Queries, keys and values.
    pub qkv: bool,
    /// The product behind attention.
    pub output: bool,
    /// The products of feed-forward layers.
    pub ffn: bool,
}

impl DecoderSpec {
    /// What its keys and values take.
    pub(crate) fn kv_shape(&self) -> KvShape {
        KvShape { layers: self.layers.len(), kv_heads: self.kv_heads, head_size: self.head_size }
    }

    /// Its heads.
    pub(crate) fn head_shape(&self) -> HeadShape {
        HeadShape { heads: self.heads, kv_heads: self.kv_heads, head_size: self.head_size }
    }

    /// What is wrong with sizes that contradict each other; nothing where they agree.
    pub(crate) fn contradiction(&self) -> Option<String> {
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return Some(format!("{} heads of queries cannot share {} of keys and values", self.heads, self.kv_heads));
        }
        let rotated = self.ropes.iter().map(|rope| rope.rotated).find(|n| *n > self.head_size || !n.is_multiple_of(2));
        if let Some(rotated) = rotated {
            return Some(format!("{rotated} numbers of a head of {} cannot be turned in pairs", self.head_size));
        }
        if let Some(rule) = self.ropes.iter().find_map(Rope::contradiction) {
            return Some(rule);
        }
        self.layers.iter().any(|layer| layer.rope >= self.ropes.len()).then(|| "a layer has no rope".to_owned())
    }

    /// Numbers of its weights, without norms and biases.
    pub fn parameters(&self) -> u64 {
        let attention = self.hidden * self.qkv_columns() + self.heads * self.head_size * self.hidden;
        let layer = attention + 3 * self.hidden * self.ffn;
        let tables = if self.tied_head { 1 } else { 2 };
        (self.layers.len() * layer + tables * self.vocab * self.hidden) as u64
    }

    /// Numbers of a row of queries, keys and values.
    pub fn qkv_columns(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_size
    }
}
