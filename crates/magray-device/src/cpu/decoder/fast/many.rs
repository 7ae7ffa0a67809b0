//! Products of many rows with a layer's panels on AMX tiles: rows as bf16 in tiles, panels unpacked by the thread that reads them.
//! Takes so many inputs at once that the rows stay in the second cache while panel after panel meets them.

use super::finish::{Columns, Ending, FinishRows};
use super::form::{Form, GROUP, PANEL};
use super::linear::{PanelLinear, Unit};
use super::rows::{TILE_BYTES, TILE_ROWS, TileRow};
use super::tiles::{BLOCK_ROWS, BlockSums, GROUP_BYTES, multiply as multiply_tiles, unpack};
use super::work::{Inputs, Team, pairs_with};
use crate::cpu::Aligned;
use crate::cpu::gemm::Tiles;
use crate::cpu::simd::vectorize;
use half::bf16;
use magray_core::CpuPath;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Bytes of rows that stay in the second cache.
const ROW_BYTES: usize = 1 << 20;
/// Fewer groups at once would spend their time on sums.
const GROUPS_LEAST: usize = 16;
/// Groups of a panel that stay in the first cache from block to block of rows (24 KiB of its 48).
const GROUPS_NEAR: usize = 12;

/// Rows as tiles: `[block of 16 rows][group][row][input]`.
pub(super) struct TileRows(Aligned<bf16>);

impl Default for TileRows {
    fn default() -> Self {
        Self(Aligned::zeroed(0))
    }
}

/// Some groups of a panel in bf16, and the sums of all blocks of rows by a panel, and by its gate's other.
pub(super) struct Unpacked {
    tiles: Aligned<u8>,
    sums: [Vec<BlockSums>; 2],
}

impl Default for Unpacked {
    fn default() -> Self {
        Self { tiles: Aligned::zeroed(GROUPS_NEAR * GROUP_BYTES), sums: [const { Vec::new() }; 2] }
    }
}

impl Unpacked {
    /// The groups of a panel as tiles: unpacked, or where they lie.
    ///
    /// # Safety
    /// The machine has AVX-512.
    unsafe fn tiles(&mut self, form: Form, panel: &[u8], groups: &Range<usize>) -> *const u8 {
        let panel = panel[groups.start * form.group_bytes()..groups.end * form.group_bytes()].as_ptr();
        if form == Form::Bf16 {
            return panel;
        }
        assert!(groups.len() <= GROUPS_NEAR, "room for the groups");
        // SAFETY: the panel has these groups, and there is room for them.
        unsafe { unpack(form, panel, groups.len(), self.tiles.as_mut_ptr()) };
        self.tiles.as_ptr()
    }
}

/// How many groups of inputs are multiplied before the next ones.
pub(super) fn groups_at_once(rows: usize, groups: usize) -> usize {
    let most = (ROW_BYTES / (rows.next_multiple_of(TILE_ROWS) * GROUP * 2)).max(GROUPS_LEAST);
    // In equal parts. A quarter more than fits is better than another round.
    let parts = (groups * 4).div_ceil(most * 5).max(1);
    groups.div_ceil(parts)
}

/// Multiplies all rows with all panels, for a path with tiles. `rooms` are for the rows, and one for each thread.
pub(super) fn multiply(
    team: Team<'_>,
    x: Inputs<'_>,
    rooms: (&mut TileRows, &[Mutex<Unpacked>]),
    weights: &PanelLinear,
    (out, ending): (Columns, Ending),
) {
    let groups = weights.groups();
    fill(team, &x, rooms.0, groups);
    let rows = &*rooms.0;
    let others = pairs_with(weights, ending);
    let count = others.map_or(weights.units().len(), <[Unit]>::len);
    let at_once = groups_at_once(x.rows, groups);
    for first in (0..groups).step_by(at_once) {
        let part = first..groups.min(first + at_once);
        let ending = if first > 0 { Ending::Add } else { ending };
        team.shares.fill(count);
        team.pool.run(&|rank| {
            // SAFETY: the AMX path was found on this machine.
            let tiles = unsafe { Tiles::configure() };
            let mut room = rooms.1[rank].lock().unwrap_or_else(PoisonError::into_inner);
            for at in team.shares.of(rank) {
                let pair = [Some(weights.units()[at]), others.map(|others| others[at])];
                let block = Unpack { weights, pair, groups: part.clone(), is_first: first == 0 };
                // SAFETY: columns of different units are apart, and each item is taken once.
                unsafe { block.multiply(team.path, &tiles, &mut room, (rows, x.rows), (out, ending)) };
            }
        });
    }
}

/// Puts all rows into tiles.
fn fill(team: Team<'_>, x: &Inputs<'_>, rows: &mut TileRows, groups: usize) {
    let numbers = x.rows.next_multiple_of(TILE_ROWS) * groups * GROUP;
    if rows.0.len() < numbers {
        rows.0 = Aligned::zeroed(numbers);
    }
    let tiles = Columns { start: rows.0.as_mut_ptr().cast(), stride: 0 };
    team.each_row(x.rows, &|row| {
        let mut floats = vec![0.0; groups * GROUP];
        let at = row / TILE_ROWS * groups * TILE_ROWS * GROUP + row % TILE_ROWS * GROUP;
        // SAFETY: there is room for all rows; a row is one thread's; the path is the machine's.
        unsafe {
            let to = tiles.at(0, 0).cast::<bf16>().add(at);
            vectorize(team.path, TileRow { x: x.row(row), norm: x.norm, floats: &mut floats, to });
        }
    });
}

/// Groups of a panel that meet all rows.
struct Unpack<'a> {
    weights: &'a PanelLinear,
    pair: [Option<Unit>; 2],
    groups: Range<usize>,
    /// Whether they are the first of the inputs: these bring the bias.
    is_first: bool,
}

impl Unpack<'_> {
    /// # Safety
    /// The machine has the AMX path; no other thread writes the columns.
    unsafe fn multiply(
        &self,
        path: CpuPath,
        tiles: &Tiles,
        room: &mut Unpacked,
        (rows, count): (&TileRows, usize),
        (out, ending): (Columns, Ending),
    ) {
        let weights = self.weights;
        let [Some(unit), other] = self.pair else { return };
        let block_bytes = weights.groups() * TILE_BYTES;
        let blocks = count.div_ceil(BLOCK_ROWS);
        let near = self.groups.len().div_ceil(self.groups.len().div_ceil(GROUPS_NEAR));
        for (which, unit) in self.pair.iter().enumerate() {
            let Some(unit) = *unit else { continue };
            let (form, bytes) = weights.panel(unit);
            if room.sums[which].len() < blocks {
                room.sums[which].resize(blocks, BlockSums([0.0; BLOCK_ROWS * PANEL]));
            }
            for first in self.groups.clone().step_by(near) {
                let groups = first..self.groups.end.min(first + near);
                // SAFETY: the AMX path has AVX-512.
                let panel = unsafe { room.tiles(form, bytes, &groups) };
                for (block, sums) in room.sums[which].iter_mut().take(blocks).enumerate() {
                    let from = rows.0.as_ptr().cast::<u8>().wrapping_add(2 * block * block_bytes);
                    let from = from.wrapping_add(groups.start * TILE_BYTES);
                    let next = (count - block * BLOCK_ROWS > TILE_ROWS).then_some(block_bytes);
                    let begins = first == self.groups.start;
                    // SAFETY: rows and panel have these groups.
                    unsafe { multiply_tiles(tiles, (from, next), (panel, groups.len()), (sums, begins)) };
                }
            }
        }
        let bias = |unit: Unit| if self.is_first { weights.bias(unit) } else { &[] };
        for block in 0..blocks {
            let first = block * BLOCK_ROWS;
            let numbers = BLOCK_ROWS.min(count - first) * PANEL;
            let finish = FinishRows {
                sums: &room.sums[0][block].0[..numbers],
                others: if other.is_some() { &room.sums[1][block].0[..numbers] } else { &[] },
                bias: bias(unit),
                other_bias: other.map_or(&[], bias),
                ending,
                out: out.at(first, unit.output as usize),
                stride: out.stride,
                columns: unit.columns as usize,
            };
            // SAFETY: the caller's promise.
            unsafe { vectorize(path, finish) };
        }
    }
}
