//! How fast the engine has been lately: requests, texts, latency and fallbacks of the last minute, second by second.
//! Keeps sums of whole seconds and no request; asks no clock.

use super::Answer;
use std::collections::BTreeMap;
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

/// What was computed in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SecondFigures {
    /// Which second it is, counted from the engine's start.
    pub number: u64,
    /// Sums of it; their window is not set.
    pub sums: Recent,
    /// Tokens that language models generated.
    pub generated: u64,
    /// Requests by their latency: up to [`SecondFigures::LATENCY_MS`], and above the last.
    pub latencies: [u32; SecondFigures::LATENCY_MS.len() + 1],
    /// Requests by the texts of the batch that ended them: up to [`SecondFigures::BATCH_TEXTS`], and above the last.
    pub batches: [u32; SecondFigures::BATCH_TEXTS.len() + 1],
}

impl SecondFigures {
    /// Bounds of latencies, in milliseconds.
    pub const LATENCY_MS: [u32; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000];
    /// Bounds of batch sizes.
    pub const BATCH_TEXTS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
}

/// Sums by second. Times are since the engine's start.
#[derive(Debug)]
pub(super) struct Throughput {
    seconds: [SecondFigures; SECONDS],
    /// Since the start, by the code of the reason.
    fallbacks: BTreeMap<&'static str, u64>,
}

impl Default for Throughput {
    fn default() -> Self {
        Self { seconds: [SecondFigures::default(); SECONDS], fallbacks: BTreeMap::new() }
    }
}

/// The bucket of a value: the first bound that it is not above.
fn bucket(bounds: &[u32], value: u128) -> usize {
    bounds.iter().position(|bound| value <= u128::from(*bound)).unwrap_or(bounds.len())
}

impl Throughput {
    /// A request of this many texts was answered.
    pub(super) fn note(&mut self, texts: usize, answer: &Answer, now: Duration) {
        let second = self.second(now);
        let latency = answer.queued + answer.computed;
        second.latencies[bucket(&SecondFigures::LATENCY_MS, latency.as_micros().div_ceil(1000))] += 1;
        second.batches[bucket(&SecondFigures::BATCH_TEXTS, answer.batch_texts.into())] += 1;
        let sums = &mut second.sums;
        sums.requests += 1;
        sums.texts += texts as u64;
        sums.tokens += answer.tokens as u64;
        sums.latency += latency;
        sums.fallbacks += u64::from(answer.fallback.is_some());
        if let Some(reason) = &answer.fallback {
            *self.fallbacks.entry(reason.code()).or_default() += 1;
        }
    }

    /// Language models generated so many tokens.
    pub(super) fn note_generated(&mut self, tokens: u64, now: Duration) {
        self.second(now).generated += tokens;
    }

    fn second(&mut self, now: Duration) -> &mut SecondFigures {
        let number = now.as_secs();
        let second = &mut self.seconds[number as usize % SECONDS];
        if second.number != number {
            *second = SecondFigures { number, ..SecondFigures::default() };
        }
        second
    }

    /// The seconds of the last minute in which anything was computed, in order.
    pub(super) fn seconds(&self, now: Duration) -> Vec<SecondFigures> {
        let first = (now.as_secs() + 1).saturating_sub(SECONDS as u64);
        let is_used = |second: &&SecondFigures| second.sums.requests + second.generated > 0;
        let recent = self.seconds.iter().filter(|second| second.number >= first).filter(is_used);
        let mut seconds: Vec<SecondFigures> = recent.copied().collect();
        seconds.sort_unstable_by_key(|second| second.number);
        seconds
    }

    /// Requests that the CPU computed in place of a GPU since the start, by the code of the reason.
    pub(super) fn fallbacks(&self) -> Vec<(&'static str, u64)> {
        self.fallbacks.iter().map(|(code, count)| (*code, *count)).collect()
    }

    /// The last minute, this second included.
    pub(super) fn recent(&self, now: Duration) -> Recent {
        let first = (now.as_secs() + 1).saturating_sub(SECONDS as u64);
        let mut recent = Recent { window: now - Duration::from_secs(first), ..Recent::default() };
        for SecondFigures { sums, .. } in self.seconds.iter().filter(|second| second.number >= first) {
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
    fn each_second_has_its_latencies_and_batches() {
        let mut pace = Throughput::default();
        pace.note(3, &answer(None), Duration::from_secs(1));
        pace.note(1, &answer(Some(Reason::Unmeasured)), Duration::from_millis(2_999));
        pace.note_generated(7, Duration::from_secs(2));
        let seconds = pace.seconds(Duration::from_secs(3));
        assert_eq!(seconds.iter().map(|second| second.number).collect::<Vec<_>>(), [1, 2]);
        // 10 ms is the bound of the fourth.
        assert_eq!((seconds[0].latencies[3], seconds[0].batches[0], seconds[1].generated), (1, 1, 7));
        assert_eq!(pace.fallbacks(), [("unmeasured", 1)]);
        assert!(pace.seconds(Duration::from_secs(100)).is_empty());
        assert_eq!((bucket(&[1, 2], 0), bucket(&[1, 2], 2), bucket(&[1, 2], 3)), (0, 1, 2));
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
