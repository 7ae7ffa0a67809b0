//! Two-level segregated free lists: finds a block of at least some size in constant time, by two looks at bitmaps.
//! Owns no blocks and knows no addresses: the lists run through the records of a slab.
//!
//! The first level are powers of two, the second cuts each into 32 classes, so that a class is at most 1/32 wide. Sizes
//! below 64 units have a class each.

/// No block: the end of a list.
pub(super) const NONE: u32 = u32::MAX;

/// Classes of each power of two.
pub(super) const CLASSES: usize = 32;
const CLASSES_LOG2: u32 = CLASSES.trailing_zeros();
/// Sizes below 32 units share the first row; each further power of two that 32 bits hold has a row of its own.
const ROWS: usize = 32 - CLASSES_LOG2 as usize + 1;

/// Blocks of the wanted size's own class that are looked at on the hot path: some may be too small.
pub(super) const FEW: usize = 4;
/// The same before the driver is called, which costs more than looking.
pub(super) const MANY: usize = 512;

/// The two links of a list that runs through a slab.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    pub(super) before: u32,
    pub(super) after: u32,
}

/// What an index asks of the slab through which its lists run.
pub(super) trait Slab {
    /// The size of a block.
    fn units(&self, index: u32) -> u32;
    /// The links of a block, which is in one list at most.
    fn links(&mut self, index: u32) -> &mut Links;
    /// The next block of the list.
    fn after(&self, index: u32) -> u32;
}

/// Lists of blocks by class of size.
#[derive(Debug)]
pub(super) struct SizeIndex {
    /// A bit for each row that has a block.
    rows: u32,
    /// A bit for each class that has a block.
    classes: [u32; ROWS],
    heads: Box<[[u32; CLASSES]; ROWS]>,
}

impl SizeIndex {
    pub(super) fn new() -> Self {
        Self { rows: 0, classes: [0; ROWS], heads: Box::new([[NONE; CLASSES]; ROWS]) }
    }

    /// Puts a block that is in no list at the head of its class: what was freed last is likely in the cache.
    #[inline]
    pub(super) fn insert(&mut self, slab: &mut impl Slab, index: u32) {
        let (row, class) = class_of(slab.units(index));
        let head = std::mem::replace(&mut self.heads[row][class], index);
        *slab.links(index) = Links { before: NONE, after: head };
        if head != NONE {
            slab.links(head).before = index;
        }
        self.rows |= 1 << row;
        self.classes[row] |= 1 << class;
    }

    /// Takes a block out of its list.
    #[inline]
    pub(super) fn remove(&mut self, slab: &mut impl Slab, index: u32) {
        let (row, class) = class_of(slab.units(index));
        let Links { before, after } = *slab.links(index);
        if after != NONE {
            slab.links(after).before = before;
        }
        if before != NONE {
            slab.links(before).after = after;
            return;
        }
        debug_assert_eq!(self.heads[row][class], index, "a block is removed from a list that it is not in");
        self.heads[row][class] = after;
        if after == NONE {
            self.classes[row] &= !(1 << class);
            if self.classes[row] == 0 {
                self.rows &= !(1 << row);
            }
        }
    }

    /// A block of at least so many units, or nearly the smallest such: of the wanted size's own class the first `tries`
    /// are looked at, then the next class that has a block fits for sure.
    #[inline]
    pub(super) fn find(&self, slab: &impl Slab, units: u32, tries: usize) -> Option<u32> {
        let (row, class) = class_of(units);
        let mut index = self.heads[row][class];
        for _ in 0..tries {
            if index == NONE {
                break;
            }
            if slab.units(index) >= units {
                return Some(index);
            }
            index = slab.after(index);
        }
        self.head_above(row, class)
    }

    /// All blocks of at least so many units.
    pub(super) fn all_from(&self, slab: &impl Slab, units: u32) -> Vec<u32> {
        let (first_row, first_class) = class_of(units);
        let mut found = Vec::new();
        for row in first_row..ROWS {
            let from = if row == first_row { first_class } else { 0 };
            for mut index in self.heads[row].iter().copied().skip(from) {
                while index != NONE {
                    if slab.units(index) >= units {
                        found.push(index);
                    }
                    index = slab.after(index);
                }
            }
        }
        found
    }

    /// The largest block; of a long list in the highest class only the first are looked at.
    pub(super) fn largest(&self, slab: &impl Slab) -> Option<u32> {
        if self.rows == 0 {
            return None;
        }
        let row = (31 - self.rows.leading_zeros()) as usize;
        let class = (31 - self.classes[row].leading_zeros()) as usize;
        let is_block = |index: &u32| *index != NONE;
        let list =
            std::iter::successors(Some(self.heads[row][class]), |index| Some(slab.after(*index)).filter(is_block));
        list.take(MANY).max_by_key(|index| slab.units(*index))
    }

    /// The head of the first list above a class.
    #[inline]
    fn head_above(&self, row: usize, class: usize) -> Option<u32> {
        let in_row = self.classes[row] & above(class as u32);
        let (row, in_row) = if in_row != 0 {
            (row, in_row)
        } else {
            let rows = self.rows & above(row as u32);
            if rows == 0 {
                return None;
            }
            let row = rows.trailing_zeros() as usize;
            (row, self.classes[row])
        };
        Some(self.heads[row][in_row.trailing_zeros() as usize])
    }
}

/// The bits above one.
#[inline]
fn above(bit: u32) -> u32 {
    // Two shifts: one by 32 would be none.
    u32::MAX << bit << 1
}

/// The row and class of a size.
#[inline]
pub(super) const fn class_of(units: u32) -> (usize, usize) {
    if units < CLASSES as u32 {
        return (0, units as usize);
    }
    let log2 = 31 - units.leading_zeros();
    let row = log2 - CLASSES_LOG2 + 1;
    let class = (units >> (log2 - CLASSES_LOG2)) as usize % CLASSES;
    (row as usize, class)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sizes(Vec<(u32, Links)>);

    impl Slab for Sizes {
        fn units(&self, index: u32) -> u32 {
            self.0[index as usize].0
        }
        fn links(&mut self, index: u32) -> &mut Links {
            &mut self.0[index as usize].1
        }
        fn after(&self, index: u32) -> u32 {
            self.0[index as usize].1.after
        }
    }

    fn indexed(sizes: &[u32]) -> (SizeIndex, Sizes) {
        let mut slab = Sizes(sizes.iter().map(|units| (*units, Links { before: NONE, after: NONE })).collect());
        let mut index = SizeIndex::new();
        for block in 0..sizes.len() as u32 {
            index.insert(&mut slab, block);
        }
        (index, slab)
    }

    #[test]
    fn classes_rise_with_sizes_and_are_at_most_a_32nd_wide() {
        let mut last = (0, 0);
        let mut first_of_class = 1_u32;
        for units in 1..200_000_u32 {
            let class = class_of(units);
            assert!(class >= last, "{units}");
            if class != last {
                (last, first_of_class) = (class, units);
            }
            assert!((units - first_of_class) as f64 <= first_of_class as f64 / 32.0, "{units}");
        }
        assert_eq!(class_of(u32::MAX), (ROWS - 1, CLASSES - 1));
    }

    #[test]
    fn what_is_found_fits_and_is_of_the_best_class() {
        let sizes = [1, 5, 33, 64, 65, 66, 186, 4096, 70_000];
        let (index, slab) = indexed(&sizes);
        for wanted in 1..=70_000 {
            let found = slab.units(index.find(&slab, wanted, FEW).unwrap());
            let best = sizes.iter().copied().filter(|size| *size >= wanted).min().unwrap();
            assert!(found >= wanted && class_of(found) == class_of(best), "{wanted}: {found}, not {best}");
        }
        assert_eq!(index.find(&slab, 70_001, FEW), None);
        assert_eq!(index.find(&slab, u32::MAX, FEW), None);
    }

    #[test]
    fn removed_blocks_are_not_found() {
        let sizes = [10, 10, 10, 500, 501];
        let (mut index, mut slab) = indexed(&sizes);
        assert_eq!(index.largest(&slab), Some(4));
        for block in [1, 4, 2, 0, 3] {
            index.remove(&mut slab, block);
            assert!(!index.all_from(&slab, 1).contains(&block));
        }
        assert_eq!((index.rows, index.largest(&slab), index.find(&slab, 1, FEW)), (0, None, None));
        assert_eq!(index.classes, [0; ROWS]);
    }

    #[test]
    fn all_from_leaves_out_what_is_smaller_in_the_same_class() {
        let (index, slab) = indexed(&[128, 129, 131, 7, 9000]);
        let mut sizes: Vec<u32> = index.all_from(&slab, 129).into_iter().map(|block| slab.units(block)).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [129, 131, 9000]);
    }
}
