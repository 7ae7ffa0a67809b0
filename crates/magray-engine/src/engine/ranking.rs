//! Scores texts against a query: by a classifier that reads both, or by the cosine of their vectors.
//! Puts nothing in order by itself: scores stay in the order of the texts.

use super::{Answer, Work};
use crate::vectors::{cosine, ranked, sigmoid};

/// A query and the texts to score against it, as a model reads them.
#[derive(Clone, Debug)]
pub struct RankingWork {
    /// What is to be computed.
    pub work: Work,
    /// What the rows of its answer mean.
    pub by: ScoredBy,
}

/// How texts are scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoredBy {
    /// By a classifier of one label, which reads query and text together.
    Pairs,
    /// By a classifier of two labels, of which one says that they fit.
    TwoLabels {
        /// Its place.
        positive: usize,
    },
    /// By the vectors of both: the query's is the first row.
    Vectors,
}

/// Texts that were scored.
#[derive(Clone, Debug)]
pub struct Ranked {
    /// One score a text, in the order of the texts: the larger, the better it fits.
    pub scores: Vec<f32>,
    /// How it was computed.
    pub answer: Answer,
}

impl Ranked {
    /// The places of the texts, the best first.
    pub fn order(&self) -> Vec<usize> {
        ranked(&self.scores)
    }
}

/// Names of a first label that says that two texts fit. Most models have it second, whatever it is called.
const POSITIVE: [&str; 6] = ["entailment", "relevant", "positive", "duplicate", "yes", "true"];

impl ScoredBy {
    /// How a classifier with these labels ranks; `None`: it has too many.
    pub(super) fn labels(labels: &[String]) -> Option<Self> {
        match labels {
            [_] => Some(Self::Pairs),
            [first, _] => {
                let is_first = POSITIVE.iter().any(|name| first.eq_ignore_ascii_case(name));
                Some(Self::TwoLabels { positive: usize::from(!is_first) })
            }
            _ => None,
        }
    }

    /// The scores, in the order of the texts. Those of a classifier are brought between 0 and 1, unless the raw ones are
    /// wanted; those of vectors are their cosines.
    pub fn scores(self, answer: &Answer, wants_raw: bool) -> Vec<f32> {
        let mut rows = answer.rows();
        let number = |row: &[f32], at: usize| row.get(at).copied().unwrap_or_default();
        let share = |score: f32| if wants_raw { score } else { sigmoid(score) };
        match self {
            Self::Pairs => rows.map(|row| share(number(row, 0))).collect(),
            // The sigmoid of the difference of two labels is the softmax of the first.
            Self::TwoLabels { positive } => {
                rows.map(|row| share(number(row, positive) - number(row, 1 - positive))).collect()
            }
            Self::Vectors => {
                let query = rows.next().unwrap_or_default();
                rows.map(|row| cosine(query, row) as f32).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use magray_core::{DeviceName, Precision};
    use std::time::Duration;

    fn answer(dimensions: usize, values: &[f32]) -> Answer {
        Answer {
            dimensions,
            values: values.to_vec(),
            tokens: 0,
            device: DeviceName::Cpu,
            precision: Precision::F32,
            batch_texts: 0,
            queued: Duration::ZERO,
            computed: Duration::ZERO,
            replays: 0,
            fallback: None,
        }
    }

    #[test]
    fn scores_of_pairs_are_shares_unless_raw_ones_are_wanted() {
        let answer = answer(1, &[0.0, 40.0]);
        assert_eq!(ScoredBy::Pairs.scores(&answer, false), [0.5, 1.0]);
        assert_eq!(ScoredBy::Pairs.scores(&answer, true), [0.0, 40.0]);
    }

    #[test]
    fn of_two_labels_the_positive_one_ranks_by_its_share() {
        let answer = answer(2, &[1.0, 1.0, 0.0, 3.0]);
        let softmax = 3.0_f32.exp() / (3.0_f32.exp() + 1.0);
        let scores = ScoredBy::TwoLabels { positive: 1 }.scores(&answer, false);
        assert!(scores[0] == 0.5 && (scores[1] - softmax).abs() < 1e-6, "{scores:?}");
        assert_eq!(ScoredBy::TwoLabels { positive: 0 }.scores(&answer, true), [0.0, -3.0]);
        let by =
            |labels: &[&str]| ScoredBy::labels(&labels.iter().map(|label| (*label).to_owned()).collect::<Vec<_>>());
        assert_eq!(by(&["LABEL_0", "LABEL_1"]), Some(ScoredBy::TwoLabels { positive: 1 }));
        assert_eq!(by(&["Entailment", "not_entailment"]), Some(ScoredBy::TwoLabels { positive: 0 }));
        assert_eq!(by(&["score"]), Some(ScoredBy::Pairs));
        assert_eq!(by(&["a", "b", "c"]), None);
    }

    #[test]
    fn scores_of_vectors_are_cosines_with_the_first() {
        let answer = answer(2, &[1.0, 0.0, 0.0, 2.0, 3.0, 0.0]);
        assert_eq!(ScoredBy::Vectors.scores(&answer, false), [0.0, 1.0]);
        let ranked = Ranked { scores: vec![0.0, 1.0], answer };
        assert_eq!(ranked.order(), [1, 0]);
    }
}
