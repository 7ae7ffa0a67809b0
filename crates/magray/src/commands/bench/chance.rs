//! Numbers by chance that a seed repeats, for made-up texts and arrivals.
//! Never reads a clock or the system's randomness.

use magray_core::SplitMix64;

/// A stream of numbers; the same seed gives the same ones.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Chance(SplitMix64);

impl Chance {
    pub(in crate::commands) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(in crate::commands) fn next(&mut self) -> u64 {
        self.0.bits()
    }

    /// Below `end`, which is not 0.
    pub(in crate::commands) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Above 0, up to 1.
    pub(in crate::commands) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// A standard normal value, by the polar form of two uniform ones.
    pub(in crate::commands) fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// The gap to the next of events that come independently of each other, with this mean.
    pub(in crate::commands) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let take = |seed| -> Vec<u64> {
            let mut chance = Chance::new(seed);
            (0..4).map(|_| chance.next()).collect()
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }

    #[test]
    fn gaps_have_the_mean_and_spread_of_their_law() {
        let mut chance = Chance::new(1);
        let gaps: Vec<f64> = (0..100_000).map(|_| chance.exponential(2.0)).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 2.0).abs() < 0.05, "{mean}");
        // The deviation of an exponential law is its mean.
        assert!((variance.sqrt() - 2.0).abs() < 0.1, "{variance}");
        assert!(gaps.iter().all(|gap| *gap >= 0.0));
    }
}
