//! Small blocks that were freed a moment ago, kept by size for whoever asks next: neither call looks at a record.
//! Never grows: what does not fit is joined with its neighbours at once, and before the driver is called all are.
//!
//! With 100,000 blocks the records do not fit into a core's cache, and joining touches up to ten of them: that made a
//! call three times as slow as with 1,000 blocks.

use super::tlsf::{CLASSES, class_of};

/// Rows of classes that are kept: sizes below this many units.
const UNITS_END: u32 = 4096;
const ROWS: usize = class_of(UNITS_END - 1).0 + 1;
/// Blocks of each class.
const DEPTH: usize = 8;

/// A block that nobody has, though its record still says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) index: u32,
    /// Where it begins, and how long it is, in units.
    pub(super) at: u32,
    pub(super) units: u32,
}

#[derive(Clone, Copy, Default)]
struct Stack {
    length: u32,
    blocks: [Kept; DEPTH],
}

/// The blocks that are kept.
pub(super) struct Quick {
    stacks: Box<[[Stack; CLASSES]; ROWS]>,
    /// Units of all of them.
    units: u64,
}

impl Quick {
    pub(super) fn new() -> Self {
        Self { stacks: Box::new([[Stack::default(); CLASSES]; ROWS]), units: 0 }
    }

    /// Keeps a block if there is a place for it, and if no more than so many units are then kept in all: they lie
    /// between others that could be joined.
    #[inline]
    pub(super) fn put(&mut self, block: Kept, units_max: u64) -> bool {
        if block.units >= UNITS_END || self.units + u64::from(block.units) > units_max {
            return false;
        }
        let (row, class) = class_of(block.units);
        let stack = &mut self.stacks[row][class];
        let length = stack.length as usize;
        if length == DEPTH {
            return false;
        }
        stack.blocks[length] = block;
        stack.length += 1;
        self.units += u64::from(block.units);
        true
    }

    /// The block of the wanted size's class that was freed last, of those that are large enough: at most a 32nd larger.
    #[inline]
    pub(super) fn take(&mut self, units: u32) -> Option<Kept> {
        if units >= UNITS_END {
            return None;
        }
        let (row, class) = class_of(units);
        let stack = &mut self.stacks[row][class];
        let length = stack.length as usize;
        let place = stack.blocks[..length].iter().rposition(|block| block.units >= units)?;
        let block = stack.blocks[place];
        stack.length -= 1;
        // The last of all nearly always fits.
        if place + 1 < length {
            stack.blocks.copy_within(place + 1..length, place);
        }
        self.units -= u64::from(block.units);
        Some(block)
    }

    /// Gives up all blocks.
    pub(super) fn drain(&mut self) -> Vec<Kept> {
        if self.units == 0 {
            return Vec::new();
        }
        self.units = 0;
        let stacks = self.stacks.iter_mut().flatten();
        stacks.flat_map(|stack| stack.blocks[..std::mem::take(&mut stack.length) as usize].to_vec()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(index: u32, units: u32) -> Kept {
        Kept { index, at: 10 * index, units }
    }

    #[test]
    fn the_last_that_is_large_enough_comes_back() {
        let mut quick = Quick::new();
        for (index, units) in [(1, 600), (2, 607), (3, 592)] {
            assert!(quick.put(block(index, units), 10_000));
        }
        assert_eq!(quick.take(595), Some(block(2, 607)));
        assert_eq!(quick.take(595), Some(block(1, 600)));
        assert_eq!(quick.take(595), None);
        assert_eq!(quick.take(592), Some(block(3, 592)));
        assert_eq!((quick.take(592), quick.units), (None, 0));
    }

    #[test]
    fn no_more_are_kept_than_there_are_places() {
        let mut quick = Quick::new();
        let kept = (0..20).filter(|index| quick.put(block(*index, 100), 10_000)).count();
        assert_eq!(
            (kept, quick.put(block(0, 200), 10_000), quick.put(block(0, UNITS_END), 10_000)),
            (DEPTH, true, false)
        );
        assert!(!quick.put(block(0, 300), 1299) && quick.put(block(0, 300), 1300));
        assert_eq!(quick.drain().len(), DEPTH + 2);
        assert_eq!((quick.drain().len(), quick.take(100)), (0, None));
    }
}
