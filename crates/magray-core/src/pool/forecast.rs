//! What callers will need, by what they needed: the history of each model and bucket of shapes.
//! Maps nothing and reads no clock: the pool's epochs are its time.

use std::collections::BTreeMap;

/// After so many epochs a need that did not come again counts half.
const HALF_LIFE: u32 = 64;
/// Needs that are remembered; the least important is forgotten for a new one.
const NEEDS_MAX: usize = 4096;

/// The greatest need that was noted, and when.
#[derive(Clone, Copy, Debug)]
struct Need {
    bytes: u64,
    epoch: u32,
}

/// History of what callers needed.
///
/// One bucket of a model is computed at a time, and several models are: what is expected at most at once is the sum over
/// the models of their greatest need.
#[derive(Debug, Default)]
pub struct Forecast {
    epoch: u32,
    /// By model and bucket.
    needs: BTreeMap<(u32, u32), Need>,
    /// The greatest need of each model.
    peaks: BTreeMap<u32, u64>,
    predicted: u64,
}

impl Forecast {
    /// A model needed so many bytes for a bucket.
    pub fn note(&mut self, model: u32, bucket: u32, bytes: u64) {
        let epoch = self.epoch;
        if self.expected(model, bucket) > bytes {
            return;
        }
        if self.needs.len() >= NEEDS_MAX && !self.needs.contains_key(&(model, bucket)) {
            self.forget_least();
        }
        self.needs.insert((model, bucket), Need { bytes, epoch });
        let peak = self.peaks.entry(model).or_default();
        self.predicted += bytes.saturating_sub(*peak);
        *peak = (*peak).max(bytes);
    }

    /// What a bucket of a model is expected to need; 0 if nothing is known.
    pub fn expected(&self, model: u32, bucket: u32) -> u64 {
        self.needs.get(&(model, bucket)).map_or(0, |need| self.decayed(need))
    }

    /// What is expected to be needed at most at once.
    pub fn predicted(&self) -> u64 {
        self.predicted
    }

    /// Forgets a model, which is gone.
    pub fn forget(&mut self, model: u32) {
        self.needs.retain(|(of, _), _| *of != model);
        self.sum_up();
    }

    /// Time goes on: old needs count less.
    pub fn age(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        let mut needs = std::mem::take(&mut self.needs);
        needs.retain(|_, need| self.decayed(need) > 0);
        self.needs = needs;
        self.sum_up();
    }

    fn decayed(&self, need: &Need) -> u64 {
        need.bytes.checked_shr(self.epoch.wrapping_sub(need.epoch) / HALF_LIFE).unwrap_or(0)
    }

    fn sum_up(&mut self) {
        let mut peaks = BTreeMap::<u32, u64>::new();
        for ((model, _), need) in &self.needs {
            let peak = peaks.entry(*model).or_default();
            *peak = (*peak).max(self.decayed(need));
        }
        self.predicted = peaks.values().sum();
        self.peaks = peaks;
    }

    fn forget_least(&mut self) {
        let least = self.needs.iter().min_by_key(|(_, need)| self.decayed(need)).map(|(key, _)| *key);
        if let Some(key) = least {
            self.needs.remove(&key);
            self.sum_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_need_of_each_model_counts() {
        let mut forecast = Forecast::default();
        forecast.note(1, 128, 100);
        forecast.note(1, 512, 300);
        forecast.note(1, 512, 50);
        forecast.note(2, 128, 40);
        assert_eq!((forecast.predicted(), forecast.expected(1, 128), forecast.expected(1, 512)), (340, 100, 300));
        assert_eq!(forecast.expected(3, 128), 0);
        forecast.forget(1);
        assert_eq!((forecast.predicted(), forecast.expected(1, 512)), (40, 0));
    }

    #[test]
    fn a_burst_is_forgotten_and_what_goes_on_is_not() {
        let mut forecast = Forecast::default();
        forecast.note(1, 0, 1 << 30);
        for _ in 0..HALF_LIFE {
            forecast.note(1, 0, 1 << 20);
            forecast.age();
        }
        assert_eq!(forecast.predicted(), 1 << 29);
        for _ in 0..20 * HALF_LIFE {
            forecast.note(1, 0, 1 << 20);
            forecast.age();
        }
        assert_eq!(forecast.predicted(), 1 << 20);
        for _ in 0..40 * HALF_LIFE {
            forecast.age();
        }
        assert_eq!((forecast.predicted(), forecast.needs.len()), (0, 0));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut forecast = Forecast::default();
        for bucket in 0..NEEDS_MAX as u32 + 100 {
            forecast.note(1, bucket, u64::from(bucket) + 1);
        }
        assert_eq!(forecast.needs.len(), NEEDS_MAX);
        assert_eq!((forecast.expected(1, 0), forecast.predicted()), (0, NEEDS_MAX as u64 + 100));
    }
}
