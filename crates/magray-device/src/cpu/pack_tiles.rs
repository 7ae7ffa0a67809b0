//! Lays keys and values out for tiles and vectors with AVX-512, as attention does it for every head of every text.
//! The plain loops of the other paths take about as long as the products.

use super::acts::PANEL;
use super::head_columns::HeadColumns;
use half::bf16;
use std::arch::x86_64::*;
use std::ops::Range;

/// Keys become `[d / 32][2][16 pairs][16 keys][2]`: each tile is a 16 x 16 transpose of pairs.
///
/// # Safety
/// AVX-512 F is there; `head` is valid for the keys, `panel` for `head.size` rounded up to 32, times 32.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn keys(head: &HeadColumns<bf16>, keys: Range<usize>, panel: *mut bf16) {
    for step in 0..head.size.div_ceil(PANEL) {
        for tile in 0..2 {
            let mut rows = [_mm512_setzero_si512(); 16];
            for (i, row) in rows.iter_mut().enumerate() {
                let token = keys.start + tile * 16 + i;
                if token < keys.end {
                    // SAFETY: the token is one of the text's.
                    *row = unsafe { load_dimensions(head, token, step * PANEL) };
                }
            }
            transpose_pairs(&mut rows);
            for (i, row) in rows.iter().enumerate() {
                // SAFETY: inside the panel.
                unsafe { _mm512_storeu_si512(panel.add(step * 1024 + tile * 512 + i * 32).cast(), *row) };
            }
        }
    }
}

/// Keys become `[d][32 keys]`, for products on vectors: quarters of a panel are 16 x 16 transposes.
///
/// # Safety
/// AVX-512 F is there; the head's columns are whole panels; `head` is valid for the keys, `panel` for `head.size` times
/// 32.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn keys_f32(head: &HeadColumns<f32>, keys: Range<usize>, panel: *mut f32) {
    for first in (0..head.size).step_by(16) {
        for half in (0..PANEL).step_by(16) {
            let mut rows = [_mm512_setzero_si512(); 16];
            for (i, row) in rows.iter_mut().enumerate() {
                let token = keys.start + half + i;
                if token < keys.end {
                    // SAFETY: half a panel of the token's row.
                    *row = unsafe { _mm512_loadu_si512(head.at(token, first).cast()) };
                }
            }
            transpose_pairs(&mut rows);
            for (i, row) in rows.iter().enumerate() {
                // SAFETY: inside the panel.
                unsafe { _mm512_storeu_si512(panel.add((first + i) * PANEL + half).cast(), *row) };
            }
        }
    }
}

/// Values become `[token / 32][2][16 pairs][16 dimensions][2]`: each pair of tokens is interleaved.
///
/// # Safety
/// As above; `panel` is valid for `tokens` rounded up to 32, times 32.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn values(head: &HeadColumns<bf16>, tokens: usize, first: usize, panel: *mut bf16) {
    // Lane 2i of the first result is column i of the even token, lane 2i + 1 that of the odd one.
    let mut low = [0i16; 32];
    let mut high = [0i16; 32];
    for i in 0..16 {
        (low[2 * i], low[2 * i + 1]) = (i as i16, i as i16 + 32);
        (high[2 * i], high[2 * i + 1]) = (i as i16 + 16, i as i16 + 48);
    }
    // SAFETY: the arrays are 64 bytes long; tokens below the last are the text's; the panel holds whole steps.
    unsafe {
        let (low, high) = (_mm512_loadu_si512(low.as_ptr().cast()), _mm512_loadu_si512(high.as_ptr().cast()));
        for pair in 0..tokens.next_multiple_of(PANEL) / 2 {
            let load = |token| {
                if token < tokens { load_dimensions(head, token, first) } else { _mm512_setzero_si512() }
            };
            let (even, odd) = (load(2 * pair), load(2 * pair + 1));
            let to = panel.add(pair / 16 * 1024 + pair % 16 * 32);
            _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi16(even, low, odd));
            _mm512_storeu_si512(to.add(512).cast(), _mm512_permutex2var_epi16(even, high, odd));
        }
    }
}

/// The 32 dimensions of a token from `first` on, zero beyond the head.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load_dimensions(head: &HeadColumns<bf16>, token: usize, first: usize) -> __m512i {
    if head.is_aligned() {
        // SAFETY: a whole panel of the token's row.
        return unsafe { _mm512_loadu_si512(head.at(token, first).cast()) };
    }
    let mut dimensions = [bf16::ZERO; PANEL];
    for (d, x) in dimensions.iter_mut().enumerate().take(head.size.saturating_sub(first)) {
        // SAFETY: inside the head's columns.
        *x = unsafe { *head.at(token, first + d) };
    }
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512(dimensions.as_ptr().cast()) }
}

/// Transposes 16 rows of 16 pairs of bf16, or of single floats: pairs of rows, then of two, four and eight.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose_pairs(rows: &mut [__m512i; 16]) {
    let mut t = *rows;
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    let mut u = t;
    for i in 0..4 {
        u[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        u[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    // Row j of a group of four now holds columns j, j + 4, j + 8, j + 12, a lane of four rows each.
    for j in 0..4 {
        let (a, b, c, d) = (u[j], u[4 + j], u[8 + j], u[12 + j]);
        let (ab_even, ab_odd) = (_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
        let (cd_even, cd_odd) = (_mm512_shuffle_i32x4(c, d, 0x88), _mm512_shuffle_i32x4(c, d, 0xdd));
        rows[j] = _mm512_shuffle_i32x4(ab_even, cd_even, 0x88);
        rows[8 + j] = _mm512_shuffle_i32x4(ab_even, cd_even, 0xdd);
        rows[4 + j] = _mm512_shuffle_i32x4(ab_odd, cd_odd, 0x88);
        rows[12 + j] = _mm512_shuffle_i32x4(ab_odd, cd_odd, 0xdd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transpose_swaps_rows_and_columns() {
        if !is_x86_feature_detected!("avx512f") {
            return magray_skip::test(magray_skip::Need::CpuPath("avx512".to_owned()), "no AVX-512");
        }
        let from: Vec<[u32; 16]> = (0..16).map(|r| std::array::from_fn(|c| r * 16 + c as u32)).collect();
        // SAFETY: AVX-512 is there; the rows are 64 bytes long.
        unsafe {
            let mut rows: [__m512i; 16] = std::array::from_fn(|i| _mm512_loadu_si512(from[i].as_ptr().cast()));
            transpose_pairs(&mut rows);
            for (r, row) in rows.iter().enumerate() {
                let mut got = [0u32; 16];
                _mm512_storeu_si512(got.as_mut_ptr().cast(), *row);
                assert_eq!(got, std::array::from_fn(|c| c as u32 * 16 + r as u32));
            }
        }
    }
}
