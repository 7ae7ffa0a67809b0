//! The arithmetic of a layer's products.
//! Names it only.

use magray_core::Precision;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Arithmetic {
    /// Of 16-bit numbers, in 32 bits.
    Sixteen,
    /// Of 32-bit numbers whose lower bits are dropped.
    Tf32,
    /// Of 32-bit numbers.
    F32,
    /// Of bytes, scaled by row and column.
    Int8,
}

impl Arithmetic {
    pub(super) fn of(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            Precision::Tf32 => Self::Tf32,
            Precision::F16 | Precision::Bf16 => Self::Sixteen,
            Precision::Int8 => Self::Int8,
        }
    }
}
