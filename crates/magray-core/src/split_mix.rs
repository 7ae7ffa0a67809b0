//! Numbers that look random and that a seed repeats on every machine: SplitMix64, of which every seed is a good one.
//! Never reads a clock or the system's randomness; not for secrets.

/// A stream of numbers; the same seed gives the same ones.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// A whole number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// Above 0, up to 1.
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// A standard normal value, by the polar form of two uniform ones.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// The gap to the next of events that come independently of each other, with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let take = |seed| -> Vec<u64> {
            let mut stream = SplitMix64::new(seed);
            (0..4).map(|_| stream.bits()).collect()
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }

    #[test]
    fn gaps_have_the_mean_and_spread_of_their_law() {
        let mut stream = SplitMix64::new(1);
        let gaps: Vec<f64> = (0..100_000).map(|_| stream.exponential(2.0)).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 2.0).abs() < 0.05, "{mean}");
        // The deviation of an exponential law is its mean.
        assert!((variance.sqrt() - 2.0).abs() < 0.1, "{variance}");
        assert!(gaps.iter().all(|gap| *gap >= 0.0));
    }
}
