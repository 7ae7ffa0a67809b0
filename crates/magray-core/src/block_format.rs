//! The forms that weights have in files and in memory: plain numbers, and blocks of few bits with scales.
//! Says how large blocks are; never reads one.

use std::fmt;

/// How a row of weights is stored. A row is whole blocks; a plain number is a block of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// The upper half of 32-bit floats.
    Bf16,
    /// 4 bits, a scale for 32.
    Q4_0,
    /// 4 bits, a scale and a minimum for 32.
    Q4_1,
    /// 5 bits, a scale for 32.
    Q5_0,
    /// 5 bits, a scale and a minimum for 32.
    Q5_1,
    /// 8 bits, a scale for 32.
    Q8_0,
    /// 2 bits, a scale and a minimum of 4 bits for 16, of 16 bits for 256.
    Q2K,
    /// 3 bits, a scale of 6 bits for 16, of 16 bits for 256.
    Q3K,
    /// 4 bits, a scale and a minimum of 6 bits for 32, of 16 bits for 256.
    Q4K,
    /// 5 bits, a scale and a minimum of 6 bits for 32, of 16 bits for 256.
    Q5K,
    /// 6 bits, a scale of 8 bits for 16, of 16 bits for 256.
    Q6K,
}

impl BlockFormat {
    /// Every format.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// Numbers of a block.
    pub const fn numbers(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Bytes of this many numbers; `None` where they are not whole blocks, or too many to count.
    pub fn bytes_of(self, numbers: usize) -> Option<usize> {
        numbers.is_multiple_of(self.numbers()).then(|| (numbers / self.numbers()).checked_mul(self.bytes()))?
    }

    /// The name that the makers of the format use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(BlockFormat::Q4_0.bytes_of(64), Some(36));
        assert_eq!(BlockFormat::Q4_0.bytes_of(65), None);
        assert_eq!(BlockFormat::Q6K.bytes_of(256), Some(210));
        assert_eq!(BlockFormat::F32.bytes_of(usize::MAX), None);
        assert_eq!(BlockFormat::F16.bytes_of(0), Some(0));
    }
}
