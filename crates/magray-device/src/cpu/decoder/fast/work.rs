//! What products of few and of many rows are given: rows of inputs, and the threads that share the work.
//! Multiplies nothing.

use super::finish::Ending;
use super::linear::{PanelLinear, Unit};
use crate::cpu::decoder::RmsNorm;
use crate::cpu::{Shares, ThreadPool};
use magray_core::CpuPath;
use std::ops::Range;

/// Rows of inputs, before their norm.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub(super) values: &'a [f32],
    pub(super) rows: usize,
    pub(super) norm: Option<&'a RmsNorm>,
}

impl Inputs<'_> {
    pub(super) fn row(&self, row: usize) -> &[f32] {
        let columns = self.values.len() / self.rows;
        &self.values[row * columns..(row + 1) * columns]
    }
}

/// Threads, and how they divide items.
#[derive(Clone, Copy)]
pub(super) struct Team<'a> {
    pub(super) path: CpuPath,
    pub(super) pool: &'a ThreadPool,
    pub(super) shares: &'a Shares,
}

/// Rows that a thread takes at once where each is little work.
const ROWS_AT_ONCE: usize = 8;

impl Team<'_> {
    /// Threads take the rows.
    pub(super) fn each_row(&self, rows: usize, work: &(dyn Fn(usize) + Sync)) {
        self.shares.fill(rows.div_ceil(ROWS_AT_ONCE));
        self.pool.run(&|rank| self.rows_of(rank, rows).for_each(work));
    }

    /// The rows that a thread takes, once the shares are filled for them.
    fn rows_of(&self, rank: usize, rows: usize) -> impl Iterator<Item = usize> {
        let of = move |item: usize| -> Range<usize> { item * ROWS_AT_ONCE..rows.min((item + 1) * ROWS_AT_ONCE) };
        self.shares.of(rank).flat_map(of)
    }
}

/// The units of the second half, where the first is a gate.
pub(super) fn pairs_with(weights: &PanelLinear, ending: Ending) -> Option<&[Unit]> {
    matches!(ending, Ending::Gate(_)).then(|| &weights.units()[weights.units().len() / 2..])
}
