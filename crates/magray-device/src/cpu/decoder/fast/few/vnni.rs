//! Bytes of few rows by a panel of 4, 6 or 8 bits, on AVX-512 with VNNI.
//! Reads each weight once for all rows; leaves floats to the kernel beside it.

use super::{FewRows, ROWS};
use crate::cpu::decoder::fast::fetch::Fetch;
use crate::cpu::decoder::fast::form::{
    EIGHT_BYTES, EIGHT_OFFSET, FOUR_BYTES, FOUR_OFFSET, Form, GROUP, PANEL, SCALE_BYTES, SIX_BYTES, SIX_OFFSET,
};
use std::arch::x86_64::*;

const FOUR: u8 = 0;
const FOUR_MIN: u8 = 1;
const EIGHT: u8 = 2;
const SIX: u8 = 3;

/// # Safety
/// The machine has AVX-512 F, BW and VNNI; the rest as [`FewRows::multiply`].
pub(super) unsafe fn multiply(block: &FewRows, form: Form, fetch: &mut Fetch, sums: &mut [f32; ROWS * PANEL]) {
    // SAFETY: the caller's promise.
    unsafe {
        match form {
            Form::Four => rows::<FOUR>(block, fetch, sums),
            Form::FourMin => rows::<FOUR_MIN>(block, fetch, sums),
            Form::Six => rows::<SIX>(block, fetch, sums),
            Form::Eight => rows::<EIGHT>(block, fetch, sums),
            Form::Bf16 => unreachable!("floats have a kernel of their own"),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn rows<const FORM: u8>(block: &FewRows, fetch: &mut Fetch, sums: &mut [f32; ROWS * PANEL]) {
    // SAFETY: as the caller's.
    unsafe {
        match block.rows {
            1 => product::<FORM, 1>(block, fetch, sums),
            2 => product::<FORM, 2>(block, fetch, sums),
            3 => product::<FORM, 3>(block, fetch, sums),
            4 => product::<FORM, 4>(block, fetch, sums),
            rows => unreachable!("{rows} rows at once"),
        }
    }
}

/// The sums of a group are integers; its scales turn them into floats.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn product<const FORM: u8, const N: usize>(block: &FewRows, fetch: &mut Fetch, sums: &mut [f32; ROWS * PANEL]) {
    let (bytes, lines, offset) = match FORM {
        FOUR => (FOUR_BYTES, 9, FOUR_OFFSET),
        FOUR_MIN => (FOUR_BYTES, 10, 0),
        SIX => (SIX_BYTES, 14, SIX_OFFSET),
        _ => (EIGHT_BYTES, 17, EIGHT_OFFSET),
    };
    // Parts of a group that have scales of their own.
    let parts = if FORM == SIX { 2 } else { 1 };
    let quads = GROUP / 4 / parts;
    let mut found = [[_mm512_setzero_ps(); 2]; N];
    let mut panel = block.panel;
    let mut ahead = *fetch;
    for group in 0..block.groups {
        // SAFETY: the block's pointers are valid for all groups of its rows and of its panel.
        unsafe {
            let facts = |row: usize| &*block.scales.add(row * block.groups + group);
            for part in 0..parts {
                let mut integers: [[__m512i; 2]; N] = std::array::from_fn(|row| {
                    let total = match (FORM, part) {
                        (FOUR_MIN, _) => 0,
                        (SIX, 0) => facts(row).first_total,
                        (SIX, _) => facts(row).total - facts(row).first_total,
                        _ => facts(row).total,
                    };
                    [_mm512_set1_epi32(-offset * total); 2]
                });
                for quad in part * quads..(part + 1) * quads {
                    let (left, right) = weights::<FORM>(panel, quad);
                    for (row, integers) in integers.iter_mut().enumerate() {
                        let four = block.bytes.add((row * block.groups + group) * GROUP + quad * 4);
                        let four = _mm512_set1_epi32(four.cast::<i32>().read_unaligned());
                        integers[0] = _mm512_dpbusd_epi32(integers[0], left, four);
                        integers[1] = _mm512_dpbusd_epi32(integers[1], right, four);
                    }
                }
                let steps = halves(panel.add(bytes + part * SCALE_BYTES));
                for (row, (found, integers)) in found.iter_mut().zip(integers).enumerate() {
                    let scale = _mm512_set1_ps(facts(row).scale);
                    for (half, found) in found.iter_mut().enumerate() {
                        let step = _mm512_mul_ps(steps[half], scale);
                        *found = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers[half]), step, *found);
                    }
                }
            }
            for _ in 0..lines {
                ahead.line();
            }
            if FORM == FOUR_MIN {
                let least = halves(panel.add(bytes + SCALE_BYTES));
                for (row, found) in found.iter_mut().enumerate() {
                    let total = _mm512_set1_ps(facts(row).scale * facts(row).total as f32);
                    found[0] = _mm512_fmadd_ps(least[0], total, found[0]);
                    found[1] = _mm512_fmadd_ps(least[1], total, found[1]);
                }
            }
            panel = panel.add(lines * 64);
        }
    }
    *fetch = ahead;
    for (row, found) in found.iter().enumerate() {
        // SAFETY: there is room for four rows of 32 sums.
        unsafe {
            let to = sums.as_mut_ptr().add(row * PANEL);
            _mm512_storeu_ps(to, found[0]);
            _mm512_storeu_ps(to.add(16), found[1]);
        }
    }
}

/// Four inputs of the outputs 0 to 15, and of 16 to 31, as unsigned bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn weights<const FORM: u8>(group: *const u8, quad: usize) -> (__m512i, __m512i) {
    let low = _mm512_set1_epi8(15);
    // SAFETY: inside the group.
    unsafe {
        if FORM == EIGHT {
            let line = group.add(quad * 128);
            return (_mm512_loadu_si512(line.cast()), _mm512_loadu_si512(line.add(64).cast()));
        }
        let both = _mm512_loadu_si512(group.add(quad * 64).cast());
        let (left, right) = (_mm512_and_si512(both, low), _mm512_and_si512(_mm512_srli_epi16::<4>(both), low));
        if FORM != SIX {
            return (left, right);
        }
        let upper = _mm512_loadu_si512(group.add(FOUR_BYTES + quad / 2 * 64).cast());
        let shifted = match quad % 2 {
            0 => [_mm512_slli_epi16::<4>(upper), _mm512_slli_epi16::<2>(upper)],
            _ => [upper, _mm512_srli_epi16::<2>(upper)],
        };
        let mask = _mm512_set1_epi8(0x30);
        // low | (upper & mask)
        let with = |low, upper| _mm512_ternarylogic_epi32::<0xf8>(low, upper, mask);
        (with(left, shifted[0]), with(right, shifted[1]))
    }
}

/// 32 floats of 16 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn halves(from: *const u8) -> [__m512; 2] {
    // SAFETY: as the caller's.
    unsafe {
        let wide = |at: *const u8| _mm512_cvtph_ps(_mm256_loadu_si256(at.cast()));
        [wide(from), wide(from.add(SCALE_BYTES / 2))]
    }
}
