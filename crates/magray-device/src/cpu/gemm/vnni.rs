//! Matrix products of bytes on AVX-512 VNNI, over the same panels as the tiles. For CPUs without AMX.

use super::tiles::PANEL_STEP_BYTES;
use crate::cpu::acts::PANEL;
use std::arch::x86_64::*;

/// `c[rows][PANEL] = a[rows][steps * 64] * panel`, unsigned times signed bytes, sums in i32.
pub(in crate::cpu) struct VnniBlock {
    /// Rows of 64 bytes, end to end; the next step's rows lie `a_stride` bytes on.
    pub(in crate::cpu) a: *const u8,
    pub(in crate::cpu) a_stride: usize,
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) steps: usize,
    pub(in crate::cpu) panel: *const i8,
    pub(in crate::cpu) c: *mut i32,
}

const TILE_ROWS: usize = 12;
/// Quadruples of bytes in a step of 64.
const QUADS: usize = 16;
const TILE_BYTES: usize = PANEL_STEP_BYTES / 2;

impl VnniBlock {
    /// # Safety
    /// The machine has AVX-512 F, BW and VNNI; the pointers are valid for the block.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(in crate::cpu) unsafe fn run(&self) {
        let mut row = 0;
        while row < self.rows {
            let rows = TILE_ROWS.min(self.rows - row);
            // SAFETY: rows `row..row + rows` lie inside the block.
            unsafe {
                match rows {
                    12 => self.multiply::<12>(row),
                    8.. => {
                        self.multiply::<8>(row);
                        row += 8;
                        continue;
                    }
                    4.. => {
                        self.multiply::<4>(row);
                        row += 4;
                        continue;
                    }
                    _ => {
                        self.multiply::<1>(row);
                        row += 1;
                        continue;
                    }
                }
            }
            row += rows;
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn multiply<const ROWS: usize>(&self, row: usize) {
        const { assert!(PANEL == 32) }
        let mut sums = [[_mm512_setzero_si512(); 2]; ROWS];
        // SAFETY: the block's pointers are valid for these rows and all its steps.
        unsafe {
            let a = self.a.add(row * 64);
            for step in 0..self.steps {
                for quad in 0..QUADS {
                    let b = self.panel.add(step * PANEL_STEP_BYTES + quad * 64);
                    let left = _mm512_loadu_si512(b.cast());
                    let right = _mm512_loadu_si512(b.add(TILE_BYTES).cast());
                    for (r, sum) in sums.iter_mut().enumerate() {
                        let four = a.add(step * self.a_stride + r * 64 + quad * 4).cast::<i32>().read_unaligned();
                        let x = _mm512_set1_epi32(four);
                        sum[0] = _mm512_dpbusd_epi32(sum[0], x, left);
                        sum[1] = _mm512_dpbusd_epi32(sum[1], x, right);
                    }
                }
            }
            for (r, sum) in sums.iter().enumerate() {
                let c = self.c.add((row + r) * PANEL);
                _mm512_storeu_si512(c.cast(), sum[0]);
                _mm512_storeu_si512(c.add(16).cast(), sum[1]);
            }
        }
    }
}
