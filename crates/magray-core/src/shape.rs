//! The sizes of an encoder and the arithmetic that follows from them. Holds no weights.

use crate::Precision;
use std::{fmt, str::FromStr};

/// The sizes that fix an encoder's cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderShape {
    /// Rows of the word embedding table.
    pub vocab: usize,
    /// Width of a token's vector.
    pub hidden: usize,
    /// Encoder layers.
    pub layers: usize,
    /// Attention heads of a layer; `hidden` is a multiple of it.
    pub heads: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Rows of the position table.
    pub positions: usize,
}

/// Published shapes, for benchmarks with synthetic weights, and one as large as language models are: its weights take
/// 16 GB in 16 bits.
const NAMED: [(&str, EncoderShape); 6] = [
    ("minilm-l6", EncoderShape { vocab: 30522, hidden: 384, layers: 6, heads: 12, ffn: 1536, positions: 512 }),
    ("minilm-l12", EncoderShape { vocab: 30522, hidden: 384, layers: 12, heads: 12, ffn: 1536, positions: 512 }),
    ("bge-base", EncoderShape { vocab: 30522, hidden: 768, layers: 12, heads: 12, ffn: 3072, positions: 512 }),
    ("bge-large", EncoderShape { vocab: 30522, hidden: 1024, layers: 24, heads: 16, ffn: 4096, positions: 512 }),
    ("huge-16gb", EncoderShape { vocab: 30522, hidden: 4096, layers: 40, heads: 64, ffn: 16384, positions: 512 }),
    ("tiny", EncoderShape { vocab: 1000, hidden: 64, layers: 2, heads: 4, ffn: 128, positions: 512 }),
];

impl EncoderShape {
    /// The names that [`EncoderShape::from_str`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|(name, _)| *name)
    }

    /// Width of one attention head.
    pub fn head_size(&self) -> usize {
        self.hidden / self.heads
    }

    /// Floating-point operations of one forward pass over texts of these lengths, in tokens.
    pub fn flops(&self, lengths: &[usize]) -> u64 {
        let matrices = 4 * self.hidden * self.hidden + 2 * self.hidden * self.ffn;
        let per_layer = |n: usize| 2 * n as u64 * (matrices as u64 + 2 * (n * self.hidden) as u64);
        lengths.iter().map(|&n| self.layers as u64 * per_layer(n)).sum()
    }

    /// Memory of a GPU that the weights take: tables and biases too, layers behind the pooling not, for they are small.
    pub fn weight_bytes(&self, precision: Precision) -> u64 {
        // Tables, and the matrices of queries, keys and values, stay in 16 bits where the others are bytes; biases and
        // norms are always f32.
        let (matrix, table) = match precision {
            Precision::F32 | Precision::Tf32 => (4, 4),
            Precision::F16 | Precision::Bf16 => (2, 2),
            Precision::Int8 => (1, 2),
        };
        let (hidden, ffn) = (self.hidden as u64, self.ffn as u64);
        let rows = (self.vocab + self.positions) as u64;
        let before_softmax = 3 * hidden * hidden * table;
        let matrices = self.layers as u64 * (before_softmax + (hidden * hidden + 2 * hidden * ffn) * matrix);
        let vectors = 2 * hidden + self.layers as u64 * (9 * hidden + ffn);
        rows * hidden * table + matrices + vectors * 4
    }

    /// Memory of a GPU that the activations of a pass over this many tokens take.
    pub fn activation_bytes(&self, precision: Precision, tokens: usize) -> u64 {
        let number = if matches!(precision, Precision::F32 | Precision::Tf32) { 4 } else { 2 };
        // The state, queries, keys, values, what attention gives, the feed-forward layer; and the f32 sums of a layer.
        let each = (5 * self.hidden + self.ffn) as u64 * number + self.hidden as u64 * 4;
        tokens as u64 * each
    }
}

/// A word that names no shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownShape(pub String);

impl fmt::Display for UnknownShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown shape '{}': use one of", self.0)?;
        EncoderShape::names().try_for_each(|name| write!(f, " {name}"))
    }
}

impl std::error::Error for UnknownShape {}

impl FromStr for EncoderShape {
    type Err = UnknownShape;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        NAMED.iter().find(|(name, _)| *name == word).map(|(_, s)| *s).ok_or_else(|| UnknownShape(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minilm_costs_what_its_matrices_say() {
        let shape: EncoderShape = "minilm-l6".parse().unwrap();
        // Six layers of 1.77 M multiply-adds a token, and the attention's 128 x 384 twice over.
        assert_eq!(shape.flops(&[128]), 128 * 6 * 2 * (1_769_472 + 2 * 128 * 384));
        assert_eq!(shape.head_size(), 32);
    }

    #[test]
    fn minilm_takes_the_memory_of_its_22_million_numbers() {
        let shape: EncoderShape = "minilm-l6".parse().unwrap();
        let mb = |precision| shape.weight_bytes(precision) / 1_000_000;
        assert_eq!((mb(Precision::F32), mb(Precision::Tf32)), (90, 90));
        assert_eq!((mb(Precision::F16), mb(Precision::Bf16)), (45, 45));
        assert_eq!(mb(Precision::Int8), 37);
        assert_eq!(shape.activation_bytes(Precision::Bf16, 2), 2 * ((5 * 384 + 1536) * 2 + 384 * 4));
    }

    #[test]
    fn the_huge_shape_takes_16_gb() {
        let shape: EncoderShape = "huge-16gb".parse().unwrap();
        let bytes = shape.weight_bytes(Precision::Bf16);
        assert!((16_000_000_000..16_500_000_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn an_unknown_shape_lists_the_known() {
        let message = "gpt".parse::<EncoderShape>().unwrap_err().to_string();
        assert!(message.contains("'gpt'") && message.contains("bge-base"), "{message}");
    }
}
