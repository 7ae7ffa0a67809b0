//! Activations as bytes with a scale a row, for the int8 products. Rows are raised by 128 to be unsigned.

use super::tiles::STEP_BYTES;
use crate::cpu::acts::{Grid, PANEL, ROWS_READ_BEYOND};
use crate::cpu::aligned::Aligned;
use crate::cpu::simd::{Element, Kernel, Simd};

/// The bytes and scales of a batch: panels of 64 columns, the rows of a panel end to end.
pub(in crate::cpu) struct QuantisedRows {
    bytes: Aligned<u8>,
    scales: Aligned<f32>,
    stride: usize,
}

impl QuantisedRows {
    pub(in crate::cpu) fn new() -> Self {
        Self { bytes: Aligned::zeroed(0), scales: Aligned::zeroed(0), stride: 0 }
    }

    pub(in crate::cpu) fn resize(&mut self, rows: usize, columns: usize) {
        let rows = rows.next_power_of_two() + ROWS_READ_BEYOND;
        // An odd number of lines, as for activations.
        self.stride = (rows | 1) * STEP_BYTES;
        let bytes = self.stride * columns.div_ceil(STEP_BYTES);
        if self.bytes.len() < bytes {
            self.bytes = Aligned::zeroed(bytes);
        }
        if self.scales.len() < rows {
            self.scales = Aligned::zeroed(rows);
        }
    }

    /// The bytes from this row on, and how far apart panels are.
    pub(in crate::cpu) fn row(&self, row: usize) -> (*const u8, usize) {
        (self.bytes[row * STEP_BYTES..].as_ptr(), self.stride)
    }

    pub(in crate::cpu) fn scale(&self, row: usize) -> *const f32 {
        self.scales[row..].as_ptr()
    }
}

/// Quantises rows `from..from + rows` of `x`.
pub(in crate::cpu) struct QuantiseRows<'a, E> {
    pub(in crate::cpu) x: Grid<E>,
    pub(in crate::cpu) from: usize,
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) columns: usize,
    /// No other thread has these rows.
    pub(in crate::cpu) to: &'a QuantisedRows,
}

/// Rows that are quantised together: the largest of a vector takes long to find, and those of several rows overlap.
const ROWS_TOGETHER: usize = 4;

impl<E: Element> Kernel for QuantiseRows<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let end = self.from + self.rows;
        let mut row = self.from;
        while row < end {
            // SAFETY: as the caller's; the rows are this thread's alone.
            unsafe {
                if end - row >= ROWS_TOGETHER {
                    self.rows_together::<S, ROWS_TOGETHER>(row);
                    row += ROWS_TOGETHER;
                } else {
                    self.rows_together::<S, 1>(row);
                    row += 1;
                }
            }
        }
    }
}

impl<E: Element> QuantiseRows<'_, E> {
    /// # Safety
    /// The machine has the instructions of `S`; rows `row..row + ROWS` are valid on both sides and used by no other thread.
    #[inline(always)]
    unsafe fn rows_together<S: Simd, const ROWS: usize>(&self, row: usize) {
        let panels = self.columns.div_ceil(PANEL);
        // SAFETY: whole panels are valid on both sides, one row after another, zero beyond the last column; a panel of
        // `x` is half of one of bytes.
        unsafe {
            let mut largest = [S::splat(0.0); ROWS];
            for panel in 0..panels {
                let x = self.x.row(row, panel);
                for c in (0..PANEL).step_by(S::LANES) {
                    for (r, largest) in largest.iter_mut().enumerate() {
                        *largest = S::max(*largest, S::abs(E::load::<S>(x.add(r * PANEL + c))));
                    }
                }
            }
            let scales: [f32; ROWS] = std::array::from_fn(|r| {
                let largest = S::maximum(largest[r]);
                if largest > 0.0 { largest / 127.0 } else { 1.0 }
            });
            let inverses = scales.map(|scale| 1.0 / scale);
            self.to.scale(row).cast_mut().cast::<[f32; ROWS]>().write_unaligned(scales);
            for panel in 0..panels {
                let x = self.x.row(row, panel);
                let at = panel / 2 * self.to.stride + row * STEP_BYTES + panel % 2 * PANEL;
                let bytes = self.to.bytes.as_ptr().cast_mut().add(at);
                for c in (0..PANEL).step_by(S::LANES) {
                    for (r, &inverse) in inverses.iter().enumerate() {
                        let x = S::mul(E::load::<S>(x.add(r * PANEL + c)), S::splat(inverse));
                        S::store_biased_u8(bytes.add(r * STEP_BYTES + c), x);
                    }
                }
            }
        }
    }
}
