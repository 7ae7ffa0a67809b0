//! Names the arithmetic a model runs in, and settles which one a device runs when another was asked for.
//! Knows of the hardware only what it is told.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The arithmetic of a loaded model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Precision {
    /// 32-bit floats throughout.
    F32,
    /// 32-bit floats that are rounded to 19 bits where they are multiplied; sums in 32 bits. GPUs alone have it.
    Tf32,
    /// IEEE half weights and activations, sums in 32 bits. GPUs alone have it.
    F16,
    /// bfloat16 weights, sums in 32 bits; activations too are bfloat16 where the hardware multiplies it.
    Bf16,
    /// 8-bit weights, scaled per channel; activations too are 8-bit, scaled per token, where the hardware multiplies
    /// bytes, and stay 32-bit elsewhere.
    Int8,
}

impl Precision {
    /// Every precision, the most exact first.
    pub const ALL: [Self; 5] = [Self::F32, Self::Tf32, Self::F16, Self::Bf16, Self::Int8];

    /// Whether the CPU has this arithmetic; [`PrecisionChoice::settle_cpu`] settles on no other.
    pub fn is_for_cpu(self) -> bool {
        matches!(self, Self::F32 | Self::Bf16 | Self::Int8)
    }
}

/// What a user asks for: one precision, or the best one of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PrecisionChoice {
    /// The fastest one that rounds no more than 16-bit floats do.
    #[default]
    Auto,
    /// This one, or the nearest that the device has.
    Exactly(Precision),
}

/// The first compute capability whose tensor cores multiply bf16 and tf32 (Ampere).
const AMPERE: (u32, u32) = (8, 0);

impl PrecisionChoice {
    /// Settles the choice for a CPU that does (or does not) multiply bf16 faster than f32.
    pub fn settle_cpu(self, has_fast_bf16: bool) -> Precision {
        let fast = if has_fast_bf16 { Precision::Bf16 } else { Precision::F32 };
        match self {
            // No CPU path multiplies f16: bf16 is as small and as fast where it is fast at all.
            Self::Auto | Self::Exactly(Precision::F16) => fast,
            Self::Exactly(Precision::Tf32) => Precision::F32,
            Self::Exactly(precision) => precision,
        }
    }

    /// Settles the choice for an NVIDIA GPU of this compute capability.
    pub fn settle_gpu(self, capability: (u32, u32)) -> Precision {
        match self {
            Self::Auto if capability >= AMPERE => Precision::Bf16,
            Self::Auto => Precision::F16,
            Self::Exactly(Precision::Bf16) if capability < AMPERE => Precision::F16,
            Self::Exactly(Precision::Tf32) if capability < AMPERE => Precision::F32,
            Self::Exactly(precision) => precision,
        }
    }

    /// The precision that was asked for by name, where another one was settled on: the user is told.
    pub fn replaced_by(self, settled: Precision) -> Option<Precision> {
        match self {
            Self::Exactly(asked) if asked != settled => Some(asked),
            _ => None,
        }
    }

    /// This choice, or the other one where this one leaves it open.
    pub fn or(self, other: Self) -> Self {
        if self == Self::Auto { other } else { self }
    }
}

/// A word that names no precision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPrecision(pub String);

impl fmt::Display for UnknownPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown precision '{}': use auto", self.0)?;
        Precision::ALL.iter().try_for_each(|precision| write!(f, ", {precision}"))
    }
}

impl std::error::Error for UnknownPrecision {}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        })
    }
}

impl fmt::Display for PrecisionChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Exactly(precision) => precision.fmt(f),
        }
    }
}

impl FromStr for PrecisionChoice {
    type Err = UnknownPrecision;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Ok(match word {
            "auto" => Self::Auto,
            "f32" | "fp32" => Self::Exactly(Precision::F32),
            "tf32" => Self::Exactly(Precision::Tf32),
            "f16" | "fp16" => Self::Exactly(Precision::F16),
            "bf16" => Self::Exactly(Precision::Bf16),
            "int8" => Self::Exactly(Precision::Int8),
            _ => return Err(UnknownPrecision(word.to_owned())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURING: (u32, u32) = (7, 5);
    const HOPPER: (u32, u32) = (9, 0);

    #[test]
    fn names_round_trip() {
        for name in ["auto", "f32", "tf32", "f16", "bf16", "int8"] {
            assert_eq!(name.parse::<PrecisionChoice>().unwrap().to_string(), name);
        }
        assert_eq!("fp16".parse(), Ok(PrecisionChoice::Exactly(Precision::F16)));
        assert_eq!("fp32".parse(), Ok(PrecisionChoice::Exactly(Precision::F32)));
        let message = "fp8".parse::<PrecisionChoice>().unwrap_err().to_string();
        assert_eq!(message, "unknown precision 'fp8': use auto, f32, tf32, f16, bf16, int8");
    }

    #[test]
    fn auto_follows_the_hardware() {
        assert_eq!(PrecisionChoice::Auto.settle_cpu(true), Precision::Bf16);
        assert_eq!(PrecisionChoice::Auto.settle_cpu(false), Precision::F32);
        assert_eq!(PrecisionChoice::Auto.settle_gpu(TURING), Precision::F16);
        assert_eq!(PrecisionChoice::Auto.settle_gpu((8, 0)), Precision::Bf16);
        assert_eq!(PrecisionChoice::Auto.settle_gpu(HOPPER), Precision::Bf16);
    }

    #[test]
    fn the_cpu_never_gets_what_it_does_not_have() {
        for asked in Precision::ALL {
            for has_fast_bf16 in [false, true] {
                let settled = PrecisionChoice::Exactly(asked).settle_cpu(has_fast_bf16);
                assert!(settled.is_for_cpu(), "{asked} became {settled}");
                assert!(settled == asked || !asked.is_for_cpu(), "{asked} became {settled}");
            }
        }
        assert_eq!(PrecisionChoice::Exactly(Precision::F16).settle_cpu(true), Precision::Bf16);
        assert_eq!(PrecisionChoice::Exactly(Precision::F16).settle_cpu(false), Precision::F32);
        assert_eq!(PrecisionChoice::Exactly(Precision::Tf32).settle_cpu(true), Precision::F32);
    }

    #[test]
    fn an_older_gpu_gets_the_nearest_it_has() {
        let settled = |asked, capability| PrecisionChoice::Exactly(asked).settle_gpu(capability);
        assert_eq!(settled(Precision::Bf16, TURING), Precision::F16);
        assert_eq!(settled(Precision::Tf32, TURING), Precision::F32);
        assert_eq!(settled(Precision::Int8, TURING), Precision::Int8);
        for asked in Precision::ALL {
            assert_eq!(settled(asked, HOPPER), asked);
        }
    }

    #[test]
    fn only_a_named_precision_counts_as_replaced() {
        let f16 = PrecisionChoice::Exactly(Precision::F16);
        assert_eq!(f16.replaced_by(Precision::Bf16), Some(Precision::F16));
        assert_eq!(f16.replaced_by(Precision::F16), None);
        assert_eq!(PrecisionChoice::Auto.replaced_by(Precision::Bf16), None);
        assert_eq!(f16.or(PrecisionChoice::Exactly(Precision::Int8)), f16);
        assert_eq!(PrecisionChoice::Auto.or(f16), f16);
    }
}
