//! The beginning and the end of a step: its batch goes to the GPU, logits and chosen tokens come back. Several steps may be under
//! way: each has its own page-locked memory.

use super::arguments::{FINISH_ADD, FINISH_FLOATS, Finish, int_of};
use super::batch::{self, Shape};
use super::draws;
use super::memory::{DecoderActs, Scratch};
use super::shared::Joined;
use super::weights::{DecoderLinear, DecoderNorm};
use super::{CudaDecoderOps, Operand};
use crate::StepBatch;
use crate::cuda::batch::allocated_rows;
use crate::cuda::context::Context;
use crate::cuda::device_error::DeviceError;
use crate::cuda::error::CudaError;
use crate::cuda::matrix::stride_of;
use crate::cuda::memory::DeviceBuffer;
use crate::cuda::pinned_buffers::PinnedWords;
use crate::cuda::stream::{Mark, Stream};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Steps that may be under way.
const UNDER_WAY: usize = 4;
/// How long a step is waited for without sleep: longer than most take. With another behind it, the GPU waits for this side only where steps are
/// short.
const AWAKE_ALONE: Duration = Duration::from_millis(60);
const AWAKE_BEFORE_ANOTHER: Duration = Duration::from_millis(1);
/// Blocks that look for the best of a row, and words of what they find.
pub(super) const CHOOSERS: usize = 64;
const FOUND_WORDS: usize = 4;

/// Where logits and tokens of steps are.
#[derive(Debug)]
pub(super) struct Results {
    pub(super) context: Arc<Context>,
    logits: Scratch,
    found: Scratch,
    chosen: DeviceBuffer,
    pub(super) slots: Vec<Slot>,
    next: usize,
    /// Steps whose tokens were not asked for, by their slots.
    waiting: VecDeque<usize>,
    /// The logits on the host.
    answer: PinnedWords,
    rows: usize,
    columns: usize,
    /// The masks under which tokens were chosen last, on the GPU.
    pub(super) masks: DeviceBuffer,
    /// The last step, where its tokens wait to be chosen.
    pub(super) unchosen: Option<Unchosen>,
}

/// A step that was launched, and whose tokens are not chosen yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unchosen {
    pub(super) logits: u64,
    pub(super) found: u64,
    pub(super) vocabulary: usize,
    /// How its tokens are drawn, where they are.
    pub(super) choices: Option<u64>,
    /// Its page-locked memory, once it is launched, and wanted rows.
    pub(super) slot: usize,
    pub(super) rows: usize,
}

/// Page-locked memory of a step.
#[derive(Debug)]
pub(super) struct Slot {
    batch: PinnedWords,
    tokens: PinnedWords,
    pub(super) masks: Option<PinnedWords>,
    rows: usize,
    /// A copy reads it that the mark does not stand behind yet. It stays so where a step ends early: it failed, or another rank has its rows.
    pub(super) is_read: bool,
    /// Behind the step's copies.
    done: Mark,
}

impl Slot {
    /// Moves its mark behind all that was put in so far.
    fn mark(&mut self, stream: &Stream) -> Result<(), CudaError> {
        stream.mark_again(&mut self.done)?;
        self.is_read = false;
        Ok(())
    }
}

/// Rows whose tokens are chosen at once, at most.
pub(super) const CHOSEN_MOST: usize = 4096;

impl Results {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        Ok(Self {
            context: Arc::clone(context),
            logits: Scratch::new(context),
            found: Scratch::new(context),
            chosen: DeviceBuffer::empty(context),
            slots: Vec::new(),
            next: 0,
            waiting: VecDeque::new(),
            answer: PinnedWords::zeroed(context, 0)?,
            rows: 0,
            columns: 0,
            masks: DeviceBuffer::empty(context),
            unchosen: None,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.logits.bytes() + self.found.bytes() + self.chosen.bytes() + self.masks.bytes()
    }

    /// Where the tokens of the step before are.
    pub(super) fn chosen(&self) -> u64 {
        self.chosen.address()
    }

    /// What the step leaves.
    pub(super) fn expect(&mut self, rows: usize, columns: usize) {
        (self.rows, self.columns) = (rows, columns);
    }

    /// Nothing that was under way is an answer any more.
    pub(super) fn forget(&mut self) {
        self.waiting.clear();
        self.unchosen = None;
        self.rows = 0;
    }

    /// Moves the mark of the step's batch behind all that was put in so far: should the step not come to its end, its batch is kept until
    /// then.
    pub(super) fn mark_batch(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.slots[self.next].mark(stream)
    }

    /// Gives back what steps have taken. Nothing is under way.
    pub(super) fn trim(&mut self) {
        self.forget();
        let context = &self.context;
        (self.logits, self.found) = (Scratch::new(context), Scratch::new(context));
        self.chosen = DeviceBuffer::empty(context);
        self.masks = DeviceBuffer::empty(context);
        self.slots.clear();
        self.next = 0;
    }

    /// Page-locked memory for a batch, which no copy reads any more.
    fn slot(&mut self, words: usize, stream: &Stream) -> Result<&mut Slot, CudaError> {
        if self.chosen.bytes() == 0 {
            self.chosen = DeviceBuffer::private(stream, CHOSEN_MOST * 4)?;
        }
        if self.slots.len() <= self.next {
            let batch = PinnedWords::zeroed(&self.context, 0)?;
            let tokens = PinnedWords::zeroed(&self.context, CHOSEN_MOST)?;
            let done = Mark::new(&self.context)?;
            self.slots.push(Slot { batch, tokens, masks: None, rows: 0, is_read: false, done });
        }
        // Tokens that were not asked for in time are lost.
        let next = self.next;
        self.waiting.retain(|slot| *slot != next);
        let slot = &mut self.slots[next];
        if slot.is_read {
            slot.mark(stream)?;
        }
        slot.done.wait()?;
        if slot.batch.len() < words {
            slot.batch = PinnedWords::zeroed(&self.context, words.next_power_of_two())?;
        }
        Ok(slot)
    }

    pub(super) fn chosen_tokens(&mut self) -> Result<Vec<u32>, DeviceError> {
        let Some(slot) = self.waiting.pop_front() else { return Ok(Vec::new()) };
        let slot = &mut self.slots[slot];
        slot.done.wait_awake(match (&self.unchosen, self.waiting.is_empty()) {
            // Other threads compute masks meanwhile.
            (Some(_), _) => Duration::ZERO,
            (None, true) => AWAKE_ALONE,
            (None, false) => AWAKE_BEFORE_ANOTHER,
        })?;
        Ok(slot.tokens.as_mut_slice()[..slot.rows].to_vec())
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// The logits of the last step. Tokens of steps up to it that were not asked for are dropped.
    pub(super) fn logits(&mut self, stream: &Stream) -> Result<&[f32], DeviceError> {
        let rows: Vec<usize> = (0..self.rows).collect();
        let count = self.bring_rows(&rows, stream)?;
        Ok(self.answer.floats(count))
    }

    /// The same of some rows.
    pub(super) fn logits_of_rows(&mut self, rows: &[usize], stream: &Stream) -> Result<Vec<f32>, DeviceError> {
        let count = self.bring_rows(rows, stream)?;
        Ok(self.answer.floats(count).to_vec())
    }

    /// Copies rows to the host, side by side, and waits for them. Returns how many numbers they have.
    fn bring_rows(&mut self, rows: &[usize], stream: &Stream) -> Result<usize, DeviceError> {
        self.waiting.clear();
        let count = rows.len() * self.columns;
        if self.answer.len() < count {
            self.answer = PinnedWords::zeroed(&self.context, count.next_power_of_two())?;
        }
        self.context.bind()?;
        let row_bytes = self.columns * 4;
        let mut to = self.answer.address();
        for run in rows.chunk_by(|row, next| row + 1 == *next) {
            assert!(run[0] + run.len() <= self.rows, "rows that there are");
            let (from, bytes) = (self.logits.address() + (run[0] * row_bytes) as u64, run.len() * row_bytes);
            // SAFETY: both hold these bytes; the wait follows before either goes or is read.
            unsafe { stream.copy_out(to as *mut u8, from, bytes) }?;
            to += bytes as u64;
        }
        stream.wait()?;
        Ok(count)
    }
}

impl CudaDecoderOps {
    /// Begins to put a step together.
    pub(super) fn begin(&mut self, steps: &StepBatch<'_>) {
        self.launches.clear();
        self.joined.iter_mut().for_each(Joined::forget_pieces);
        self.shadowed = None;
        self.results.unchosen = None;
        self.shape = Shape::of(steps);
        self.shape.draws = !self.choices.is_empty();
        self.layout = self.shape.layout();
        let scratch = [
            &mut self.shadow,
            &mut self.parts,
            &mut self.wanted,
            &mut self.wanted_parts,
            &mut self.sums,
            &mut self.unpacked,
            &mut self.results.logits,
            &mut self.results.found,
        ];
        scratch.into_iter().for_each(Scratch::forget_before);
        self.attention.forget_before();
        let brought = self.bring(steps);
        brought.unwrap_or_else(|error| self.fail(error));
    }

    /// Copies the batch to the GPU.
    fn bring(&mut self, steps: &StepBatch<'_>) -> Result<(), CudaError> {
        let words = self.layout.words;
        if self.batch.bytes() < words * 4 {
            // Steps that are under way read the old one, which goes when they are done.
            self.batch = DeviceBuffer::private(&self.stream, words.next_power_of_two() * 4)?;
        }
        let address = self.batch.address();
        let slot = self.results.slot(words, &self.stream)?;
        batch::stage(steps, &self.shape, slot.batch.as_mut_slice());
        if self.shape.draws {
            draws::stage(&self.choices, &mut slot.batch.as_mut_slice()[self.layout.choices..words]);
        }
        let from = slot.batch.address();
        // A mark here would be one more for every step; a step that ends early is marked when its slot is wanted again.
        slot.is_read = true;
        self.cuda.context().bind()?;
        // SAFETY: both hold this many words. The slot is written again only after its mark, which is moved behind this copy before
        // that where no end of the step has moved it; the batch is written in the order of the stream.
        unsafe { self.stream.copy_in(address, from, words * 4) }
    }

    /// The logits of the wanted rows, and the most likely token of each.
    pub(super) fn logits_of(
        &mut self,
        hidden: &DecoderActs,
        norm: &DecoderNorm,
        head: &DecoderLinear,
        cap: Option<f32>,
    ) {
        let rows = self.shape.logit_rows;
        let mut finish = Finish::new(FINISH_FLOATS);
        let operand = if self.shape.wants_all {
            let operand = self.shadow_of(hidden, norm);
            self.normalised(&mut finish, norm);
            operand
        } else {
            self.gather(hidden, norm, &mut finish)
        };
        let logits = self.room(|ops| &mut ops.results.logits, allocated_rows(rows) * head.outputs * 4);
        let found = self.room(|ops| &mut ops.results.found, allocated_rows(rows) * FOUND_WORDS * 4);
        (finish.out, finish.out_stride) = (logits, int_of(head.outputs));
        finish.cap = cap.unwrap_or(0.0);
        self.product(operand, head, finish);
        let choices = self.shape.draws.then(|| self.part(self.layout.choices));
        let step = Unchosen { logits, found, vocabulary: head.outputs, choices, slot: 0, rows: 0 };
        if self.chooses_later {
            self.results.unchosen = Some(step);
        } else if rows <= CHOSEN_MOST {
            let choosing = self.choosing(&step, rows);
            self.launches.extend(choosing);
        }
    }

    /// The wanted rows times the norm's gains, side by side.
    fn gather(&mut self, hidden: &DecoderActs, norm: &DecoderNorm, finish: &mut Finish) -> Operand {
        let (count, stride) = (self.shape.logit_rows, hidden.stride());
        let room = allocated_rows(count);
        let wanted = self.room(|ops| &mut ops.wanted, room * stride * 2);
        let parts = self.room(|ops| &mut ops.wanted_parts, room * 4);
        let mut left = Finish::new(FINISH_ADD);
        (left.gain, left.shadow, left.out_parts) = (norm.address(), wanted, parts);
        (left.shadow_stride, left.out_part_count) = (int_of(stride), 1);
        let rows = self.part(self.layout.logit_rows);
        self.launch_add(hidden, None, (rows, count), left);
        (finish.parts, finish.part_count) = (parts, 1);
        (finish.inverse_inputs, finish.epsilon) = (1.0 / norm.columns as f32, norm.epsilon);
        debug_assert_eq!(stride, stride_of(hidden.columns));
        Operand { address: wanted, columns: hidden.columns, stride, rows: count, room }
    }

    /// Launches the step. The tokens of this many wanted rows are copied to the host behind it.
    pub(super) fn finish_step(&mut self, wanted: usize) {
        self.finish(wanted, self.shape.recurs);
    }

    /// As [`CudaDecoderOps::finish_step`], for a part of a step that is not recorded: a step that goes through the host behind every sum has too
    /// many parts to keep them.
    pub(super) fn finish_part(&mut self) {
        self.finish(0, false);
    }

    fn finish(&mut self, wanted: usize, is_kept: bool) {
        if self.failure.is_none()
            && let Err(error) = self.try_finish(wanted, is_kept)
        {
            self.fail(error);
        }
        if self.failure.is_some() {
            // What was recorded may have been cut off in the middle.
            self.recordings.clear();
        }
        self.launches.clear();
        self.choices.clear();
        self.chooses_later = false;
        self.shadowed = None;
    }

    fn try_finish(&mut self, rows: usize, is_kept: bool) -> Result<(), DeviceError> {
        if let Some(weights) = &self.weights {
            weights.hold_all(&self.stream)?;
        }
        self.recordings.run(&self.cuda, &self.stream, &self.launches, is_kept)?;
        let at = self.results.next;
        if let Some(step) = &mut self.results.unchosen {
            (step.slot, step.rows) = (at, rows);
            // Its batch is read until here, whether its tokens are chosen or not.
            return Ok(self.results.slots[at].mark(&self.stream)?);
        }
        self.end_step(at, rows)
    }

    /// Copies the tokens of this many rows to the host, behind all that was launched. They wait there to be asked for.
    pub(super) fn end_step(&mut self, at: usize, rows: usize) -> Result<(), DeviceError> {
        let results = &mut self.results;
        let tokens = rows.min(CHOSEN_MOST);
        let slot = &mut results.slots[at];
        slot.rows = tokens;
        if tokens > 0 {
            self.cuda.context().bind()?;
            // SAFETY: both hold this many words; the slot is read only behind its mark.
            unsafe { self.stream.copy_out(slot.tokens.address() as *mut u8, results.chosen.address(), tokens * 4) }?;
        }
        slot.mark(&self.stream)?;
        results.waiting.push_back(at);
        results.next = (at + 1) % UNDER_WAY;
        Ok(())
    }
}
