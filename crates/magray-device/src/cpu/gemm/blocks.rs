//! How a product is divided: into panels of weights and parts of rows between threads, into blocks within a thread.
//! Knows nothing of numbers.

use crate::cpu::acts::PANEL;
use std::ops::Range;

/// A product's division between the threads of a team.
pub(in crate::cpu) struct Division {
    panels: usize,
    rows: usize,
    /// Parts of the rows, and the rows of each but the last.
    row_parts: usize,
    part_rows: usize,
    block_rows: usize,
}

impl Division {
    /// Threads share the panels, so that each reads its part of the weights once; where panels are few for the threads,
    /// rows are divided too.
    pub(super) fn new(panels: usize, rows: usize, block_rows: usize, team: usize) -> Self {
        let wanted = (4 * team).div_ceil(panels);
        let row_parts = if team == 1 { 1 } else { wanted.clamp(1, rows.div_ceil(PANEL).max(1)) };
        let part_rows = rows.div_ceil(row_parts).next_multiple_of(PANEL);
        Self { panels, rows, row_parts, part_rows, block_rows }
    }

    pub(in crate::cpu) fn items(&self) -> usize {
        self.panels * self.row_parts
    }

    /// The blocks of some items, panel after panel.
    pub(in crate::cpu) fn blocks<I: Iterator<Item = usize>>(&self, items: I) -> Blocks<I> {
        let Self { rows, row_parts, part_rows, block_rows, .. } = *self;
        Blocks { items, rows, row_parts, part_rows, block_rows, panel: 0, left: 0..0 }
    }
}

/// A block: some rows that meet one panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cpu) struct BlockIndex {
    pub(super) panel: usize,
    pub(super) from: usize,
    pub(super) rows: usize,
}

pub(in crate::cpu) struct Blocks<I> {
    items: I,
    rows: usize,
    row_parts: usize,
    part_rows: usize,
    block_rows: usize,
    /// The item that is walked through: its panel, and its rows that are left.
    panel: usize,
    left: Range<usize>,
}

impl<I> Blocks<I> {
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Blocks that all threads together make of a panel's rows, about.
    pub(super) fn blocks_a_panel(&self) -> usize {
        self.rows.div_ceil(self.block_rows)
    }
}

impl<I: Iterator<Item = usize>> Iterator for Blocks<I> {
    type Item = BlockIndex;

    #[inline(always)]
    fn next(&mut self) -> Option<BlockIndex> {
        while self.left.is_empty() {
            let item = self.items.next()?;
            self.panel = item / self.row_parts;
            let start = item % self.row_parts * self.part_rows;
            self.left = start..self.rows.min(start + self.part_rows);
        }
        let from = self.left.start;
        let rows = self.block_rows.min(self.left.len());
        self.left.start += rows;
        Some(BlockIndex { panel: self.panel, from, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_row_meets_every_panel_once(
            panels in 1usize..20, rows in 0usize..300, team in 1usize..9, block_rows in prop::sample::select(vec![32usize, 256]),
        ) {
            let division = Division::new(panels, rows, block_rows, team);
            let mut met = vec![0; panels * rows];
            let mut first = 0;
            for rank in 1..=team {
                let end = division.items() * rank / team;
                for BlockIndex { panel, from, rows: count } in division.blocks(first..end) {
                    prop_assert!(count > 0 && count <= block_rows);
                    prop_assert_eq!(from % PANEL, 0);
                    met[panel * rows + from..panel * rows + from + count].iter_mut().for_each(|met| *met += 1);
                }
                first = end;
            }
            prop_assert!(met.iter().all(|&met| met == 1));
        }
    }
}
