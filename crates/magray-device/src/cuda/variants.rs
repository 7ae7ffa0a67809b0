//! Every form in which the kernels are used: what names a kernel for a number type, a head size, a tile.
//! Compiles nothing.

use super::arithmetic::Arithmetic;
use super::compile::{KernelSpec, Needs};
use super::decoder_kernels::DecoderKernel;
use super::memory::Number;
use super::scan_plan::{SCAN_TILES, SCANNED_AT_ONCE, ScanTile};
use super::tiles::{HOPPER_TILES, HopperTile, MMA_TILES, MmaTile, NORM_TILES, NormTile};
use magray_core::Activation;

/// Head sizes that the matrix instructions' attention is made for.
pub(super) const HEAD_SIZES: [usize; 3] = [32, 64, 128];
/// Blocks that may share a row for its norm.
pub(super) const CLUSTERS: std::ops::RangeInclusive<usize> = 1..=8;

fn of_number(file: &'static str, entry: &'static str, number: Number) -> KernelSpec {
    let spec = KernelSpec::new(file, entry).define("NUMBER", number.name());
    match number {
        Number::F32 => spec,
        Number::F16 => spec.define("NUMBER_16", 1),
        Number::Bf16 => spec.define("NUMBER_16", 1).needs(Needs::Ampere),
    }
}

pub(super) fn embed(number: Number) -> KernelSpec {
    of_number("embed.cu", "embed", number)
}

pub(super) fn add_norm(number: Number) -> KernelSpec {
    of_number("add_norm.cu", "add_norm", number)
}

pub(super) fn attention(number: Number, head: usize, has_bias: bool) -> KernelSpec {
    of_number("attention.cu", "attention", number).define("HEAD", head).define("BIAS", u32::from(has_bias))
}

pub(super) fn attention_plain(number: Number) -> KernelSpec {
    of_number("attention_plain.cu", "attention_plain", number)
}

pub(super) fn pool(number: Number) -> KernelSpec {
    of_number("pool.cu", "pool", number)
}

pub(super) fn finish() -> KernelSpec {
    KernelSpec::new("finish.cu", "finish")
}

pub(super) fn fault() -> KernelSpec {
    KernelSpec::new("fault.cu", "fault")
}

pub(super) fn quantise(number: Number) -> KernelSpec {
    of_number("quantise.cu", "quantise", number)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    /// Results in the form of activations.
    Results(Activation),
    /// Sums, for a kernel that goes on with them.
    Sums,
}

/// The products of every GPU.
pub(super) fn gemm_mma(arithmetic: Arithmetic, number: Number, leaves: Leaves, tile: MmaTile) -> KernelSpec {
    let kind = match (arithmetic, number) {
        (Arithmetic::Sixteen, Number::F16) => 2,
        (Arithmetic::Sixteen, _) => 1,
        (Arithmetic::Tf32, _) => 3,
        (Arithmetic::F32, _) => 4,
        (Arithmetic::Int8, _) => 5,
    };
    let spec = of_number("gemm_mma.cu", "gemm_mma", number)
        .define("KIND", kind)
        .define("BM", tile.rows)
        .define("BN", tile.columns);
    let spec = match leaves {
        Leaves::Results(activation) => spec.define("SUMS", 0).define("ACTIVATION", activation_number(activation)),
        Leaves::Sums => spec.define("SUMS", 1).define("ACTIVATION", 0),
    };
    if arithmetic == Arithmetic::Tf32 { spec.needs(Needs::Ampere) } else { spec }
}

/// Hopper's products, with an activation.
pub(super) fn gemm_wgmma(number: Number, tile: HopperTile, activation: Activation) -> KernelSpec {
    of_number("gemm_wgmma.cu", "gemm_wgmma", number)
        .define("BN", tile.columns)
        .define("ROWS", tile.sixty_fours)
        .define("GROUPS", tile.groups)
        .define("STAGES", tile.stages)
        .define("ACTIVATION", activation_number(activation))
        .needs(Needs::Hopper)
}

/// Hopper's products, with a norm of rows that this many blocks share.
pub(super) fn gemm_norm_wgmma(number: Number, tile: NormTile, cluster: usize) -> KernelSpec {
    of_number("gemm_norm_wgmma.cu", "gemm_norm_wgmma", number)
        .define("BN", tile.columns)
        .define("GROUPS", tile.groups)
        .define("STAGES", tile.stages)
        .define("CLUSTER", cluster)
        .needs(Needs::Hopper)
}

/// Scores of vectors by this many queries at once.
pub(super) fn scan_few(queries: usize) -> KernelSpec {
    of_number("scan_few.cu", "scan_few", Number::F16).define("QUERIES", queries)
}

/// The best of the scores.
pub(super) fn scan_select() -> KernelSpec {
    KernelSpec::new("scan_select.cu", "scan_select")
}

/// Scores of the vectors whose signs say that they may be good.
pub(super) fn scan_signs() -> KernelSpec {
    of_number("scan_signs.cu", "scan_signs", Number::F16)
}

/// Signs of vectors.
pub(super) fn scan_sketch() -> KernelSpec {
    of_number("scan_sketch.cu", "scan_sketch", Number::F16)
}

/// Scores of vectors by many queries, on Hopper.
pub(super) fn scan_many(tile: ScanTile, in_place: bool) -> KernelSpec {
    of_number("scan_many.cu", "scan_many", Number::F16)
        .define("BN", tile.queries)
        .define("STAGES", tile.stages)
        .define("IN_PLACE", u32::from(in_place))
        .needs(Needs::Hopper)
}

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

/// All forms of all kernels.
pub fn all_specs() -> Vec<KernelSpec> {
    const NUMBERS: [Number; 3] = [Number::F32, Number::F16, Number::Bf16];
    const SIXTEEN: [Number; 2] = [Number::F16, Number::Bf16];
    let mut specs = vec![finish(), fault(), scan_select(), scan_signs(), scan_sketch()];
    specs.extend(SCANNED_AT_ONCE.map(scan_few));
    for tile in SCAN_TILES {
        specs.extend([false, true].map(|in_place| scan_many(tile, in_place)));
    }
    for number in NUMBERS {
        specs.extend([embed(number), add_norm(number), attention_plain(number), pool(number)]);
    }
    for number in SIXTEEN {
        specs.push(quantise(number));
        for has_bias in [false, true] {
            specs.extend(HEAD_SIZES.map(|head| attention(number, head, has_bias)));
        }
    }
    specs.extend(DecoderKernel::all().into_iter().map(DecoderKernel::spec));
    let products = [
        (Arithmetic::F32, Number::F32),
        (Arithmetic::Tf32, Number::F32),
        (Arithmetic::Sixteen, Number::F16),
        (Arithmetic::Sixteen, Number::Bf16),
        (Arithmetic::Int8, Number::F16),
        (Arithmetic::Int8, Number::Bf16),
    ];
    for (arithmetic, number) in products {
        for tile in MMA_TILES {
            specs.push(gemm_mma(arithmetic, number, Leaves::Sums, tile));
            for activation in ACTIVATIONS {
                specs.push(gemm_mma(arithmetic, number, Leaves::Results(activation), tile));
            }
        }
    }
    for number in SIXTEEN {
        for tile in HOPPER_TILES {
            for activation in ACTIVATIONS {
                specs.push(gemm_wgmma(number, tile, activation));
            }
        }
        for tile in NORM_TILES {
            for cluster in tile.blocks_min()..=*CLUSTERS.end() {
                specs.push(gemm_norm_wgmma(number, tile, cluster));
            }
        }
    }
    specs
}

/// Enough forms that what is left out cannot fail alone, for a check that is run often: every tile in its usual form, and
/// one tile in all forms.
pub fn covering_specs() -> Vec<KernelSpec> {
    let stays = |spec: &KernelSpec| {
        let has = |name: &str, value: &str| spec.defines.iter().any(|(known, given)| *known == name && given == value);
        match spec.file {
            "gemm_mma.cu" => has("KIND", "4") && has("BM", "64") || has("SUMS", "1") || has("ACTIVATION", "1"),
            // These take seconds each.
            "gemm_wgmma.cu" => {
                has("NUMBER", "bf16") && (has("BN", "64") || has("ACTIVATION", "1"))
                    || has("BN", "64") && has("ACTIVATION", "1")
            }
            "gemm_norm_wgmma.cu" => {
                has("NUMBER", "bf16") && (has("BN", "64") || has("CLUSTER", "8"))
                    || has("BN", "64") && has("CLUSTER", "8")
            }
            _ => true,
        }
    };
    all_specs().into_iter().filter(stays).collect()
}

const ACTIVATIONS: [Activation; 6] = [
    Activation::Identity,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Relu,
    Activation::Silu,
    Activation::Tanh,
];

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
        assert!(covering_specs().len() < all_specs().len());
    }

    #[test]
    fn what_a_number_needs_is_needed_by_the_kernel() {
        assert_eq!(embed(Number::Bf16).needs, Needs::Ampere);
        assert_eq!(attention(Number::F16, 64, false).needs, Needs::Turing);
        let product = |arithmetic, number| gemm_mma(arithmetic, number, Leaves::Sums, MMA_TILES[0]).needs;
        assert_eq!(product(Arithmetic::Int8, Number::Bf16), Needs::Ampere);
        assert_eq!(product(Arithmetic::Int8, Number::F16), Needs::Turing);
        assert_eq!(product(Arithmetic::Tf32, Number::F32), Needs::Ampere);
    }
}
