//! The pages of a decoder's sequences: which are free, which are shared, and which hold the beginning of texts seen before.
//! Knows nothing of what lies in a page.

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap};

/// Pages by who has them.
pub(super) struct PageTable {
    free: Vec<u32>,
    /// By number.
    pages: Vec<Page>,
    /// Whole pages by what is before them and in them.
    known: HashMap<Content, Known>,
    /// Known pages that no sequence has, by when they were left.
    unused: BTreeMap<u64, u32>,
    /// Counts what happens.
    clock: u64,
    /// Pages up to the highest that was ever taken.
    reached: usize,
}

#[derive(Clone, Default)]
struct Page {
    users: u32,
    /// What is in it, where it can be found by that.
    content: Option<Content>,
    left: u64,
}

/// Whole pages are the same where they have the same tokens and follow the same page.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Content {
    before: Option<Known>,
    ids: Box<[u32]>,
}

/// A whole page, and when it was filled: with other tokens it is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Known {
    pub(super) page: u32,
    filled: u64,
}

impl PageTable {
    pub(super) fn new(count: usize) -> Self {
        Self {
            // The first are used first: the others may never need memory.
            free: (0..count as u32).rev().collect(),
            pages: vec![Page::default(); count],
            known: HashMap::new(),
            unused: BTreeMap::new(),
            clock: 0,
            reached: 0,
        }
    }

    /// A page for new tokens; of those that no sequence has, the one left first. `None`: sequences have all.
    pub(super) fn take(&mut self) -> Option<u32> {
        let page = self.free.pop().or_else(|| self.forget())?;
        self.pages[page as usize].users = 1;
        self.reached = self.reached.max(page as usize + 1);
        Some(page)
    }

    /// How many pages must have memory: the first ones.
    pub(super) fn reached(&self) -> usize {
        self.reached
    }

    fn forget(&mut self) -> Option<u32> {
        let (_, page) = self.unused.pop_first()?;
        if let Some(content) = self.pages[page as usize].content.take() {
            self.known.remove(&content);
        }
        Some(page)
    }

    /// The page with these tokens behind that page, for one sequence more.
    pub(super) fn find(&mut self, before: Option<Known>, ids: &[u32]) -> Option<Known> {
        let known = *self.known.get(&Content { before, ids: ids.into() })?;
        let page = &mut self.pages[known.page as usize];
        if page.users == 0 {
            self.unused.remove(&page.left);
        }
        page.users += 1;
        Some(known)
    }

    /// A page is whole: those who come with the same tokens may share it. Of two that are the same the first is the known one.
    pub(super) fn keep(&mut self, page: u32, before: Option<Known>, ids: &[u32]) -> Known {
        self.clock += 1;
        let content = Content { before, ids: ids.into() };
        match self.known.entry(content) {
            Entry::Occupied(first) => *first.get(),
            Entry::Vacant(vacant) => {
                self.pages[page as usize].content = Some(vacant.key().clone());
                *vacant.insert(Known { page, filled: self.clock })
            }
        }
    }

    /// A sequence lets go of its pages. The last are forgotten first: without those before them they cannot be found.
    pub(super) fn leave(&mut self, pages: &[u32]) {
        for &number in pages.iter().rev() {
            let page = &mut self.pages[number as usize];
            page.users -= 1;
            if page.users > 0 {
                continue;
            }
            if page.content.is_none() {
                self.free.push(number);
                continue;
            }
            self.clock += 1;
            page.left = self.clock;
            self.unused.insert(self.clock, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes pages for these tokens, two a page, sharing what is known; says how many were.
    fn sequence(table: &mut PageTable, ids: &[u32]) -> (Vec<u32>, usize) {
        let (mut before, mut pages, mut shared) = (None, Vec::new(), 0);
        for part in ids.chunks(2) {
            let found = table.find(before, part);
            shared += usize::from(found.is_some());
            let known = found.or_else(|| table.take().map(|page| table.keep(page, before, part))).unwrap();
            before = Some(known);
            pages.push(known.page);
        }
        (pages, shared)
    }

    #[test]
    fn the_same_beginning_is_shared_and_stays_known() {
        let mut table = PageTable::new(4);
        let (first, shared) = sequence(&mut table, &[1, 2, 3, 4]);
        assert_eq!(shared, 0);
        let (second, shared) = sequence(&mut table, &[1, 2, 3, 5]);
        assert_eq!((shared, first[0]), (1, second[0]));
        table.leave(&first);
        table.leave(&second);
        assert_eq!(sequence(&mut table, &[1, 2, 3, 5]).1, 2);
        assert_eq!(sequence(&mut table, &[3, 5]).1, 0, "the same tokens elsewhere are another page");
    }

    #[test]
    fn pages_are_forgotten_the_last_first_and_never_while_they_are_used() {
        let mut table = PageTable::new(3);
        let (old, _) = sequence(&mut table, &[1, 2, 3, 4]);
        table.leave(&old);
        let (used, _) = sequence(&mut table, &[9, 9, 8, 8]);
        assert_eq!(sequence(&mut table, &[1, 2]).1, 1, "its second page was forgotten");
        assert_eq!(table.take(), None);
        table.leave(&used);
        assert!(table.take().is_some() && table.take().is_some());
        assert_eq!(table.take(), None);
    }

    #[test]
    fn a_page_behind_a_forgotten_one_is_not_found() {
        let mut table = PageTable::new(2);
        let (first, _) = sequence(&mut table, &[1, 2, 3, 4]);
        // Someone else still has the second.
        assert!(table.find(Some(table.known_of(first[0])), &[3, 4]).is_some());
        table.leave(&first);
        let page = table.take().unwrap();
        table.keep(page, None, &[1, 2]);
        assert_eq!(page, first[0]);
        assert!(table.find(Some(table.known_of(page)), &[3, 4]).is_none());
    }

    impl PageTable {
        fn known_of(&self, page: u32) -> Known {
            self.known[self.pages[page as usize].content.as_ref().unwrap()]
        }
    }
}
