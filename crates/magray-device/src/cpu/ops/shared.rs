//! Activations of encoders on their way to other devices and back: rows of floats, end to end.
//! Never changes columns beyond the last: they are zero and stay so.

use super::{AnyGrid, CpuOps, assert_rows};
use crate::cpu::acts::{Acts, Format, Grid, PANEL};
use crate::cpu::layer_norm::NormRows;
use crate::{Norm, Rows, SharedEncoderOps};
use half::bf16;
use std::convert::Infallible;

/// A number of activations.
trait Number: Copy {
    fn wide(self) -> f32;
    fn of(wide: f32) -> Self;
}

impl Number for f32 {
    fn wide(self) -> f32 {
        self
    }

    fn of(wide: f32) -> Self {
        wide
    }
}

impl Number for bf16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }

    fn of(wide: f32) -> Self {
        Self::from_f32(wide)
    }
}

/// The numbers of a row in a panel.
fn part<'a, E>(grid: Grid<E>, row: usize, panel: usize) -> &'a mut [E] {
    // SAFETY: callers ask for rows in use and panels of the matrix, which are whole, one at a time and while no other thread works on them.
    unsafe { std::slice::from_raw_parts_mut(grid.row(row, panel), PANEL) }
}

fn read<E: Number>(grid: Grid<E>, columns: usize, rows: &mut [f32]) {
    for (row, to) in rows.chunks_exact_mut(columns).enumerate() {
        for (panel, to) in to.chunks_mut(PANEL).enumerate() {
            to.iter_mut().zip(part(grid, row, panel)).for_each(|(to, x)| *to = x.wide());
        }
    }
}

fn write<E: Number>(grid: Grid<E>, columns: usize, rows: &[f32]) {
    for (row, from) in rows.chunks_exact(columns).enumerate() {
        for (panel, from) in from.chunks(PANEL).enumerate() {
            part(grid, row, panel).iter_mut().zip(from).for_each(|(to, x)| *to = E::of(*x));
        }
    }
}

impl SharedEncoderOps for CpuOps {
    fn read_rows(&mut self, acts: &Acts) -> Result<Vec<f32>, Infallible> {
        let mut rows = vec![0.0; acts.rows() * acts.columns()];
        match acts.grid() {
            AnyGrid::F32(grid) => read(grid, acts.columns(), &mut rows),
            AnyGrid::Bf16(grid) => read(grid, acts.columns(), &mut rows),
        }
        Ok(rows)
    }

    fn write_rows(&mut self, rows: &[f32], acts: &mut Acts) {
        assert_eq!(rows.len(), acts.rows() * acts.columns(), "as many rows as are in use");
        match acts.grid() {
            AnyGrid::F32(grid) => write(grid, acts.columns(), rows),
            AnyGrid::Bf16(grid) => write(grid, acts.columns(), rows),
        }
    }

    fn add_rows_norm(&mut self, rows: &[f32], norm: &Norm, hidden: &mut Acts) {
        let columns = hidden.columns();
        assert_eq!(columns, norm.columns, "the norm is as wide");
        assert_eq!(rows.len(), hidden.rows() * columns, "sums of what layers add to");
        let Ok(before) = self.read_rows(hidden);
        let sums: Vec<f32> = before.iter().zip(rows).map(|(before, row)| before + row).collect();
        if self.sums.columns() != columns {
            self.sums = Acts::new(Format::F32, columns);
        }
        self.sums.resize(hidden.rows());
        let grid = self.sums.f32();
        write(grid, columns, &sums);
        assert_rows(hidden, self.sums.rows());
        match hidden.grid() {
            // SAFETY: the rows are in use in both; no other thread works on them.
            AnyGrid::F32(out) => unsafe { self.run(NormRows { x: grid, rows: hidden.rows(), norm, out }) },
            // SAFETY: as above.
            AnyGrid::Bf16(out) => unsafe { self.run(NormRows { x: grid, rows: hidden.rows(), norm, out }) },
        }
    }
}
