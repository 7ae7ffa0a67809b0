//! Products of many rows with panels on AMX tiles: a panel is unpacked to bf16 once and meets all rows.
//! Multiplies one run of groups; the caller adds the runs up.

use super::form::{EIGHT_BYTES, FOUR_BYTES, Form, GROUP, PANEL, SCALE_BYTES, SIX_BYTES};
use super::rows::{TILE_BYTES, TILE_ROWS};
use crate::cpu::gemm::{Bf16Tiles, Keep, Tiles};
use crate::cpu::tiles::{TileKind, load, load_apart, store, zero};
use std::arch::x86_64::*;

/// Rows of a block: two tiles.
pub(super) const BLOCK_ROWS: usize = 2 * TILE_ROWS;

/// Bytes of a group of a panel in bf16: two tiles.
pub(super) const GROUP_BYTES: usize = 2 * TILE_BYTES;

/// Bytes of a row of sums.
const SUM_ROW_BYTES: usize = PANEL * 4;

/// The sums of a block of rows by a panel's groups.
#[derive(Clone)]
#[repr(align(64))]
pub(super) struct BlockSums(pub(super) [f32; BLOCK_ROWS * PANEL]);

/// Adds the products of one or two tiles of rows with the groups of a panel to `sums`, or begins them.
///
/// # Safety
/// `rows` are the first groups' tiles of one block of 16 rows, or of two that are `next` bytes apart; both they and `panel` are
/// valid for all groups.
pub(super) unsafe fn multiply(
    _: &Tiles,
    (rows, next): (*const u8, Option<usize>),
    (panel, groups): (*const u8, usize),
    (sums, begins): (&mut BlockSums, bool),
) {
    let upper: *mut u8 = sums.0.as_mut_ptr().cast();
    let lower = upper.wrapping_add(TILE_ROWS * SUM_ROW_BYTES);
    // SAFETY: the tiles are configured; the rest is the caller's promise.
    unsafe {
        if begins {
            zero::<0>();
            zero::<1>();
            zero::<2>();
            zero::<3>();
        } else {
            load_apart::<0>(upper, SUM_ROW_BYTES);
            load_apart::<1>(upper.add(64), SUM_ROW_BYTES);
            load_apart::<2>(lower, SUM_ROW_BYTES);
            load_apart::<3>(lower.add(64), SUM_ROW_BYTES);
        }
        // The panel's groups stay in the first cache for the next rows, which pass by.
        if let Some(next) = next {
            for group in 0..groups {
                let (a, b) = (rows.add(group * TILE_BYTES), panel.add(group * GROUP_BYTES));
                load::<6>(b, Keep::Near);
                load::<4>(a, Keep::Far);
                Bf16Tiles::multiply_add::<0, 4, 6>();
                load::<7>(b.add(TILE_BYTES), Keep::Near);
                Bf16Tiles::multiply_add::<1, 4, 7>();
                load::<5>(a.add(next), Keep::Far);
                Bf16Tiles::multiply_add::<2, 5, 6>();
                Bf16Tiles::multiply_add::<3, 5, 7>();
            }
            store::<2>(lower, SUM_ROW_BYTES);
            store::<3>(lower.add(64), SUM_ROW_BYTES);
        } else {
            for group in 0..groups {
                let (a, b) = (rows.add(group * TILE_BYTES), panel.add(group * GROUP_BYTES));
                load::<4>(a, Keep::Far);
                load::<6>(b, Keep::Near);
                Bf16Tiles::multiply_add::<0, 4, 6>();
                load::<7>(b.add(TILE_BYTES), Keep::Near);
                Bf16Tiles::multiply_add::<1, 4, 7>();
            }
        }
        store::<0>(upper, SUM_ROW_BYTES);
        store::<1>(upper.add(64), SUM_ROW_BYTES);
    }
}

/// Writes groups of a panel as bf16 tiles.
///
/// # Safety
/// The machine has AVX-512 F and BW; `panel` is valid for the groups of its form, `to` for [`GROUP_BYTES`] each.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn unpack(form: Form, panel: *const u8, groups: usize, to: *mut u8) {
    // SAFETY: as the caller's.
    unsafe {
        for group in 0..groups {
            let (from, to) = (panel.add(group * form.group_bytes()), to.add(group * GROUP_BYTES));
            match form {
                Form::Four => unpack_fours::<false>(from, to),
                Form::FourMin => unpack_fours::<true>(from, to),
                Form::Six => unpack_sixes(from, to),
                Form::Eight => unpack_eights(from, to),
                Form::Bf16 => std::ptr::copy_nonoverlapping(from, to, GROUP_BYTES),
            }
        }
    }
}

/// Sixteen 16-bit floats.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn halves(from: *const u8) -> __m512 {
    // SAFETY: as the caller's.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
}

/// `128 + q` as a float is `0x43000000` with `q` from bit 16 on: no conversion, and the 128 goes into the constant that is
/// added.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn unpack_fours<const MIN: bool>(from: *const u8, to: *mut u8) {
    let mask = _mm512_set1_epi32(0x000f_0000);
    let power = _mm512_set1_epi32(0x4300_0000);
    // SAFETY: inside the group.
    unsafe {
        let scales = from.add(FOUR_BYTES);
        let mut steps = [_mm512_setzero_ps(); 2];
        let mut bases = [_mm512_setzero_ps(); 2];
        for half in 0..2 {
            let step = halves(scales.add(half * SCALE_BYTES / 2));
            steps[half] = step;
            bases[half] = if MIN {
                let least = halves(scales.add(SCALE_BYTES + half * SCALE_BYTES / 2));
                _mm512_fnmadd_ps(step, _mm512_set1_ps(128.0), least)
            } else {
                _mm512_mul_ps(step, _mm512_set1_ps(-136.0))
            };
        }
        for quad in 0..GROUP / 4 {
            let all = _mm512_loadu_si512(from.add(quad * 64).cast());
            let number = |shifted: __m512i, half: usize| {
                // (shifted & mask) | power
                let float = _mm512_ternarylogic_epi32::<0xf8>(power, shifted, mask);
                _mm512_fmadd_ps(_mm512_castsi512_ps(float), steps[half], bases[half])
            };
            let to = to.add(quad * 128);
            let left = [
                number(_mm512_slli_epi32::<16>(all), 0),
                number(_mm512_slli_epi32::<8>(all), 0),
                number(all, 0),
                number(_mm512_srli_epi32::<8>(all), 0),
            ];
            store_pairs(to, left);
            let right = [
                number(_mm512_slli_epi32::<12>(all), 1),
                number(_mm512_slli_epi32::<4>(all), 1),
                number(_mm512_srli_epi32::<4>(all), 1),
                number(_mm512_srli_epi32::<12>(all), 1),
            ];
            store_pairs(to.add(TILE_BYTES), right);
        }
    }
}

/// As [`unpack_fours`], with the upper bits from bit 20 on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn unpack_sixes(from: *const u8, to: *mut u8) {
    let power = _mm512_set1_epi32(0x4300_0000);
    let (low, high) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
    let mask = _mm512_set1_epi32(0x003f_0000);
    // SAFETY: inside the group.
    unsafe {
        for quad in 0..GROUP / 4 {
            let both = _mm512_loadu_si512(from.add(quad * 64).cast());
            let upper = _mm512_loadu_si512(from.add(FOUR_BYTES + quad / 2 * 64).cast());
            let shifted = match quad % 2 {
                0 => [_mm512_slli_epi16::<4>(upper), _mm512_slli_epi16::<2>(upper)],
                _ => [upper, _mm512_srli_epi16::<2>(upper)],
            };
            let lows = [_mm512_and_si512(both, low), _mm512_and_si512(_mm512_srli_epi16::<4>(both), low)];
            for half in 0..2 {
                let step = halves(from.add(SIX_BYTES + quad / 4 * SCALE_BYTES + half * SCALE_BYTES / 2));
                let base = _mm512_mul_ps(step, _mm512_set1_ps(-160.0));
                // low | (upper & mask)
                let all = _mm512_ternarylogic_epi32::<0xf8>(lows[half], shifted[half], high);
                let number = |shifted: __m512i| {
                    let float = _mm512_ternarylogic_epi32::<0xf8>(power, shifted, mask);
                    _mm512_fmadd_ps(_mm512_castsi512_ps(float), step, base)
                };
                let four = [
                    number(_mm512_slli_epi32::<16>(all)),
                    number(_mm512_slli_epi32::<8>(all)),
                    number(all),
                    number(_mm512_srli_epi32::<8>(all)),
                ];
                store_pairs(to.add(half * TILE_BYTES + quad * 128), four);
            }
        }
    }
}

/// `128 + q / 2` as a float is `0x43000000` with `q` from bit 15 on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn unpack_eights(from: *const u8, to: *mut u8) {
    let mask = _mm512_set1_epi32(0x007f_8000);
    let power = _mm512_set1_epi32(0x4300_0000);
    // SAFETY: inside the group.
    unsafe {
        for half in 0..2 {
            let scale = halves(from.add(EIGHT_BYTES + half * SCALE_BYTES / 2));
            let (step, base) = (_mm512_add_ps(scale, scale), _mm512_mul_ps(scale, _mm512_set1_ps(-384.0)));
            for quad in 0..GROUP / 4 {
                let all = _mm512_loadu_si512(from.add(quad * 128 + half * 64).cast());
                let number = |shifted: __m512i| {
                    let float = _mm512_ternarylogic_epi32::<0xf8>(power, shifted, mask);
                    _mm512_fmadd_ps(_mm512_castsi512_ps(float), step, base)
                };
                let four = [
                    number(_mm512_slli_epi32::<15>(all)),
                    number(_mm512_slli_epi32::<7>(all)),
                    number(_mm512_srli_epi32::<1>(all)),
                    number(_mm512_srli_epi32::<9>(all)),
                ];
                store_pairs(to.add(half * TILE_BYTES + quad * 128), four);
            }
        }
    }
}

/// Two lines of pairs: the inputs 0 and 1 of each output, then 2 and 3. Rounds to nearest.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn store_pairs(to: *mut u8, four: [__m512; 4]) {
    let half = _mm512_set1_epi32(0x8000);
    let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    let pair = |one: __m512, two: __m512| {
        let one = _mm512_srli_epi32::<16>(_mm512_add_epi32(_mm512_castps_si512(one), half));
        let two = _mm512_add_epi32(_mm512_castps_si512(two), half);
        // (two & upper) | one
        _mm512_ternarylogic_epi32::<0xf8>(one, two, upper)
    };
    // SAFETY: as the caller's.
    unsafe {
        _mm512_storeu_si512(to.cast(), pair(four[0], four[1]));
        _mm512_storeu_si512(to.add(64).cast(), pair(four[2], four[3]));
    }
}
