//! Queries as signed bytes in the order in which the products read them, and the sums of the products. Multiplies nothing.

use crate::cpu::Aligned;
use crate::scan::chunk::{PANEL_ROWS, STEP};

/// Queries that are multiplied together.
pub(in crate::scan) const QUERIES: usize = 32;
/// Rows of a tile.
pub(super) const TILE: usize = 16;

/// Queries as signed bytes: steps of 64 dimensions, in a step the queries in turn.
pub(in crate::scan) struct Levels {
    bytes: Aligned<i8>,
    steps: usize,
    queries: usize,
    /// With those that fill the last tile, which are zero.
    padded: usize,
}

impl Levels {
    /// Up to [`QUERIES`] queries, each of the same dimensions.
    pub(in crate::scan) fn new<'a>(queries: impl ExactSizeIterator<Item = &'a [i8]>, dims: usize) -> Self {
        let (count, steps) = (queries.len(), dims.div_ceil(STEP));
        assert!((1..=QUERIES).contains(&count), "a block of queries");
        let padded = count.next_multiple_of(TILE);
        let mut bytes = Aligned::zeroed(steps * padded * STEP);
        for (query, levels) in queries.enumerate() {
            for (step, levels) in levels.chunks(STEP).enumerate() {
                bytes[(step * padded + query) * STEP..][..levels.len()].copy_from_slice(levels);
            }
        }
        Self { bytes, steps, queries: count, padded }
    }

    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    pub(super) fn queries(&self) -> usize {
        self.queries
    }

    pub(super) fn padded(&self) -> usize {
        self.padded
    }

    /// The bytes of a step's queries.
    pub(super) fn step(&self, step: usize) -> &[i8] {
        &self.bytes[step * self.padded * STEP..][..self.padded * STEP]
    }
}

/// Sums of products: for each query those of the panel's rows.
#[repr(align(64))]
pub(in crate::scan) struct Sums(pub(super) [i32; QUERIES * PANEL_ROWS]);

impl Sums {
    pub(in crate::scan) fn new() -> Box<Self> {
        Box::new(Self([0; QUERIES * PANEL_ROWS]))
    }

    pub(in crate::scan) fn of(&self, query: usize) -> &[i32; PANEL_ROWS] {
        self.0[query * PANEL_ROWS..][..PANEL_ROWS].try_into().expect("as many as asked for")
    }
}
