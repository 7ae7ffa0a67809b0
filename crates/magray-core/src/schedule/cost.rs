//! What a batch costs on a device, learnt from the batches before it: a fixed time, a time per token, one per text.
//! Predictions are finite, positive and monotonic in the work; a single slow batch cannot spoil them.

use super::Moment;
use super::queue::Load;

/// The part of an efficient batch that its fixed cost is at most. Beyond that, larger batches mostly add waiting.
const FIXED_PART: f64 = 0.05;
/// What waits long anyway is better off with batches of up to this part of its waiting, which waste less.
const WAITING_PART: f64 = 0.125;
/// But no batch is longer than this many efficient ones: urgent texts that come now wait for its end.
const LONGEST: f64 = 10.0;
/// What it costs to hand a batch to a device even where its own fixed cost is nothing, in microseconds.
const HANDING_US: f64 = 25.0;
/// A batch of less time than this is never called full: its fixed cost could not be told from noise.
const FULL_LEAST_US: f64 = 1_000.0;
/// No batch is predicted below this: the clock of a device is not finer.
const PREDICTED_LEAST_US: f64 = 1.0;
/// How much of what was learnt is kept with each further batch: about the last thirty count.
const KEPT: f64 = 0.97;
/// A batch that took more than this many times what was expected counts as that many times: one is not believed.
const OUTLIER: f64 = 4.0;
/// This many batches in a row that are much slower, or quicker, than expected are a sign: the device has changed.
const CHANGED_BATCHES: u32 = 4;
const CHANGED_FACTOR: f64 = 1.5;
/// While fewer batches than this are known, a far quicker one shows that those before it were slow first ones.
const SAMPLES_FEW: u32 = 6;
/// How firmly a coefficient about which the batches say nothing stays where it was.
const FIRMNESS: f64 = 0.05;
/// Rounds of the descent; the last answer is its start, so a few do.
const ROUNDS: usize = 12;

/// A prediction in microseconds: `fixed + token * tokens + text * texts`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cost {
    fixed: f64,
    token: f64,
    text: f64,
}

impl Cost {
    /// For a GPU of which nothing is known: as quick as a good one.
    pub(super) const GPU: Self = Self { fixed: 80.0, token: 0.04, text: 0.8 };
    /// For a CPU of which nothing is known.
    pub(super) const CPU: Self = Self { fixed: 200.0, token: 1.0, text: 2.0 };

    /// A batch of this size.
    pub(super) fn of(&self, load: Load) -> f64 {
        (self.fixed + self.variable(load)).max(PREDICTED_LEAST_US)
    }

    /// Tokens of one more text that a batch of this size can have within a time.
    pub(super) fn tokens_within(&self, load: Load, time_us: f64) -> u64 {
        let left_us = time_us - self.of(load.plus(Load { tokens: 0, texts: 1 }));
        match left_us >= 0.0 {
            true if self.token > 0.0 => as_count(left_us / self.token),
            true => u64::MAX,
            false => 0,
        }
    }

    /// This much work, in as many batches as it takes.
    pub(super) fn of_all(&self, load: Load) -> f64 {
        let variable = self.variable(load);
        let batches = (variable / (self.full_us() - self.fixed).max(PREDICTED_LEAST_US)).max(1.0);
        (variable + self.fixed * batches).max(PREDICTED_LEAST_US)
    }

    /// The time of a batch from which on larger ones are hardly more efficient.
    pub(super) fn full_us(&self) -> f64 {
        (self.fixed.max(HANDING_US) / FIXED_PART).max(FULL_LEAST_US)
    }

    /// The time of a batch of which the fixed cost is a quarter, most of which is hidden behind the batch beside it.
    pub(super) fn efficient_us(&self) -> f64 {
        self.fixed.max(HANDING_US) * 4.0
    }

    /// The time of a batch at most where so much waits for the device.
    pub(super) fn longest_us(&self, waiting_us: f64) -> f64 {
        let full_us = self.full_us();
        (waiting_us * WAITING_PART).max(full_us).min(LONGEST * full_us)
    }

    /// The time of a batch below which the fixed cost is most of it: not worth a device of its own.
    pub(super) fn worthwhile_us(&self) -> f64 {
        2.0 * self.fixed.max(HANDING_US)
    }

    pub(super) fn scaled(&self, factor: f64) -> Self {
        Self { fixed: self.fixed * factor, token: self.token * factor, text: self.text * factor }
    }

    fn variable(&self, load: Load) -> f64 {
        self.token * as_f64(load.tokens) + self.text * as_f64(load.texts)
    }
}

/// A batch that was computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) load: Load,
    pub(super) measured_us: f64,
    /// When it ended.
    pub(super) at: Moment,
}

/// Learns the cost of one group's batches on one device.
#[derive(Clone, Debug)]
pub(super) struct CostModel {
    cost: Cost,
    seen: Seen,
    samples: u32,
    largest: Load,
    surprise: Surprise,
    /// When the last batch ended.
    learnt: Moment,
}

/// Batches in a row that were all far slower, or all far quicker, than expected.
#[derive(Clone, Copy, Debug, Default)]
struct Surprise {
    batches: u32,
    /// The least surprising of them: measured by expected.
    ratio: f64,
}

impl Surprise {
    /// Returns by how much the device has changed, once enough batches agree.
    fn add(&mut self, ratio: f64) -> Option<f64> {
        let is_slower = ratio > CHANGED_FACTOR;
        let is_quicker = ratio * CHANGED_FACTOR < 1.0;
        let agrees = self.batches > 0 && (self.ratio > 1.0) == is_slower;
        *self = match (is_slower || is_quicker, agrees) {
            (false, _) => Self::default(),
            (true, false) => Self { batches: 1, ratio },
            (true, true) if is_slower => Self { batches: self.batches + 1, ratio: self.ratio.min(ratio) },
            (true, true) => Self { batches: self.batches + 1, ratio: self.ratio.max(ratio) },
        };
        (self.batches >= CHANGED_BATCHES).then(|| std::mem::take(self).ratio)
    }
}

impl CostModel {
    /// The first batch says how far off the prior is as a whole; which coefficient is to blame, later ones say.
    pub(super) fn new(prior: Cost, first: Sample) -> Self {
        let measured_us = sane_us(first.measured_us);
        let cost = prior.scaled(measured_us / prior.of(first.load));
        let mut seen = Seen::default();
        seen.add(first.load, measured_us);
        Self { cost, seen, samples: 1, largest: first.load, surprise: Surprise::default(), learnt: first.at }
    }

    pub(super) fn cost(&self) -> Cost {
        self.cost
    }

    /// The largest number of tokens and of texts that was computed so far.
    pub(super) fn largest(&self) -> Load {
        self.largest
    }

    pub(super) fn learn(&mut self, sample: Sample) {
        let expected_us = self.cost.of(sample.load);
        let measured_us = sane_us(sample.measured_us).min(OUTLIER * expected_us);
        if self.samples < SAMPLES_FEW && measured_us * OUTLIER < expected_us {
            self.rescale(measured_us / expected_us);
        }
        if let Some(ratio) = self.surprise.add(sane_us(sample.measured_us) / expected_us) {
            self.rescale(ratio);
        }
        self.learnt = sample.at;
        self.samples = self.samples.saturating_add(1);
        self.largest.tokens = self.largest.tokens.max(sample.load.tokens);
        self.largest.texts = self.largest.texts.max(sample.load.texts);
        self.seen.fade();
        self.seen.add(sample.load, measured_us);
        self.cost = self.seen.fit(self.cost);
    }

    /// When the last batch ended.
    pub(super) fn learnt(&self) -> Moment {
        self.learnt
    }

    /// What was seen is of another time: only the proportions of it are kept.
    pub(super) fn rescale(&mut self, ratio: f64) {
        self.seen = Seen::default();
        self.cost = self.cost.scaled(ratio);
    }
}

/// Sums over the batches seen, each divided by its time: what is made small is the relative error, so that short
/// batches count as much as long ones.
#[derive(Clone, Debug, Default)]
struct Seen {
    weight: f64,
    products: [[f64; 3]; 3],
    targets: [f64; 3],
}

impl Seen {
    fn fade(&mut self) {
        self.weight *= KEPT;
        self.products.iter_mut().flatten().chain(&mut self.targets).for_each(|sum| *sum *= KEPT);
    }

    fn add(&mut self, load: Load, measured_us: f64) {
        let features = [1.0, as_f64(load.tokens), as_f64(load.texts)].map(|feature| feature / measured_us);
        self.weight += 1.0;
        for (i, row) in self.products.iter_mut().enumerate() {
            for (j, sum) in row.iter_mut().enumerate() {
                *sum += features[i] * features[j];
            }
            self.targets[i] += features[i];
        }
    }

    /// The least squares with no coefficient below nothing, by descent along one coefficient after the other, each
    /// measured in its share of a typical batch. What the batches cannot tell apart stays near `last`.
    fn fit(&self, last: Cost) -> Cost {
        let scale = [0, 1, 2].map(|i| (self.products[i][i] / self.weight).sqrt().max(f64::MIN_POSITIVE));
        let firm = FIRMNESS * self.weight;
        let start = [last.fixed * scale[0], last.token * scale[1], last.text * scale[2]];
        let mut shares = start;
        for _ in 0..ROUNDS {
            for i in 0..3 {
                let others: f64 =
                    (0..3).filter(|&j| j != i).map(|j| self.products[i][j] / scale[j] * shares[j]).sum::<f64>();
                let target = (self.targets[i] - others) / scale[i] + firm * start[i];
                shares[i] = (target / (self.weight + firm)).max(0.0);
            }
        }
        let fitted = Cost { fixed: shares[0] / scale[0], token: shares[1] / scale[1], text: shares[2] / scale[2] };
        let is_finite = [fitted.fixed, fitted.token, fitted.text].iter().all(|value| value.is_finite());
        if is_finite { fitted } else { last }
    }
}

/// A time that arithmetic can be done with, whatever was measured.
fn sane_us(measured_us: f64) -> f64 {
    const HOUR_US: f64 = 3.6e9;
    if measured_us.is_finite() { measured_us.clamp(PREDICTED_LEAST_US, HOUR_US) } else { HOUR_US }
}

#[expect(clippy::cast_precision_loss, reason = "counts of tokens are far below what f64 holds exactly")]
pub(super) fn as_f64(count: u64) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what does not fit becomes the nearest that does"
)]
pub(super) fn as_count(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn load(tokens: u64, texts: u64) -> Load {
        Load { tokens, texts }
    }

    fn sample(load: Load, measured_us: f64) -> Sample {
        Sample { load, measured_us, at: Moment::START }
    }

    fn truth(load: Load) -> f64 {
        110.0 + 0.052 * as_f64(load.tokens) + as_f64(load.texts)
    }

    fn taught(sizes: &[(u64, u64)], of: impl Fn(Load) -> f64) -> CostModel {
        let sample = |&(tokens, texts): &(u64, u64)| sample(load(tokens, texts), of(load(tokens, texts)));
        let mut model = CostModel::new(Cost::GPU, sample(&sizes[0]));
        sizes[1..].iter().map(sample).for_each(|sample| model.learn(sample));
        model
    }

    fn is_near(model: &CostModel, wanted: impl Fn(Load) -> f64, at: Load) -> bool {
        let ratio = model.cost().of(at) / wanted(at);
        (0.8..1.25).contains(&ratio)
    }

    const MIXED: [(u64, u64); 8] =
        [(30, 1), (240, 8), (900, 32), (3_000, 110), (15_000, 500), (64, 2), (9_000, 200), (400, 1)];

    #[test]
    fn batches_of_mixed_sizes_teach_the_cost() {
        let sizes: Vec<_> = MIXED.iter().cycle().take(40).copied().collect();
        let model = taught(&sizes, truth);
        for &(tokens, texts) in &MIXED {
            assert!(is_near(&model, truth, load(tokens, texts)), "{tokens} {texts}: {:?}", model.cost());
        }
    }

    #[test]
    fn a_slow_first_batch_is_soon_forgotten() {
        let mut sizes = vec![(30, 1)];
        sizes.extend(MIXED);
        let first = std::cell::Cell::new(true);
        let model = taught(&sizes, |load| if first.replace(false) { 400_000.0 } else { truth(load) });
        assert!(is_near(&model, truth, load(900, 32)), "{:?}", model.cost());
    }

    #[test]
    fn one_slow_batch_changes_little() {
        let sizes: Vec<_> = MIXED.iter().cycle().take(40).copied().collect();
        let mut model = taught(&sizes, truth);
        let before = model.cost().of(load(900, 32));
        model.learn(sample(load(900, 32), 5e6));
        assert!(model.cost().of(load(900, 32)) < 1.5 * before, "{:?}", model.cost());
    }

    #[test]
    fn a_device_that_became_slower_is_learnt() {
        let sizes: Vec<_> = MIXED.iter().cycle().take(40).copied().collect();
        let mut model = taught(&sizes, truth);
        for &(tokens, texts) in MIXED.iter().cycle().take(160) {
            model.learn(sample(load(tokens, texts), 10.0 * truth(load(tokens, texts))));
        }
        assert!(is_near(&model, |load| 10.0 * truth(load), load(3_000, 110)), "{:?}", model.cost());
    }

    #[test]
    fn a_full_batch_has_a_small_fixed_part() {
        let full = Cost::GPU.full_us();
        assert!((0.04..=0.051).contains(&(Cost::GPU.fixed / full)));
    }

    proptest! {
        #[test]
        fn predictions_are_positive_finite_and_grow_with_the_work(
            samples in prop::collection::vec((1_u64..70_000, 1_u64..600, prop_oneof![0.0..1e9, Just(f64::NAN)]), 1..60),
            at in (1_u64..100_000, 1_u64..600),
            more in (0_u64..100_000, 0_u64..600),
        ) {
            let sample = |&(tokens, texts, measured_us): &(u64, u64, f64)| sample(load(tokens, texts), measured_us);
            let mut model = CostModel::new(Cost::CPU, sample(&samples[0]));
            samples[1..].iter().map(sample).for_each(|sample| model.learn(sample));
            let less = model.cost().of(load(at.0, at.1));
            let larger = model.cost().of(load(at.0 + more.0, at.1 + more.1));
            prop_assert!(less.is_finite() && less > 0.0);
            prop_assert!(larger.is_finite() && larger >= less);
            prop_assert!(model.cost().of_all(load(at.0, at.1)) >= less * 0.999);
        }
    }
}
