//! Scores and values of bytes on AVX-512 with VNNI: reads each byte once for up to four queries.
//! Loops and no closures around vectors: closures are compiled without these instructions.

use super::{KeyPage, QUERY_FINE, RUN_TOKENS, ValueRun, WEIGHT_FINE, for_count};
use crate::PAGE_TOKENS;
use crate::cpu::decoder::fast::fetch::HEADS;
use std::arch::x86_64::*;

/// # Safety
/// The machine has AVX-512 F, BW and VNNI; the rest as [`KeyPage::multiply`].
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

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn scores_of<const N: usize>(block: &KeyPage) {
    let width = block.width;
    // SAFETY: a page is two tiles of `width / 4` lines and their scales; queries have two rows each.
    unsafe {
        // By query, row and tile.
        let mut sums = [[[_mm512_setzero_si512(); 2]; 2]; N];
        for (query, sums) in sums.iter_mut().enumerate() {
            let facts = &*block.facts.add(query);
            for (sums, offset) in sums.iter_mut().zip(facts.offsets) {
                *sums = [_mm512_set1_epi32(offset); 2];
            }
        }
        for quad in 0..width / 4 {
            // Two lines are read at once.
            if let Some(ahead) = &block.ahead
                && (2 * quad).is_multiple_of(HEADS)
            {
                ahead.fetch(2 * quad / HEADS);
            }
            let first = _mm512_loadu_si512(block.keys.add(quad * 64).cast());
            let second = _mm512_loadu_si512(block.keys.add(16 * width + quad * 64).cast());
            for (query, sums) in sums.iter_mut().enumerate() {
                for (row, sums) in sums.iter_mut().enumerate() {
                    let four = block.queries.add((query * 2 + row) * width + quad * 4).cast::<i32>();
                    let four = _mm512_set1_epi32(four.read_unaligned());
                    sums[0] = _mm512_dpbusd_epi32(sums[0], first, four);
                    sums[1] = _mm512_dpbusd_epi32(sums[1], second, four);
                }
            }
        }
        for tile in 0..2 {
            let scales = _mm512_cvtepu16_epi32(_mm256_loadu_si256(block.scales.add(tile * 16).cast()));
            let scales = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(scales));
            for (query, sums) in sums.iter().enumerate() {
                let scales = _mm512_mul_ps(scales, _mm512_set1_ps((*block.facts.add(query)).scale));
                let (coarse, fine) = (_mm512_cvtepi32_ps(sums[0][tile]), _mm512_cvtepi32_ps(sums[1][tile]));
                let sum = _mm512_fmadd_ps(fine, _mm512_set1_ps(1.0 / QUERY_FINE), coarse);
                _mm512_storeu_ps(block.scores.add(query * RUN_TOKENS + tile * 16), _mm512_mul_ps(sum, scales));
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn values_of<const N: usize>(run: &ValueRun<'_>) {
    // SAFETY: a page has 8 lines for each 16 numbers; weights have two rows of a run each.
    unsafe {
        // By query, row and 16 numbers.
        let mut sums = [[[_mm512_setzero_si512(); 2]; 2]; N];
        for (at, values) in run.pages.iter().enumerate() {
            for quad in 0..PAGE_TOKENS / 4 {
                if let Some(ahead) = run.ahead.get(at)
                    && (2 * quad).is_multiple_of(HEADS)
                {
                    ahead.fetch(2 * quad / HEADS);
                }
                let first = _mm512_loadu_si512(values.add(quad * 64).cast());
                let second = _mm512_loadu_si512(values.add(16 * PAGE_TOKENS + quad * 64).cast());
                for (query, sums) in sums.iter_mut().enumerate() {
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let four = run.weights.add((query * 2 + row) * RUN_TOKENS + at * PAGE_TOKENS + quad * 4);
                        let four = _mm512_set1_epi32(four.cast::<i32>().read_unaligned());
                        sums[0] = _mm512_dpbusd_epi32(sums[0], four, first);
                        sums[1] = _mm512_dpbusd_epi32(sums[1], four, second);
                    }
                }
            }
        }
        for (query, [coarse, fine]) in sums.iter().enumerate() {
            let step = _mm512_set1_ps(*run.steps.add(query));
            for (part, (coarse, fine)) in coarse.iter().zip(fine).enumerate() {
                let (coarse, fine) = (_mm512_cvtepi32_ps(*coarse), _mm512_cvtepi32_ps(*fine));
                let sum = _mm512_fmadd_ps(fine, _mm512_set1_ps(1.0 / WEIGHT_FINE), coarse);
                let to = run.sums.add(query * run.width + part * 16);
                _mm512_storeu_ps(to, _mm512_fmadd_ps(sum, step, _mm512_loadu_ps(to)));
            }
        }
    }
}
