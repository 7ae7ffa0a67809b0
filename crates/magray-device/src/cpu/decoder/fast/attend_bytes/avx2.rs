//! Scores and values of bytes on AVX2: sums of two products are 16 bits, which the bytes' ranges leave room for.

use super::{KeyPage, QUERY_FINE, RUN_TOKENS, ValueRun, WEIGHT_FINE, for_count};
use crate::PAGE_TOKENS;
use crate::cpu::decoder::fast::fetch::HEADS;
use std::arch::x86_64::*;

/// # Safety
/// The machine has AVX2 and FMA; the rest as [`KeyPage::multiply`].
pub(super) unsafe fn score(block: &KeyPage, count: usize) {
    // SAFETY: the caller's promise.
    unsafe { for_count!(scores_of, count, block) }
}

/// # Safety
/// As [`score`], and [`ValueRun::multiply`].
pub(super) unsafe fn add(run: &ValueRun<'_>, count: usize) {
    // SAFETY: the caller's promise.
    unsafe { for_count!(values_of, count, run) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn scores_of<const N: usize>(block: &KeyPage) {
    let width = block.width;
    let ones = _mm256_set1_epi16(1);
    // SAFETY: a page is two tiles of `width / 4` lines and their scales; queries have two rows each.
    unsafe {
        for part in 0..PAGE_TOKENS / 8 {
            let first = part / 2 * 16 * width + part % 2 * 32;
            // By query and row.
            let mut sums = [[_mm256_setzero_si256(); 2]; N];
            for quad in 0..width / 4 {
                // Signed again, so that the offset takes no part: unsigned sums would not fit 16 bits.
                let keys = _mm256_loadu_si256(block.keys.add(first + quad * 64).cast());
                let keys = _mm256_xor_si256(keys, _mm256_set1_epi8(-128));
                let sizes = _mm256_abs_epi8(keys);
                let line = part / 2 * width / 4 + quad;
                if let Some(ahead) = &block.ahead
                    && part % 2 == 0
                    && line.is_multiple_of(HEADS)
                {
                    ahead.fetch(line / HEADS);
                }
                for (query, sums) in sums.iter_mut().enumerate() {
                    for (row, sum) in sums.iter_mut().enumerate() {
                        let four = block.queries.add((query * 2 + row) * width + quad * 4).cast::<i32>();
                        let four = _mm256_set1_epi32(four.read_unaligned());
                        let pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(four, keys));
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                    }
                }
            }
            let scales = _mm256_cvtepu16_epi32(_mm_loadu_si128(block.scales.add(part * 8).cast()));
            let scales = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(scales));
            for (query, sums) in sums.iter().enumerate() {
                let scales = _mm256_mul_ps(scales, _mm256_set1_ps((*block.facts.add(query)).scale));
                let (coarse, fine) = (_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1]));
                let sum = _mm256_fmadd_ps(fine, _mm256_set1_ps(1.0 / QUERY_FINE), coarse);
                _mm256_storeu_ps(block.scores.add(query * RUN_TOKENS + part * 8), _mm256_mul_ps(sum, scales));
            }
        }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn values_of<const N: usize>(run: &ValueRun<'_>) {
    let ones = _mm256_set1_epi16(1);
    // SAFETY: a page has 8 lines for each 16 numbers; weights have two rows of a run each.
    unsafe {
        for part in 0..4 {
            let first = part / 2 * 16 * PAGE_TOKENS + part % 2 * 32;
            // By query and row.
            let mut sums = [[_mm256_setzero_si256(); 2]; N];
            for (at, values) in run.pages.iter().enumerate() {
                for quad in 0..PAGE_TOKENS / 4 {
                    let numbers = _mm256_loadu_si256(values.add(first + quad * 64).cast());
                    let line = part / 2 * PAGE_TOKENS / 4 + quad;
                    if let Some(ahead) = run.ahead.get(at)
                        && part % 2 == 0
                        && line.is_multiple_of(HEADS)
                    {
                        ahead.fetch(line / HEADS);
                    }
                    for (query, sums) in sums.iter_mut().enumerate() {
                        for (row, sum) in sums.iter_mut().enumerate() {
                            let four = run.weights.add((query * 2 + row) * RUN_TOKENS + at * PAGE_TOKENS + quad * 4);
                            let four = _mm256_set1_epi32(four.cast::<i32>().read_unaligned());
                            let pairs = _mm256_maddubs_epi16(four, numbers);
                            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                        }
                    }
                }
            }
            for (query, sums) in sums.iter().enumerate() {
                let (coarse, fine) = (_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1]));
                let sum = _mm256_fmadd_ps(fine, _mm256_set1_ps(1.0 / WEIGHT_FINE), coarse);
                let to = run.sums.add(query * run.width + part * 8);
                let step = _mm256_set1_ps(*run.steps.add(query));
                _mm256_storeu_ps(to, _mm256_fmadd_ps(sum, step, _mm256_loadu_ps(to)));
            }
        }
    }
}
