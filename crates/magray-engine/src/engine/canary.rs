//! A text whose answer is known: it rides with every batch of a GPU and tells whether the device still computes right.
//! Catches a device that returns something else; does not catch one that is wrong for some texts and right for this.

use crate::packed::Tokens;
use crate::spec::{ModelSpec, Task};

/// A known text and its answer.
pub(super) struct Canary {
    ids: Vec<u32>,
    /// Empty until it is known.
    expected: Vec<f32>,
    /// Whether every answer of the model has length 1.
    has_unit_rows: bool,
}

/// Tokens of the known text: a few, since every batch pays for them.
const TOKENS: usize = 8;
/// Between devices and precisions answers differ: the worst that was seen on real texts, in int8, is 0.993.
const COSINE_LEAST: f64 = 0.97;
/// Lengths of answers differ by less.
const LENGTH_PART_MAX: f64 = 0.1;
/// A row of length 1, rounded.
const UNIT_ERROR_MAX: f32 = 0.02;

impl Canary {
    pub(super) fn new(model: &ModelSpec) -> Self {
        let vocab = model.shape.vocab.max(1);
        let ids = (1..).map(|at: usize| (at.wrapping_mul(2_654_435_761) % vocab) as u32);
        // A vocabulary of one word leaves nothing but that word.
        let ids = ids.filter(|id| *id != model.pad_id || vocab == 1).take(TOKENS.min(model.max_tokens)).collect();
        let has_unit_rows = matches!(&model.task, Task::Embed(embed) if embed.normalize);
        Self { ids, expected: Vec::new(), has_unit_rows }
    }

    pub(super) fn tokens(&self) -> Tokens<'_> {
        Tokens { ids: &self.ids, types: &[] }
    }

    /// Takes the answer of a device that is trusted.
    pub(super) fn learn(&mut self, row: &[f32]) {
        self.expected = row.to_vec();
    }

    /// Numbers of a row.
    pub(super) fn outputs(&self) -> usize {
        self.expected.len()
    }

    /// Whether this is the known text's answer.
    pub(super) fn is_right(&self, row: &[f32]) -> bool {
        assert_eq!(row.len(), self.expected.len(), "rows of one model are equally long");
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let (own, known) = (dot(row, row).sqrt(), dot(&self.expected, &self.expected).sqrt());
        if known == 0.0 {
            return own == 0.0;
        }
        let cosine = dot(row, &self.expected) / (own * known);
        // Comparisons with NaN are false, so that it counts as wrong.
        cosine >= COSINE_LEAST && (own / known - 1.0).abs() <= LENGTH_PART_MAX
    }

    /// Whether rows of other texts can be answers at all: finite, and of length 1 where the model says so.
    pub(super) fn are_plausible(&self, rows: &[f32]) -> bool {
        rows.chunks_exact(self.outputs().max(1)).all(|row| {
            let squares: f32 = row.iter().map(|value| value * value).sum();
            match self.has_unit_rows {
                // A text with nothing left to pool has a row of zeros.
                true => (squares.sqrt() - 1.0).abs() <= UNIT_ERROR_MAX || squares == 0.0,
                false => squares.is_finite(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoder::synthetic_spec;
    use magray_core::EncoderShape;

    fn canary() -> Canary {
        let shape = EncoderShape { vocab: 50, hidden: 4, layers: 1, heads: 1, ffn: 8, positions: 16 };
        let mut canary = Canary::new(&synthetic_spec(shape));
        canary.learn(&[0.5, 0.5, -0.5, 0.5]);
        canary
    }

    #[test]
    fn a_near_answer_is_right_and_any_other_is_wrong() {
        let canary = canary();
        assert!(canary.is_right(&[0.5, 0.5, -0.5, 0.5]));
        assert!(canary.is_right(&[0.52, 0.49, -0.5, 0.48]));
        assert!(!canary.is_right(&[0.5, 0.5, 0.5, 0.5]));
        assert!(!canary.is_right(&[5.0, 5.0, -5.0, 5.0]));
        assert!(!canary.is_right(&[0.0; 4]));
        assert!(!canary.is_right(&[f32::NAN, 0.5, -0.5, 0.5]));
    }

    #[test]
    fn rows_that_no_model_gives_are_seen() {
        let canary = canary();
        assert!(canary.are_plausible(&[0.5, 0.5, 0.5, 0.5, 1.0, 0.0, 0.0, 0.0]));
        assert!(canary.are_plausible(&[0.0; 4]));
        assert!(!canary.are_plausible(&[0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 0.0, 0.0]));
        assert!(!canary.are_plausible(&[f32::NAN, 0.0, 0.0, 1.0]));
        assert!(!canary.are_plausible(&[f32::INFINITY, 0.0, 0.0, 1.0]));
    }

    #[test]
    fn the_known_text_fits_any_model() {
        for (vocab, positions) in [(1, 1), (2, 3), (7, 512), (30_522, 512)] {
            let shape = EncoderShape { vocab, hidden: 4, layers: 1, heads: 1, ffn: 8, positions };
            let canary = Canary::new(&synthetic_spec(shape));
            let ids = canary.tokens().ids;
            assert!(!ids.is_empty() && ids.len() <= positions && ids.iter().all(|id| (*id as usize) < vocab));
        }
    }
}
