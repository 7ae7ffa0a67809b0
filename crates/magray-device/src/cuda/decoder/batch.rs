//! A batch of steps as the kernels read it: one run of words, laid out alike for all batches that can share a recording.
//! Pure arithmetic; copies nothing to the GPU.

use super::draws::CHOICE_WORDS;
use crate::cuda::batch::padded_rows;
use crate::{PAGE_TOKENS, StepBatch};

/// Where a part may begin.
const ALIGN_WORDS: usize = 32;
/// Up to here every number of rows has a recording of its own.
const EXACT_ROWS: usize = 64;
/// Queries of a prompt that one warp has.
pub(super) const WARP_QUERIES: usize = 16;
/// Warps of a block of the prompts' attention, which all have queries of one sequence.
pub(super) const PROMPT_WARPS: usize = 4;

/// What of a batch decides how kernels are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Rows of activations, some of them perhaps beyond the last token.
    pub(super) rows: usize,
    /// Rows whose sequence has this one new token.
    pub(super) singles: usize,
    /// Rows of parts of prompts.
    pub(super) prompt_rows: usize,
    /// Warps of the prompts' attention.
    pub(super) prompt_warps: usize,
    /// Rows whose logits are wanted.
    pub(super) logit_rows: usize,
    /// Whether these are all rows, in order.
    pub(super) wants_all: bool,
    /// Pages of all sequences, at most.
    pages: usize,
    /// Pages of a single token's sequence, at most.
    pub(super) longest: usize,
    /// Whether tokens are drawn.
    pub(super) draws: bool,
}

/// Rows that kernels work on where there are this many.
pub(super) fn rounded_rows(rows: usize) -> usize {
    if rows <= EXACT_ROWS { rows } else { padded_rows(rows) }
}

/// Where the parts lie, in words from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) ids: usize,
    pub(super) positions: usize,
    pub(super) page_starts: usize,
    pub(super) singles: usize,
    pub(super) prompt_rows: usize,
    pub(super) prompt_warps: usize,
    /// All rows, for kernels that make no difference between them.
    pub(super) all_rows: usize,
    pub(super) logit_rows: usize,
    pub(super) pages: usize,
    /// How tokens of the wanted rows are drawn.
    pub(super) choices: usize,
    pub(super) words: usize,
}

impl Shape {
    pub(super) fn of(steps: &StepBatch<'_>) -> Self {
        let (mut singles, mut prompt_rows, mut prompt_warps, mut longest) = (0, 0, 0, 1);
        for step in steps.steps() {
            if step.rows.len() == 1 {
                singles += 1;
                longest = longest.max(step.start / PAGE_TOKENS + 1);
            } else {
                prompt_rows += step.rows.len();
                prompt_warps += step.rows.len().div_ceil(WARP_QUERIES).next_multiple_of(PROMPT_WARPS);
            }
        }
        let rows = rounded_rows(steps.tokens());
        let wants_all = steps.logit_rows.iter().copied().eq(0..steps.tokens());
        Self {
            rows,
            singles: rounded_rows(singles),
            prompt_rows: rounded_rows(prompt_rows),
            prompt_warps,
            logit_rows: if wants_all { rows } else { rounded_rows(steps.logit_rows.len()) },
            wants_all,
            pages: steps.pages.len().next_power_of_two().max(64),
            longest: longest.next_power_of_two(),
            draws: false,
        }
    }

    pub(super) fn layout(&self) -> Layout {
        let mut words = 0;
        let mut next = |count: usize| {
            let at = words;
            words += count.next_multiple_of(ALIGN_WORDS);
            at
        };
        Layout {
            ids: next(self.rows),
            positions: next(self.rows),
            page_starts: next(self.rows),
            singles: next(self.singles),
            prompt_rows: next(self.prompt_rows),
            prompt_warps: next(4 * self.prompt_warps),
            all_rows: next(self.rows),
            logit_rows: next(self.logit_rows),
            pages: next(self.pages),
            choices: next(if self.draws { CHOICE_WORDS * self.logit_rows } else { 0 }),
            words,
        }
    }
}

/// Writes a batch into its layout.
pub(super) fn stage(steps: &StepBatch<'_>, shape: &Shape, words: &mut [u32]) {
    const NONE: u32 = u32::MAX;
    let layout = shape.layout();
    words[..layout.pages].fill(0);
    words[layout.singles..layout.prompt_warps].fill(NONE);
    words[layout.all_rows..layout.logit_rows].fill(NONE);
    words[layout.ids..][..steps.tokens()].copy_from_slice(steps.ids);
    let (mut single, mut prompt_row, mut warp) = (layout.singles, layout.prompt_rows, layout.prompt_warps);
    for (step, page_start) in steps.steps().zip(steps.page_offsets) {
        let is_single = step.rows.len() == 1;
        for (i, row) in step.rows.clone().enumerate() {
            words[layout.positions + row] = (step.start + i) as u32;
            words[layout.page_starts + row] = *page_start as u32;
            words[layout.all_rows + row] = row as u32;
            let next = if is_single { &mut single } else { &mut prompt_row };
            words[*next] = row as u32;
            *next += 1;
        }
        let queries = if is_single { 0 } else { step.rows.len() };
        for first in (0..queries).step_by(WARP_QUERIES) {
            let count = WARP_QUERIES.min(queries - first);
            let place = [step.rows.start + first, count, step.start + first, *page_start];
            words[warp..warp + 4].copy_from_slice(&place.map(|x| x as u32));
            warp += 4;
        }
        warp = layout.prompt_warps + (warp - layout.prompt_warps).next_multiple_of(4 * PROMPT_WARPS);
    }
    for (word, row) in words[layout.logit_rows..].iter_mut().zip(steps.logit_rows) {
        *word = *row as u32;
    }
    words[layout.pages..][..steps.pages.len()].copy_from_slice(steps.pages);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_tokens_and_parts_of_prompts_are_told_apart() {
        let ids: Vec<u32> = (0..24).collect();
        let steps = StepBatch {
            ids: &ids,
            offsets: &[0, 1, 20, 21, 24],
            starts: &[40, 3, 0, 8],
            pages: &[5, 6, 9, 1, 7],
            page_offsets: &[0, 2, 3, 4, 5],
            logit_rows: &[0, 19, 20],
        };
        let shape = Shape::of(&steps);
        assert_eq!((shape.rows, shape.singles, shape.prompt_rows, shape.prompt_warps), (24, 2, 22, 8));
        assert_eq!((shape.logit_rows, shape.wants_all, shape.longest), (3, false, 2));
        let layout = shape.layout();
        let mut words = vec![7; layout.words];
        stage(&steps, &shape, &mut words);
        assert_eq!(words[layout.singles..][..3], [0, 20, u32::MAX]);
        assert_eq!(words[layout.prompt_rows..][..2], [1, 2]);
        assert_eq!(words[layout.prompt_warps..][..12], [1, 16, 3, 2, 17, 3, 19, 2, 0, 0, 0, 0]);
        assert_eq!(words[layout.prompt_warps + 12..][..12], [0, 0, 0, 0, 21, 3, 8, 4, 0, 0, 0, 0]);
        assert_eq!(words[layout.positions..][..3], [40, 3, 4]);
        assert_eq!(words[layout.page_starts..][..3], [0, 2, 2]);
        assert_eq!(words[layout.logit_rows..][..3], [0, 19, 20]);
        assert_eq!(words[layout.pages..][..5], [5, 6, 9, 1, 7]);
    }

    #[test]
    fn a_longer_context_has_the_same_layout_within_a_power_of_two() {
        let layout = |start: usize| {
            let pages: Vec<u32> = (0..=(start / PAGE_TOKENS) as u32).collect();
            let steps = StepBatch {
                ids: &[1],
                offsets: &[0, 1],
                starts: &[start],
                pages: &pages,
                page_offsets: &[0, pages.len()],
                logit_rows: &[0],
            };
            Shape::of(&steps)
        };
        assert_eq!(layout(130), layout(250));
        assert_ne!(layout(130), layout(300));
        assert!(layout(130).wants_all);
    }
}
