//! How large passes were of late, so that memory grows once to what will be needed, and goes back after a burst.
//! Holds no memory itself.

use magray_core::pool::Forecast;

/// Memory for passes so many times larger than expected is given back.
const SPARE_TIMES: u64 = 2;

/// The sizes of one stream's passes, in tokens.
#[derive(Debug, Default)]
pub(super) struct History {
    needs: Forecast,
    /// The largest pass that memory was made for.
    largest: usize,
}

impl History {
    /// A pass of so many tokens comes.
    pub(super) fn note(&mut self, tokens: usize) {
        self.largest = self.largest.max(tokens);
        self.needs.note(0, u32::try_from(tokens).unwrap_or(u32::MAX), tokens as u64);
    }

    /// Where a pass of so many tokens needs `size` of something: how much to make room for, so that passes as large as
    /// those of late find it.
    pub(super) fn roomy(&self, size: usize, tokens: usize) -> usize {
        let expected = usize::try_from(self.needs.predicted()).unwrap_or(tokens);
        if expected <= tokens || tokens == 0 { size } else { size.saturating_mul(expected).div_ceil(tokens) }
    }

    /// Time goes on, about a second; says whether memory is to be given back because no pass of late needed so much.
    pub(super) fn age(&mut self) -> bool {
        self.needs.age();
        let goes = self.largest as u64 > SPARE_TIMES * self.needs.predicted();
        if goes {
            self.largest = 0;
        }
        goes
    }

    /// Nothing is expected any more: memory is short, and what comes is to take no more than it needs.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_pass_makes_room_for_the_large_ones_of_late() {
        let mut history = History::default();
        history.note(64);
        assert_eq!(history.roomy(100, 64), 100);
        history.note(4096);
        history.note(64);
        assert_eq!((history.roomy(100, 64), history.roomy(3, 4096), history.roomy(5, 8192)), (6400, 3, 5));
        history.forget();
        history.note(64);
        assert_eq!(history.roomy(100, 64), 100);
    }

    #[test]
    fn memory_goes_long_after_a_burst_and_once() {
        let mut history = History::default();
        history.note(32_768);
        let mut seconds = 0;
        while !history.age() {
            history.note(512);
            seconds += 1;
            assert!(seconds < 1000, "it never goes");
        }
        assert!(seconds > 60, "it goes too soon: after {seconds} s");
        assert!((0..2000).all(|_| {
            history.note(512);
            !history.age()
        }));
    }

    #[test]
    fn a_steady_load_loses_nothing() {
        let mut history = History::default();
        assert!((0..1000).all(|_| {
            history.note(4096);
            history.note(128);
            !history.age()
        }));
    }

    #[test]
    fn memory_of_a_stream_without_work_goes_in_the_end() {
        let mut history = History::default();
        history.note(1000);
        assert!((0..2000).any(|_| history.age()));
        assert!(!(0..2000).any(|_| history.age()));
    }
}
