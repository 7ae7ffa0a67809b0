//! Activations as bytes for the int8 products: each row from its lowest number, byte 0, to its highest, 255.
//! Zero is always among them, and a byte of its own stands for it.

use super::tiles::STEP_BYTES;
use crate::cpu::acts::{Grid, PANEL, ROWS_READ_BEYOND};
use crate::cpu::aligned::Aligned;
use crate::cpu::simd::{Element, Kernel, Simd};

/// The bytes and scales of a batch: panels of 64 columns, the rows of a panel end to end.
pub(in crate::cpu) struct QuantisedRows {
    bytes: Aligned<u8>,
    scales: Aligned<f32>,
    shifts: Aligned<f32>,
    stride: usize,
}

impl QuantisedRows {
    pub(in crate::cpu) fn new() -> Self {
        Self { bytes: Aligned::zeroed(0), scales: Aligned::zeroed(0), shifts: Aligned::zeroed(0), stride: 0 }
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
            (self.scales, self.shifts) = (Aligned::zeroed(rows), Aligned::zeroed(rows));
        }
    }

    /// The bytes from this row on, and how far apart panels are.
    pub(in crate::cpu) fn row(&self, row: usize) -> (*const u8, usize) {
        (self.bytes[row * STEP_BYTES..].as_ptr(), self.stride)
    }

    /// What a step of each row's bytes is worth.
    pub(in crate::cpu) fn scales(&self) -> *const f32 {
        self.scales.as_ptr()
    }

    /// What byte 0 of each row is worth.
    pub(in crate::cpu) fn shifts(&self) -> *const f32 {
        self.shifts.as_ptr()
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
        // `x` is half of one of bytes, whose other half may be missing: there weights are zero.
        unsafe {
            let mut bounds = [[S::splat(0.0); 2]; ROWS];
            for panel in 0..panels {
                let x = self.x.row(row, panel);
                for c in (0..PANEL).step_by(2 * S::LANES) {
                    for (r, bounds) in bounds.iter_mut().enumerate() {
                        *bounds = E::widen_bounds::<S>(*bounds, x.add(r * PANEL + c));
                    }
                }
            }
            let mut steps = [(0.0, 0.0); ROWS];
            for (r, step) in steps.iter_mut().enumerate() {
                let [low, high] = E::bounds::<S>(bounds[r]);
                let scale = if high > low { (high - low) / 255.0 } else { 1.0 };
                let zero = (-low / scale).round_ties_even();
                *self.to.scales().cast_mut().add(row + r) = scale;
                *self.to.shifts().cast_mut().add(row + r) = -zero * scale;
                *step = (1.0 / scale, zero);
            }
            for column in (0..panels * PANEL).step_by(4 * S::LANES) {
                let bytes = self.to.bytes.as_ptr().cast_mut();
                let bytes = bytes.add(column / STEP_BYTES * self.to.stride + row * STEP_BYTES + column % STEP_BYTES);
                for (r, &(inverse, zero)) in steps.iter().enumerate() {
                    let (inverse, zero) = (S::splat(inverse), S::splat(zero));
                    let mut quantised = [zero; 4];
                    for (i, quantised) in quantised.iter_mut().enumerate() {
                        let column = column + i * S::LANES;
                        if column / PANEL < panels {
                            let x = self.x.row(row + r, column / PANEL).add(column % PANEL);
                            *quantised = S::fma(E::load::<S>(x), inverse, zero);
                        }
                    }
                    S::store_four_u8(bytes.add(r * STEP_BYTES), quantised);
                }
            }
        }
    }
}
