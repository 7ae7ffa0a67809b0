//! How long a thread of the runtime has been writing answers lately. Knows nothing of what is written.
//!
//! When a batch is computed, all its answers are due at once, and a thread that writes them one after the other looks after
//! no connection meanwhile: whoever is to be refused then waits for milliseconds.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// In so much time ...
const WINDOW: Duration = Duration::from_millis(2);
/// ... a thread writes for so long before it leaves answers to others.
const MOST: Duration = Duration::from_micros(300);

thread_local! {
    static LATELY: Cell<Option<Lately>> = const { Cell::new(None) };
}

#[derive(Clone, Copy, Debug)]
struct Lately {
    since: Instant,
    spent: Duration,
}

impl Lately {
    /// What counts at this moment.
    fn at(known: Option<Self>, now: Instant) -> Self {
        match known {
            Some(lately) if now.duration_since(lately.since) < WINDOW => lately,
            _ => Self { since: now, spent: Duration::ZERO },
        }
    }
}

/// Whether this thread has time to write one more answer.
pub(crate) fn has_time() -> bool {
    Lately::at(LATELY.get(), Instant::now()).spent < MOST
}

/// Writes an answer on this thread and keeps the time.
pub(crate) fn timed<T>(write: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let written = write();
    let ended = Instant::now();
    let lately = Lately::at(LATELY.get(), started);
    LATELY.set(Some(Lately { spent: lately.spent + (ended - started), ..lately }));
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_spent_counts_for_a_while() {
        let start = Instant::now();
        let busy = Lately { since: start, spent: MOST };
        assert_eq!(Lately::at(Some(busy), start + WINDOW / 2).spent, MOST);
        assert_eq!(Lately::at(Some(busy), start + WINDOW).spent, Duration::ZERO);
        assert_eq!(Lately::at(None, start).spent, Duration::ZERO);
    }

    #[test]
    fn a_thread_that_wrote_for_long_has_no_time() {
        let own = std::thread::spawn(|| {
            assert!(has_time());
            timed(|| std::thread::sleep(MOST));
            let lately = LATELY.get().unwrap();
            assert!(lately.spent >= MOST);
        });
        own.join().unwrap();
        assert!(has_time(), "other threads are not meant");
    }
}
