//! Activations as bytes with a scale a row, for the int8 products. Rows are raised by 128 to be unsigned.

use super::ROWS_READ_BEYOND;
use super::tiles::STEP_BYTES;
use crate::cpu::acts::{Grid, PANEL};
use crate::cpu::aligned::Aligned;
use crate::cpu::simd::{Element, Kernel, Simd};

/// Room for the bytes and scales of a batch: panels of 64 columns, the rows of a panel end to end.
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
    /// No other thread has these rows of it.
    pub(in crate::cpu) to: &'a QuantisedRows,
}

impl<E: Element> Kernel for QuantiseRows<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let panels = self.columns.div_ceil(PANEL);
        for row in self.from..self.from + self.rows {
            // SAFETY: whole panels are valid on both sides, zero beyond the last column; a panel of `x` is half of one
            // of bytes. The rows are this thread's alone.
            unsafe {
                let mut largest = S::splat(0.0);
                for panel in 0..panels {
                    let x = self.x.row(row, panel);
                    for c in (0..PANEL).step_by(S::LANES) {
                        largest = S::max(largest, S::abs(E::load::<S>(x.add(c))));
                    }
                }
                let largest = S::maximum(largest);
                let scale = if largest > 0.0 { largest / 127.0 } else { 1.0 };
                *self.to.scale(row).cast_mut() = scale;
                let inverse = S::splat(1.0 / scale);
                for panel in 0..panels {
                    let x = self.x.row(row, panel);
                    let at = panel / 2 * self.to.stride + row * STEP_BYTES + panel % 2 * PANEL;
                    let bytes = self.to.bytes.as_ptr().cast_mut().add(at);
                    for c in (0..PANEL).step_by(S::LANES) {
                        S::store_biased_u8(bytes.add(c), S::mul(E::load::<S>(x.add(c)), inverse));
                    }
                }
            }
        }
    }
}
