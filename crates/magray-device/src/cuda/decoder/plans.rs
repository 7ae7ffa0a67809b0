//! Which kernel multiplies how many rows, and how its work is divided. Pure: sizes in, plan out.
//! The constants were chosen for an H200.

use crate::cuda::decoder_kernels::{
    DEEP_TILES, Form, NIBBLE_TILES, NIBBLE_WARPS, STREAM_EIGHTS, STREAM_TOKENS, TILES, WIDE_HEAD_MOST, WIDE_TILES,
};

/// Queries that may share a head of keys there.
pub(super) const SHARED_MOST: usize = 16;
/// Shared memory of a block of [`Stream`]: more than half of what there is, so that no two share a multiprocessor while another has none,
/// and so little that a block of attention has room beside it.
const STREAM_SHARED_BYTES: usize = 200 * 1024;
/// Warps of a block of [`Stream`], each with a ring of its own.
const STREAM_WARPS: usize = 8;
const STREAM_STAGES_MOST: usize = 16;
/// Rings of a block that together hide how long the memory takes, in units of weights of 4 bits.
const NIBBLE_UNITS_LEAST: usize = 24;
/// Warps that divide the inputs of such weights, where all activations are held.
const NIBBLE_PARTS_LEAST: usize = 4;
const NIBBLE_PARTS_MOST: usize = 8;
/// In how many turns a warp may have its activations.
const NIBBLE_TURNS: [usize; 2] = [4, 8];
/// Blocks that divide the inputs of a tile, at most. Larger clusters take longer than they save, as measured; weights of 4 bits have more
/// to do for a byte.
const SPLITS_MOST: usize = 4;
const NIBBLE_SPLITS_MOST: usize = 8;
/// Rows up to which wide tiles read more than they save.
const WIDE_ROWS: usize = 256;
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
fn sums_bytes(warps: usize, tokens: usize) -> usize {
    warps * tokens * (STREAM_EIGHTS * 8 + 4) * 4
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
    /// Warps that divide the inputs of a pass.
    pub(super) parts: usize,
    /// Units of a warp's activations that it has at a time, in as many rooms. Of weights of 4 bits alone.
    pub(super) held: usize,
    pub(super) rooms: usize,
    pub(super) threads: usize,
    pub(super) shared_bytes: usize,
}

impl Stream {
    /// With weights as numbers or bytes.
    pub(super) fn of(rows: usize, outputs: usize, form: Form, is_gated: bool, multiprocessors: usize) -> Self {
        let tokens = *STREAM_TOKENS.iter().find(|tokens| rows <= **tokens).unwrap_or(&STREAM_TOKENS[0]);
        let Passes { blocks, passes, eights } = Passes::of(outputs, is_gated, multiprocessors);
        let unit = (tokens * 128 + eights * form.block_bytes()).next_multiple_of(1024);
        let sums = sums_bytes(STREAM_WARPS, tokens);
        let stages = ((STREAM_SHARED_BYTES - sums) / (STREAM_WARPS * unit)).min(STREAM_STAGES_MOST);
        // A block with little to do takes as much, for the same reason.
        let shared_bytes = (STREAM_WARPS * stages * unit + sums).max(STREAM_SHARED_BYTES * 3 / 4);
        let (parts, threads) = (STREAM_WARPS, STREAM_WARPS * 32);
        Self { tokens, blocks, passes, eights, stages, parts, held: 0, rooms: 0, threads, shared_bytes }
    }

    /// With weights of 4 bits. Each block holds the activations of all rows, or some of them in turns where it has one pass; none where neither
    /// leaves room for a ring.
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
        let warps = NIBBLE_WARPS;
        let units = inputs.div_ceil(form.unit());
        let plan = |(parts, held, rooms): (usize, usize, usize)| {
            // Rows lie in different banks.
            let acts = parts * rooms * rows * (held * form.unit() * 2 + 16);
            // Of two passes.
            let kept = acts + 2 * sums_bytes(warps, rows);
            let stages = (STREAM_SHARED_BYTES.checked_sub(kept)? / (warps * unit)).min(STREAM_STAGES_MOST);
            let shared_bytes = (warps * stages * unit + kept).max(STREAM_SHARED_BYTES * 3 / 4);
            let plan =
                Self { tokens, blocks, passes, eights, stages, parts, held, rooms, threads: warps * 32, shared_bytes };
            (stages * warps >= NIBBLE_UNITS_LEAST).then_some(plan)
        };
        // As many groups of warps as have a pass each.
        let parts = (warps / passes.next_power_of_two()).clamp(NIBBLE_PARTS_LEAST, NIBBLE_PARTS_MOST);
        let takes_turns = passes == 1 && inputs.is_multiple_of(form.unit());
        let in_turns = NIBBLE_TURNS.into_iter().filter(|_| takes_turns);
        let in_turns = in_turns.map(|turns| (warps, units.div_ceil(warps).div_ceil(turns), 2));
        [(parts, units.div_ceil(parts), 1)].into_iter().chain(in_turns).find_map(plan)
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
    /// How long it may take.
    time_ns: usize,
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
        let at_once = |splits| at_once(splits, multiprocessors);
        let (splits, time_ns) = splits_of(tiles, boxes, (boxes / 4).clamp(1, SPLITS_MOST), alone, at_once);
        // Where blocks have a multiprocessor each, they have all its shared memory.
        let deep = DEEP_TILES.iter().find(|deep| deep.0 == tokens && tiles * splits <= at_once(splits));
        let stages = deep.map_or(stages, |deep| deep.1);
        let shared_bytes = stages * (TILE_OUTPUTS + tokens) * 128;
        Self { tokens, stages, output_tiles, token_tiles, splits, shared_bytes, time_ns }
    }

    /// With weights of 4 bits. Two of its blocks share a multiprocessor, so that clusters leave fewer over.
    pub(super) fn of_nibbles(rows: usize, [outputs, inputs]: [usize; 2], form: Form, multiprocessors: usize) -> Self {
        let output_tiles = outputs.div_ceil(TILE_OUTPUTS);
        let (tokens, stages) =
            *NIBBLE_TILES.iter().find(|(tokens, _)| rows <= *tokens).unwrap_or(&NIBBLE_TILES[NIBBLE_TILES.len() - 1]);
        let token_tiles = rows.div_ceil(tokens);
        let (tiles, units) = (output_tiles * token_tiles, inputs.div_ceil(form.unit()));
        let most = (units / 2).clamp(1, NIBBLE_SPLITS_MOST);
        let (splits, time_ns) = splits_of(tiles, units, most, 330 + 5 * tokens, |_| multiprocessors);
        let shared_bytes = stages * (2 * tokens * 128 + TILE_OUTPUTS / 8 * form.block_bytes());
        Self { tokens, stages, output_tiles, token_tiles, splits, shared_bytes, time_ns }
    }
}

/// Multiprocessors that blocks with all shared memory can have at once in clusters of this many. Some of each group of 16 to 18 are left over by
/// clusters of more than two: on an H200 15 of 132 by clusters of three, and 12 by those of four.
fn at_once(cluster: usize, multiprocessors: usize) -> usize {
    if cluster <= 2 { multiprocessors } else { multiprocessors * 8 / 9 }
}

/// The splits that take the least time, and that time. A block that has a multiprocessor alone takes `alone_ns` for a piece of the inputs;
/// `at_once` is how many can have one.
fn splits_of(
    tiles: usize,
    pieces: usize,
    most: usize,
    alone_ns: usize,
    at_once: impl Fn(usize) -> usize,
) -> (usize, usize) {
    let time_ns = |splits: &usize| {
        let (blocks, at_once) = (tiles * splits, at_once(*splits));
        // Two blocks share a multiprocessor where there are so many.
        let each = if blocks <= at_once { alone_ns } else { 2 * alone_ns };
        // The sums are exchanged at the end.
        let end = 2500 + 700 * (splits - 1);
        blocks.div_ceil(2 * at_once) * (pieces.div_ceil(*splits) * each + end)
    };
    let splits = (1..=most).min_by_key(time_ns).unwrap_or(1);
    (splits, time_ns(&splits))
}

/// A product of the rows of prompts: tiles one after the other, each done by a block, two of which fetch rows for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wide {
    pub(super) groups: usize,
    pub(super) tokens: usize,
    pub(super) stages: usize,
    pub(super) output_tiles: usize,
    pub(super) token_tiles: usize,
    pub(super) blocks: usize,
    pub(super) shared_bytes: usize,
}

impl Wide {
    /// Blocks that fetch for each other.
    pub(super) const PEERS: usize = 2;

    /// None where the `other` way is faster.
    pub(super) fn of(rows: usize, outputs: usize, inputs: usize, multiprocessors: usize, other: &Tile) -> Option<Self> {
        let plan = |(groups, tokens, stages): (usize, usize, usize)| {
            let (output_tiles, token_tiles) = (outputs.div_ceil(64 * groups), rows.div_ceil(tokens));
            let (pairs, at_once) = (output_tiles.div_ceil(Self::PEERS) * token_tiles, multiprocessors / Self::PEERS);
            let box_ns = match (groups, tokens) {
                (2, 256) => 700,
                (3, _) => 510,
                _ => 373,
            };
            let time_ns = pairs.div_ceil(at_once) * (inputs.div_ceil(64) * box_ns + 16 * tokens);
            let shared_bytes = stages * (64 * groups + tokens) * 128 + groups * tokens * 64;
            let blocks = pairs.min(at_once) * Self::PEERS;
            (time_ns, Self { groups, tokens, stages, output_tiles, token_tiles, blocks, shared_bytes })
        };
        let (time_ns, best) = WIDE_TILES.map(plan).into_iter().min_by_key(|(time_ns, _)| *time_ns)?;
        (rows > WIDE_ROWS && time_ns < other.time_ns).then_some(best)
    }

    pub(super) fn threads(&self) -> usize {
        128 * (self.groups + 1)
    }
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
                let blocks = tile.output_tiles * tile.token_tiles * tile.splits;
                let is_deep = tile.shared_bytes > 114 * 1024;
                assert!(!is_deep || blocks <= if tile.splits > 2 { 117 } else { 132 }, "all at once: {tile:?}");
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
        assert!(plan(1, 14336).is_some_and(|plan| plan.stages >= 4));
        assert!(plan(8, 4096).is_some());
        assert!(plan(8, 14336).is_some_and(|plan| plan.rooms == 2 && plan.stages >= 2), "some at a time");
        assert_eq!((plan(8, 14336 + 64), plan(9, 256), plan(8, 1 << 20)), (None, None, None));
    }

    #[test]
    fn prompts_have_wide_tiles_where_these_fill_the_gpu() {
        let plan = |rows, outputs, inputs| Wide::of(rows, outputs, inputs, 132, &Tile::of(rows, outputs, inputs, 132));
        for (outputs, inputs) in [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (3072, 2048), (2048, 8192)]
        {
            let wide = plan(1024, outputs, inputs).expect("wide tiles");
            assert!(wide.output_tiles * wide.groups * 64 >= outputs && wide.token_tiles * wide.tokens >= 1024);
            assert!(wide.blocks <= 132 && wide.blocks.is_multiple_of(Wide::PEERS) && wide.blocks >= 126, "{wide:?}");
            assert!(wide.shared_bytes <= 224 * 1024, "barriers and scales have room beside it: {wide:?}");
            assert_eq!(plan(128, outputs, inputs), None);
        }
        assert_eq!(plan(256, 4096, 14336), None, "too few tiles");
    }

    #[test]
    fn warps_that_divide_inputs_have_passes_of_their_own() {
        let parts = |outputs| Stream::of_nibbles(1, [outputs, 4096], Form::Centred, false, 132).map(|plan| plan.parts);
        assert_eq!([4096, 6144, 28672, 128256].map(parts), [Some(8), Some(8), Some(4), Some(4)]);
    }

    #[test]
    fn short_contexts_are_not_divided() {
        assert_eq!(Singles::of(256, 8, 8, 64, 132), Singles { warps: 4, splits: 1 });
        assert_eq!(Singles::of(1, 8, 16, 64, 132), Singles { warps: 8, splits: 1 });
        assert_eq!(Singles::of(1, 8, 16, 128, 132), Singles { warps: 4, splits: 2 });
        assert_eq!(Singles::of(1, 8, 1024, 64, 132), Singles { warps: 8, splits: 33 });
    }
}
