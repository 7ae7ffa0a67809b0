//! The sequences of a decoder on a device: their pages, their steps as batches, and the tokens that are chosen.
//! A step that fails changes nothing that counts: it can be given again.

use super::{NewTokens, SequenceStep};
use crate::decoder::{Decoder, DecoderRoom, Sampler, Scratch};
use magray_device::{DecoderDevice, DecoderOps, PAGE_TOKENS, StepBatch};
use std::collections::HashMap;

/// What a device has for the pages of keys and values.
type Pages<D> = <<D as DecoderDevice>::Ops as DecoderOps>::Pages;

/// A decoder and the sequences that it goes on with.
pub(crate) struct Sequences<D: DecoderDevice> {
    decoder: Decoder<D>,
    ops: D::Ops,
    room: DecoderRoom<D>,
    pages: PagePool<D>,
    states: HashMap<u64, State>,
    ends: Vec<u32>,
    scratch: Scratch,
    batch: Batch,
}

/// Why a step was not computed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError<E: std::error::Error> {
    /// The device says why.
    #[error("{0}")]
    Device(E),
    /// All pages are in use.
    #[error("there is no page left for the keys and values of a sequence")]
    NoPages,
    /// The tokens before the step are not known here.
    #[error("the state of a sequence is missing")]
    StateMissing,
    /// What the device computed is no number.
    #[error("the device computed logits that are no numbers")]
    NotFinite,
}

/// What is kept of a sequence.
struct State {
    /// Tokens whose keys and values are in the pages.
    tokens: usize,
    pages: Vec<u32>,
    sampler: Sampler,
}

/// Pages of keys and values; they exist while a sequence needs one.
struct PagePool<D: DecoderDevice> {
    made: Option<Pages<D>>,
    free: Vec<u32>,
    count: usize,
}

/// A batch as a device reads it. Its memory is used again.
#[derive(Default)]
struct Batch {
    ids: Vec<u32>,
    offsets: Vec<usize>,
    starts: Vec<usize>,
    pages: Vec<u32>,
    page_offsets: Vec<usize>,
    logit_rows: Vec<usize>,
}

/// A step on its way: what is left of it and what came of it.
struct Going<'a> {
    step: &'a SequenceStep<'a>,
    /// Tokens of it that are computed.
    done: usize,
    new: NewTokens,
    is_done: bool,
}

impl Going<'_> {
    /// Where the tokens that are computed end in the sequence.
    fn place(&self) -> usize {
        self.step.from as usize + self.done
    }
}

impl<D: DecoderDevice> Sequences<D> {
    /// Sequences that together have up to this many pages. These tokens end one.
    pub(crate) fn new(decoder: Decoder<D>, device: &D, ops: D::Ops, pages: usize, ends: Vec<u32>) -> Self {
        let room = decoder.room(device);
        let pages = PagePool { made: None, free: Vec::new(), count: pages };
        let (states, scratch, batch) = Default::default();
        Self { decoder, ops, room, pages, states, ends, scratch, batch }
    }

    /// Computes steps and says which tokens follow each.
    pub(crate) fn advance(
        &mut self,
        device: &D,
        steps: &[SequenceStep<'_>],
        out: &mut Vec<NewTokens>,
    ) -> Result<(), StepError<D::Error>> {
        for step in steps {
            self.prepare(device, step)?;
        }
        let going = |step| Going { step, done: 0, new: NewTokens::default(), is_done: false };
        let mut going: Vec<Going<'_>> = steps.iter().map(going).collect();
        let mut passed = Ok(());
        while passed.is_ok() && going.iter().any(|one| !one.is_done) {
            passed = self.pass(&mut going);
        }
        for one in &going {
            let Some(state) = self.states.get_mut(&one.step.sequence) else { continue };
            match passed {
                Ok(()) => state.tokens = one.place(),
                Err(_) => state.sampler.forget(one.step.from as usize + one.step.ids.len(), &one.new.tokens),
            }
        }
        passed?;
        out.extend(going.into_iter().map(|one| one.new));
        Ok(())
    }

    /// Sees to it that a step has its state and pages for all its tokens.
    fn prepare(&mut self, device: &D, step: &SequenceStep<'_>) -> Result<(), StepError<D::Error>> {
        let from = step.from as usize;
        if from == 0 {
            // It begins anew, also where some of it is known.
            let pages = self.states.remove(&step.sequence).map_or_else(Vec::new, |state| state.pages);
            let sampler = Sampler::new(step.sampling.cloned().unwrap_or_default());
            self.states.insert(step.sequence, State { tokens: 0, pages, sampler });
        }
        let known = self.states.get_mut(&step.sequence).filter(|state| state.tokens == from);
        let state = known.ok_or(StepError::StateMissing)?;
        let most = from + step.ids.len() + (step.new_tokens_max as usize).saturating_sub(1);
        while state.pages.len() * PAGE_TOKENS < most {
            state.pages.push(self.pages.take(device, &self.decoder)?);
        }
        Ok(())
    }

    /// One pass over what is next of every step that is not done.
    fn pass(&mut self, going: &mut [Going<'_>]) -> Result<(), StepError<D::Error>> {
        self.batch.clear();
        for one in going.iter_mut().filter(|one| !one.is_done) {
            let Some(state) = self.states.get_mut(&one.step.sequence) else { return Err(StepError::StateMissing) };
            let ids = one.new.tokens.last().map_or(one.step.ids, std::slice::from_ref);
            let place = one.step.from as usize + one.done;
            state.sampler.note(place, ids);
            self.batch.push(ids, place, &state.pages, one.step.new_tokens_max > 0);
            one.done += ids.len();
        }
        let Some(pages) = &mut self.pages.made else { return Err(StepError::NoPages) };
        self.decoder.forward(&mut self.ops, &self.batch.steps(), pages, &mut self.room);
        let vocab = self.decoder.spec().vocab;
        let mut logits = self.ops.answer().map_err(StepError::Device)?.to_vec();
        let mut rows = logits.chunks_exact_mut(vocab);
        for one in going.iter_mut().filter(|one| !one.is_done) {
            if one.step.new_tokens_max == 0 {
                one.is_done = true;
                continue;
            }
            let (Some(row), Some(state)) = (rows.next(), self.states.get(&one.step.sequence)) else {
                return Err(StepError::StateMissing);
            };
            let token = state.sampler.choose(row, one.place(), &mut self.scratch);
            let token = token.ok_or(StepError::NotFinite)?;
            one.new.tokens.push(token);
            one.new.is_end = self.ends.contains(&token) && !state.sampler.ignores_end();
            one.is_done = one.new.is_end || one.new.tokens.len() as u32 >= one.step.new_tokens_max;
        }
        Ok(())
    }

    /// Lets go of a sequence.
    pub(crate) fn free(&mut self, sequence: u64) {
        if let Some(state) = self.states.remove(&sequence) {
            self.pages.free.extend(state.pages);
        }
    }

    /// Gives the memory of pages back where no sequence has one.
    pub(crate) fn trim(&mut self) {
        if self.states.is_empty() {
            self.pages.made = None;
        }
    }
}

impl<D: DecoderDevice> PagePool<D> {
    fn take(&mut self, device: &D, decoder: &Decoder<D>) -> Result<u32, StepError<D::Error>> {
        if self.made.is_none() {
            self.made = Some(device.pages(decoder.kv_shape(), self.count).map_err(StepError::Device)?);
            // The first are used first: the others may never need memory.
            self.free = (0..self.count as u32).rev().collect();
        }
        self.free.pop().ok_or(StepError::NoPages)
    }
}

impl Batch {
    fn clear(&mut self) {
        let Self { ids, offsets, starts, pages, page_offsets, logit_rows } = self;
        for tokens in [ids, pages] {
            tokens.clear();
        }
        for places in [starts, logit_rows] {
            places.clear();
        }
        for offsets in [offsets, page_offsets] {
            offsets.clear();
            offsets.push(0);
        }
    }

    fn push(&mut self, ids: &[u32], start: usize, pages: &[u32], wants_logits: bool) {
        self.ids.extend_from_slice(ids);
        self.offsets.push(self.ids.len());
        self.starts.push(start);
        self.pages.extend_from_slice(pages);
        self.page_offsets.push(self.pages.len());
        if wants_logits {
            self.logit_rows.push(self.ids.len() - 1);
        }
    }

    fn steps(&self) -> StepBatch<'_> {
        StepBatch {
            ids: &self.ids,
            offsets: &self.offsets,
            starts: &self.starts,
            pages: &self.pages,
            page_offsets: &self.page_offsets,
            logit_rows: &self.logit_rows,
        }
    }
}
