//! Work that threads share by items: each has its own, and helps the others when these are done.
//!
//! Cores are not alike: some are slower by design, others because other programs compute on them. Equal shares would all
//! wait for the slowest.

use super::sched_slice::yield_core;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The items of a team's threads, filled for each piece of work.
pub(crate) struct Shares(Box<[Share]>);

/// A thread's items that are not taken yet: the first and the end, 32 bits each. On a cache line of its own, since it is
/// changed often.
#[repr(align(64))]
struct Share(AtomicU64);

/// The iterator of one thread over items.
pub(crate) struct Items<'a> {
    shares: &'a Shares,
    rank: usize,
    taken: usize,
}

/// Items between two looks at the clock. An item is a panel of weights for the rows of a chunk, or a head of a text. With the
/// 256 rows that a thread has for itself, these take tens of microseconds with AMX and about a millisecond in f32.
const YIELD_EVERY: usize = 4;

/// The part of `total` that belongs to a rank.
pub(super) fn share(total: usize, ranks: usize, rank: usize) -> Range<usize> {
    total * rank / ranks..total * (rank + 1) / ranks
}

fn unpack(packed: u64) -> (u64, u64) {
    (packed >> 32, packed & u64::from(u32::MAX))
}

impl Share {
    fn set(&self, first: u64, end: u64) {
        // What the items are about was handed to the threads by the pool; the counts alone order nothing.
        self.0.store(first << 32 | end, Ordering::Relaxed);
    }

    /// Takes the first item where no other thread takes any: an atomic read-modify-write would wait for all earlier writes.
    fn take_alone(&self) -> Option<usize> {
        let (first, end) = unpack(self.0.load(Ordering::Relaxed));
        (first < end).then(|| {
            self.set(first + 1, end);
            first as usize
        })
    }

    /// Takes some of what is left: `choose` turns first and end into those that remain. Returns them as they were.
    fn take(&self, choose: impl Fn(u64, u64) -> (u64, u64)) -> Option<(u64, u64)> {
        let rest = |packed| {
            let (first, end) = unpack(packed);
            let (first, end) = (first < end).then(|| choose(first, end))?;
            Some(first << 32 | end)
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).ok().map(unpack)
    }
}

impl Shares {
    pub(crate) fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| Share(0.into())).collect())
    }

    /// Divides items between all threads. None may be at work.
    pub(crate) fn fill(&self, items: usize) {
        assert!(u32::try_from(items).is_ok(), "fewer items than 32 bits count");
        for (rank, own) in self.0.iter().enumerate() {
            let Range { start, end } = share(items, self.0.len(), rank);
            own.set(start as u64, end as u64);
        }
    }

    pub(crate) fn of(&self, rank: usize) -> Items<'_> {
        Items { shares: self, rank, taken: 0 }
    }
}

impl Iterator for Items<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.taken.is_multiple_of(YIELD_EVERY) {
            yield_core();
        }
        self.taken += 1;
        let own = &self.shares.0[self.rank];
        if self.shares.0.len() == 1 {
            return own.take_alone();
        }
        if let Some((first, _)) = own.take(|first, end| (first + 1, end)) {
            return Some(first as usize);
        }
        let others = (1..self.shares.0.len()).map(|on| &self.shares.0[(self.rank + on) % self.shares.0.len()]);
        for other in others {
            // The second half of what another has; of that the first item at once.
            let half = |first: u64, end: u64| first + (end - first) / 2;
            if let Some((first, end)) = other.take(|first, end| (first, half(first, end))) {
                let taken = half(first, end);
                own.set(taken + 1, end);
                return Some(taken as usize);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn a_thread_alone_has_all_in_order() {
        let shares = Shares::new(1);
        for count in [0, 1, 7, 100] {
            shares.fill(count);
            assert!(shares.of(0).eq(0..count));
        }
    }

    #[test]
    fn who_has_no_more_helps_the_others() {
        let shares = Shares::new(3);
        shares.fill(30);
        // All of the other two's, though they do nothing.
        let mut all: Vec<usize> = shares.of(1).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..30));
    }

    #[test]
    fn every_item_is_taken_once_however_fast_threads_are() {
        const THREADS: usize = 4;
        let shares = Shares::new(THREADS);
        for count in (0..200).chain([5_000]) {
            shares.fill(count);
            let ready = Barrier::new(THREADS);
            let take = |rank: usize| {
                ready.wait();
                // The first threads are slow.
                let each = shares.of(rank).inspect(|_| (0..(THREADS - rank) * 10).for_each(|_| std::hint::spin_loop()));
                each.collect::<Vec<usize>>()
            };
            let take = &take;
            let mut all: Vec<usize> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS).map(|rank| scope.spawn(move || take(rank))).collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            });
            all.sort_unstable();
            assert!(all.into_iter().eq(0..count), "{count} items");
        }
    }
}
