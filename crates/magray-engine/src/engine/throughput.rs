//! How fast the engine has been lately: requests, texts, latency and fallbacks of the last minute.
//! Keeps sums of whole seconds and no request; asks no clock.

use super::Answer;
use std::time::Duration;

/// The seconds that are kept.
const SECONDS: usize = 60;

/// What was computed in the last minute, or since the engine started where that is less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    /// How long a time the figures are of.
    pub window: Duration,
    /// Requests that were answered.
    pub requests: u64,
    /// Their texts.
    pub texts: u64,
    /// Their tokens.
    pub tokens: u64,
    /// From arrival to answer, of all requests together.
    pub latency: Duration,
    /// Requests that the CPU computed in place of a GPU.
    pub fallbacks: u64,
}

impl Recent {
    /// From arrival to answer, on average; `None` where nothing was computed.
    pub fn latency_mean(&self) -> Option<Duration> {
        let requests = u32::try_from(self.requests).unwrap_or(u32::MAX);
        self.latency.checked_div(requests)
    }

    /// Counts by the second.
    pub fn per_second(&self, count: u64) -> f64 {
        if self.window.is_zero() { 0.0 } else { count as f64 / self.window.as_secs_f64() }
    }

    /// The part of the requests that the CPU computed in place of a GPU, from 0 to 1; `None` where nothing was computed.
    pub fn fallback_rate(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.fallbacks as f64 / self.requests as f64)
    }
}

/// Sums by second. Times are since the engine's start.
#[derive(Debug)]
pub(super) struct Throughput {
    seconds: [Second; SECONDS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Second {
    /// Which second it is, counted from 0.
    number: u64,
    sums: Recent,
}

impl Default for Throughput {
    fn default() -> Self {
        Self { seconds: [Second::default(); SECONDS] }
    }
}

impl Throughput {
    /// A request of this many texts was answered.
    pub(super) fn note(&mut self, texts: usize, answer: &Answer, now: Duration) {
        let number = now.as_secs();
        let second = &mut self.seconds[number as usize % SECONDS];
        if second.number != number {
            *second = Second { number, sums: Recent::default() };
        }
        let sums = &mut second.sums;
        sums.requests += 1;
        sums.texts += texts as u64;
        sums.tokens += answer.tokens as u64;
        sums.latency += answer.queued + answer.computed;
        sums.fallbacks += u64::from(answer.fallback.is_some());
    }

    /// The last minute, this second included.
    pub(super) fn recent(&self, now: Duration) -> Recent {
        let first = (now.as_secs() + 1).saturating_sub(SECONDS as u64);
        let mut recent = Recent { window: now - Duration::from_secs(first), ..Recent::default() };
        for Second { sums, .. } in self.seconds.iter().filter(|second| second.number >= first) {
            recent.requests += sums.requests;
            recent.texts += sums.texts;
            recent.tokens += sums.tokens;
            recent.latency += sums.latency;
            recent.fallbacks += sums.fallbacks;
        }
        recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use magray_core::{DeviceName, Precision, Reason};

    fn answer(fallback: Option<Reason>) -> Answer {
        Answer {
            dimensions: 1,
            values: Vec::new(),
            tokens: 10,
            device: DeviceName::Cpu,
            precision: Precision::F32,
            batch_texts: 1,
            queued: Duration::from_millis(4),
            computed: Duration::from_millis(6),
            replays: 0,
            fallback,
        }
    }

    #[test]
    fn figures_are_of_the_last_minute_alone() {
        let mut pace = Throughput::default();
        let seconds = Duration::from_secs;
        assert_eq!(pace.recent(Duration::ZERO), Recent::default());
        pace.note(3, &answer(None), seconds(0));
        pace.note(1, &answer(Some(Reason::Unmeasured)), seconds(2));
        let recent = pace.recent(seconds(4));
        assert_eq!((recent.requests, recent.texts, recent.tokens), (2, 4, 20));
        assert_eq!(recent.window, seconds(4));
        assert_eq!(recent.per_second(recent.texts), 1.0);
        assert_eq!(recent.latency_mean(), Some(Duration::from_millis(10)));
        assert_eq!(recent.fallback_rate(), Some(0.5));
        assert_eq!(pace.recent(seconds(60)).requests, 1, "the first second is over");
        assert_eq!(pace.recent(seconds(62)).requests, 0);
    }

    #[test]
    fn a_second_of_an_earlier_minute_is_not_added_to() {
        let mut pace = Throughput::default();
        for at in [5, 65, 125] {
            pace.note(1, &answer(None), Duration::from_secs(at));
            assert_eq!(pace.recent(Duration::from_secs(at)).requests, 1);
        }
        let idle = pace.recent(Duration::from_secs(1_000));
        assert_eq!((idle.requests, idle.latency_mean(), idle.fallback_rate()), (0, None, None));
    }
}
