//! Figures of measurements: means, spreads, percentiles, balance.
//! Pure arithmetic.

use crate::measure::{Answer, Measured};
use magray_core::schedule::Moment;
use std::time::Duration;

/// The part of answers at the beginning that is not counted: workers start and speeds are not known yet.
const WARM_UP: f64 = 0.1;

#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    /// Answered texts a second.
    pub(super) texts_per_s: f64,
    /// Milliseconds from arrival to the start of the batch: mean.
    pub(super) wait_mean: f64,
    /// The same: 99th percentile.
    pub(super) wait_p99: f64,
    /// Milliseconds from arrival to answer: median.
    pub(super) total_p50: f64,
    /// The same: 99th percentile.
    pub(super) total_p99: f64,
    /// How unevenly the devices were used; see [`imbalance`].
    pub(super) imbalance: f64,
    /// Share of requests that were refused.
    pub(super) refused: f64,
    /// Milliseconds from the start to the last answer.
    pub(super) makespan_ms: f64,
}

impl Figures {
    /// The figures of a run; `devices` are those that count for the balance.
    pub(super) fn of(measured: &Measured, devices: &[usize]) -> Self {
        let skipped = (measured.answers.len() as f64 * WARM_UP) as usize;
        let answers = &measured.answers[skipped..];
        let waits = sorted(answers.iter().map(|answer| millis(answer.begun.since(answer.arrived))));
        let totals = sorted(answers.iter().map(|answer| millis(answer.answered.since(answer.arrived))));
        let asked = measured.answers.len() + measured.refused;
        let busy: Vec<f64> = devices.iter().map(|at| measured.busy[*at].as_secs_f64()).collect();
        Self {
            texts_per_s: throughput(answers),
            wait_mean: mean(&waits),
            wait_p99: percentile(&waits, 0.99),
            total_p50: percentile(&totals, 0.5),
            total_p99: percentile(&totals, 0.99),
            imbalance: imbalance(&busy),
            refused: measured.refused as f64 / asked.max(1) as f64,
            makespan_ms: measured.answers.last().map_or(0.0, |last| millis(last.answered.since(Moment::START))),
        }
    }
}

/// A figure over several seeds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spread {
    pub(super) mean: f64,
    /// The standard deviation between seeds.
    pub(super) deviation: f64,
}

impl Spread {
    pub(super) fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let numbers: Vec<f64> = numbers.into_iter().collect();
        Self { mean: mean(&numbers), deviation: deviation(&numbers) }
    }
}

/// The coefficient of variation of the time that each device computed: 0 where all worked alike, 1 where one of two did
/// everything.
pub(super) fn imbalance(busy: &[f64]) -> f64 {
    let mean = mean(busy);
    if mean > 0.0 { deviation(busy) / mean } else { 0.0 }
}

pub(super) fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len().max(1) as f64
}

fn deviation(numbers: &[f64]) -> f64 {
    let middle = mean(numbers);
    mean(&numbers.iter().map(|number| (number - middle).powi(2)).collect::<Vec<_>>()).sqrt()
}

/// From sorted numbers, the one that this part of them does not exceed.
fn percentile(sorted: &[f64], part: f64) -> f64 {
    let at = ((sorted.len() as f64 * part).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or_default()
}

fn throughput(answers: &[Answer]) -> f64 {
    let (Some(first), Some(last)) = (answers.first(), answers.last()) else { return 0.0 };
    // The first answer marks the beginning; what it brought was computed before.
    let texts: usize = answers[1..].iter().map(|answer| answer.texts).sum();
    let seconds = last.answered.since(first.answered).as_secs_f64();
    if seconds > 0.0 { texts as f64 / seconds } else { 0.0 }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn sorted(numbers: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_numbers_of_the_list() {
        let numbers: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&numbers, 0.5), 50.0);
        assert_eq!(percentile(&numbers, 0.99), 99.0);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
        assert_eq!(percentile(&[], 0.99), 0.0);
    }

    #[test]
    fn imbalance_is_nothing_for_equals_and_one_for_a_lonely_worker() {
        assert_eq!(imbalance(&[2.0, 2.0]), 0.0);
        assert_eq!(imbalance(&[2.0, 0.0]), 1.0);
        assert_eq!(imbalance(&[0.0, 0.0]), 0.0);
    }
}
