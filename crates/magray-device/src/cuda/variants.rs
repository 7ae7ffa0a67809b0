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

/// All forms of all kernels.
pub fn all_specs() -> Vec<KernelSpec> {
    let mut specs = Vec::new();
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
}
