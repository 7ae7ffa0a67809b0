//! Bounds the time that a thread of the runtime writes answers: those of a batch are due at once, and a thread that
//! writes them one after the other serves no connection meanwhile. Knows nothing of what is written.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

const WINDOW: Duration = Duration::from_millis(2);
const BUDGET: Duration = Duration::from_micros(300);

thread_local! {
    static CURRENT: Cell<Option<Window>> = const { Cell::new(None) };
}

#[derive(Clone, Copy, Debug)]
struct Window {
    since: Instant,
    spent: Duration,
}

impl Window {
    fn at(known: Option<Self>, now: Instant) -> Self {
        match known {
            Some(window) if now.duration_since(window.since) < WINDOW => window,
            _ => Self { since: now, spent: Duration::ZERO },
        }
    }
}

pub(crate) fn has_time() -> bool {
    Window::at(CURRENT.get(), Instant::now()).spent < BUDGET
}

pub(crate) fn timed<T>(write: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let written = write();
    let ended = Instant::now();
    let window = Window::at(CURRENT.get(), started);
    CURRENT.set(Some(Window { spent: window.spent + (ended - started), ..window }));
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_within_its_window() {
        let start = Instant::now();
        let busy = Window { since: start, spent: BUDGET };
        assert_eq!(Window::at(Some(busy), start + WINDOW / 2).spent, BUDGET);
        assert_eq!(Window::at(Some(busy), start + WINDOW).spent, Duration::ZERO);
        assert_eq!(Window::at(None, start).spent, Duration::ZERO);
    }

    #[test]
    fn a_thread_that_has_spent_its_budget_has_no_time() {
        let own = std::thread::spawn(|| {
            assert!(has_time());
            timed(|| std::thread::sleep(BUDGET));
            let window = CURRENT.get().unwrap();
            assert!(window.spent >= BUDGET);
        });
        own.join().unwrap();
        assert!(has_time(), "the budget is the thread's own");
    }
}
