//! How large passes were of late, so that memory grows once to what will be needed, and goes back after a burst.
//! Holds no memory itself.

use magray_core::pool::Forecast;

/// Memory for passes this many times larger than expected is given back.
const SPARE_TIMES: u64 = 2;

/// The sizes of one stream's passes, in tokens.
#[derive(Debug, Default)]
pub(super) struct History {
    needs: Forecast,
    /// The largest pass that memory was made for.
    largest: usize,
}

impl History {
    /// Records a pass of this many tokens.
    pub(super) fn note(&mut self, tokens: usize) {
        self.largest = self.largest.max(tokens);
        self.needs.note(0, u32::try_from(tokens).unwrap_or(u32::MAX), tokens as u64);
    }

    /// How much to allocate where a pass of this many tokens needs `size`, so that recent larger passes fit too.
    pub(super) fn expected_size(&self, size: usize, tokens: usize) -> usize {
        let expected = usize::try_from(self.needs.predicted()).unwrap_or(tokens);
        if expected <= tokens || tokens == 0 { size } else { size.saturating_mul(expected).div_ceil(tokens) }
    }

    /// Advances by about a second; returns whether memory should be given back because no recent pass needed as much.
    pub(super) fn age(&mut self) -> bool {
        self.needs.age();
        let goes = self.largest as u64 > SPARE_TIMES * self.needs.predicted();
        if goes {
            self.largest = 0;
        }
        goes
    }

    /// Expects nothing any more: memory is short, and passes are to take no more than they need.
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
        assert_eq!(history.expected_size(100, 64), 100);
        history.note(4096);
        history.note(64);
        assert_eq!(
            (history.expected_size(100, 64), history.expected_size(3, 4096), history.expected_size(5, 8192)),
            (6400, 3, 5)
        );
        history.forget();
        history.note(64);
        assert_eq!(history.expected_size(100, 64), 100);
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
