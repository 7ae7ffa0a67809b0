//! Chooses the tile that a product is cut into. Pure: sizes in, tile out.
//! The constants of Hopper's tiles were fitted to measurements on an H200.

/// A tile of Hopper's kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HopperTile {
    pub(super) columns: usize,
    /// Warp groups that multiply, 64 rows each.
    pub(super) groups: usize,
    /// Length of the ring that boxes are fetched into.
    pub(super) stages: usize,
    /// Microseconds of a tile beside its products.
    fixed_us: f32,
    /// Microseconds of 64 inputs.
    step_us: f32,
}

impl HopperTile {
    pub(super) fn rows(self) -> usize {
        64 * self.groups
    }

    pub(super) fn threads(self) -> usize {
        128 * (self.groups + 1)
    }

    pub(super) fn shared_bytes(self) -> usize {
        self.stages * (self.groups + self.columns / 64) * 64 * 64 * 2
    }
}

/// From the largest to the smallest.
pub(super) const HOPPER_TILES: [HopperTile; 6] = [
    HopperTile { columns: 384, groups: 2, stages: 3, fixed_us: 4.6, step_us: 0.88 },
    HopperTile { columns: 256, groups: 2, stages: 4, fixed_us: 2.9, step_us: 0.58 },
    HopperTile { columns: 192, groups: 2, stages: 4, fixed_us: 2.2, step_us: 0.46 },
    HopperTile { columns: 128, groups: 2, stages: 5, fixed_us: 1.4, step_us: 0.32 },
    HopperTile { columns: 128, groups: 1, stages: 6, fixed_us: 0.8, step_us: 0.23 },
    HopperTile { columns: 64, groups: 1, stages: 8, fixed_us: 0.5, step_us: 0.17 },
];

/// What is multiplied: rows by inputs, with weights of inputs by columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) rows: usize,
    pub(super) inputs: usize,
    pub(super) columns: usize,
}

impl Product {
    /// The tile expected to be fastest where bias and activation follow; none where columns do not divide into tiles.
    pub(super) fn hopper_tile(self, multiprocessors: usize) -> Option<HopperTile> {
        let fits = |tile: &HopperTile| self.columns.is_multiple_of(tile.columns);
        self.cheapest(HOPPER_TILES.iter().copied().filter(fits), |_| multiprocessors)
    }

    /// The tile expected to be fastest where a norm follows, and how many blocks share a row. `clusters` says how many
    /// clusters of so many blocks the GPU holds at once.
    pub(super) fn hopper_norm_tile(
        self,
        most_blocks: usize,
        clusters: impl Fn(usize) -> usize,
    ) -> Option<(HopperTile, usize)> {
        let fits = |tile: &HopperTile| {
            let blocks = self.columns / tile.columns;
            // A row of 384 sums a thread leaves no registers for the norm.
            self.columns.is_multiple_of(tile.columns) && blocks <= most_blocks && (tile.columns < 384 || blocks > 1)
        };
        let tile = self.cheapest(HOPPER_TILES.iter().copied().filter(fits), |tile| {
            let blocks = self.columns / tile.columns;
            clusters(blocks) * blocks
        })?;
        Some((tile, self.columns / tile.columns))
    }

    /// Tiles are done in waves of as many blocks as run at once.
    fn cheapest(
        self,
        tiles: impl Iterator<Item = HopperTile>,
        blocks_at_once: impl Fn(HopperTile) -> usize,
    ) -> Option<HopperTile> {
        let cost = |tile: HopperTile| {
            let count = self.rows.div_ceil(tile.rows()) * (self.columns / tile.columns);
            let waves = count.div_ceil(blocks_at_once(tile).max(1));
            waves as f32 * (tile.fixed_us + self.inputs.div_ceil(64) as f32 * tile.step_us)
        };
        tiles.min_by(|a, b| cost(*a).total_cmp(&cost(*b)))
    }

    /// The tile of the portable kernel, and into how many parts the inputs are divided where sums are wanted.
    pub(super) fn mma_tile(self, multiprocessors: usize, sums: bool) -> (MmaTile, usize) {
        let blocks = |tile: MmaTile| self.rows.div_ceil(tile.rows) * self.columns.div_ceil(tile.columns);
        let tile = MMA_TILES.into_iter().find(|&tile| blocks(tile) >= multiprocessors).unwrap_or(SMALLEST_MMA_TILE);
        // A part has 256 inputs at least: each costs a pass over the sums.
        let parts = (multiprocessors / blocks(tile).max(1)).clamp(1, MOST_PARTS).min((self.inputs / 256).max(1));
        (tile, if sums { parts } else { 1 })
    }
}

/// A tile of the portable kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MmaTile {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl MmaTile {
    /// As the kernel arranges its warps.
    pub(super) fn threads(self) -> usize {
        if self.rows >= 128 { 256 } else { 128 }
    }
}

/// From the largest to the smallest.
pub(super) const MMA_TILES: [MmaTile; 2] = [MmaTile { rows: 128, columns: 128 }, SMALLEST_MMA_TILE];
const SMALLEST_MMA_TILE: MmaTile = MmaTile { rows: 64, columns: 64 };
const MOST_PARTS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_batches_get_large_tiles_and_small_ones_small_tiles() {
        let tile = |rows| Product { rows, inputs: 384, columns: 1536 }.hopper_tile(132).unwrap();
        assert!(tile(65_536).columns >= 256);
        assert_eq!((tile(128).columns, tile(128).groups), (64, 1));
    }

    #[test]
    fn columns_that_do_not_divide_into_tiles_have_none() {
        assert_eq!(Product { rows: 128, inputs: 384, columns: 100 }.hopper_tile(132), None);
        let clusters = |blocks: usize| 132 / blocks;
        assert_eq!(Product { rows: 128, inputs: 384, columns: 1344 }.hopper_norm_tile(8, clusters), None);
    }

    #[test]
    fn a_norm_spans_its_row() {
        let clusters = |blocks: usize| 132 / blocks;
        for columns in [64, 128, 256, 384, 512, 768, 1024] {
            for rows in [64, 1024, 16_384] {
                let (tile, blocks) =
                    Product { rows, inputs: 4 * columns, columns }.hopper_norm_tile(8, clusters).unwrap();
                assert_eq!(tile.columns * blocks, columns);
            }
        }
    }

    #[test]
    fn every_tile_fits_into_shared_memory() {
        for tile in HOPPER_TILES {
            assert!(tile.shared_bytes() <= 220 * 1024, "{tile:?}");
        }
    }

    #[test]
    fn sums_are_divided_where_blocks_are_few() {
        let (tile, parts) = Product { rows: 64, inputs: 1536, columns: 384 }.mma_tile(132, true);
        assert_eq!((tile, parts), (SMALLEST_MMA_TILE, 4));
        assert_eq!(Product { rows: 16_384, inputs: 1536, columns: 384 }.mma_tile(132, true).1, 1);
        assert_eq!(Product { rows: 64, inputs: 1536, columns: 384 }.mma_tile(132, false).1, 1);
    }
}
