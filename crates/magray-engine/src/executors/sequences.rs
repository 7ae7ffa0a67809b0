//! The sequences of a decoder on a device: their pages, their steps as batches, and the tokens that are chosen.
//! A step that fails changes nothing that counts: it can be given again.

use super::guides::{Allowed, Guide, Guides};
use super::pages::{Known, PageTable};
use super::{NewTokens, SequenceStep};
use crate::decoder::{Decoder, DecoderRoom, Sampler, Scratch};
use magray_device::{CHOSEN, Choice, DecoderDevice, DecoderOps, PAGE_TOKENS, StepBatch};
use std::collections::{HashMap, VecDeque};
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
    /// What its output is constrained by.
    guide: Option<Guide>,
}

/// Pages of keys and values; they exist from the first sequence on.
struct PagePool<D: DecoderDevice> {
    made: Option<(Pages<D>, PageTable)>,
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
    /// Tokens of it whose keys and values were in the pages before.
    shared: usize,
    new: NewTokens,
    /// Passes that were begun for it ...
    begun: usize,
    /// ... and its row of the wanted ones of the last.
    row: usize,
    /// No pass is to be begun for it.
    is_done: bool,
    /// Whether its tokens are chosen on this side, by their logits.
    is_chosen_here: bool,
    /// What its sequence had before.
    pages_before: usize,
    known_before: Option<Known>,
}

impl Going<'_> {
    fn wants_tokens(&self) -> bool {
        self.step.new_tokens_max > 0
    }

    /// Where its known tokens end in the sequence, once this many new ones are known.
    fn end(&self, new: usize) -> usize {
        self.step.from as usize + self.step.ids.len() + new
    }
}

impl<D: DecoderDevice> Sequences<D> {
    /// Sequences that together have up to this many pages. These tokens end one.
    pub(crate) fn new(decoder: Decoder<D>, device: &D, ops: D::Ops, pages: usize, ends: Vec<u32>) -> Self {
        let room = decoder.room(device);
        let pages = PagePool { made: None, count: pages };
        let (states, scratch, batch) = Default::default();
        Self { decoder, ops, room, pages, states, ends, guides: None, scratch, batch }
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
        let mut going = Vec::with_capacity(steps.len());
        let begun = steps.iter().try_for_each(|step| {
            going.push(self.begin(step)?);
            going.last_mut().map_or(Ok(()), |one| self.make_room(device, one))
        });
        let passed = begun.and_then(|()| self.grow(device)).and_then(|()| self.pass_all(&mut going));
        if passed.is_err() {
            // Nothing of it may be under way when pages change hands; what failed has been told.
            let _ = self.ops.answer();
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
            let sampler = Sampler::new(step.sampling.cloned().unwrap_or_default());
            let guide = step.sampling.and_then(|sampling| self.guides.as_ref()?.guide(sampling));
            let state = State { tokens: 0, pages: Vec::new(), known: None, tail: Vec::new(), sampler, guide };
            self.states.insert(step.sequence, state);
        }
        let known = self.states.get(&step.sequence).filter(|state| state.tokens == step.from as usize);
        let state = known.ok_or(StepError::StateMissing)?;
        let (pages_before, known_before) = (state.pages.len(), state.known);
        let new = NewTokens::default();
        Ok(Going {
            step,
            shared: 0,
            new,
            begun: 0,
            row: 0,
            is_done: false,
            is_chosen_here: false,
            pages_before,
            known_before,
        })
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
        let most = one.end((one.step.new_tokens_max as usize).saturating_sub(1));
        while state.pages.len() * PAGE_TOKENS < most {
            state.pages.push(table.take().ok_or(StepError::NoPages)?);
        }
        Ok(())
    }

    /// Sees to it that the pages that sequences have are there.
    fn grow(&mut self, device: &D) -> Result<(), StepError<D::Error>> {
        let Some((pages, table)) = &mut self.pages.made else { return Ok(()) };
        device.grow_pages(pages, table.reached()).map_err(StepError::Device)
    }

    /// Passes until every step is done. Where the device chooses all tokens and feeds them back, a pass begins before the tokens of the one
    /// before it are known: the device never waits for this side.
    fn pass_all(&mut self, going: &mut [Going<'_>]) -> Result<(), StepError<D::Error>> {
        let draws = self.ops.draw_by(&[]);
        for one in going.iter_mut().filter(|one| one.wants_tokens()) {
            let state = self.states.get(&one.step.sequence);
            let choice = state.and_then(|state| state.sampler.choice(0));
            one.is_chosen_here = choice.is_none_or(|choice| choice.temperature > 0.0 && !draws);
        }
        let is_fed_back = self.ops.feeds_back() && !going.iter().any(|one| one.is_chosen_here);
        let mut under_way = VecDeque::new();
        loop {
            let begun = self.begin_pass(going)?;
            let has_begun = begun.is_some();
            under_way.extend(begun);
            if !has_begun || under_way.len() > usize::from(is_fed_back) {
                let Some(wanted) = under_way.pop_front() else { return Ok(()) };
                self.take_chosen(going, &wanted)?;
                self.choose(going, &wanted)?;
            }
        }
    }

    /// Begins a pass over what is next of every step that is not done. Returns the steps whose logits are wanted, in their order; `None`:
    /// all are done.
    fn begin_pass(&mut self, going: &mut [Going<'_>]) -> Result<Option<Vec<usize>>, StepError<D::Error>> {
        self.batch.clear();
        let mut wanted = Vec::new();
        for (index, one) in going.iter_mut().enumerate().filter(|(_, one)| !one.is_done) {
            let Some(state) = self.states.get_mut(&one.step.sequence) else { return Err(StepError::StateMissing) };
            if one.begun == 0 {
                state.sampler.note(one.step.from as usize, one.step.ids);
                state.guide.iter_mut().for_each(|guide| guide.note(one.step.from as usize, one.step.ids));
                let ids = &one.step.ids[one.shared..];
                self.batch.push(ids, one.step.from as usize + one.shared, &state.pages, one.wants_tokens());
            } else {
                let known = one.new.tokens.get(one.begun - 1);
                let place = one.end(one.begun - 1);
                known.into_iter().for_each(|id| state.sampler.note(place, &[*id]));
                let id = known.copied().unwrap_or(CHOSEN | one.row as u32);
                self.batch.push(&[id], place, &state.pages, true);
            }
            if one.wants_tokens() {
                one.row = wanted.len();
                wanted.push(index);
                // Beside the pass that gives the logits.
                state.guide.iter_mut().for_each(Guide::begin);
            }
            one.begun += 1;
            one.is_done = one.begun as u32 >= one.step.new_tokens_max;
        }
        if self.batch.ids.is_empty() {
            return Ok(None);
        }
        let choices = wanted.iter().map(|index| self.choice(&going[*index]));
        let choices: Vec<Choice> = choices.collect::<Option<_>>().unwrap_or_default();
        if choices.iter().any(|choice| choice.temperature > 0.0) {
            self.ops.draw_by(&choices);
        }
        let Some((pages, _)) = &mut self.pages.made else { return Err(StepError::NoPages) };
        self.decoder.forward(&mut self.ops, &self.batch.steps(), pages, &mut self.room);
        Ok(Some(wanted))
    }

    /// How the device chooses the token of a pass that is begun; nothing is drawn for one that is chosen here.
    fn choice(&self, one: &Going<'_>) -> Option<Choice> {
        let sampler = &self.states.get(&one.step.sequence)?.sampler;
        let none = Choice { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, draw: 0 };
        Some(sampler.choice(one.end(one.begun - 1)).filter(|_| !one.is_chosen_here).unwrap_or(none))
    }

    /// Takes the tokens that the device chose in the oldest pass that is under way; waits for it in any case.
    fn take_chosen(&mut self, going: &mut [Going<'_>], wanted: &[usize]) -> Result<(), StepError<D::Error>> {
        let are_all_here = !wanted.is_empty() && wanted.iter().all(|index| going[*index].is_chosen_here);
        if are_all_here {
            return Ok(());
        }
        let tokens = self.ops.chosen().map_err(StepError::Device)?;
        for (index, token) in wanted.iter().zip(tokens) {
            let one = &mut going[*index];
            if one.is_chosen_here {
                continue;
            }
            if token == u32::MAX {
                return Err(StepError::NotFinite);
            }
            self.add(one, token)?;
        }
        Ok(())
    }

    /// Chooses the other tokens of the pass, by its logits.
    fn choose(&mut self, going: &mut [Going<'_>], wanted: &[usize]) -> Result<(), StepError<D::Error>> {
        let here = wanted.iter().enumerate().filter(|(_, index)| going[**index].is_chosen_here);
        let (rows, here): (Vec<usize>, Vec<usize>) = here.map(|(row, index)| (row, *index)).unzip();
        if rows.is_empty() {
            return Ok(());
        }
        let vocab = self.decoder.spec().vocab;
        let mut logits = self.ops.answer_rows(&rows, vocab).map_err(StepError::Device)?;
        for (index, row) in here.into_iter().zip(logits.chunks_exact_mut(vocab)) {
            let one = &mut going[index];
            let Some(state) = self.states.get_mut(&one.step.sequence) else { return Err(StepError::StateMissing) };
            let plain = state.sampler.plain(row);
            if !state.restrict(row, one) {
                continue;
            }
            let token = state.sampler.choose(row, one.end(one.new.tokens.len()), &mut self.scratch);
            let token = token.ok_or(StepError::NotFinite)?;
            one.new.logprobs.extend(plain.map(|plain| state.sampler.logprobs(&plain, token)));
            self.add(one, token)?;
        }
        Ok(())
    }

    /// Adds a token to those of a step; what was computed behind its end does not count.
    fn add(&mut self, one: &mut Going<'_>, token: u32) -> Result<(), StepError<D::Error>> {
        if one.new.is_end {
            return Ok(());
        }
        let Some(state) = self.states.get_mut(&one.step.sequence) else { return Err(StepError::StateMissing) };
        one.new.tokens.push(token);
        one.new.is_end = self.ends.contains(&token) && !state.sampler.ignores_end();
        state.follow(token, one);
        one.is_done |= one.new.is_end;
        Ok(())
    }

    /// Lets go of a sequence.
    pub(crate) fn free(&mut self, sequence: u64) {
        if let Some(state) = self.states.remove(&sequence) {
            self.pages.leave(state.pages);
        }
    }

    /// Gives the memory of pages back where no sequence has one.
    pub(crate) fn trim(&mut self) {
        if self.states.is_empty() {
            self.pages.made = None;
        }
    }
}

impl State {
    /// Rules out what the sequence's constraint does not allow. False: no token is to be chosen, since the answer is complete or cannot go on.
    fn restrict(&mut self, logits: &mut [f32], one: &mut Going<'_>) -> bool {
        let allowed = self.guide.as_mut().map_or(Ok(Allowed::Token), |guide| guide.restrict(logits));
        let may_go_on = matches!(allowed, Ok(Allowed::Token));
        if !may_go_on {
            one.new.is_end = true;
            one.is_done = true;
            one.new.problem = allowed.err().map(|error| error.to_string());
        }
        may_go_on
    }

    /// Tells the sequence's constraint which token was chosen; it may be the last.
    fn follow(&mut self, token: u32, one: &mut Going<'_>) {
        let Some(guide) = self.guide.as_mut().filter(|_| !one.new.is_end) else { return };
        let taken = guide.take(one.end(one.new.tokens.len() - 1), token);
        one.new.is_end = taken.clone().unwrap_or(true);
        one.new.problem = taken.err().map(|error| error.to_string());
    }
}

impl<D: DecoderDevice> PagePool<D> {
    fn made(&mut self, device: &D, decoder: &Decoder<D>) -> Result<&mut (Pages<D>, PageTable), D::Error> {
        match &mut self.made {
            Some(made) => Ok(made),
            none => {
                let pages = device.pages(decoder.kv_shape(), self.count)?;
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

#[cfg(test)]
mod constrained;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::{DecoderFiles, Sampling};
    use crate::testing::tiny_decoder;
    use magray_core::CpuPath;
    use magray_device::cpu::Cpu;
    use std::sync::Arc;

    const PAGES: usize = 24;

    fn host() -> (Arc<Cpu>, Sequences<Cpu>) {
        let folder = tempfile::tempdir().unwrap();
        tiny_decoder::write(folder.path(), 9).unwrap();
        let files = DecoderFiles::open(folder.path()).unwrap();
        let cpu = Arc::new(Cpu::new(Some(CpuPath::Portable), Some(1)).unwrap());
        let decoder = Decoder::load(&*cpu, &files, tiny_decoder::CONTEXT).unwrap();
        let sequences = Sequences::new(decoder, &cpu, cpu.decoder(), PAGES, vec![tiny_decoder::END]);
        (cpu, sequences)
    }

    /// A text that goes on; `shared` of its tokens are those of every other.
    fn text(seed: u32, shared: u32, tokens: u32) -> Vec<u32> {
        (0..tokens).map(|at| (at * 7 + if at < shared { 0 } else { seed * 31 }) % 256).collect()
    }

    fn go_on(
        (cpu, host): &mut (Arc<Cpu>, Sequences<Cpu>),
        sequence: u64,
        from: u32,
        ids: &[u32],
        new_tokens_max: u32,
    ) -> Result<Vec<u32>, StepError<std::convert::Infallible>> {
        let sampling = Sampling { temperature: 1.0, repetition_penalty: 1.2, ignores_end: true, ..Sampling::default() };
        let step = SequenceStep { sequence, from, ids, new_tokens_max, sampling: Some(&sampling) };
        let mut new = Vec::new();
        host.advance(cpu, &[step], &mut new).map(|()| new.remove(0).tokens)
    }

    #[test]
    fn a_beginning_that_was_seen_before_changes_nothing_and_is_not_computed() {
        let mut warm = host();
        let all = |seed| text(seed, 100, 150);
        for seed in 0..4 {
            let mut cold = host();
            let expected = go_on(&mut cold, 1, 0, &all(seed), 40).unwrap();
            assert_eq!(go_on(&mut warm, u64::from(seed), 0, &all(seed), 40).unwrap(), expected, "seed {seed}");
        }
        // In parts, and after all have ended.
        (0..4).for_each(|seed| warm.1.free(seed));
        let mut cold = host();
        let expected = go_on(&mut cold, 1, 0, &all(2), 40).unwrap();
        assert!(go_on(&mut warm, 9, 0, &all(2)[..64], 0).unwrap().is_empty());
        assert_eq!(go_on(&mut warm, 9, 64, &all(2)[64..], 40).unwrap(), expected);
        let (_, table) = warm.1.pages.made.as_mut().unwrap();
        assert!(table.find(None, &all(0)[..PAGE_TOKENS]).is_some());
    }

    #[test]
    fn a_step_that_finds_no_page_can_be_given_again() {
        let mut host = host();
        let long = text(1, 0, 500);
        assert!(go_on(&mut host, 1, 0, &long, 0).unwrap().is_empty());
        let other = text(2, 0, 300);
        assert!(go_on(&mut host, 2, 0, &other[..64], 0).unwrap().is_empty());
        assert!(matches!(go_on(&mut host, 2, 64, &other[64..], 1), Err(StepError::NoPages)));
        assert!(matches!(go_on(&mut host, 2, 64, &other[64..], 1), Err(StepError::NoPages)));
        host.1.free(1);
        let again = go_on(&mut host, 2, 64, &other[64..], 1).unwrap();
        assert_eq!(again, go_on(&mut self::host(), 1, 0, &other, 1).unwrap());
        assert!(matches!(go_on(&mut host, 2, 7, &[1], 1), Err(StepError::StateMissing)));
    }

    #[test]
    fn pages_come_back_when_sequences_end() {
        let mut host = host();
        for round in 0..30 {
            let ids = text(round, 40, 200);
            assert_eq!(go_on(&mut host, u64::from(round), 0, &ids, 20).unwrap().len(), 20, "round {round}");
            host.1.free(u64::from(round));
        }
        host.1.trim();
        assert!(host.1.pages.made.is_none());
    }
}
