//! What threads leave for the one that steps the machine next, so that none of them waits for its lock.
//! Decides nothing. What is put here is taken once, in order, by a thread that is in `own` or by any that steps anyway.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) struct Inbox<T> {
    items: Mutex<Vec<T>>,
    waiting: AtomicUsize,
    is_owned: AtomicBool,
}

/// The duty to step the machine with what waits. The owner looks for more after it has let go.
pub(super) struct Owned<'a>(&'a AtomicBool);

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Self { items: Mutex::default(), waiting: AtomicUsize::new(0), is_owned: AtomicBool::new(false) }
    }
}

impl<T> Inbox<T> {
    pub(super) fn put(&self, item: T) {
        let mut items = self.lock();
        items.push(item);
        // Under the lock: no more is taken than was counted.
        self.waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// For a thread that has put something: `None` where nothing waits or another thread will take it. The owner gives up
    /// its duty before it looks again, and who puts something does so before it looks for an owner: one of both sees the other.
    pub(super) fn own(&self) -> Option<Owned<'_>> {
        let is_mine = self.waiting.load(Ordering::SeqCst) > 0 && !self.is_owned.swap(true, Ordering::SeqCst);
        is_mine.then_some(Owned(&self.is_owned))
    }

    /// Moves what waits to the end of `taken`.
    pub(super) fn take(&self, taken: &mut Vec<T>) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let mut items = self.lock();
            self.waiting.fetch_sub(items.len(), Ordering::SeqCst);
            taken.append(&mut items);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn all_that_threads_put_is_taken_once_and_in_order_before_the_last_has_gone() {
        const THREADS: usize = 4;
        const EACH: usize = 5_000;
        let (inbox, taken) = (Inbox::default(), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (inbox, taken) = (&inbox, &taken);
                scope.spawn(move || {
                    for item in 0..EACH {
                        inbox.put((thread, item));
                        while let Some(_owned) = inbox.own() {
                            inbox.take(&mut taken.lock().unwrap());
                        }
                    }
                });
            }
        });
        let taken = taken.into_inner().unwrap();
        for thread in 0..THREADS {
            let own = taken.iter().filter(|(of, _)| *of == thread).map(|(_, item)| *item);
            assert!(own.eq(0..EACH));
        }
    }

    #[test]
    fn an_inbox_in_which_nothing_waits_has_no_owner() {
        let inbox = Inbox::default();
        assert!(inbox.own().is_none());
        inbox.put(1);
        let owned = inbox.own();
        assert!(owned.is_some() && inbox.own().is_none());
        drop(owned);
        assert!(inbox.own().is_some());
    }
}
