//! Names the instruction sets the CPU code is written for. Does not ask the machine which it has.

use std::{fmt, str::FromStr};

/// A way through the CPU code; each needs all the instructions of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CpuPath {
    /// Plain Rust, vectorised by the compiler for the baseline of the target.
    Portable,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL), with VNNI for int8.
    Avx512,
    /// AVX-512 and the tile registers: AMX for bf16 and int8.
    Amx,
}

impl CpuPath {
    /// Every path, the plainest first.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Avx2, Self::Avx512, Self::Amx];
}

/// A word that names no path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCpuPath(pub String);

impl fmt::Display for UnknownCpuPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown CPU path '{}': use portable, avx2, avx512 or amx", self.0)
    }
}

impl std::error::Error for UnknownCpuPath {}

impl fmt::Display for CpuPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        })
    }
}

impl FromStr for CpuPath {
    type Err = UnknownCpuPath;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|path| path.to_string() == word);
        known.ok_or_else(|| UnknownCpuPath(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_order_by_power() {
        for path in CpuPath::ALL {
            assert_eq!(path.to_string().parse(), Ok(path));
        }
        assert!(CpuPath::ALL.is_sorted());
        assert!("sse9".parse::<CpuPath>().is_err());
    }
}
