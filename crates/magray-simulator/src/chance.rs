//! Chance from a seed: the same seed gives the same world on every machine.
//! Never asks the system for randomness.

use magray_core::SplitMix64;

#[derive(Clone, Debug)]
pub(crate) struct Chance(SplitMix64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Another source, so that what one part of a world draws does not shift what the others draw.
    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.bits())
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// From 0 up to, not including, 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Whether something happens that happens with this probability.
    pub(crate) fn is(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A whole number from `low` to `high`, both included.
    pub(crate) fn whole(&mut self, low: u64, high: u64) -> u64 {
        low + ((self.unit() * (high - low + 1) as f64) as u64).min(high - low)
    }

    /// A number between two, all alike.
    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + self.unit() * (high - low)
    }

    /// A number between two, all magnitudes alike.
    pub(crate) fn magnitude(&mut self, low: f64, high: f64) -> f64 {
        (self.between(low.ln(), high.ln())).exp()
    }

    /// The time to the next of events that come independently, this long apart on average.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        assert!(!items.is_empty(), "nothing to pick from");
        &items[self.whole(0, items.len() as u64 - 1) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same() {
        let draw = |seed| {
            let mut chance = Chance::new(seed);
            (0..5).map(|_| chance.bits()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn numbers_stay_within_their_bounds_and_reach_them() {
        let mut chance = Chance::new(1);
        let drawn: Vec<u64> = (0..1000).map(|_| chance.whole(3, 5)).collect();
        assert!(drawn.iter().all(|n| (3..=5).contains(n)) && drawn.contains(&3) && drawn.contains(&5));
        assert!((0..1000).map(|_| chance.magnitude(0.5, 50.0)).all(|n| (0.5..=50.0).contains(&n)));
        assert_eq!(chance.whole(4, 4), 4);
    }

    #[test]
    fn gaps_have_their_mean() {
        let mut chance = Chance::new(2);
        let mean = (0..20_000).map(|_| chance.exponential(3.0)).sum::<f64>() / 20_000.0;
        assert!((2.9..3.1).contains(&mean), "{mean}");
    }
}
