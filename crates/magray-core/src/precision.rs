//! Names the arithmetic a model runs in. Knows nothing of the hardware that does it.

use std::{fmt, str::FromStr};

/// The arithmetic of a loaded model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// 32-bit floats throughout.
    F32,
    /// bfloat16 weights, sums in 32 bits; activations too are bfloat16 where the hardware multiplies it.
    Bf16,
    /// 8-bit weights, scaled per channel; activations too are 8-bit, scaled per token, where the hardware multiplies
    /// bytes, and stay 32-bit elsewhere.
    Int8,
}

/// What a user asks for: one precision, or the best one of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PrecisionChoice {
    /// bf16 where the hardware multiplies it faster, else f32.
    #[default]
    Auto,
    /// Exactly this one.
    Exactly(Precision),
}

impl PrecisionChoice {
    /// Settles the choice for hardware that does (or does not) multiply bf16 faster than f32.
    pub fn settle(self, has_fast_bf16: bool) -> Precision {
        match self {
            Self::Exactly(precision) => precision,
            Self::Auto if has_fast_bf16 => Precision::Bf16,
            Self::Auto => Precision::F32,
        }
    }
}

/// A word that names no precision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPrecision(pub String);

impl fmt::Display for UnknownPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown precision '{}': use auto, f32, bf16 or int8", self.0)
    }
}

impl std::error::Error for UnknownPrecision {}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
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
            "bf16" => Self::Exactly(Precision::Bf16),
            "int8" => Self::Exactly(Precision::Int8),
            _ => return Err(UnknownPrecision(word.to_owned())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in ["auto", "f32", "bf16", "int8"] {
            assert_eq!(name.parse::<PrecisionChoice>().unwrap().to_string(), name);
        }
        assert!("fp8".parse::<PrecisionChoice>().is_err());
    }

    #[test]
    fn auto_follows_the_hardware() {
        assert_eq!(PrecisionChoice::Auto.settle(true), Precision::Bf16);
        assert_eq!(PrecisionChoice::Auto.settle(false), Precision::F32);
        assert_eq!(PrecisionChoice::Exactly(Precision::Int8).settle(true), Precision::Int8);
    }
}
