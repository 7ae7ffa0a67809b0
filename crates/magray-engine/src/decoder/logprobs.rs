//! Log probabilities of tokens, by the plain softmax of their logits: without temperature, cut-offs, penalties and constraints.
//! Chooses nothing.

use serde::{Deserialize, Serialize};

/// How likely a token was, and which were likeliest in its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// The natural logarithm of the chosen token's probability.
    pub chosen: f32,
    /// The likeliest tokens with theirs, the likeliest first; as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

/// The most of the likeliest tokens that can be asked for.
pub const TOP_LOGPROBS_MAX: u8 = 20;

impl TokenLogprobs {
    /// Those of a token that was chosen by these logits.
    pub(crate) fn of(logits: &[f32], chosen: u32, top: u8) -> Self {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
        let total = f64::from(most) + sum.ln();
        let logprob = |logit: f32| (f64::from(logit) - total) as f32;
        let top = likeliest(logits, usize::from(top)).into_iter().map(|(id, logit)| (id, logprob(logit))).collect();
        Self { chosen: logits.get(chosen as usize).map_or(f32::MIN, |logit| logprob(*logit)), top }
    }

    /// Whether it can be what was asked for. A worker may send anything.
    pub(crate) fn is_plausible(&self, top: u8) -> bool {
        // Rounding may lift a probability a little above 1.
        let is_logprob = |logprob: f32| logprob.is_finite() && logprob <= 1e-3;
        self.top.len() <= usize::from(top)
            && is_logprob(self.chosen)
            && self.top.iter().all(|(_, logprob)| is_logprob(*logprob))
    }
}

/// The largest logits that are numbers, the largest first; of equals the first.
fn likeliest(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    for (logit, id) in logits.iter().zip(0_u32..).filter(|(logit, _)| logit.is_finite()) {
        if top.len() == count && top.last().is_none_or(|(_, least)| least >= logit) {
            continue;
        }
        let place = top.partition_point(|(_, other)| other >= logit);
        top.insert(place, (id, *logit));
        top.truncate(count);
    }
    top
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn they_are_those_of_a_softmax(logits in prop::collection::vec(-30.0_f32..30.0, 1..80), chosen in 0_u32..80, top in 0_u8..=20) {
            let chosen = chosen % logits.len() as u32;
            let found = TokenLogprobs::of(&logits, chosen, top);
            prop_assert!(found.is_plausible(top));
            let total: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
            let expected = |id: u32| f64::from(logits[id as usize]).exp() / total;
            prop_assert!((f64::from(found.chosen).exp() - expected(chosen)).abs() < 1e-5);
            prop_assert_eq!(found.top.len(), logits.len().min(usize::from(top)));
            let mut sorted: Vec<f32> = logits.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            for ((id, logprob), logit) in found.top.iter().zip(sorted) {
                prop_assert_eq!(logits[*id as usize], logit);
                prop_assert!((f64::from(*logprob).exp() - expected(*id)).abs() < 1e-5);
            }
            prop_assert!(found.top.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum::<f64>() <= 1.0 + 1e-4);
        }
    }

    #[test]
    fn what_no_softmax_gives_is_not_plausible() {
        let of = |chosen, top| TokenLogprobs { chosen, top };
        assert!(of(-0.5, vec![(1, -0.5)]).is_plausible(1));
        assert!(!of(-0.5, vec![(1, -0.5)]).is_plausible(0));
        assert!(!of(0.5, Vec::new()).is_plausible(0));
        assert!(!of(f32::NAN, Vec::new()).is_plausible(0));
        assert!(!of(-1.0, vec![(1, f32::NEG_INFINITY)]).is_plausible(3));
    }

    #[test]
    fn tokens_that_cannot_follow_are_not_among_the_likeliest() {
        let found = TokenLogprobs::of(&[f32::NEG_INFINITY, 0.0, 0.0], 2, 3);
        assert_eq!(found.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2]);
        assert!((found.chosen + std::f32::consts::LN_2).abs() < 1e-6);
    }
}
