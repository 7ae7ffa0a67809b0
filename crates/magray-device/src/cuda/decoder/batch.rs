//! A batch of steps as the kernels read it: one run of words, laid out alike for all batches that can share a recording.
//! Pure arithmetic; copies nothing to the GPU.

use super::draws::CHOICE_WORDS;
use crate::cuda::batch::padded_rows;
use crate::{PAGE_TOKENS, StepBatch};

/// Where a part may begin.
const ALIGN_WORDS: usize = 32;
/// Up to here every number of rows has a recording of its own.
const EXACT_ROWS: usize = 64;
/// Parts of prompts with up to this many tokens are attended to as single tokens are. Their keys and values are put into pages first.
pub(super) const SHORT_PART: usize = 16;
/// Queries of a prompt that one warp has.
pub(super) const WARP_QUERIES: usize = 16;
/// Warps of a block of the prompts' attention, which all have queries of one sequence.
pub(super) const PROMPT_WARPS: usize = 4;

/// What of a batch decides how kernels are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Rows of activations, some of them perhaps beyond the last token.
    pub(super) rows: usize,
    /// Rows that are attended to one by one: their sequence has this one new token, or a short part.
    pub(super) singles: usize,
    /// Rows of parts of prompts.
    pub(super) prompt_rows: usize,
    /// Warps of the attention of long ones.
    pub(super) prompt_warps: usize,
    /// Whether some rows are of a short part: what they attend to is written by the kernel ahead.
    pub(super) has_short_parts: bool,
    /// Whether steps like it come often enough that its recording is kept.
    pub(super) recurs: bool,
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
        let mut has_short_parts = false;
        for step in steps.steps() {
            let rows = step.rows.len();
            if rows > 1 {
                prompt_rows += rows;
            }
            if rows <= SHORT_PART {
                singles += rows;
                has_short_parts |= rows > 1;
                longest = longest.max((step.start + rows.max(1) - 1) / PAGE_TOKENS + 1);
            } else {
                prompt_warps += rows.div_ceil(WARP_QUERIES).next_multiple_of(PROMPT_WARPS);
            }
        }
        let is_alone = steps.starts.len() == 1;
        let rows = rounded_rows(steps.tokens());
        let wants_all = steps.logit_rows.iter().copied().eq(0..steps.tokens());
        Self {
            rows,
            singles: rounded_rows(singles),
            prompt_rows: rounded_rows(prompt_rows),
            prompt_warps,
            has_short_parts,
            // Parts of prompts come in too many sizes, and beside too many other rows, to keep them all.
            recurs: prompt_rows == 0 || is_alone && prompt_warps == 0,
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
        let (is_single, is_short) = (step.rows.len() == 1, step.rows.len() <= SHORT_PART);
        for (i, row) in step.rows.clone().enumerate() {
            words[layout.positions + row] = (step.start + i) as u32;
            words[layout.page_starts + row] = *page_start as u32;
            words[layout.all_rows + row] = row as u32;
            let lists = [is_short.then_some(&mut single), (!is_single).then_some(&mut prompt_row)];
            for next in lists.into_iter().flatten() {
                words[*next] = row as u32;
                *next += 1;
            }
        }
        let queries = if is_short { 0 } else { step.rows.len() };
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
        let ids: Vec<u32> = (0..38).collect();
        let steps = StepBatch {
            ids: &ids,
            offsets: &[0, 1, 20, 21, 38],
            starts: &[40, 3, 0, 8],
            pages: &[5, 6, 9, 1, 7],
            page_offsets: &[0, 2, 3, 4, 5],
            logit_rows: &[0, 19, 20],
        };
        let shape = Shape::of(&steps);
        assert_eq!((shape.rows, shape.singles, shape.prompt_rows, shape.prompt_warps), (38, 2, 36, 8));
        assert!(!shape.has_short_parts && !shape.recurs);
        assert_eq!((shape.logit_rows, shape.wants_all, shape.longest), (3, false, 2));
        let layout = shape.layout();
        let mut words = vec![7; layout.words];
        stage(&steps, &shape, &mut words);
        assert_eq!(words[layout.singles..][..3], [0, 20, u32::MAX]);
        assert_eq!(words[layout.prompt_rows..][..2], [1, 2]);
        assert_eq!(words[layout.prompt_warps..][..12], [1, 16, 3, 2, 17, 3, 19, 2, 0, 0, 0, 0]);
        assert_eq!(words[layout.prompt_warps + 12..][..12], [0, 0, 0, 0, 21, 16, 8, 4, 37, 1, 24, 4]);
        assert_eq!(words[layout.positions..][..3], [40, 3, 4]);
        assert_eq!(words[layout.page_starts..][..3], [0, 2, 2]);
        assert_eq!(words[layout.logit_rows..][..3], [0, 19, 20]);
        assert_eq!(words[layout.pages..][..5], [5, 6, 9, 1, 7]);
    }

    #[test]
    fn short_parts_are_attended_to_row_by_row_behind_the_kernel_that_keeps_them() {
        let ids: Vec<u32> = (0..24).collect();
        let steps = StepBatch {
            ids: &ids,
            offsets: &[0, 1, 17, 24],
            starts: &[70, 0, 30],
            pages: &[5, 6, 9, 1, 7, 8],
            page_offsets: &[0, 3, 4, 6],
            logit_rows: &[0, 16, 23],
        };
        let shape = Shape::of(&steps);
        assert_eq!((shape.singles, shape.prompt_rows, shape.prompt_warps), (24, 23, 0));
        assert!(shape.has_short_parts && !shape.recurs, "beside other rows");
        assert_eq!(shape.longest, 4, "71 tokens take three pages");
        let layout = shape.layout();
        let mut words = vec![7; layout.words];
        stage(&steps, &shape, &mut words);
        assert!(words[layout.singles..][..24].iter().copied().eq(0..24));
        assert!(words[layout.prompt_rows..][..23].iter().copied().eq(1..24));
        let alone = StepBatch {
            ids: &ids[..6],
            offsets: &[0, 6],
            starts: &[1024],
            pages: &[0; 33],
            page_offsets: &[0, 33],
            logit_rows: &[5],
        };
        let shape = Shape::of(&alone);
        assert!(shape.recurs && shape.has_short_parts);
        assert_eq!((shape.rows, shape.singles, shape.longest), (6, 6, 64));
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
