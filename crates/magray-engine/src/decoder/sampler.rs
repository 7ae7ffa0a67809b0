//! Chooses the next token by its logits: the likeliest, or one drawn by temperature, cut-offs and penalties.
//! A draw follows from seed and place alone: the same prompt and seed give the same tokens after any restart.

use super::logprobs::TokenLogprobs;
use super::sampling::Sampling;
use magray_core::SplitMix64;
use magray_device::Choice;
use std::collections::HashMap;

/// Chooses the tokens of one sequence.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    /// By token of the sequence: how often it was chosen. Kept only where there are penalties.
    seen: HashMap<u32, u32>,
    /// Tokens of the sequence that were noted.
    noted: usize,
}

impl Sampler {
    pub(crate) fn new(sampling: Sampling) -> Self {
        Self { sampling, seen: HashMap::new(), noted: 0 }
    }

    /// How a device may choose the token at this place by itself, of those that a constraint allows; `None` where it takes more than the logits.
    pub(crate) fn choice(&self, place: usize) -> Option<Choice> {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        let is_plain = !self.sampling.has_penalties() && self.sampling.logit_bias.is_empty();
        let is_free = is_plain && !self.sampling.needs_logits();
        is_free.then(|| Choice { temperature, top_k, top_p, min_p, draw: self.draw(place) })
    }

    /// Which part of all probability the token at this place is drawn at, of 2^64.
    fn draw(&self, place: usize) -> u64 {
        SplitMix64::new(SplitMix64::new(self.sampling.seed).bits() ^ place as u64).bits()
    }

    pub(crate) fn ignores_end(&self) -> bool {
        self.sampling.ignores_end
    }

    /// A copy of logits before they are changed, where log probabilities are wanted.
    pub(crate) fn plain(&self, logits: &[f32]) -> Option<Vec<f32>> {
        self.sampling.logprobs.map(|_| logits.to_vec())
    }

    /// The log probabilities of a token by the logits before they were changed.
    pub(crate) fn logprobs(&self, plain: &[f32], token: u32) -> TokenLogprobs {
        TokenLogprobs::of(plain, token, self.sampling.logprobs.unwrap_or_default())
    }

    /// Takes note of tokens of the sequence from this place on. Those that are known count once.
    pub(crate) fn note(&mut self, place: usize, ids: &[u32]) {
        if !self.sampling.has_penalties() {
            return;
        }
        let known = self.noted.saturating_sub(place).min(ids.len());
        for (place, id) in (place + known..).zip(&ids[known..]) {
            *self.seen.entry(*id).or_default() += u32::from(place >= self.sampling.prompt_tokens as usize);
            self.noted = place + 1;
        }
    }

    /// Forgets chosen tokens from this place on.
    pub(crate) fn forget(&mut self, place: usize, ids: &[u32]) {
        for (_, id) in (place..).zip(ids).take_while(|(place, _)| *place < self.noted) {
            if let Some(times) = self.seen.get_mut(id) {
                *times = times.saturating_sub(1);
            }
        }
        self.noted = self.noted.min(place);
    }

    /// The token at this place of the sequence. Changes the logits; `None` where they are no numbers.
    pub(crate) fn choose(&self, logits: &mut [f32], place: usize, scratch: &mut Scratch) -> Option<u32> {
        self.adjust(logits);
        // A comparison with NaN is false, so that it is not overlooked.
        if !logits.iter().all(|logit| *logit < f32::INFINITY) {
            return None;
        }
        let (best, most) = likeliest(logits)?;
        if self.sampling.temperature == 0.0 || most == f32::NEG_INFINITY {
            return (most > f32::NEG_INFINITY).then_some(best);
        }
        self.cut(logits, most, scratch);
        let total: f64 = scratch.kept.iter().map(|(weight, _)| f64::from(*weight)).sum();
        let mut left = self.draw(place) as f64 / 2_f64.powi(64) * total;
        let drawn = scratch.kept.iter().find(|(weight, _)| {
            left -= f64::from(*weight);
            left < 0.0
        });
        // What rounding left over belongs to the last.
        drawn.or(scratch.kept.last()).map(|(_, id)| *id)
    }

    fn adjust(&self, logits: &mut [f32]) {
        let Sampling { repetition_penalty, frequency_penalty, presence_penalty, logit_bias, .. } = &self.sampling;
        for (id, times) in &self.seen {
            let Some(logit) = logits.get_mut(*id as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
            if *times > 0 {
                *logit -= frequency_penalty * *times as f32 + presence_penalty;
            }
        }
        for (id, bias) in logit_bias {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit += bias;
            }
        }
    }

    /// Leaves the tokens that may be drawn in the scratch, with weights, in the order of their ids.
    fn cut(&self, logits: &[f32], most: f32, scratch: &mut Scratch) {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        let kept = &mut scratch.kept;
        kept.clear();
        // A weight of 0 is never drawn.
        let least = most + temperature * min_p.max(f32::MIN_POSITIVE).ln();
        kept.extend(logits.iter().copied().zip(0..).filter(|(logit, _)| *logit >= least));
        let heavier = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        let is_cut = top_k > 0 && (top_k as usize) < kept.len();
        if is_cut {
            kept.select_nth_unstable_by(top_k as usize - 1, heavier);
            kept.truncate(top_k as usize);
        }
        kept.iter_mut().for_each(|(logit, _)| *logit = ((*logit - most) / temperature).exp());
        if top_p < 1.0 {
            let total: f64 = kept.iter().map(|(weight, _)| f64::from(*weight)).sum();
            // All that are lighter than this have too little together to be needed.
            let light = (total * (1.0 - f64::from(top_p)) / kept.len() as f64) as f32;
            kept.retain(|(weight, _)| *weight >= light);
            kept.sort_unstable_by(heavier);
            let mut left = total * f64::from(top_p);
            let enough = kept.iter().position(|(weight, _)| {
                left -= f64::from(*weight);
                left <= 0.0
            });
            kept.truncate(enough.map_or(kept.len(), |at| at + 1));
        }
        if is_cut || top_p < 1.0 {
            kept.sort_unstable_by_key(|(_, id)| *id);
        }
    }
}

/// Memory of choices, used again.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Weights and tokens that may be drawn.
    kept: Vec<(f32, u32)>,
}

/// The largest logit, the first of equals.
fn likeliest(logits: &[f32]) -> Option<(u32, f32)> {
    let first = logits.first().map(|first| (0, *first));
    first.map(|first| {
        logits.iter().zip(0_u32..).fold(first, |best, (logit, id)| if *logit > best.1 { (id, *logit) } else { best })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn choose(sampling: &Sampling, logits: &[f32], place: usize) -> Option<u32> {
        Sampler::new(sampling.clone()).choose(&mut logits.to_vec(), place, &mut Scratch::default())
    }

    /// How often each token is drawn at many places.
    fn shares(sampling: &Sampling, logits: &[f32]) -> Vec<f64> {
        const DRAWS: usize = 40_000;
        let mut counts = vec![0.0; logits.len()];
        (0..DRAWS).for_each(|place| counts[choose(sampling, logits, place).unwrap() as usize] += 1.0 / DRAWS as f64);
        counts
    }

    #[test]
    fn without_a_temperature_the_first_of_the_likeliest_is_taken() {
        assert_eq!(choose(&Sampling::default(), &[0.5, 2.0, 2.0, -1.0], 3), Some(1));
        assert_eq!(choose(&Sampling::default(), &[0.5, f32::NAN], 3), None);
        assert_eq!(choose(&Sampling::default(), &[0.5, f32::INFINITY], 3), None);
        assert_eq!(choose(&Sampling::default(), &[], 3), None);
    }

    #[test]
    fn draws_have_the_shares_of_a_softmax() {
        let logits = [1.0, 0.0, -1.0, 2.0];
        let drawn = shares(&Sampling { temperature: 0.7, seed: 5, ..Sampling::default() }, &logits);
        let weights: Vec<f64> = logits.iter().map(|logit| (f64::from(*logit) / 0.7).exp()).collect();
        let total: f64 = weights.iter().sum();
        for (drawn, weight) in drawn.iter().zip(weights) {
            assert!((drawn - weight / total).abs() < 0.01, "{drawn} for {}", weight / total);
        }
    }

    #[test]
    fn cut_offs_leave_the_likeliest() {
        let logits: Vec<f32> = [0.1_f32, 0.4, 0.2, 0.3].iter().map(|share| share.ln()).collect();
        let warm = Sampling { temperature: 1.0, ..Sampling::default() };
        let left = |sampling: Sampling| -> Vec<bool> { shares(&sampling, &logits).iter().map(|n| *n > 0.0).collect() };
        assert_eq!(left(Sampling { top_k: 2, ..warm.clone() }), [false, true, false, true]);
        assert_eq!(left(Sampling { top_p: 0.65, ..warm.clone() }), [false, true, false, true]);
        assert_eq!(left(Sampling { top_p: 0.75, ..warm.clone() }), [false, true, true, true]);
        assert_eq!(left(Sampling { min_p: 0.6, ..warm.clone() }), [false, true, false, true]);
        assert_eq!(left(Sampling { top_k: 3, top_p: 0.4, ..warm }), [false, true, false, false]);
    }

    #[test]
    fn penalties_and_biases_change_what_is_taken() {
        let after = |prompt_tokens, ids: &[u32], sampling: Sampling| {
            let mut sampler = Sampler::new(Sampling { prompt_tokens, ..sampling });
            sampler.note(0, ids);
            sampler
        };
        let logits = [1.0_f32, 2.0, 0.0];
        let next = |sampler: &Sampler| sampler.choose(&mut logits.to_vec(), 0, &mut Scratch::default());
        let frequency = Sampling { frequency_penalty: 0.6, ..Sampling::default() };
        assert_eq!(next(&after(2, &[1, 1], frequency.clone())), Some(1), "tokens of a prompt were not chosen");
        let mut sampler = after(0, &[1, 1], frequency);
        sampler.note(0, &[1, 1]);
        assert_eq!(next(&sampler), Some(0));
        sampler.forget(1, &[1]);
        assert_eq!(next(&sampler), Some(1));
        let repetition = Sampling { repetition_penalty: 3.0, ..Sampling::default() };
        assert_eq!(next(&after(1, &[1], repetition)), Some(0), "tokens of a prompt are repeated");
        let presence = Sampling { presence_penalty: 1.5, ..Sampling::default() };
        assert_eq!(next(&after(0, &[1, 1], presence)), Some(0));
        let biased = Sampling { logit_bias: vec![(2, 5.0), (9, 5.0)], ..Sampling::default() };
        assert_eq!(choose(&biased, &logits, 0), Some(2));
    }

    proptest! {
        #[test]
        fn a_draw_is_repeated_and_is_among_the_allowed(
            logits in prop::collection::vec(-20.0_f32..20.0, 1..60),
            (temperature, top_k, top_p, min_p) in (0.05_f32..3.0, 0_u32..8, 0.05_f32..1.0, 0.0_f32..0.9),
            (seed, place) in (any::<u64>(), 0_usize..5000),
        ) {
            let sampling = Sampling { temperature, top_k, top_p, min_p, seed, ..Sampling::default() };
            let drawn = choose(&sampling, &logits, place).unwrap() as usize;
            prop_assert_eq!(choose(&sampling, &logits, place), Some(drawn as u32));
            let better = logits.iter().filter(|logit| **logit > logits[drawn]).count();
            prop_assert!(top_k == 0 || better < top_k as usize);
            let most = logits.iter().copied().fold(f32::MIN, f32::max);
            prop_assert!(((logits[drawn] - most) / temperature).exp() >= min_p * 0.999);
        }
    }
}
