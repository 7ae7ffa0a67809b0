//! How far tokens of an answer are apart, for Prometheus: some additions for those that came together, whatever their number.
//! Keeps nothing of a single token.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::{SECONDS, page::Page};

#[derive(Debug, Default)]
pub(super) struct TokenGaps {
    /// By the bucket that a gap is in, and beyond the last of them.
    counts: [AtomicU64; SECONDS.len() + 1],
    sum_ns: AtomicU64,
}

impl TokenGaps {
    /// Counts so many gaps of this length.
    pub(super) fn add(&self, gap: Duration, count: u64) {
        let seconds = gap.as_secs_f64();
        let bucket = SECONDS.partition_point(|most| *most < seconds);
        self.counts[bucket].fetch_add(count, Ordering::Relaxed);
        let nanoseconds = u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX);
        if nanoseconds > 0 {
            self.sum_ns.fetch_add(nanoseconds.saturating_mul(count), Ordering::Relaxed);
        }
    }

    pub(super) fn write(&self, page: &mut Page) {
        let counts = self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        let sum = Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)).as_secs_f64();
        page.histogram("magray_token_gap_seconds", "Between two tokens of an answer.", (&SECONDS, &counts), sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_all_gaps_up_to_their_bounds() {
        let gaps = TokenGaps::default();
        gaps.add(Duration::ZERO, 15);
        gaps.add(Duration::from_micros(100), 1);
        gaps.add(Duration::from_millis(18), 2);
        gaps.add(Duration::from_secs(60), 1);
        let mut page = Page::default();
        gaps.write(&mut page);
        let text = page.into_text();
        assert!(text.starts_with("# HELP magray_token_gap_seconds Between two"), "{text}");
        for line in [
            "# TYPE magray_token_gap_seconds histogram\n",
            "_bucket{le=\"0.0001\"} 16\n",
            "_bucket{le=\"0.01\"} 16\n",
            "_bucket{le=\"0.025\"} 18\n",
            "_bucket{le=\"30\"} 18\n",
            "_bucket{le=\"+Inf\"} 19\n",
            "_sum 60.0361\n",
            "_count 19\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
    }
}
