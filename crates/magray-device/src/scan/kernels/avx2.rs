//! Products of bytes on AVX2: pairs are summed in 16 bits, which queries' levels up to 63 do not overflow.

use super::levels::{Levels, Sums};
use crate::scan::chunk::{PANEL_ROWS, STEP};
use std::arch::x86_64::*;

/// # Safety
/// The machine has AVX2; the panel has the levels' steps.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn dots(panel: &[u8], levels: &Levels, sums: &mut Sums) {
    let ones = _mm256_set1_epi16(1);
    for query in 0..levels.queries() {
        let mut all = [_mm256_setzero_si256(); 4];
        for step in 0..levels.steps() {
            // SAFETY: a step of the panel is two tiles of sixteen lines, and one of the query's a line.
            unsafe {
                let tiles = panel.as_ptr().add(step * STEP * PANEL_ROWS);
                let level = levels.step(step).as_ptr().add(query * STEP);
                for quad in 0..STEP / 4 {
                    let four = _mm256_set1_epi32(level.add(quad * 4).cast::<i32>().read_unaligned());
                    for (at, sum) in all.iter_mut().enumerate() {
                        let line = tiles.add(at / 2 * STEP * 16 + quad * STEP + at % 2 * 32);
                        let pairs = _mm256_maddubs_epi16(_mm256_loadu_si256(line.cast()), four);
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                    }
                }
            }
        }
        for (at, sum) in all.into_iter().enumerate() {
            let to = &mut sums.0[query * PANEL_ROWS + at * 8..][..8];
            // SAFETY: eight sums.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), sum) };
        }
    }
}
