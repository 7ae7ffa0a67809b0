//! Products of bytes on AMX tiles, for two queries or more: sixteen of them times sixteen rows an instruction.

use super::fetch_ahead;
use super::levels::{Levels, Sums};
use crate::cpu::tiles::{I8U8Tiles, Keep, TileKind, load, store, zero};
use crate::scan::chunk::{PANEL_ROWS, STEP};

const TILE_BYTES: usize = 16 * STEP;
const SUM_ROW_BYTES: usize = PANEL_ROWS * size_of::<i32>();

/// # Safety
/// The tiles of this thread are configured; the panel has the levels' steps.
pub(super) unsafe fn dots(panel: &[u8], levels: &Levels, sums: &mut Sums) {
    let is_tall = levels.padded() > 16;
    // SAFETY: a step of the panel is two tiles, one of the queries a tile or two, and the sums are four.
    unsafe {
        zero::<0>();
        zero::<1>();
        if is_tall {
            zero::<2>();
            zero::<3>();
        }
        for step in 0..levels.steps() {
            let rows = panel.as_ptr().add(step * 2 * TILE_BYTES);
            let queries = levels.step(step).as_ptr().cast::<u8>();
            for line in 0..2 * TILE_BYTES / 64 {
                fetch_ahead(rows.add(line * 64));
            }
            load::<6>(rows, Keep::Near);
            load::<4>(queries, Keep::Near);
            I8U8Tiles::multiply_add::<0, 4, 6>();
            load::<7>(rows.add(TILE_BYTES), Keep::Near);
            I8U8Tiles::multiply_add::<1, 4, 7>();
            if is_tall {
                load::<5>(queries.add(TILE_BYTES), Keep::Near);
                I8U8Tiles::multiply_add::<2, 5, 6>();
                I8U8Tiles::multiply_add::<3, 5, 7>();
            }
        }
        let to = sums.0.as_mut_ptr().cast::<u8>();
        store::<0>(to, SUM_ROW_BYTES);
        store::<1>(to.add(64), SUM_ROW_BYTES);
        if is_tall {
            let lower = to.add(16 * SUM_ROW_BYTES);
            store::<2>(lower, SUM_ROW_BYTES);
            store::<3>(lower.add(64), SUM_ROW_BYTES);
        }
    }
}
