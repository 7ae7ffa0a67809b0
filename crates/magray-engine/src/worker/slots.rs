//! How batches and answers lie in the memory that supervisor and worker share.
//! Who may use a slot at a time is settled by messages, not here.

use super::message::{Extent, Layout};
use super::wire::Garbled;
use crate::packed::Tokens;
use magray_device::SharedMemory;
use std::io;
use std::os::fd::OwnedFd;

/// The slots, as one of the two processes sees them.
#[derive(Debug)]
pub(super) struct Slots {
    memory: SharedMemory,
    layout: Layout,
}

/// A batch that was copied out of its slot; its memory is used again.
#[derive(Debug, Default)]
pub(super) struct Staged {
    ids: Vec<u32>,
    types: Vec<u32>,
    lengths: Vec<u32>,
}

impl Layout {
    /// Words of all slots; `None` where there are more than can be counted.
    fn words(&self) -> Option<usize> {
        let [slots, tokens, texts] = [self.slots, self.tokens_max, self.texts_max].map(|n| n as usize);
        let rows = self.numbers()?;
        let slot = tokens.checked_mul(2)?.checked_add(texts)?.checked_add(rows)?;
        slot.checked_mul(slots)
    }

    /// Numbers that an answer has room for.
    fn numbers(&self) -> Option<usize> {
        let rows = (self.texts_max as usize).checked_mul(self.outputs_max as usize)?;
        Some(rows.max(self.token_numbers_max as usize))
    }

    /// Where a slot begins: ids, types, lengths of the texts, rows of the answer.
    fn places(&self, slot: usize) -> Places {
        assert!(slot < self.slots as usize, "slot {slot} of {}", self.slots);
        let words = self.words().unwrap_or_default() / self.slots as usize;
        let (tokens, texts) = (self.tokens_max as usize, self.texts_max as usize);
        let ids = slot * words;
        Places { ids, types: ids + tokens, lengths: ids + 2 * tokens, rows: ids + 2 * tokens + texts }
    }
}

struct Places {
    ids: usize,
    types: usize,
    lengths: usize,
    rows: usize,
}

impl Slots {
    /// Makes the memory.
    pub(super) fn create(layout: Layout) -> io::Result<Self> {
        let words = layout.words().ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory: SharedMemory::create(words)?, layout })
    }

    /// Takes the memory over that the other process made.
    pub(super) fn take_over(fd: OwnedFd, layout: Layout) -> io::Result<Self> {
        let words = layout.words().ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory: SharedMemory::from_fd(fd, words)?, layout })
    }

    pub(super) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Puts a batch into a slot. One that does not fit is a bug: batches are formed within the limits.
    pub(super) fn put(&self, slot: usize, texts: &[Tokens<'_>]) -> Extent {
        let Places { ids, types, lengths, .. } = self.layout.places(slot);
        let tokens: usize = texts.iter().map(|text| text.ids.len()).sum();
        assert!(tokens <= self.layout.tokens_max as usize, "{tokens} tokens, at most {}", self.layout.tokens_max);
        assert!(
            texts.len() <= self.layout.texts_max as usize,
            "{} texts, at most {}",
            texts.len(),
            self.layout.texts_max
        );
        let has_types = texts.iter().any(|text| !text.types.is_empty());
        let mut at = 0;
        for (index, text) in texts.iter().enumerate() {
            assert!(text.types.is_empty() || text.types.len() == text.ids.len(), "a type for each id, or none");
            self.memory.write(ids + at, text.ids);
            match (has_types, text.types) {
                (false, _) => {}
                (true, []) => self.memory.write(types + at, &vec![0; text.ids.len()]),
                (true, kinds) => self.memory.write(types + at, kinds),
            }
            self.memory.write(lengths + index, &[text.ids.len() as u32]);
            at += text.ids.len();
        }
        Extent { texts: texts.len() as u32, tokens: tokens as u32, has_types }
    }

    /// Copies a batch out of its slot. What the other process says of it is checked: it may be mad.
    pub(super) fn stage(&self, slot: u32, extent: Extent, staged: &mut Staged) -> Result<(), Garbled> {
        let Extent { texts, tokens, has_types } = extent;
        if slot >= self.layout.slots || texts > self.layout.texts_max || tokens > self.layout.tokens_max {
            return Err(Garbled("a batch that is larger than its slot"));
        }
        let Places { ids, types, lengths, .. } = self.layout.places(slot as usize);
        staged.lengths.resize(texts as usize, 0);
        self.memory.read(lengths, &mut staged.lengths);
        if staged.lengths.iter().map(|length| u64::from(*length)).sum::<u64>() != u64::from(tokens) {
            return Err(Garbled("a batch whose texts are not as long as its tokens"));
        }
        staged.ids.resize(tokens as usize, 0);
        self.memory.read(ids, &mut staged.ids);
        staged.types.clear();
        if has_types {
            staged.types.resize(tokens as usize, 0);
            self.memory.read(types, &mut staged.types);
        }
        Ok(())
    }

    /// Puts the answer into a slot.
    pub(super) fn put_rows(&self, slot: usize, rows: &[f32]) {
        self.check_rows(rows.len());
        self.memory.write_floats(self.layout.places(slot).rows, rows);
    }

    /// Copies the beginning of a slot's answer out.
    pub(super) fn read_rows(&self, slot: usize, rows: &mut [f32]) {
        self.check_rows(rows.len());
        self.memory.read_floats(self.layout.places(slot).rows, rows);
    }

    fn check_rows(&self, numbers: usize) {
        let room = self.layout.numbers().unwrap_or_default();
        assert!(numbers <= room, "{numbers} numbers of an answer, at most {room}");
    }
}

impl Staged {
    /// The texts.
    pub(super) fn texts(&self) -> Vec<Tokens<'_>> {
        let mut at = 0;
        let mut next = |length: &u32| {
            let range = at..at + *length as usize;
            at = range.end;
            Tokens { ids: &self.ids[range.clone()], types: self.types.get(range).unwrap_or_default() }
        };
        self.lengths.iter().map(&mut next).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { slots: 3, tokens_max: 10, texts_max: 4, outputs_max: 2, token_numbers_max: 0 };

    fn both() -> (Slots, Slots) {
        let here = Slots::create(LAYOUT).unwrap();
        let fd = here.memory().fd().try_clone_to_owned().unwrap();
        (here, Slots::take_over(fd, LAYOUT).unwrap())
    }

    #[test]
    fn batches_and_answers_of_all_slots_keep_apart() {
        let (here, there) = both();
        let texts: Vec<Vec<u32>> = (0..3).map(|slot| (0..10).map(|at| slot * 100 + at).collect()).collect();
        let extents: Vec<Extent> = texts
            .iter()
            .enumerate()
            .map(|(slot, ids)| {
                here.put(slot, &[Tokens { ids: &ids[..4], types: &[1; 4] }, Tokens { ids: &ids[4..], types: &[] }])
            })
            .collect();
        (0..3).for_each(|slot| there.put_rows(slot, &[slot as f32; 8]));
        let mut staged = Staged::default();
        for slot in 0..3 {
            there.stage(slot as u32, extents[slot], &mut staged).unwrap();
            let got = staged.texts();
            assert_eq!((got[0].ids, got[0].types), (&texts[slot][..4], &[1; 4][..]));
            assert_eq!((got[1].ids, got[1].types), (&texts[slot][4..], &[0; 6][..]));
            let mut rows = [9.0; 8];
            here.read_rows(slot, &mut rows);
            assert_eq!(rows, [slot as f32; 8]);
        }
    }

    #[test]
    fn a_batch_without_types_has_none_also_after_one_that_had() {
        let (here, there) = both();
        let mut staged = Staged::default();
        let with = here.put(0, &[Tokens { ids: &[1, 2], types: &[1, 1] }]);
        there.stage(0, with, &mut staged).unwrap();
        let without = here.put(0, &[Tokens { ids: &[3], types: &[] }]);
        there.stage(0, without, &mut staged).unwrap();
        assert_eq!((staged.texts()[0].ids, staged.texts()[0].types), (&[3][..], &[][..]));
    }

    #[test]
    fn what_a_mad_process_says_of_a_batch_is_refused() {
        let (here, there) = both();
        let good = here.put(0, &[Tokens { ids: &[1, 2], types: &[] }]);
        let mut staged = Staged::default();
        for bad in [Extent { tokens: 11, ..good }, Extent { texts: 5, ..good }, Extent { tokens: 3, ..good }] {
            assert!(there.stage(0, bad, &mut staged).is_err(), "{bad:?}");
        }
        assert!(there.stage(3, good, &mut staged).is_err());
        assert!(there.stage(0, good, &mut staged).is_ok());
    }

    #[test]
    #[should_panic(expected = "11 tokens, at most 10")]
    fn a_batch_that_does_not_fit_is_a_bug() {
        both().0.put(0, &[Tokens { ids: &[0; 11], types: &[] }]);
    }

    #[test]
    fn a_layout_of_no_end_is_refused() {
        let all = Layout {
            slots: u32::MAX,
            tokens_max: u32::MAX,
            texts_max: u32::MAX,
            outputs_max: u32::MAX,
            token_numbers_max: 0,
        };
        assert!(Slots::create(all).is_err());
    }
}
