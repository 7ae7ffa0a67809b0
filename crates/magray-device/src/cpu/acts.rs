//! A matrix of activations in the memory of the CPU, in the number format of its path.
//!
//! It is stored as panels of 32 columns, the rows of a panel end to end. A tile of any 16 rows is then one run of
//! memory, rows lie at a fixed distance whatever the width, and the 32 outputs of a weight panel fill whole lines.
//! Columns beyond the last are zero and stay so. Knows nothing of what the numbers mean.

use super::aligned::{Aligned, Plain};
use crate::Rows;
use half::bf16;

pub(super) const PANEL: usize = 32;
/// Kernels read rows in whole tiles: buffers hold this many rows more than they use.
pub(super) const ROWS_READ_BEYOND: usize = 32;

/// Rows of activations.
pub struct Acts {
    values: Values,
    rows: usize,
    columns: usize,
}

enum Values {
    F32(Panels<f32>),
    Bf16(Panels<bf16>),
}

struct Panels<T: Plain> {
    values: Aligned<T>,
    stride: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    F32,
    Bf16,
}

/// The address of panels: threads share it, each writing rows or panels of its own.
pub(super) struct Grid<T> {
    start: *mut T,
    /// Elements between panels.
    pub(super) stride: usize,
}

impl<T> Clone for Grid<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Grid<T> {}

// SAFETY: an address; what is read and written through it is divided between threads by the operations.
unsafe impl<T> Sync for Grid<T> {}
// SAFETY: as above.
unsafe impl<T> Send for Grid<T> {}

impl<T> Grid<T> {
    pub(super) fn new(start: *mut T, stride: usize) -> Self {
        Self { start, stride }
    }

    /// The 32 elements of a row in a panel.
    pub(super) fn row(self, row: usize, panel: usize) -> *mut T {
        self.start.wrapping_add(panel * self.stride + row * PANEL)
    }

    pub(super) fn at(self, row: usize, column: usize) -> *mut T {
        self.row(row, column / PANEL).wrapping_add(column % PANEL)
    }

    /// The same panels from this row on.
    pub(super) fn starting_at(self, row: usize) -> Self {
        Self { start: self.row(row, 0), ..self }
    }
}

/// Either format, for the operations to match on.
pub(super) enum AnyGrid {
    F32(Grid<f32>),
    Bf16(Grid<bf16>),
}

/// The distance between panels of this many rows: an odd number of cache lines, so that the panels of one row do not all fall
/// into the same set of the L1 cache.
pub(super) fn panel_stride<T>(rows: usize) -> usize {
    let lines_per_row = (PANEL * size_of::<T>()).div_ceil(64);
    let rows = rows + ROWS_READ_BEYOND;
    if lines_per_row == 1 { (rows | 1) * PANEL } else { rows * PANEL + 64 / size_of::<T>() }
}

impl<T: Plain> Panels<T> {
    fn resize(&mut self, rows: usize, columns: usize) {
        // A power of two is the bucket: a later batch a little larger fits without asking the allocator again.
        if self.stride < panel_stride::<T>(rows) {
            self.stride = panel_stride::<T>(rows.next_power_of_two());
            self.values = Aligned::zeroed(self.stride * columns.div_ceil(PANEL));
        }
    }

    fn grid(&self) -> Grid<T> {
        Grid::new(self.values.as_ptr().cast_mut(), self.stride)
    }
}

impl Acts {
    pub(super) fn new(format: Format, columns: usize) -> Self {
        let values = match format {
            Format::F32 => Values::F32(Panels { values: Aligned::zeroed(0), stride: 0 }),
            Format::Bf16 => Values::Bf16(Panels { values: Aligned::zeroed(0), stride: 0 }),
        };
        Self { values, rows: 0, columns }
    }

    pub(super) fn resize(&mut self, rows: usize) {
        match &mut self.values {
            Values::F32(panels) => panels.resize(rows, self.columns),
            Values::Bf16(panels) => panels.resize(rows, self.columns),
        }
        self.rows = rows;
    }

    pub(super) fn grid(&self) -> AnyGrid {
        match &self.values {
            Values::F32(panels) => AnyGrid::F32(panels.grid()),
            Values::Bf16(panels) => AnyGrid::Bf16(panels.grid()),
        }
    }

    pub(super) fn f32(&self) -> Grid<f32> {
        match self.grid() {
            AnyGrid::F32(grid) => grid,
            AnyGrid::Bf16(_) => panic!("these activations are bf16: a layer was packed for another format"),
        }
    }

    pub(super) fn bf16(&self) -> Grid<bf16> {
        match self.grid() {
            AnyGrid::Bf16(grid) => grid,
            AnyGrid::F32(_) => panic!("these activations are f32: a layer was packed for another format"),
        }
    }
}

impl Rows for Acts {
    fn rows(&self) -> usize {
        self.rows
    }

    fn columns(&self) -> usize {
        self.columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_of_one_row_fall_into_different_sets() {
        for rows in [1, 16, 100, 128, 512] {
            for stride in [panel_stride::<f32>(rows) * 4, panel_stride::<bf16>(rows) * 2] {
                assert_eq!(stride / 64 % 2, 1, "{rows} rows");
                assert_eq!(stride % 64, 0);
            }
        }
    }

    #[test]
    fn a_batch_that_fits_its_bucket_stays_where_it_is() {
        let mut acts = Acts::new(Format::F32, 100);
        acts.resize(40);
        let before = acts.f32().at(0, 0);
        acts.resize(64);
        assert_eq!(acts.f32().at(0, 0), before);
        acts.resize(3);
        assert_eq!(acts.f32().at(0, 0), before);
        assert_eq!((acts.rows(), acts.columns()), (3, 100));
    }
}
