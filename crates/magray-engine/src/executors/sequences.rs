//! The sequences of a decoder on a device: their pages, their steps as batches, and the tokens that are chosen.
//! A step that fails changes nothing that counts: it can be given again.

mod ahead;
mod batch;
#[cfg(test)]
mod constrained;
#[cfg(test)]
mod faulty;
#[cfg(test)]
mod group;
mod passes;
#[cfg(test)]
mod speculation;
#[cfg(test)]
mod split;
#[cfg(test)]
mod tests;

use super::drafts::Drafts;
use super::guides::{Guide, Guides};
use super::pages::{Known, PageTable};
use super::{NewTokens, SequenceStep};
use crate::decoder::{Decoder, DecoderRoom, Sampler, Scratch};
use ahead::Ahead;
use batch::Batch;
use magray_device::{DecoderDevice, DecoderOps, KvFormat, PAGE_TOKENS};
use passes::Going;
use std::collections::HashMap;
use std::sync::Arc;

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
    /// What constrained output needs, where it can be had.
    guides: Option<Arc<Guides>>,
    scratch: Scratch,
    batch: Batch,
    /// A pass that the device computes behind the last step.
    ahead: Option<Ahead>,
}

/// What bounds the sequences of a model on a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceBounds {
    /// Pages that they have together.
    pub(crate) pages: usize,
    /// How their keys and values are kept.
    pub(crate) kv: KvFormat,
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
    /// The last page that others may share.
    known: Option<Known>,
    /// Tokens behind it.
    tail: Vec<u32>,
    sampler: Sampler,
    /// Proposes its next tokens, where that was asked for.
    drafts: Option<Drafts>,
    /// What its output is constrained by.
    guide: Option<Guide>,
    /// A token of it that was computed before its step came, and where.
    ahead: Option<(usize, u32)>,
}

/// Pages of keys and values; they exist from the first sequence on.
struct PagePool<D: DecoderDevice> {
    made: Option<(Pages<D>, PageTable)>,
    count: usize,
    kv: KvFormat,
}

#[cfg(test)]
impl SequenceBounds {
    fn of(pages: usize) -> Self {
        Self { pages, kv: KvFormat::default() }
    }
}

impl<D: DecoderDevice> Sequences<D> {
    /// Sequences of a decoder on a device, within these bounds. These tokens end one.
    pub(crate) fn new(decoder: Decoder<D>, device: &D, ops: D::Ops, bounds: SequenceBounds, ends: Vec<u32>) -> Self {
        let SequenceBounds { pages, kv } = bounds;
        let room = decoder.room(device);
        let pages = PagePool { made: None, count: pages, kv };
        let (states, scratch, batch) = Default::default();
        Self { decoder, ops, room, pages, states, ends, guides: None, scratch, batch, ahead: None }
    }

    /// Lets sequences have constraints.
    pub(crate) fn constrain_by(&mut self, guides: Guides) {
        self.guides = Some(Arc::new(guides));
    }

    /// Tokens of the longest sequence.
    pub(crate) fn context(&self) -> usize {
        self.decoder.context()
    }

    /// Computes steps and says which tokens follow each.
    pub(crate) fn advance(
        &mut self,
        device: &D,
        steps: &[SequenceStep<'_>],
        out: &mut Vec<NewTokens>,
    ) -> Result<(), StepError<D::Error>> {
        if !self.fits_ahead(steps) {
            // Pages may change hands now.
            self.settle_ahead()?;
        }
        let mut going = Vec::with_capacity(steps.len());
        let begun = steps.iter().try_for_each(|step| {
            going.push(self.begin(step)?);
            going.last_mut().map_or(Ok(()), |one| self.make_room(device, one))
        });
        let passed = begun.and_then(|()| self.grow(device)).and_then(|()| self.pass_all(&mut going));
        if passed.is_err() {
            // Nothing of it may be under way when pages change hands; what failed has been told.
            let _ = self.ops.answer();
            self.ahead = None;
        }
        for one in &going {
            let Some(state) = self.states.get_mut(&one.step.sequence) else { continue };
            match passed {
                Ok(()) => {
                    // Keys and values of the last new token come with the next step.
                    let new = &one.new.tokens[..one.new.tokens.len().saturating_sub(1)];
                    state.tokens = one.end(new.len());
                    let ids = &one.step.ids[one.shared..];
                    state.tail.extend(ids.iter().chain(new));
                    self.pages.keep(state);
                }
                Err(_) => {
                    state.sampler.forget(one.end(0), &one.new.tokens);
                    state.drafts.iter_mut().for_each(|drafts| drafts.forget(one.end(0)));
                    state.guide.iter_mut().for_each(|guide| guide.forget(one.end(0)));
                    state.known = one.known_before;
                    self.pages.leave(state.pages.split_off(one.pages_before));
                }
            }
        }
        passed?;
        out.extend(going.into_iter().map(|one| one.new));
        Ok(())
    }

    /// Finds the state that a step goes on from.
    fn begin<'a>(&mut self, step: &'a SequenceStep<'a>) -> Result<Going<'a>, StepError<D::Error>> {
        if step.from == 0 {
            // It begins anew, also where some of it is known.
            self.free(step.sequence);
            let sampling = step.sampling.cloned().unwrap_or_default();
            let drafts = Drafts::new(sampling.speculate.unwrap_or(0));
            let guide = self.guides.as_ref().and_then(|guides| guides.guide(&sampling));
            let sampler = Sampler::new(sampling);
            let state = State {
                tokens: 0,
                pages: Vec::new(),
                known: None,
                tail: Vec::new(),
                sampler,
                drafts,
                guide,
                ahead: None,
            };
            self.states.insert(step.sequence, state);
        }
        let known = self.states.get(&step.sequence).filter(|state| state.tokens == step.from as usize);
        Ok(Going::new(step, known.ok_or(StepError::StateMissing)?))
    }

    /// Sees to it that a step has pages for all its tokens: those of texts that were seen before, then new ones.
    fn make_room(&mut self, device: &D, one: &mut Going<'_>) -> Result<(), StepError<D::Error>> {
        let Some(state) = self.states.get_mut(&one.step.sequence) else { return Err(StepError::StateMissing) };
        let (_, table) = self.pages.made(device, &self.decoder).map_err(StepError::Device)?;
        let ids = one.step.ids;
        // The last token is computed in any case: what follows it is asked for.
        while state.tail.is_empty() && one.shared + PAGE_TOKENS < ids.len() {
            let Some(known) = table.find(state.known, &ids[one.shared..][..PAGE_TOKENS]) else { break };
            state.known = Some(known);
            state.pages.push(known.page);
            one.shared += PAGE_TOKENS;
        }
        one.new.cached = one.shared as u32;
        let most = one.end((one.step.new_tokens_max as usize).saturating_sub(1));
        while state.pages.len() * PAGE_TOKENS < most {
            state.pages.push(table.take().ok_or(StepError::NoPages)?);
        }
        if one.step.runs_on() && state.pages.len() * PAGE_TOKENS == most && most < self.decoder.context() {
            // Without one more the pass ahead has to do without it.
            state.pages.extend(table.take());
        }
        Ok(())
    }

    /// Sees to it that the pages that sequences have are there.
    fn grow(&mut self, device: &D) -> Result<(), StepError<D::Error>> {
        let has_memory = self.pages.made.as_ref().is_none_or(|(pages, table)| device.has_pages(pages, table.reached()));
        if !has_memory {
            // They move.
            self.settle_ahead()?;
        }
        let Some((pages, table)) = &mut self.pages.made else { return Ok(()) };
        device.grow_pages(pages, table.reached()).map_err(StepError::Device)
    }

    /// Lets go of a sequence.
    pub(crate) fn free(&mut self, sequence: u64) {
        if let Some(state) = self.states.remove(&sequence) {
            self.pages.leave(state.pages);
        }
    }

    /// The weights are about to leave: waits until nothing runs. All sequences go, and the memory of their pages.
    pub(crate) fn rest(&mut self) -> Result<(), D::Error> {
        self.end_ahead();
        self.states.clear();
        self.give_pages_back();
        self.ops.rest()
    }

    /// Gives back all memory that steps have taken, and that of pages where no sequence has one.
    pub(crate) fn trim(&mut self, device: &D) {
        self.end_ahead();
        self.room = self.decoder.room(device);
        self.give_pages_back();
        self.ops.trim();
    }

    /// Memory of the device that steps have taken, without pages.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.ops.held_bytes(&self.room.acts())
    }

    /// Gives the memory of pages back where no sequence has one. Recorded steps name where pages lie: where the next ones lie elsewhere,
    /// steps are recorded anew.
    pub(crate) fn give_pages_back(&mut self) {
        if self.states.is_empty() {
            self.end_ahead();
            self.pages.made = None;
        }
    }

    /// Nothing is under way any more. What went wrong with that is of no use to anyone: the next step tells if it lasts.
    fn end_ahead(&mut self) {
        let _ = self.settle_ahead();
    }
}

impl<D: DecoderDevice> Drop for Sequences<D> {
    /// What is under way reads weights and pages, which go now.
    fn drop(&mut self) {
        self.end_ahead();
    }
}

impl<D: DecoderDevice> PagePool<D> {
    fn made(&mut self, device: &D, decoder: &Decoder<D>) -> Result<&mut (Pages<D>, PageTable), D::Error> {
        match &mut self.made {
            Some(made) => Ok(made),
            none => {
                let pages = device.pages_in(self.kv, decoder.kv_shape(), self.count)?;
                Ok(none.insert((pages, PageTable::new(self.count))))
            }
        }
    }

    fn leave(&mut self, pages: Vec<u32>) {
        if let Some((_, table)) = &mut self.made {
            table.leave(&pages);
        }
    }

    /// Lets others share the pages of a sequence that are whole by now.
    fn keep(&mut self, state: &mut State) {
        let Some((_, table)) = &mut self.made else { return };
        let mut whole = state.tokens / PAGE_TOKENS - state.tail.len() / PAGE_TOKENS;
        while state.tail.len() >= PAGE_TOKENS {
            let ids: Vec<u32> = state.tail.drain(..PAGE_TOKENS).collect();
            state.known = Some(table.keep(state.pages[whole], state.known, &ids));
            whole += 1;
        }
    }
}
