//! The pace of refusals to those who ask again at once: some leave at once, many one after the other. Refuses nothing itself.
//!
//! A client that asks again as soon as it is refused takes the cores that the others' work is computed on; held back for a
//! moment, it asks less often. Whoever has waited is not held back, and nobody is while there are few.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// From one refusal to the next, where there are many.
const APART: Duration = Duration::from_micros(500);
/// So many may leave together: requests that came while the cores were busy are also refused together, and waited already.
const TOGETHER: u32 = 16;
/// No refusal is held back for longer.
const MOST: Duration = Duration::from_millis(2);
/// Less than this is not worth a timer, which is coarser: it rounds up to a millisecond.
const LEAST: Duration = Duration::from_micros(500);

/// When the next refusal may leave.
#[derive(Debug)]
pub(crate) struct Pace {
    start: Instant,
    /// Since the start, in microseconds; ahead of the clock by as many as may leave together.
    next: AtomicU64,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), next: AtomicU64::new(0) }
    }

    /// How long a refusal of this moment is held back, if it is.
    pub(crate) fn wait(&self) -> Option<Duration> {
        let now = micros(self.start.elapsed());
        let ahead = micros(APART * TOGETHER);
        let later = |next: u64| Some((next.max(now) + micros(APART)).min(now + ahead + micros(MOST)));
        let Ok(next) = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later) else {
            unreachable!("there is always a next one")
        };
        let wait = Duration::from_micros(next.saturating_sub(now + ahead));
        (wait >= LEAST).then_some(wait)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_refusals_leave_at_once() {
        let pace = Pace::new();
        assert!((0..TOGETHER).all(|_| pace.wait().is_none()));
    }

    #[test]
    fn many_are_held_back_but_never_for_long() {
        let pace = Pace::new();
        let waits: Vec<_> = (0..10_000).filter_map(|_| pace.wait()).collect();
        assert!(waits.len() > 5_000, "{}", waits.len());
        assert!(waits.iter().all(|wait| (LEAST..=MOST).contains(wait)));
    }
}
