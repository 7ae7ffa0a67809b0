//! The forms in which the kernels are used, so that each can be compiled before a GPU is seen.
//! Compiles nothing, and decides nothing about when a form is used.

use super::compile::{KernelSpec, Needs};
use magray_core::Activation;

/// The type of activations and tables on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Number {
    /// 16 bits with the range of f32.
    Bf16,
    /// 16 bits with more precision and less range.
    F16,
    /// 32 bits.
    F32,
}

/// The arithmetic of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GemmKind {
    /// bf16 on tensor cores.
    Bf16,
    /// f16 on tensor cores.
    F16,
    /// f32 rounded to 19 bits, on tensor cores.
    Tf32,
    /// f32 on plain cores.
    F32,
    /// Bytes with a scale a row, on tensor cores.
    Int8,
}

/// What follows a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GemmOutput {
    /// Sums as f32, without bias, the inputs split into parts: what `add_norm` reads.
    Sums,
    /// Bias and activation, stored as numbers.
    Activated(Number, Activation),
}

/// The blocks of rows and columns that `gemm_mma` is compiled for.
pub const GEMM_TILES: [(u32, u32); 3] = [(128, 128), (64, 64), (32, 64)];
/// The head sizes that `attention` is compiled for; `attention_plain` takes all others.
pub const HEAD_SIZES: [u32; 3] = [32, 64, 128];

const NUMBERS: [Number; 3] = [Number::Bf16, Number::F16, Number::F32];
const KINDS: [GemmKind; 5] = [GemmKind::Bf16, GemmKind::F16, GemmKind::Tf32, GemmKind::F32, GemmKind::Int8];
const ACTIVATIONS: [Activation; 6] = [
    Activation::Identity,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Relu,
    Activation::Silu,
    Activation::Tanh,
];

impl Number {
    fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "float",
        }
    }

    fn needs(self) -> Needs {
        if self == Self::Bf16 { Needs::Ampere } else { Needs::Turing }
    }
}

impl GemmKind {
    /// As `mma.cuh` numbers them.
    fn number(self) -> u32 {
        match self {
            Self::Bf16 => 1,
            Self::F16 => 2,
            Self::Tf32 => 3,
            Self::F32 => 4,
            Self::Int8 => 5,
        }
    }

    fn needs(self) -> Needs {
        if matches!(self, Self::Bf16 | Self::Tf32) { Needs::Ampere } else { Needs::Turing }
    }

    /// The types that this product's output is stored as.
    fn stored_as(self) -> &'static [Number] {
        match self {
            Self::Bf16 => &[Number::Bf16],
            Self::F16 => &[Number::F16],
            Self::Tf32 | Self::F32 => &[Number::F32],
            Self::Int8 => &NUMBERS,
        }
    }
}

/// Embedding and layer norm.
pub fn embed(number: Number) -> KernelSpec {
    over("embed.cu", "embed", number)
}

/// Sums, residual and layer norm.
pub fn add_norm(number: Number) -> KernelSpec {
    over("add_norm.cu", "add_norm", number)
}

/// Attention on tensor cores: numbers of 16 bits, and one of [`HEAD_SIZES`].
pub fn attention(number: Number, head: u32) -> KernelSpec {
    assert!(number != Number::F32 && HEAD_SIZES.contains(&head), "attention_plain takes all others");
    over("attention.cu", "attention", number).define("HEAD", head)
}

/// Pooling of the tokens of a text.
pub fn pool(number: Number) -> KernelSpec {
    over("pool.cu", "pool", number)
}

/// The last step: rows copied out, and scaled if asked.
pub fn finish() -> KernelSpec {
    KernelSpec::new("finish.cu", "finish")
}

/// Rows to bytes with a scale each.
pub fn quantise(number: Number) -> KernelSpec {
    over("quantise.cu", "quantise", number)
}

/// The portable product with tiles of so many rows and columns.
pub fn gemm_mma(kind: GemmKind, output: GemmOutput, tile: (u32, u32)) -> KernelSpec {
    let spec = KernelSpec::new("gemm_mma.cu", "gemm_mma")
        .define("KIND", kind.number())
        .define("BM", tile.0)
        .define("BN", tile.1)
        .needs(kind.needs());
    match output {
        GemmOutput::Sums => spec.define("SUMS", 1),
        GemmOutput::Activated(number, activation) => spec
            .define("SUMS", 0)
            .define("NUMBER", number.name())
            .define("ACTIVATION", activation_number(activation))
            .needs(kind.needs().max(number.needs())),
    }
}

fn over(file: &'static str, entry: &'static str, number: Number) -> KernelSpec {
    KernelSpec::new(file, entry).define("NUMBER", number.name()).needs(number.needs())
}

/// All forms of all kernels.
pub fn all_specs() -> Vec<KernelSpec> {
    let mut specs = vec![finish()];
    for number in NUMBERS {
        specs.extend([embed(number), add_norm(number), pool(number), quantise(number)]);
        if number != Number::F32 {
            specs.extend(HEAD_SIZES.map(|head| attention(number, head)));
        }
    }
    for kind in KINDS {
        for tile in GEMM_TILES {
            specs.push(gemm_mma(kind, GemmOutput::Sums, tile));
            for &number in kind.stored_as() {
                let activated = |activation| gemm_mma(kind, GemmOutput::Activated(number, activation), tile);
                specs.extend(ACTIVATIONS.map(activated));
            }
        }
    }
    specs
}

/// Enough forms that what is left out cannot fail alone: activations are written once for all products, so all of them
/// are tried with one product, and one of them with all.
pub fn covering_specs() -> Vec<KernelSpec> {
    let is_usual = |spec: &KernelSpec| {
        let value = |name| spec.defines.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
        let tries_all = value("KIND") == Some("4") && value("BM") == Some("64");
        value("ACTIVATION").is_none_or(|activation| activation == "1" || tries_all)
    };
    all_specs().into_iter().filter(is_usual).collect()
}

/// As `activation.cuh` numbers them.
fn activation_number(activation: Activation) -> u32 {
    match activation {
        Activation::Identity => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
        Activation::Relu => 3,
        Activation::Silu => 4,
        Activation::Tanh => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_form_is_listed_twice() {
        let specs = all_specs();
        assert_eq!(specs.iter().collect::<HashSet<_>>().len(), specs.len());
    }

    #[test]
    fn every_definition_is_tried_for_every_file() {
        let pairs = |specs: Vec<KernelSpec>| -> HashSet<(&str, &str, String)> {
            let of = |spec: KernelSpec| spec.defines.into_iter().map(move |(name, value)| (spec.file, name, value));
            specs.into_iter().flat_map(of).collect()
        };
        assert_eq!(pairs(covering_specs()), pairs(all_specs()));
        assert!(covering_specs().len() * 2 < all_specs().len());
    }

    #[test]
    fn what_a_number_needs_is_needed_by_the_kernel() {
        assert_eq!(embed(Number::Bf16).needs, Needs::Ampere);
        assert_eq!(attention(Number::F16, 64).needs, Needs::Turing);
        let stored = |number| gemm_mma(GemmKind::Int8, GemmOutput::Activated(number, Activation::Gelu), (64, 64)).needs;
        assert_eq!((stored(Number::Bf16), stored(Number::F16)), (Needs::Ampere, Needs::Turing));
        assert_eq!(gemm_mma(GemmKind::Tf32, GemmOutput::Sums, (64, 64)).needs, Needs::Ampere);
    }
}
