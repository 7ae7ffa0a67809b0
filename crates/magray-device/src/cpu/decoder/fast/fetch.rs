//! Prefetches the weights that come next, from eight pages in turn: the hardware follows each page by itself.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

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
