//! A text whose answer is known: it rides with every batch of a GPU and tells whether the device still computes right.
//! Catches a device that returns something else; does not catch one that is wrong for some texts and right for this.

use crate::packed::Tokens;
use crate::spec::{ModelSpec, Task};
use crate::vectors::unit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A known text and its answer.
pub(super) struct Canary {
    ids: Vec<u32>,
    /// All numbers of leading tokens that may be skipped.
    skips: Vec<usize>,
    /// By the number of leading tokens that are not pooled; told by the CPU when it first has the model.
    expected: OnceLock<Vec<Vec<f32>>>,
    /// The rows of its tokens, end to end; told by the CPU too.
    expected_tokens: OnceLock<Vec<f32>>,
    /// Whether there is nothing to wait for any more.
    is_settled: AtomicBool,
    outputs: usize,
    hidden: usize,
    rows: Rows,
    /// Whether its answer can be known.
    is_known: bool,
}

/// What the rows of a model are like.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// Directions of length 1.
    Unit,
    /// Directions of any length.
    Vectors,
    /// Scores, each of which counts by itself.
    Scores,
}

/// Tokens of the known text that are pooled: a few, since every batch pays for them.
const TOKENS: usize = 8;
/// Between devices and precisions answers differ: the worst that was seen on real texts, in int8, is 0.993.
const COSINE_LEAST: f64 = 0.97;
/// Lengths of answers differ by less.
const LENGTH_PART_MAX: f64 = 0.1;
/// Scores of one text differ by this between devices and precisions, or by this part of them.
const SCORE_ERROR_MAX: f32 = 0.25;
const SCORE_PART_MAX: f32 = 0.15;
/// A row of length 1, rounded.
const UNIT_ERROR_MAX: f32 = 0.02;

impl Canary {
    /// A text that still has tokens to pool where as many are skipped as in any of these ways.
    pub(super) fn new(model: &ModelSpec, skips: Vec<usize>) -> Self {
        let skip_most = skips.iter().copied().max().unwrap_or(0);
        let vocab = model.shape.vocab.max(1);
        let ids = (1..).map(|at: usize| (at.wrapping_mul(2_654_435_761) % vocab) as u32);
        let tokens = (TOKENS + skip_most).min(model.max_tokens);
        // A vocabulary of one word leaves nothing but that word.
        let ids = ids.filter(|id| *id != model.pad_id || vocab == 1).take(tokens).collect();
        let rows = match &model.task {
            Task::Embed(embed) if embed.normalize => Rows::Unit,
            Task::Embed(_) => Rows::Vectors,
            Task::Classify(_) | Task::Generate(_) => Rows::Scores,
        };
        // The CPU does not compute what ONNX Runtime does: there is nothing to compare with, and nothing to wait for. Tokens
        // have no row.
        let is_known = model.onnx.is_none() && model.generates().is_none();
        let is_settled = AtomicBool::new(!is_known);
        let (outputs, hidden) = (model.outputs(), model.shape.hidden);
        Self {
            ids,
            skips,
            expected: OnceLock::new(),
            expected_tokens: OnceLock::new(),
            is_settled,
            outputs,
            hidden,
            rows,
            is_known,
        }
    }

    /// Whether it is computed with every batch.
    pub(super) fn rides_along(&self) -> bool {
        self.is_known
    }

    pub(super) fn tokens(&self) -> Tokens<'_> {
        Tokens { ids: &self.ids, types: &[] }
    }

    /// Takes the answers of a device that is trusted, unless they are known already.
    pub(super) fn learn<E>(&self, mut compute: impl FnMut(Tokens<'_>, usize) -> Result<Vec<f32>, E>) -> Result<(), E> {
        if self.expected.get().is_none() {
            let answers = self.skips.iter().map(|skip| compute(self.tokens(), *skip)).collect::<Result<_, E>>()?;
            self.expected.get_or_init(|| answers);
        }
        Ok(())
    }

    /// Takes the rows of the text's tokens from a device that is trusted, unless they are known already.
    pub(super) fn learn_tokens<E>(&self, compute: impl FnOnce(Tokens<'_>) -> Result<Vec<f32>, E>) -> Result<(), E> {
        if self.expected_tokens.get().is_none() {
            let rows = compute(self.tokens())?;
            self.expected_tokens.get_or_init(|| rows);
        }
        Ok(())
    }

    /// No answer is waited for any more, whether it came or not.
    pub(super) fn settle(&self) {
        self.is_settled.store(true, Ordering::Release);
    }

    /// Whether devices may be used: they are checked by the answer, or there will be none to check them by.
    pub(super) fn is_settled(&self) -> bool {
        self.expected.get().is_some() || self.is_settled.load(Ordering::Acquire)
    }

    /// Whether a prompt of the model has this many tokens.
    pub(super) fn may_skip(&self, skip: usize) -> bool {
        self.skips.contains(&skip)
    }

    /// Numbers of a row.
    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Numbers of a token's row.
    pub(super) fn hidden(&self) -> usize {
        self.hidden
    }

    /// Whether these are the rows of the known text's tokens. Before the CPU has told them, any are.
    pub(super) fn are_right_tokens(&self, rows: &[f32]) -> bool {
        self.expected_tokens.get().is_none_or(|expected| expected.len() == rows.len() && is_near(rows, expected))
    }

    fn expected(&self, skip: usize) -> Option<&[f32]> {
        let Some(at) = self.skips.iter().position(|known| *known == skip) else {
            unreachable!("work skips the tokens of a prompt or none");
        };
        self.expected.get().map(|expected| &*expected[at])
    }

    /// Whether this is the known text's answer before it is scaled: its direction is known, its length is not.
    pub(super) fn has_right_direction(&self, row: &[f32], skip: usize) -> bool {
        match self.expected(skip) {
            Some(expected) if self.rows == Rows::Unit => is_near(&unit(row), expected),
            _ => self.is_right(row, skip),
        }
    }

    /// Whether this is the known text's answer, with this many tokens skipped. Before the CPU has told the answer, any is.
    pub(super) fn is_right(&self, row: &[f32], skip: usize) -> bool {
        let Some(expected) = self.expected(skip) else { return true };
        assert_eq!(row.len(), expected.len(), "rows of one model are equally long");
        match self.rows {
            // Comparisons with NaN are false, so that it counts as wrong.
            Rows::Scores => row
                .iter()
                .zip(expected)
                .all(|(score, known)| (score - known).abs() <= SCORE_ERROR_MAX.max(SCORE_PART_MAX * known.abs())),
            Rows::Unit | Rows::Vectors => is_near(row, expected),
        }
    }

    /// Whether rows of other texts can be answers at all: finite, and of length 1 where the model says so. A row of
    /// zeros is the answer to a text with nothing left to pool, and to no other.
    pub(super) fn are_plausible(&self, rows: &[f32], may_be_zero: impl Iterator<Item = bool>) -> bool {
        rows.chunks_exact(self.outputs().max(1)).zip(may_be_zero).all(|(row, may_be_zero)| {
            let squares: f32 = row.iter().map(|value| value * value).sum();
            match self.rows {
                Rows::Unit => (squares.sqrt() - 1.0).abs() <= UNIT_ERROR_MAX || (may_be_zero && squares == 0.0),
                Rows::Vectors | Rows::Scores => squares.is_finite(),
            }
        })
    }
}

/// Whether two rows have nearly the same direction and length.
fn is_near(row: &[f32], expected: &[f32]) -> bool {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let (own, known) = (dot(row, row).sqrt(), dot(expected, expected).sqrt());
    if known == 0.0 {
        return own == 0.0;
    }
    let cosine = dot(row, expected) / (own * known);
    // Comparisons with NaN are false, so that it counts as wrong.
    cosine >= COSINE_LEAST && (own / known - 1.0).abs() <= LENGTH_PART_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use magray_core::EncoderShape;

    fn canary() -> Canary {
        let shape = EncoderShape { vocab: 50, hidden: 4, layers: 1, heads: 1, ffn: 8, positions: 16 };
        Canary::new(&ModelSpec::synthetic(shape), vec![0, 3])
    }

    fn learned() -> Canary {
        let canary = canary();
        let row = |skip| if skip == 0 { [0.5, 0.5, -0.5, 0.5] } else { [1.0, 0.0, 0.0, 0.0] };
        assert_eq!(canary.learn(|_, skip| Ok::<_, ()>(row(skip).to_vec())), Ok(()));
        canary
    }

    #[test]
    fn before_anybody_told_the_answer_none_is_called_wrong() {
        let canary = canary();
        assert!(canary.is_right(&[9.0, 0.0, 0.0, 0.0], 0) && canary.outputs() == 4);
        assert!(canary.may_skip(3) && !canary.may_skip(2));
    }

    #[test]
    fn a_near_answer_is_right_and_any_other_is_wrong() {
        let canary = learned();
        assert!(canary.is_right(&[0.5, 0.5, -0.5, 0.5], 0));
        assert!(canary.is_right(&[0.52, 0.49, -0.5, 0.48], 0));
        assert!(!canary.is_right(&[0.5, 0.5, 0.5, 0.5], 0));
        assert!(!canary.is_right(&[5.0, 5.0, -5.0, 5.0], 0));
        assert!(!canary.is_right(&[0.0; 4], 0));
        assert!(!canary.is_right(&[f32::NAN, 0.5, -0.5, 0.5], 0));
        assert!(canary.is_right(&[1.0, 0.0, 0.0, 0.0], 3) && !canary.is_right(&[0.5, 0.5, -0.5, 0.5], 3));
    }

    #[test]
    fn a_row_that_is_not_scaled_is_known_by_its_direction() {
        let canary = learned();
        assert!(canary.has_right_direction(&[7.0, 7.0, -7.0, 7.0], 0) && !canary.is_right(&[7.0, 7.0, -7.0, 7.0], 0));
        assert!(!canary.has_right_direction(&[7.0, 7.0, 7.0, 7.0], 0) && !canary.has_right_direction(&[0.0; 4], 0));
        assert!(!canary.has_right_direction(&[f32::NAN, 7.0, -7.0, 7.0], 0));
    }

    #[test]
    fn rows_of_tokens_are_compared_as_a_whole() {
        let canary = canary();
        assert!(canary.are_right_tokens(&[9.0; 8]) && canary.hidden() == 4);
        assert_eq!(canary.learn_tokens(|_| Ok::<_, ()>(vec![1.0, 2.0, -3.0, 0.5])), Ok(()));
        assert!(canary.are_right_tokens(&[1.01, 1.98, -3.0, 0.52]));
        assert!(!canary.are_right_tokens(&[1.0, -2.0, -3.0, 0.5]) && !canary.are_right_tokens(&[1.0, 2.0]));
        assert!(!canary.are_right_tokens(&[f32::NAN, 2.0, -3.0, 0.5]));
    }

    #[test]
    fn rows_that_no_model_gives_are_seen() {
        let canary = canary();
        let check = |rows: &[f32], may_be_zero: bool| canary.are_plausible(rows, std::iter::repeat(may_be_zero));
        assert!(check(&[0.5, 0.5, 0.5, 0.5, 1.0, 0.0, 0.0, 0.0], false));
        assert!(check(&[0.0; 4], true) && !check(&[0.0; 4], false));
        assert!(!check(&[0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 0.0, 0.0], true));
        assert!(!check(&[f32::NAN, 0.0, 0.0, 1.0], true));
        assert!(!check(&[f32::INFINITY, 0.0, 0.0, 1.0], true));
    }

    #[test]
    fn a_score_near_zero_may_differ_and_a_large_one_may_not_change_its_sign() {
        let mut canary = canary();
        canary.rows = Rows::Scores;
        assert_eq!(canary.learn(|_, _| Ok::<_, ()>(vec![0.04, -6.0, 0.0, 0.0])), Ok(()));
        assert!(canary.is_right(&[0.05, -6.2, 0.0, 0.0], 0) && canary.is_right(&[-0.04, -5.8, 0.0, 0.0], 0));
        assert!(!canary.is_right(&[0.04, 6.0, 0.0, 0.0], 0) && !canary.is_right(&[f32::NAN, -6.0, 0.0, 0.0], 0));
    }

    #[test]
    fn the_known_text_fits_any_model() {
        for (vocab, positions) in [(1, 1), (2, 3), (7, 512), (30_522, 512)] {
            let shape = EncoderShape { vocab, hidden: 4, layers: 1, heads: 1, ffn: 8, positions };
            let canary = Canary::new(&ModelSpec::synthetic(shape), vec![0, 5]);
            let ids = canary.tokens().ids;
            assert!(!ids.is_empty() && ids.len() <= positions && ids.iter().all(|id| (*id as usize) < vocab));
        }
    }
}
