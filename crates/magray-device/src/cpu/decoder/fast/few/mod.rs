//! Products of few rows with one panel of weights, limited by how fast weights are read.
//! Bytes by bytes where weights have a scale a group; floats where they are bf16.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod floats;
#[cfg(target_arch = "x86_64")]
mod vnni;

use super::fetch::Fetch;
use super::form::{Form, PANEL};
use super::rows::GroupScale;
use crate::cpu::simd::vectorize;
use magray_core::CpuPath;

/// Rows that a product takes at once.
pub(super) const ROWS: usize = 4;

/// Rows of inputs by a panel. Pointers are to the first row.
#[derive(Clone, Copy)]
pub(super) struct FewRows {
    /// At most [`ROWS`].
    pub(super) rows: usize,
    pub(super) groups: usize,
    /// `groups * 32` numbers a row.
    pub(super) floats: *const f32,
    pub(super) bytes: *const i8,
    /// `groups` a row.
    pub(super) scales: *const GroupScale,
    pub(super) panel: *const u8,
}

/// The instructions that multiply bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cpu::decoder) enum Bytes {
    Avx2,
    Vnni,
}

impl FewRows {
    /// Writes the sums of the first row's 32 outputs, then the next row's.
    ///
    /// # Safety
    /// The machine has the instructions of `bytes` and of `path`; the pointers are valid for the rows and a panel of the form.
    pub(super) unsafe fn multiply(
        &self,
        (bytes, path): (Bytes, CpuPath),
        form: Form,
        fetch: &mut Fetch,
        sums: &mut [f32; ROWS * PANEL],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if form == Form::Bf16 {
                return vectorize(path, floats::FloatRows { block: *self, fetch, sums });
            }
            #[cfg(target_arch = "x86_64")]
            match bytes {
                Bytes::Vnni => vnni::multiply(self, form, fetch, sums),
                Bytes::Avx2 => avx2::multiply(self, form, fetch, sums),
            }
            #[cfg(not(target_arch = "x86_64"))]
            unreachable!("{bytes:?} is chosen on x86-64 alone");
        }
    }
}
