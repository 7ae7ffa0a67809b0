//! Bytes of few rows by a panel of 4, 6 or 8 bits, on AVX2.
//! Takes a row at a time; leaves floats to the kernel beside it.

use super::{FewRows, ROWS};
use crate::cpu::decoder::fast::fetch::Fetch;
use crate::cpu::decoder::fast::form::{
    EIGHT_BYTES, FOUR_BYTES, FOUR_OFFSET, Form, GROUP, PANEL, SCALE_BYTES, SIX_BYTES, SIX_OFFSET,
};
use std::arch::x86_64::*;

/// # Safety
/// The machine has AVX2, FMA and F16C; the rest as [`FewRows::multiply`].
pub(super) unsafe fn multiply(block: &FewRows, form: Form, fetch: &mut Fetch, sums: &mut [f32; ROWS * PANEL]) {
    sums.fill(0.0);
    for row in 0..block.rows {
        let sums = sums[row * PANEL..(row + 1) * PANEL].as_mut_ptr();
        // SAFETY: the caller's promise.
        unsafe { one_row(block, row, form, fetch, sums) };
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn one_row(block: &FewRows, row: usize, form: Form, fetch: &mut Fetch, sums: *mut f32) {
    let mut panel = block.panel;
    for group in 0..block.groups {
        // SAFETY: the block's pointers are valid for all groups of its rows and of its panel, and `sums` for 32 floats.
        unsafe {
            let facts = *block.scales.add(row * block.groups + group);
            let x = block.bytes.add((row * block.groups + group) * GROUP);
            let add = |integers: [__m256i; 4], offset: i32, scales: usize| {
                for (part, integers) in integers.into_iter().enumerate() {
                    let whole = _mm256_cvtepi32_ps(_mm256_sub_epi32(integers, _mm256_set1_epi32(offset)));
                    let to = sums.add(part * 8);
                    let step = _mm256_mul_ps(halves(panel.add(scales + part * 16)), _mm256_set1_ps(facts.scale));
                    _mm256_storeu_ps(to, _mm256_fmadd_ps(whole, step, _mm256_loadu_ps(to)));
                }
            };
            match form {
                Form::Eight => add(eights(panel, x), 0, EIGHT_BYTES),
                Form::Six => {
                    add(sixes(panel, x, 0), SIX_OFFSET * facts.first_total, SIX_BYTES);
                    let rest = facts.total - facts.first_total;
                    add(sixes(panel, x, 1), SIX_OFFSET * rest, SIX_BYTES + SCALE_BYTES);
                }
                Form::Four => add(fours(panel, x), FOUR_OFFSET * facts.total, FOUR_BYTES),
                Form::FourMin => {
                    add(fours(panel, x), 0, FOUR_BYTES);
                    let total = _mm256_set1_ps(facts.scale * facts.total as f32);
                    for part in 0..4 {
                        let (to, least) = (sums.add(part * 8), panel.add(FOUR_BYTES + SCALE_BYTES + part * 16));
                        _mm256_storeu_ps(to, _mm256_fmadd_ps(halves(least), total, _mm256_loadu_ps(to)));
                    }
                }
                Form::Bf16 => unreachable!("floats have a kernel of their own"),
            }
            for _ in 0..form.group_bytes() / 64 {
                fetch.line();
            }
            panel = panel.add(form.group_bytes());
        }
    }
}

/// The sums of a group's 32 outputs, eight in each vector.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fours(panel: *const u8, x: *const i8) -> [__m256i; 4] {
    let low = _mm256_set1_epi8(15);
    let mut sums = [_mm256_setzero_si256(); 4];
    for quad in 0..GROUP / 4 {
        // SAFETY: inside the group.
        unsafe {
            let four = _mm256_set1_epi32(x.add(quad * 4).cast::<i32>().read_unaligned());
            for half in 0..2 {
                let both = _mm256_loadu_si256(panel.add(quad * 64 + half * 32).cast());
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(both), low);
                // Eight sums of two products of at most 15 * 127 stay within 16 bits.
                let left = _mm256_maddubs_epi16(_mm256_and_si256(both, low), four);
                sums[half] = _mm256_add_epi16(sums[half], left);
                sums[2 + half] = _mm256_add_epi16(sums[2 + half], _mm256_maddubs_epi16(high, four));
            }
        }
    }
    sums.map(|sums| _mm256_madd_epi16(sums, _mm256_set1_epi16(1)))
}

/// As above, of the first or the second 16 inputs.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn sixes(panel: *const u8, x: *const i8, part: usize) -> [__m256i; 4] {
    let (low, mask) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
    let mut sums = [_mm256_setzero_si256(); 4];
    for quad in part * 4..part * 4 + 4 {
        // SAFETY: inside the group.
        unsafe {
            let four = _mm256_set1_epi32(x.add(quad * 4).cast::<i32>().read_unaligned());
            for half in 0..2 {
                let both = _mm256_loadu_si256(panel.add(quad * 64 + half * 32).cast());
                let upper = _mm256_loadu_si256(panel.add(FOUR_BYTES + quad / 2 * 64 + half * 32).cast());
                let shifted = match quad % 2 {
                    0 => [_mm256_slli_epi16::<4>(upper), _mm256_slli_epi16::<2>(upper)],
                    _ => [upper, _mm256_srli_epi16::<2>(upper)],
                };
                let with = |low, upper| _mm256_or_si256(low, _mm256_and_si256(upper, mask));
                let left = with(_mm256_and_si256(both, low), shifted[0]);
                let right = with(_mm256_and_si256(_mm256_srli_epi16::<4>(both), low), shifted[1]);
                // Two products of at most 63 * 127 stay within 16 bits, more need 32.
                for (sum, weights) in [(half, left), (2 + half, right)] {
                    let pairs = _mm256_maddubs_epi16(weights, four);
                    sums[sum] = _mm256_add_epi32(sums[sum], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                }
            }
        }
    }
    sums
}

/// Eight floats of 16 bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn halves(from: *const u8) -> __m256 {
    // SAFETY: as the caller's.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
}

/// As above. A byte's sign goes to the other factor: an unsigned byte above 127 would overflow 16 bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn eights(panel: *const u8, x: *const i8) -> [__m256i; 4] {
    let mut sums = [_mm256_setzero_si256(); 4];
    for quad in 0..GROUP / 4 {
        // SAFETY: inside the group.
        unsafe {
            let four = _mm256_set1_epi32(x.add(quad * 4).cast::<i32>().read_unaligned());
            for (part, sum) in sums.iter_mut().enumerate() {
                let shifted = _mm256_loadu_si256(panel.add(quad * 128 + part * 32).cast());
                let signed = _mm256_xor_si256(shifted, _mm256_set1_epi8(-128));
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(four, signed));
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
        }
    }
    sums
}
