//! Chooses the tile that a product is cut into. Pure: sizes in, tile out.
//! The constants of Hopper's tiles were fitted to measurements on an H200.

/// A tile of Hopper's products with an activation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HopperTile {
    pub(super) columns: usize,
    /// Rows, in 64.
    pub(super) sixty_fours: usize,
    /// Warp groups that multiply, each with tiles of its own.
    pub(super) groups: usize,
    /// Length of the ring that boxes are fetched into.
    pub(super) stages: usize,
    cost: TileCost,
}

/// What a tile takes, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TileCost {
    /// Once, until results flow.
    fill: f32,
    /// Each tile, beside its products.
    fixed: f32,
    /// Each 64 inputs.
    step: f32,
}

impl TileCost {
    fn of(self, tiles: usize, inputs: usize) -> f32 {
        self.fill + tiles as f32 * (self.fixed + inputs.div_ceil(BOX) as f32 * self.step)
    }
}

/// Rows and columns of a box, and its bytes in 16-bit numbers.
const BOX: usize = 64;
const BOX_BYTES: usize = BOX * BOX * 2;

impl HopperTile {
    pub(super) fn rows(self) -> usize {
        BOX * self.sixty_fours
    }

    pub(super) fn threads(self) -> usize {
        128 * (self.groups + 1)
    }

    pub(super) fn shared_bytes(self) -> usize {
        let ring = self.stages * (self.sixty_fours + self.columns / BOX);
        (ring + 2 * self.groups * self.sixty_fours) * BOX_BYTES
    }
}

/// From the largest to the smallest.
pub(super) const HOPPER_TILES: [HopperTile; 6] = [
    hopper_tile([192, 2, 2, 4], [4.2, 1.97, 0.41]),
    hopper_tile([128, 2, 2, 5], [3.5, 1.09, 0.345]),
    hopper_tile([192, 1, 2, 5], [3.1, 0.26, 0.40]),
    hopper_tile([128, 1, 2, 6], [2.6, 0.55, 0.257]),
    hopper_tile([128, 1, 1, 6], [2.4, 0.53, 0.267]),
    hopper_tile([64, 1, 1, 8], [1.7, 1.0, 0.13]),
];

const fn hopper_tile([columns, sixty_fours, groups, stages]: [usize; 4], [fill, fixed, step]: [f32; 3]) -> HopperTile {
    HopperTile { columns, sixty_fours, groups, stages, cost: TileCost { fill, fixed, step } }
}

/// A tile of Hopper's products with a norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct NormTile {
    pub(super) columns: usize,
    /// Warp groups that multiply, 64 rows of the tile each.
    pub(super) groups: usize,
    /// Length of the ring that boxes are fetched into.
    pub(super) stages: usize,
    cost: TileCost,
}

impl NormTile {
    pub(super) fn rows(self) -> usize {
        BOX * self.groups
    }

    pub(super) fn threads(self) -> usize {
        128 * (self.groups + 1)
    }

    pub(super) fn shared_bytes(self) -> usize {
        self.stages * (self.groups + self.columns / BOX) * BOX_BYTES
    }

    /// Blocks that must share a row at least: one of 256 sums or more a thread leaves no registers for the norm.
    pub(super) fn blocks_min(self) -> usize {
        if self.columns < 256 { 1 } else { 2 }
    }
}

/// From the largest to the smallest.
pub(super) const NORM_TILES: [NormTile; 6] = [
    norm_tile([384, 2, 3], [2.0, 9.5, 0.9]),
    norm_tile([256, 2, 4], [2.0, 4.7, 0.65]),
    norm_tile([192, 2, 4], [2.0, 3.3, 0.48]),
    norm_tile([128, 2, 5], [2.0, 2.2, 0.30]),
    norm_tile([128, 1, 6], [2.0, 1.5, 0.175]),
    norm_tile([64, 1, 8], [2.0, 1.1, 0.14]),
];

const fn norm_tile([columns, groups, stages]: [usize; 3], [fill, fixed, step]: [f32; 3]) -> NormTile {
    NormTile { columns, groups, stages, cost: TileCost { fill, fixed, step } }
}

/// What is multiplied: rows by inputs, with weights of inputs by columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) rows: usize,
    pub(super) inputs: usize,
    pub(super) columns: usize,
}

impl Product {
    /// The tile expected to be fastest where an activation follows; none where columns do not divide into tiles.
    pub(super) fn hopper_tile(self, multiprocessors: usize) -> Option<HopperTile> {
        let cost = |tile: &HopperTile| {
            let tiles = self.rows.div_ceil(tile.rows()) * (self.columns / tile.columns);
            tile.cost.of(tiles.div_ceil(multiprocessors.max(1)), self.inputs)
        };
        let fits = |tile: &HopperTile| self.columns.is_multiple_of(tile.columns);
        HOPPER_TILES.into_iter().filter(fits).min_by(|a, b| cost(a).total_cmp(&cost(b)))
    }

    /// The tile expected to be fastest where a norm follows, and how many blocks share a row. `clusters` gives how many
    /// clusters of a number of blocks the GPU holds at once; 0 if none.
    pub(super) fn norm_tile(self, clusters: impl Fn(usize) -> usize) -> Option<(NormTile, usize)> {
        let blocks = |tile: &NormTile| self.columns / tile.columns;
        let cost = |tile: &NormTile| {
            let tiles = self.rows.div_ceil(tile.rows());
            tile.cost.of(tiles.div_ceil(clusters(blocks(tile)).max(1)), self.inputs)
        };
        let fits = |tile: &NormTile| {
            let has_registers = blocks(tile) >= tile.blocks_min();
            self.columns.is_multiple_of(tile.columns) && clusters(blocks(tile)) > 0 && has_registers
        };
        let tile = NORM_TILES.into_iter().filter(fits).min_by(|a, b| cost(a).total_cmp(&cost(b)))?;
        Some((tile, blocks(&tile)))
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

    /// As many clusters as an H200 holds.
    fn clusters(blocks: usize) -> usize {
        [0, 132, 66, 39, 30, 22, 17, 16, 14].get(blocks).copied().unwrap_or(0)
    }

    #[test]
    fn large_batches_get_large_tiles_and_small_ones_small_tiles() {
        let tile = |rows| Product { rows, inputs: 384, columns: 1536 }.hopper_tile(132).unwrap();
        assert_eq!((tile(65_536).columns, tile(65_536).sixty_fours), (192, 2));
        assert_eq!((tile(128).columns, tile(128).groups), (64, 1));
    }

    #[test]
    fn columns_that_do_not_divide_into_tiles_have_none() {
        assert_eq!(Product { rows: 128, inputs: 384, columns: 100 }.hopper_tile(132), None);
        assert_eq!(Product { rows: 128, inputs: 384, columns: 1344 + 32 }.norm_tile(clusters), None);
    }

    #[test]
    fn a_norm_spans_its_row() {
        for columns in [64, 128, 256, 384, 512, 768, 1024] {
            for rows in [64, 1024, 16_384] {
                let (tile, blocks) = Product { rows, inputs: 4 * columns, columns }.norm_tile(clusters).unwrap();
                assert_eq!(tile.columns * blocks, columns);
            }
        }
    }

    #[test]
    fn every_tile_fits_into_shared_memory() {
        // A block's limit, less the barriers and the statistics of rows.
        const MOST: usize = 227 * 1024;
        for tile in HOPPER_TILES {
            assert!(tile.shared_bytes() + 1024 <= MOST, "{tile:?}");
        }
        for tile in NORM_TILES {
            assert!(tile.shared_bytes() + 20 * 1024 <= MOST, "{tile:?}");
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
