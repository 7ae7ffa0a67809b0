//! How a panel of weights is kept: 32 outputs, their inputs in groups of 32, a group after the other.
//! Says where each number of a group lies; multiplies nothing.
//!
//! | form | bytes of a group |
//! |---|---|
//! | `Four` | 8 lines of 4 inputs: the low halves of a line's bytes are outputs 0 to 15, the high halves 16 to 31, the inputs of an output beside each other; 32 scales |
//! | `FourMin` | the same and 32 minima |
//! | `Eight` | 8 times 2 lines of 4 inputs of 16 outputs, each number plus 128; 32 scales |
//! | `Six` | the lines of `Four`; 4 lines of upper bits: those of 2 times 4 inputs, 2 bits of outputs 0 to 15 and of 16 to 31 each; 32 scales of the first 16 inputs and 32 of the others |
//! | `Bf16` | 2 tiles of 16 outputs: 16 lines of 2 inputs |

use magray_core::BlockFormat;

/// Outputs of a panel.
pub(super) const PANEL: usize = 32;
/// Inputs of a group, which share a scale.
pub(super) const GROUP: usize = 32;
/// Bytes of the halves of a group, and of its whole bytes.
pub(super) const FOUR_BYTES: usize = GROUP * PANEL / 2;
pub(super) const EIGHT_BYTES: usize = GROUP * PANEL;
/// Bytes of a group's six bits: the low halves, then the upper bits.
pub(super) const SIX_BYTES: usize = FOUR_BYTES + GROUP * PANEL / 4;
/// Bytes of a group's scales, or of its minima: 16-bit floats.
pub(super) const SCALE_BYTES: usize = 2 * PANEL;

/// What an unsigned half and an unsigned byte stand for is less by this.
pub(super) const FOUR_OFFSET: i32 = 8;
pub(super) const SIX_OFFSET: i32 = 32;
pub(super) const EIGHT_OFFSET: i32 = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `scale * (q - 8)`.
    Four,
    /// `scale * q + minimum`.
    FourMin,
    /// `scale * (q - 32)`, a scale for 16 inputs.
    Six,
    /// `scale * (q - 128)`.
    Eight,
    /// Floats of 16 bits.
    Bf16,
}

impl Form {
    /// The form that keeps a format: exact for `Q4_0`, `Q4_1` and `Q8_0`; `Q4_K` and `Q6_K` have their scales rounded to 16-bit
    /// floats, and what has other groups or widths is rounded to 8 bits, finer by far than its own steps.
    pub(super) fn of(format: BlockFormat) -> Self {
        match format {
            BlockFormat::F32 | BlockFormat::F16 | BlockFormat::Bf16 => Self::Bf16,
            BlockFormat::Q4_0 => Self::Four,
            BlockFormat::Q4_1 | BlockFormat::Q4K => Self::FourMin,
            BlockFormat::Q6K => Self::Six,
            BlockFormat::Q8_0
            | BlockFormat::Q5_0
            | BlockFormat::Q5_1
            | BlockFormat::Q2K
            | BlockFormat::Q3K
            | BlockFormat::Q5K => Self::Eight,
        }
    }

    /// Bytes of a group, whole cache lines.
    pub(super) const fn group_bytes(self) -> usize {
        match self {
            Self::Four => FOUR_BYTES + SCALE_BYTES,
            Self::FourMin => FOUR_BYTES + 2 * SCALE_BYTES,
            Self::Six => SIX_BYTES + 2 * SCALE_BYTES,
            Self::Eight => EIGHT_BYTES + SCALE_BYTES,
            Self::Bf16 => 2 * GROUP * PANEL,
        }
    }
}

/// The byte of a half, and whether it is the high one.
pub(super) fn four_at(output: usize, input: usize) -> (usize, bool) {
    (input / 4 * 64 + output % 16 * 4 + input % 4, output >= 16)
}

/// The byte of two upper bits, and how far they lie from its end.
pub(super) fn upper_at(output: usize, input: usize) -> (usize, usize) {
    (FOUR_BYTES + input / 8 * 64 + output % 16 * 4 + input % 4, input / 4 % 2 * 4 + output / 16 * 2)
}

pub(super) fn eight_at(output: usize, input: usize) -> usize {
    input / 4 * 128 + output / 16 * 64 + output % 16 * 4 + input % 4
}

/// The first byte of a 16-bit float.
pub(super) fn bf16_at(output: usize, input: usize) -> usize {
    output / 16 * 1024 + input / 2 * 64 + output % 16 * 4 + input % 2 * 2
}
