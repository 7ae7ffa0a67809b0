//! Which kernel multiplies how many rows, and how its work is divided. Pure: sizes in, plan out.
//! The constants were chosen for an H200.

use crate::cuda::decoder_kernels::{
    DEEP_TILE, Form, NIBBLE_TILES, STREAM_EIGHTS, STREAM_TOKENS, TILES, WIDE_HEAD_MOST,
};

/// Queries that may share a head of keys there.
pub(super) const SHARED_MOST: usize = 16;
/// Shared memory of a block of [`Stream`]: more than half of what there is, so that no two share a multiprocessor while another has none,
/// and so little that a block of attention has room beside it.
const STREAM_SHARED_BYTES: usize = 200 * 1024;
/// Warps of a block of [`Stream`], each with a ring of its own.
const STREAM_WARPS: usize = 8;
const STREAM_STAGES_MOST: usize = 16;
/// The shortest ring that hides how long the memory takes.
const NIBBLE_STAGES_LEAST: usize = 3;
/// Outputs of a tile.
pub(super) const TILE_OUTPUTS: usize = 128;

/// How outputs are divided: each block has some of them, in passes over all inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Passes {
    blocks: usize,
    passes: usize,
    eights: usize,
}

impl Passes {
    fn of(outputs: usize, is_gated: bool, multiprocessors: usize) -> Self {
        // Gates and what they gate stay together.
        let together = if is_gated { 2 } else { 1 };
        let all = outputs.div_ceil(8 * together);
        let own = all.div_ceil(multiprocessors) * together;
        let passes = own.div_ceil(STREAM_EIGHTS);
        let eights = own.div_ceil(passes).next_multiple_of(together);
        Self { blocks: (all * together).div_ceil(passes * eights), passes, eights }
    }
}

/// Of all warps, a row of floats for each row.
fn sums_bytes(tokens: usize) -> usize {
    STREAM_WARPS * tokens * (STREAM_EIGHTS * 8 + 4) * 4
}

/// A product of few rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    /// Rows at most.
    pub(super) tokens: usize,
    pub(super) blocks: usize,
    pub(super) passes: usize,
    /// Outputs of a pass, in eights.
    pub(super) eights: usize,
    pub(super) stages: usize,
    pub(super) shared_bytes: usize,
}

impl Stream {
    pub(super) const THREADS: usize = STREAM_WARPS * 32;

    /// With weights as numbers or bytes.
    pub(super) fn of(rows: usize, outputs: usize, form: Form, is_gated: bool, multiprocessors: usize) -> Self {
        let tokens = if rows <= STREAM_TOKENS[0] { STREAM_TOKENS[0] } else { STREAM_TOKENS[1] };
        let Passes { blocks, passes, eights } = Passes::of(outputs, is_gated, multiprocessors);
        let unit = (tokens * 128 + eights * form.block_bytes()).next_multiple_of(1024);
        let sums = sums_bytes(tokens);
        let stages = ((STREAM_SHARED_BYTES - sums) / (STREAM_WARPS * unit)).min(STREAM_STAGES_MOST);
        // A block with little to do takes as much, for the same reason.
        let shared_bytes = (STREAM_WARPS * stages * unit + sums).max(STREAM_SHARED_BYTES * 3 / 4);
        Self { tokens, blocks, passes, eights, stages, shared_bytes }
    }

    /// With weights of 4 bits, while each block holds the activations of all rows; none where they leave no room for a ring.
    pub(super) fn of_nibbles(
        rows: usize,
        [outputs, inputs]: [usize; 2],
        form: Form,
        is_gated: bool,
        multiprocessors: usize,
    ) -> Option<Self> {
        let tokens = STREAM_TOKENS[0];
        if rows > tokens {
            return None;
        }
        let Passes { blocks, passes, eights } = Passes::of(outputs, is_gated, multiprocessors);
        let unit = (eights * form.block_bytes()).next_multiple_of(128);
        // Rows lie in different banks.
        let acts = STREAM_WARPS * rows * (inputs.div_ceil(form.unit()).div_ceil(STREAM_WARPS) * form.unit() * 2 + 16);
        let held = acts + sums_bytes(tokens);
        let stages = (STREAM_SHARED_BYTES.checked_sub(held)? / (STREAM_WARPS * unit)).min(STREAM_STAGES_MOST);
        let shared_bytes = (STREAM_WARPS * stages * unit + held).max(STREAM_SHARED_BYTES * 3 / 4);
        (stages >= NIBBLE_STAGES_LEAST).then_some(Self { tokens, blocks, passes, eights, stages, shared_bytes })
    }
}

/// A product of many rows: tiles, each done by a cluster of blocks that divide the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    pub(super) tokens: usize,
    pub(super) stages: usize,
    pub(super) output_tiles: usize,
    pub(super) token_tiles: usize,
    /// Blocks that divide the inputs of a tile.
    pub(super) splits: usize,
    pub(super) shared_bytes: usize,
}

impl Tile {
    pub(super) const THREADS: usize = 256;

    pub(super) fn of(rows: usize, outputs: usize, inputs: usize, multiprocessors: usize) -> Self {
        let output_tiles = outputs.div_ceil(TILE_OUTPUTS);
        // The smallest that has all rows.
        let (tokens, stages) = *TILES.iter().find(|(tokens, _)| rows <= *tokens).unwrap_or(&TILES[TILES.len() - 1]);
        let token_tiles = rows.div_ceil(tokens);
        let (tiles, boxes) = (output_tiles * token_tiles, inputs.div_ceil(64));
        let alone = if tokens > 64 { 400 } else { 550 };
        let splits = splits_of(tiles, boxes, (boxes / 4).clamp(1, 8), alone, multiprocessors);
        // Where blocks have a multiprocessor each, they have all its shared memory.
        let is_deep = tokens == DEEP_TILE.0 && tiles * splits <= multiprocessors;
        let stages = if is_deep { DEEP_TILE.1 } else { stages };
        let shared_bytes = stages * (TILE_OUTPUTS + tokens) * 128;
        Self { tokens, stages, output_tiles, token_tiles, splits, shared_bytes }
    }

    /// With weights of 4 bits.
    pub(super) fn of_nibbles(rows: usize, [outputs, inputs]: [usize; 2], form: Form, multiprocessors: usize) -> Self {
        let output_tiles = outputs.div_ceil(TILE_OUTPUTS);
        let (tokens, stages) =
            *NIBBLE_TILES.iter().find(|(tokens, _)| rows <= *tokens).unwrap_or(&NIBBLE_TILES[NIBBLE_TILES.len() - 1]);
        let token_tiles = rows.div_ceil(tokens);
        let (tiles, units) = (output_tiles * token_tiles, inputs.div_ceil(form.unit()));
        let splits = splits_of(tiles, units, (units / 2).clamp(1, 8), 330 + 5 * tokens, multiprocessors);
        let shared_bytes = stages * (2 * tokens * 128 + TILE_OUTPUTS / 8 * form.block_bytes());
        Self { tokens, stages, output_tiles, token_tiles, splits, shared_bytes }
    }
}

/// The splits that take the least time. A block that has a multiprocessor alone takes `alone_ns` for a piece of the inputs.
fn splits_of(tiles: usize, pieces: usize, most: usize, alone_ns: usize, multiprocessors: usize) -> usize {
    let time_ns = |splits: &usize| {
        let blocks = tiles * splits;
        // Two blocks share a multiprocessor where there are so many.
        let each = if blocks <= multiprocessors { alone_ns } else { 2 * alone_ns };
        // The sums are exchanged at the end.
        let end = 2500 + 700 * (splits - 1);
        blocks.div_ceil(2 * multiprocessors) * (pieces.div_ceil(*splits) * each + end)
    };
    (1..=most).min_by_key(time_ns).unwrap_or(1)
}

/// How single tokens attend: the warps of a block, and how many blocks share a head's pages. None has less than two pages a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Singles {
    pub(super) warps: usize,
    pub(super) splits: usize,
}

impl Singles {
    pub(super) fn of(rows: usize, kv_heads: usize, longest: usize, head: usize, multiprocessors: usize) -> Self {
        let heads = rows.max(1) * kv_heads;
        // Few heads are done the sooner the more warps they have; of many, small blocks fill the GPU better.
        let warps = if head <= WIDE_HEAD_MOST && heads < multiprocessors { 8 } else { 4 };
        let splits = (2 * multiprocessors).div_ceil(heads).min(longest.div_ceil(2 * warps)).max(1);
        Self { warps, splits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_outputs_are_done_and_the_gpu_is_busy() {
        for (outputs, is_gated) in
            [(3072, false), (2048, false), (16384, true), (28672, true), (128256, false), (8, false)]
        {
            for form in Form::ALL {
                for rows in [1, 8, 16] {
                    let plan = match form.is_4_bits() {
                        false => Stream::of(rows, outputs, form, is_gated, 132),
                        true => match Stream::of_nibbles(rows, [outputs, 4096], form, is_gated, 132) {
                            Some(plan) => plan,
                            None => continue,
                        },
                    };
                    let each = plan.passes * plan.eights * 8;
                    assert!(plan.blocks * each >= outputs && (plan.blocks - 1) * each < outputs, "{outputs} {plan:?}");
                    assert!(
                        plan.blocks <= 132 && plan.stages >= 2 && plan.shared_bytes <= STREAM_SHARED_BYTES,
                        "{plan:?}"
                    );
                    assert!(plan.shared_bytes > 114 * 1024, "no two on a multiprocessor: {plan:?}");
                    assert!(outputs < 1000 || plan.blocks >= 126, "{outputs} {plan:?}");
                    assert!(!is_gated || plan.eights.is_multiple_of(2));
                }
            }
        }
    }

    #[test]
    fn tiles_hold_all_rows_and_clusters_divide_the_inputs() {
        for (outputs, inputs) in [(3072, 2048), (2048, 8192), (6144, 4096), (128256, 2048), (64, 64)] {
            for rows in [17, 32, 64, 100, 256, 1024, 1000] {
                let tile = Tile::of(rows, outputs, inputs, 132);
                assert!(tile.token_tiles * tile.tokens >= rows && (1..=8).contains(&tile.splits), "{tile:?}");
                assert!(tile.shared_bytes <= 227 * 1024);
            }
            for rows in [9, 16, 17, 64] {
                let tile = Tile::of_nibbles(rows, [outputs, inputs], Form::Nibbles, 132);
                assert!(tile.token_tiles * tile.tokens >= rows && (1..=8).contains(&tile.splits), "{tile:?}");
                assert!(tile.shared_bytes <= 110 * 1024, "two on a multiprocessor: {tile:?}");
            }
        }
        assert_eq!(Tile::of(32, 16384, 2048, 132).splits, 1);
        assert!(Tile::of(32, 2048, 8192, 132).splits > 3);
    }

    #[test]
    fn activations_that_leave_no_room_for_a_ring_are_not_held() {
        let plan = |rows, inputs| Stream::of_nibbles(rows, [4096, inputs], Form::Centred, false, 132);
        assert!(plan(1, 14336).is_some_and(|plan| plan.stages >= 8));
        assert!(plan(8, 4096).is_some());
        assert_eq!((plan(8, 14336), plan(9, 256), plan(1, 1 << 20)), (None, None, None));
    }

    #[test]
    fn short_contexts_are_not_divided() {
        assert_eq!(Singles::of(256, 8, 8, 64, 132), Singles { warps: 4, splits: 1 });
        assert_eq!(Singles::of(1, 8, 16, 64, 132), Singles { warps: 8, splits: 1 });
        assert_eq!(Singles::of(1, 8, 16, 128, 132), Singles { warps: 4, splits: 2 });
        assert_eq!(Singles::of(1, 8, 1024, 64, 132), Singles { warps: 8, splits: 33 });
    }
}
