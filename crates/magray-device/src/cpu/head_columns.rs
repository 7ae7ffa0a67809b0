//! Where one head's queries, keys or values lie among the activations of a text.
//! Copies nothing.

use super::acts::{Grid, PANEL};

/// The columns of one head in the queries, keys or values of one text.
pub(super) struct HeadColumns<E> {
    /// From the text's first token on.
    pub(super) grid: Grid<E>,
    pub(super) column: usize,
    pub(super) size: usize,
}

impl<E> HeadColumns<E> {
    pub(super) fn at(&self, token: usize, dimension: usize) -> *const E {
        self.grid.at(token, self.column + dimension)
    }

    pub(super) fn is_aligned(&self) -> bool {
        self.column.is_multiple_of(PANEL) && self.size.is_multiple_of(PANEL)
    }

    /// The panels of an aligned head, from this token on.
    pub(super) fn panels(&self, token: usize) -> Grid<E> {
        Grid::new(self.grid.row(token, self.column / PANEL), self.grid.stride)
    }
}
