//! Rows that no other row may feel. Knows no operation but the norm that rows are put in place with.

use crate::rig::Stored;

/// What is wrong with a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Poison {
    Nan,
    Infinite,
}

impl Poison {
    /// The poisons that activations of a format can be given.
    pub(crate) fn of(stored: Stored) -> &'static [Self] {
        match stored {
            Stored::F32 | Stored::Bf16 => &[Self::Nan, Self::Infinite],
            // The numbers that become infinite below are zero in this format, and NaN once they are divided.
            Stored::F16 => &[Self::Nan],
        }
    }

    /// Overwrites a row that [`crate::rig::Rig::put`] is given.
    pub(crate) fn spoil(self, row: &mut [f32]) {
        for (i, x) in row.iter_mut().enumerate() {
            *x = match self {
                Self::Nan => f32::NAN,
                // The squares of these vanish: a variance of zero, by which the differences are divided.
                Self::Infinite => (i % 2) as f32 * 1e-30,
            };
        }
    }
}
