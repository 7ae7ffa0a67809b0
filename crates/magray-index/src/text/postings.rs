//! The documents of one term with their values, ascending by slot, in blocks of bounded size.
//! An insertion or a removal moves one block, not the whole list. Knows nothing of scores.

use magray_device::scan::is_set;
use std::slice;

/// Large enough that walking blocks costs nothing, small enough that moving one is cheap (4 KiB).
const BLOCK: usize = 512;

/// A document that has the term, and the term's value there: a count of words, or a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Posting {
    pub(super) slot: u32,
    pub(super) value: f32,
}

/// Most terms are rare, so a short list is one allocation.
#[derive(Debug)]
pub(super) enum Postings {
    One(Vec<Posting>),
    Many { blocks: Vec<Vec<Posting>>, len: usize },
}

impl Default for Postings {
    fn default() -> Self {
        Self::One(Vec::new())
    }
}

impl Postings {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::One(block) => block.len(),
            Self::Many { len, .. } => *len,
        }
    }

    /// Ascending; none is empty but that of an empty list.
    pub(super) fn blocks(&self) -> &[Vec<Posting>] {
        match self {
            Self::One(block) => slice::from_ref(block),
            Self::Many { blocks, .. } => blocks,
        }
    }

    /// A slot that is there already gets the new value.
    pub(super) fn insert(&mut self, posting: Posting) {
        if let Self::One(block) = self {
            if block.len() < BLOCK {
                insert_into(block, posting);
                return;
            }
            let len = block.len();
            *self = Self::Many { blocks: vec![std::mem::take(block)], len };
        }
        let Self::Many { blocks, len } = self else { unreachable!("was made so above") };
        let mut at = blocks.partition_point(|block| last_slot(block) < posting.slot).min(blocks.len() - 1);
        if blocks[at].len() == BLOCK {
            // A list built in order has full blocks; one that grows in its middle has room for more there.
            let beyond = last_slot(&blocks[at]) < posting.slot;
            let tail = if beyond { Vec::new() } else { blocks[at].split_off(BLOCK / 2) };
            blocks.insert(at + 1, tail);
            at += usize::from(last_slot(&blocks[at]) < posting.slot);
        }
        *len += usize::from(insert_into(&mut blocks[at], posting));
    }

    pub(super) fn remove(&mut self, slot: u32) {
        match self {
            Self::One(block) => _ = remove_from(block, slot),
            Self::Many { blocks, len } => {
                let at = blocks.partition_point(|block| last_slot(block) < slot);
                if at == blocks.len() || !remove_from(&mut blocks[at], slot) {
                    return;
                }
                *len -= 1;
                let next = (at + 1).min(blocks.len() - 1);
                if blocks[at].is_empty() {
                    blocks.remove(at);
                } else if next != at && blocks[at].len() + blocks[next].len() <= BLOCK / 2 {
                    let tail = blocks.remove(next);
                    blocks[at].extend(tail);
                }
                if let [_] = blocks.as_slice() {
                    *self = Self::One(blocks.pop().unwrap_or_default());
                }
            }
        }
    }

    /// How many documents are among those with a bit in `slots`.
    pub(super) fn count_in(&self, slots: &[u64]) -> usize {
        self.blocks().iter().flatten().filter(|posting| is_set(slots, posting.slot)).count()
    }

    /// Memory that it holds.
    pub(super) fn bytes(&self) -> usize {
        let postings: usize = self.blocks().iter().map(|block| block.capacity() * size_of::<Posting>()).sum();
        match self {
            Self::One(_) => postings,
            Self::Many { blocks, .. } => postings + blocks.capacity() * size_of::<Vec<Posting>>(),
        }
    }
}

/// Whether it is longer now.
fn insert_into(block: &mut Vec<Posting>, posting: Posting) -> bool {
    // Documents mostly come in the order of their slots.
    if block.last().is_none_or(|last| last.slot < posting.slot) {
        block.push(posting);
        return true;
    }
    match block.binary_search_by_key(&posting.slot, |posting| posting.slot) {
        Ok(at) => block[at] = posting,
        Err(at) => {
            block.insert(at, posting);
            return true;
        }
    }
    false
}

fn remove_from(block: &mut Vec<Posting>, slot: u32) -> bool {
    let found = block.binary_search_by_key(&slot, |posting| posting.slot);
    if let Ok(at) = found {
        block.remove(at);
        if block.len() * 4 < block.capacity() {
            block.shrink_to(block.len() * 2);
        }
    }
    found.is_ok()
}

fn last_slot(block: &[Posting]) -> u32 {
    block.last().map_or(0, |posting| posting.slot)
}
