//! Other work that is done while tiles multiply.
//! Says neither what the work is nor what is multiplied.

use crate::cpu::simd::Simd;

/// Rows of other work, done while tiles multiply.
pub(in crate::cpu) trait Beside {
    fn count(&self) -> usize;

    /// # Safety
    /// `row` is below `count`, and comes once; what the rows point at is valid; the machine has the instructions of `S`.
    unsafe fn finish<S: Simd>(&self, row: usize);
}
