//! Where a decoder comes from: its files, or random weights in a published shape, for benchmarks.
//! Opens nothing.

use std::{fmt, path::PathBuf, str::FromStr};

use magray_core::{Activation, BlockFormat};
use serde::{Deserialize, Serialize};

use super::{BiasSpec, DecoderSpec, LayerSpec, NormSpec, Rope, RopeLayout, Scaling};

/// Where a decoder comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DecoderSource {
    /// Its folder, or its GGUF file.
    Path(PathBuf),
    /// Random weights of a published shape.
    Synthetic(SyntheticDecoder),
}

/// The longest sequence of every shape.
const CONTEXT: usize = 32_768;

/// A shape and the format of its weights: `llama-1b`, `llama-8b-q4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SyntheticDecoder {
    shape: &'static Shape,
    format: BlockFormat,
}

#[derive(Debug, PartialEq, Eq)]
struct Shape {
    name: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    ffn: usize,
    vocab: usize,
    tied_head: bool,
}

impl Shape {
    const fn new(name: &'static str, sizes: [usize; 7], tied_head: bool) -> Self {
        let [layers, hidden, heads, kv_heads, head_size, ffn, vocab] = sizes;
        Self { name, layers, hidden, heads, kv_heads, head_size, ffn, vocab, tied_head }
    }
}

static SHAPES: [Shape; 4] = [
    Shape::new("smollm2-135m", [30, 576, 9, 3, 64, 1536, 49_152], true),
    Shape::new("qwen2.5-0.5b", [24, 896, 14, 2, 64, 4864, 151_936], true),
    Shape::new("llama-1b", [16, 2048, 32, 8, 64, 8192, 128_256], true),
    Shape::new("llama-8b", [32, 4096, 32, 8, 128, 14_336, 128_256], false),
];

/// Formats by the ending of a name.
const FORMATS: [(&str, BlockFormat); 3] =
    [("-q4", BlockFormat::Q4_0), ("-q8", BlockFormat::Q8_0), ("", BlockFormat::Bf16)];

/// No such shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no language model has the shape '{name}'; there are {known}, each also with -q8 or -q4 at its end")]
pub struct UnknownShape {
    name: String,
    known: String,
}

impl FromStr for SyntheticDecoder {
    type Err = UnknownShape;

    fn from_str(name: &str) -> Result<Self, UnknownShape> {
        let of = |(ending, format): &(&str, BlockFormat)| {
            let shape = SHAPES.iter().find(|shape| Some(shape.name) == name.strip_suffix(ending))?;
            Some(Self { shape, format: *format })
        };
        FORMATS.iter().find_map(of).ok_or_else(|| UnknownShape {
            name: name.to_owned(),
            known: SHAPES.iter().map(|shape| shape.name).collect::<Vec<_>>().join(", "),
        })
    }
}

impl fmt::Display for SyntheticDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = FORMATS.iter().find(|(_, format)| *format == self.format).map_or("", |(ending, _)| ending);
        write!(f, "{}{ending}", self.shape.name)
    }
}

impl TryFrom<String> for SyntheticDecoder {
    type Error = UnknownShape;

    fn try_from(name: String) -> Result<Self, UnknownShape> {
        name.parse()
    }
}

impl From<SyntheticDecoder> for String {
    fn from(model: SyntheticDecoder) -> Self {
        model.to_string()
    }
}

impl SyntheticDecoder {
    pub(crate) fn spec(self) -> DecoderSpec {
        let Shape { layers, hidden, heads, kv_heads, head_size, ffn, vocab, tied_head, .. } = *self.shape;
        let rope = Rope {
            theta: 500_000.0,
            rotated: head_size,
            layout: RopeLayout::Halves,
            original_context: CONTEXT,
            scaling: Scaling::None,
        };
        DecoderSpec {
            vocab,
            hidden,
            ffn,
            heads,
            kv_heads,
            head_size,
            layers: vec![LayerSpec { window: None, rope: 0 }; layers],
            context: CONTEXT,
            norms: NormSpec { epsilon: 1e-5, plus_one: false, after: false, heads: false },
            ropes: vec![rope],
            activation: Activation::Silu,
            attention_scale: (head_size as f32).powf(-0.5),
            attention_cap: None,
            logit_cap: None,
            embedding_scale: 1.0,
            biases: BiasSpec::default(),
            tied_head,
        }
    }

    /// The format of its matrices.
    pub(crate) fn format(self) -> BlockFormat {
        self.format
    }

    /// Bytes of all matrices.
    pub(crate) fn weight_bytes(self) -> u64 {
        let Shape { layers, hidden, heads, kv_heads, head_size, ffn, vocab, tied_head, .. } = *self.shape;
        let layer = hidden * ((2 * heads + 2 * kv_heads) * head_size + 3 * ffn);
        let numbers = layers * layer + vocab * hidden * if tied_head { 1 } else { 2 };
        self.format.bytes_of(numbers).unwrap_or(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["llama-1b", "llama-8b-q4", "smollm2-135m-q8"] {
            assert_eq!(name.parse::<SyntheticDecoder>().unwrap().to_string(), name);
        }
        let error = "llama-2b".parse::<SyntheticDecoder>().unwrap_err().to_string();
        assert!(error.contains("llama-8b") && error.contains("llama-2b"), "{error}");
    }

    #[test]
    fn sizes_are_those_of_the_published_models() {
        let bytes = |name: &str| name.parse::<SyntheticDecoder>().unwrap().weight_bytes();
        assert!((2.4e9..2.5e9).contains(&(bytes("llama-1b") as f64)), "{}", bytes("llama-1b"));
        assert!((16.0e9..16.1e9).contains(&(bytes("llama-8b") as f64)), "{}", bytes("llama-8b"));
        assert_eq!(bytes("llama-1b-q4") * 32, bytes("llama-1b") * 9);
    }
}
