//! The memory that was given back last, kept before the pool's lock: whoever wants as much again takes it without the lock.
//! Holds one block at most, never one that a stream may still use, and never waits.

use super::device_memory::Taken;
use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

/// Nothing is kept.
const EMPTY: u64 = 0;
/// Somebody puts something in or takes it out at this moment; for ever, where nothing is ever kept.
const BUSY: u64 = u64::MAX;

/// A place for one block. Two calls that meet there do not wait for each other: one goes on to the pool.
pub(super) struct Front {
    /// The bytes of what is kept, or one of the two above.
    state: AtomicU64,
    /// Belongs to whoever changed the state to `BUSY`; holds a block while the state is a number of bytes.
    block: UnsafeCell<MaybeUninit<Taken>>,
    /// How often it had what was wanted. Where threads meet a count may be lost: adding safely would cost as much as the
    /// rest of the call.
    hits: AtomicU64,
}

// SAFETY: the block is touched only by the thread that changed the state to `BUSY`, one at a time, and may be moved
// between threads.
unsafe impl Sync for Front {}

impl Front {
    /// A place that keeps something, or one that never does.
    pub(super) fn new(keeps: bool) -> Self {
        let state = AtomicU64::new(if keeps { EMPTY } else { BUSY });
        Self { state, block: UnsafeCell::new(MaybeUninit::uninit()), hits: AtomicU64::new(0) }
    }

    /// Takes what is kept if it is a workspace of so many bytes.
    #[inline]
    pub(super) fn take(&self, bytes: u64) -> Option<Taken> {
        let taken = self.remove(bytes)?;
        self.hits.store(self.hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Some(taken)
    }

    /// Keeps memory that nobody uses, if it is a workspace and nothing else is kept.
    #[inline]
    pub(super) fn put(&self, taken: Taken) -> Result<(), Taken> {
        let bytes = taken.workspace_bytes();
        let may_keep = bytes != EMPTY && bytes != BUSY && self.state.load(Ordering::Relaxed) == EMPTY;
        if !may_keep || self.state.compare_exchange(EMPTY, BUSY, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return Err(taken);
        }
        // SAFETY: the state was `EMPTY`, so nothing lies there, and is `BUSY` by this call.
        unsafe { (*self.block.get()).write(taken) };
        self.state.store(bytes, Ordering::Release);
        Ok(())
    }

    /// Takes out whatever is kept, for the pool: whoever looks at the pool is to see all that is free.
    #[inline]
    pub(super) fn clear(&self) -> Option<Taken> {
        match self.state.load(Ordering::Relaxed) {
            EMPTY | BUSY => None,
            bytes => self.remove(bytes),
        }
    }

    /// How often it had what was wanted.
    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    #[inline]
    fn remove(&self, bytes: u64) -> Option<Taken> {
        let is_there = bytes != EMPTY && bytes != BUSY && self.state.load(Ordering::Relaxed) == bytes;
        if !is_there || self.state.compare_exchange(bytes, BUSY, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return None;
        }
        // SAFETY: the state was a number of bytes, so a block lies there, and is `BUSY` by this call; whoever comes next
        // finds `EMPTY` and does not read it again.
        let taken = unsafe { (*self.block.get()).assume_init_read() };
        self.state.store(EMPTY, Ordering::Release);
        Some(taken)
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("state", &self.state).field("hits", &self.hits).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn keeps_one_block_for_whoever_wants_as_much() {
        let front = Front::new(true);
        assert!(front.put(Taken::for_test(1, 300)).is_ok());
        let second = front.put(Taken::for_test(2, 300)).expect_err("one is kept already");
        assert_eq!(second.address(), 2);
        assert!(front.take(299).is_none() && front.take(EMPTY).is_none() && front.take(BUSY).is_none());
        assert_eq!(front.take(300).map(|taken| taken.address()), Some(1));
        assert!(front.take(300).is_none() && front.clear().is_none());
        assert!(front.put(second).is_ok());
        assert_eq!(front.clear().map(|taken| taken.address()), Some(2));
        assert_eq!(front.hits(), 1);
    }

    #[test]
    fn weights_are_not_kept_and_a_closed_one_keeps_nothing() {
        assert!(Front::new(true).put(Taken::for_test(1, 0)).is_err());
        let closed = Front::new(false);
        assert!(closed.put(Taken::for_test(1, 300)).is_err());
        assert!(closed.take(300).is_none() && closed.clear().is_none());
    }

    #[test]
    fn threads_that_meet_neither_lose_nor_double_a_block() {
        const BLOCKS: usize = 4;
        let front = Front::new(true);
        let holders: Vec<AtomicUsize> = (0..BLOCKS).map(|_| AtomicUsize::new(1)).collect();
        std::thread::scope(|scope| {
            for address in 0..BLOCKS as u64 {
                let (front, holders) = (&front, &holders);
                scope.spawn(move || {
                    let mut mine = Some(Taken::for_test(address, 300));
                    for round in 0..20_000 {
                        mine = match mine.take() {
                            Some(taken) => {
                                holders[taken.address() as usize].fetch_sub(1, Ordering::SeqCst);
                                match front.put(taken) {
                                    Ok(()) => None,
                                    Err(taken) => {
                                        assert_eq!(holders[taken.address() as usize].fetch_add(1, Ordering::SeqCst), 0);
                                        Some(taken)
                                    }
                                }
                            }
                            None => {
                                let found = if round % 3 == 0 { front.clear() } else { front.take(300) };
                                if let Some(taken) = &found {
                                    assert_eq!(holders[taken.address() as usize].fetch_add(1, Ordering::SeqCst), 0);
                                }
                                found
                            }
                        };
                    }
                    if let Some(taken) = mine {
                        holders[taken.address() as usize].fetch_add(10, Ordering::SeqCst);
                    }
                });
            }
        });
        if let Some(taken) = front.clear() {
            holders[taken.address() as usize].fetch_add(11, Ordering::SeqCst);
        }
        // Held by a thread at its end, or left in the front.
        assert!(holders.iter().all(|holder| holder.load(Ordering::SeqCst) == 11), "{holders:?}");
    }
}
