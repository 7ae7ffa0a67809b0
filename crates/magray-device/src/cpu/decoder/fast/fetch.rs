//! Prefetches the weights, or the keys and values, that come next, from eight pages in turn: the hardware follows each page by itself.
//! Every fetch is a hint; any address is allowed.

use crate::cpu::aligned::{LINE_BYTES, PAGE_BYTES};

/// Pages whose lines are fetched in turn.
const PAGES: usize = 8;
/// Bytes that are fetched while as many are read.
pub(super) const WINDOW_BYTES: usize = PAGES * PAGE_BYTES;

/// Lines to fetch, and how far that has got.
#[derive(Clone, Copy)]
pub(super) struct Fetch {
    line: usize,
    end: usize,
    span: usize,
}

impl Fetch {
    /// As many whole pages from an address on as these bytes take.
    pub(super) fn new(start: usize, bytes: usize) -> Self {
        let span = bytes.next_multiple_of(PAGE_BYTES);
        Self { line: start, end: start.wrapping_add(span), span }
    }

    /// Fetches a line: the same of the next page, or the next of the first page.
    #[inline(always)]
    pub(super) fn line(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint; every x86-64 has it and it never faults.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance(self.line));
        }
        let next = self.line.wrapping_add(PAGE_BYTES);
        self.line = if next >= self.end { next.wrapping_sub(self.span).wrapping_add(LINE_BYTES) } else { next };
    }
}

/// A place that is fetched and never read.
#[derive(Clone, Copy)]
pub(super) struct Address(pub(super) *const u8);

// SAFETY: it is never read.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// Heads whose lines are fetched in turn: what is read and what is fetched meanwhile fit the first cache.
pub(super) const HEADS: usize = 4;

/// Lines of some heads: the first that is fetched of each.
#[derive(Clone, Copy)]
pub(super) struct Group([*const u8; HEADS]);

impl Group {
    /// Fetches a line of each.
    #[inline(always)]
    pub(super) fn fetch(&self, line: usize) {
        for head in &self.0 {
            fetch_near(head.wrapping_add(line * LINE_BYTES));
        }
    }
}

/// Heads of pages that a thread reads one after the other, and how far they are fetched: a group of them ahead of what is read.
pub(super) struct HeadFetch<'a> {
    heads: &'a [Address],
    /// Lines of a head.
    lines: usize,
    /// The first head that is in no group yet.
    rest: usize,
    group: Group,
    /// The first line that is not fetched yet.
    line: usize,
    /// The head that is expected to be read next.
    next: usize,
}

impl<'a> HeadFetch<'a> {
    pub(super) fn new(heads: &'a [Address], bytes: usize) -> Self {
        let none = Group([std::ptr::null(); HEADS]);
        Self { heads, lines: bytes / LINE_BYTES, rest: 0, group: none, line: 0, next: usize::MAX }
    }

    /// Heads from `first` on are read now. Those that no one could expect are fetched at once.
    pub(super) fn read(&mut self, first: usize, count: usize) {
        if first != self.next {
            self.rest = first;
            self.turn();
            (0..self.lines).for_each(|line| self.group.fetch(line));
            self.turn();
        }
        self.next = first + count;
    }

    /// This many lines of each head of the group, which the caller fetches.
    #[inline(always)]
    pub(super) fn take(&mut self, lines: usize) -> Group {
        if self.line + lines > self.lines {
            self.turn();
        }
        let mut group = self.group;
        for head in &mut group.0 {
            *head = head.wrapping_add(self.line * LINE_BYTES);
        }
        self.line += lines;
        group
    }

    /// The next group; behind the last head that head again.
    fn turn(&mut self) {
        for head in &mut self.group.0 {
            if let Some(next) = self.heads.get(self.rest) {
                *head = next.0;
                self.rest += 1;
            }
        }
        self.line = 0;
    }
}

/// Fetches a line into the first cache.
#[inline(always)]
fn fetch_near(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; every x86-64 has it and it never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn heads_are_fetched_a_group_ahead() {
        let heads: Vec<Address> = (1..=13).map(|i| Address(std::ptr::without_provenance(i << 20))).collect();
        let mut fetch = HeadFetch::new(&heads, 4 * LINE_BYTES);
        fetch.read(4, 2);
        assert_eq!(fetch.rest, 12, "the first group at once, and then the next");
        let lines = |fetch: &mut HeadFetch<'_>| fetch.take(2).0.map(|line| (line.addr() >> 20, line.addr() & 0xfffff));
        assert_eq!(lines(&mut fetch), [9, 10, 11, 12].map(|head| (head, 0)));
        fetch.read(6, 3);
        assert_eq!(lines(&mut fetch)[3], (12, 2 * LINE_BYTES), "what is expected is fetched already");
        assert_eq!(lines(&mut fetch)[..2], [(13, 0), (10, 0)], "behind the last anything does");
        fetch.read(0, 1);
        assert_eq!(lines(&mut fetch)[0], (5, 0), "another place begins again");
    }

    #[test]
    fn every_line_is_fetched_once_before_any_is_again() {
        for bytes in [1, 4096, 9000, WINDOW_BYTES] {
            let (mut fetch, mut seen) = (Fetch::new(1 << 20, bytes), BTreeSet::new());
            for _ in 0..bytes.next_multiple_of(PAGE_BYTES) / LINE_BYTES {
                assert!(seen.insert(fetch.line), "{} again", fetch.line);
                fetch.line();
            }
            assert!((0..bytes).step_by(LINE_BYTES).all(|line| seen.contains(&((1 << 20) + line))));
        }
    }
}
