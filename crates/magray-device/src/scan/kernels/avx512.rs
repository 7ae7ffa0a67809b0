//! Products of bytes on AVX-512 VNNI, for one query or few. Sixteen rows a register: no sum is taken across lanes.

use super::fetch_ahead;
use super::levels::{Levels, Sums};
use crate::scan::chunk::{PANEL_ROWS, STEP};
use std::arch::x86_64::*;

/// # Safety
/// The machine has AVX-512 F, BW and VNNI; the panel has the levels' steps.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn dots(panel: &[u8], levels: &Levels, sums: &mut Sums) {
    let mut query = 0;
    while query < levels.queries() {
        // SAFETY: the queries from `query` on are the block's.
        unsafe {
            match levels.queries() - query {
                4.. => {
                    some::<4>(panel, levels, query, sums);
                    query += 4;
                }
                2.. => {
                    some::<2>(panel, levels, query, sums);
                    query += 2;
                }
                _ => {
                    some::<1>(panel, levels, query, sums);
                    query += 1;
                }
            }
        }
    }
}

/// # Safety
/// As [`dots`]; the block has `N` queries from `query` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn some<const N: usize>(panel: &[u8], levels: &Levels, query: usize, sums: &mut Sums) {
    // Even and odd quads apart, so that more products are under way.
    let mut all = [[[_mm512_setzero_si512(); 2]; 2]; N];
    for step in 0..levels.steps() {
        // SAFETY: a step of the panel is two tiles of sixteen lines, and one of a query's a line.
        unsafe {
            let tiles = panel.as_ptr().add(step * STEP * PANEL_ROWS);
            let level = levels.step(step).as_ptr().add(query * STEP);
            for quad in 0..STEP / 4 {
                let line = tiles.add(quad * STEP);
                let (left, right) = (_mm512_loadu_si512(line.cast()), _mm512_loadu_si512(line.add(STEP * 16).cast()));
                fetch_ahead(line);
                fetch_ahead(line.add(STEP * 16));
                for (q, sums) in all.iter_mut().enumerate() {
                    let four = _mm512_set1_epi32(level.add(q * STEP + quad * 4).cast::<i32>().read_unaligned());
                    let sums = &mut sums[quad % 2];
                    sums[0] = _mm512_dpbusd_epi32(sums[0], left, four);
                    sums[1] = _mm512_dpbusd_epi32(sums[1], right, four);
                }
            }
        }
    }
    for (q, [even, odd]) in all.into_iter().enumerate() {
        let to = sums.0[(query + q) * PANEL_ROWS..][..PANEL_ROWS].as_mut_ptr();
        // SAFETY: two times sixteen sums.
        unsafe {
            _mm512_storeu_si512(to.cast(), _mm512_add_epi32(even[0], odd[0]));
            _mm512_storeu_si512(to.add(16).cast(), _mm512_add_epi32(even[1], odd[1]));
        }
    }
}
