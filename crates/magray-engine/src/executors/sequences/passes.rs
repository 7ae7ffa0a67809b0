//! The passes of steps: which tokens go into one, which tokens come of it, and where a step ends.
//! Makes no room for them: pages are there before the first pass.

use super::batch::Batch;
use super::{Pages, Sequences, State, StepError};
use crate::decoder::ConstraintError;
use crate::executors::guides::{Allowed, Guide};
use crate::executors::pages::Known;
use crate::executors::{NewTokens, SequenceStep};
use magray_device::{CHOSEN, Choice, DecoderDevice, DecoderOps, Mask};

/// A step on its way: what is left of it and what came of it.
pub(super) struct Going<'a> {
    pub(super) step: &'a SequenceStep<'a>,
    /// Tokens of it whose keys and values were in the pages before.
    pub(super) shared: usize,
    pub(super) new: NewTokens,
    /// Passes that were begun for it, and new tokens that these may give.
    pub(super) passes: u32,
    pub(super) begun: usize,
    /// Its first row of the wanted ones of the last pass.
    pub(super) row: usize,
    /// What the last pass verifies: the tokens behind the first that it gives, as they were proposed.
    drafts: Vec<u32>,
    /// Of the passes before it, how many tokens of theirs were right.
    accepted_before: u32,
    /// No pass is to be begun for it.
    is_done: bool,
    /// Whether its tokens are chosen on this side, by their logits.
    is_chosen_here: bool,
    /// Whether its sequence has a constraint.
    pub(super) is_guided: bool,
    /// What its sequence had before.
    pub(super) pages_before: usize,
    pub(super) known_before: Option<Known>,
}

/// A pass that is under way.
pub(super) struct Pass {
    /// The rows whose logits are wanted, in their order.
    pub(super) wanted: Vec<Wanted>,
    /// Whether its tokens are chosen behind it, under masks.
    pub(super) is_later: bool,
}

/// The rows of a pass whose logits are wanted for a step.
pub(super) struct Wanted {
    pub(super) step: usize,
    pub(super) rows: usize,
}

impl<'a> Going<'a> {
    pub(super) fn new(step: &'a SequenceStep<'a>, state: &State) -> Self {
        Self {
            step,
            shared: 0,
            new: NewTokens::default(),
            passes: 0,
            begun: 0,
            row: 0,
            drafts: Vec::new(),
            accepted_before: 0,
            is_done: false,
            is_chosen_here: false,
            is_guided: state.guide.is_some(),
            pages_before: state.pages.len(),
            known_before: state.known,
        }
    }

    fn new_tokens_max(&self) -> usize {
        self.step.new_tokens_max as usize
    }

    pub(super) fn wants_tokens(&self) -> bool {
        self.step.new_tokens_max > 0
    }

    /// A pass is begun for it that gives this many tokens at most.
    pub(super) fn note_pass(&mut self, tokens: usize) {
        self.begun += tokens;
        self.passes += 1;
        self.is_done |= self.begun >= self.new_tokens_max() || self.passes >= self.step.passes_max;
    }

    /// Where its known tokens end in the sequence, once this many new ones are known.
    pub(super) fn end(&self, new: usize) -> usize {
        self.step.from as usize + self.step.ids.len() + new
    }
}

impl<D: DecoderDevice> Sequences<D> {
    /// Passes until every step is done. Where the device chooses all tokens and feeds them back, a pass begins before the tokens of the one
    /// before it are known: the device never waits for this side.
    pub(super) fn pass_all(&mut self, going: &mut [Going<'_>]) -> Result<(), StepError<D::Error>> {
        if !self.is_fed_back(going)? {
            self.settle_ahead()?;
            while let Some(pass) = self.begin_pass(going)? {
                self.choose_under(going, &pass)?;
                self.take_chosen(going, &pass.wanted)?;
                self.choose(going, &pass.wanted)?;
            }
            return Ok(());
        }
        let mut under_way = self.take_up_ahead(going)?;
        loop {
            let begun = self.begin_pass(going)?;
            if let Some(last) = under_way.as_ref().filter(|_| begun.is_none()) {
                self.begin_ahead(going, last)?;
            }
            if let Some(pass) = under_way.take() {
                self.take_chosen(going, &pass.wanted)?;
            }
            let Some(pass) = begun else { return self.choose_ahead() };
            self.choose_under(going, &pass)?;
            under_way = Some(pass);
        }
    }

    /// Decides where the tokens of steps are chosen. Returns whether all of them are on the device, which can feed them back.
    fn is_fed_back(&mut self, going: &mut [Going<'_>]) -> Result<bool, StepError<D::Error>> {
        let (draws, masks) = (self.ops.draw_by(&[]), self.ops.choose_later(false));
        let mut is_fed_back = self.ops.feeds_back();
        for one in going.iter_mut().filter(|one| one.wants_tokens()) {
            let Some(state) = self.states.get(&one.step.sequence) else { return Err(StepError::StateMissing) };
            let choice = state.sampler.choice(0);
            // What may follow a proposal is not known before that is chosen.
            let is_unmaskable = one.is_guided && (!masks || state.drafts.is_some());
            one.is_chosen_here = is_unmaskable || choice.is_none_or(|choice| choice.temperature > 0.0 && !draws);
            is_fed_back &= !one.is_chosen_here && state.drafts.is_none();
        }
        Ok(is_fed_back)
    }

    /// Begins a pass over what is next of every step that is not done. `None`: all are done.
    fn begin_pass(&mut self, going: &mut [Going<'_>]) -> Result<Option<Pass>, StepError<D::Error>> {
        self.batch.clear();
        let (mut wanted, mut rows, mut is_later) = (Vec::new(), 0, false);
        for (step, one) in going.iter_mut().enumerate().filter(|(_, one)| !one.is_done) {
            let Some(state) = self.states.get_mut(&one.step.sequence) else { return Err(StepError::StateMissing) };
            one.drafts.clear();
            if one.passes == 0 {
                state.note_known(one);
                if !state.take_ahead(one, &self.ends).map_err(|_| StepError::NotFinite)? {
                    let ids = &one.step.ids[one.shared..];
                    state.propose(ids, one);
                    push(&mut self.batch, &self.ops, state, one, (ids, one.step.from as usize + one.shared));
                }
            }
            if one.is_done {
                continue;
            }
            if one.passes > 0 {
                let known = one.new.tokens.get(one.begun - 1).copied();
                let place = one.end(one.begun - 1);
                known.into_iter().for_each(|id| state.note(place, &[id]));
                let ids = [known.unwrap_or(CHOSEN | one.row as u32)];
                state.propose(known.as_slice(), one);
                push(&mut self.batch, &self.ops, state, one, (&ids, place));
            }
            let its_rows = 1 + one.drafts.len();
            if one.wants_tokens() {
                one.row = rows;
                rows += its_rows;
                wanted.push(Wanted { step, rows: its_rows });
                is_later |= one.is_guided && !one.is_chosen_here;
                // Beside the pass that gives the logits.
                state.guide.iter_mut().for_each(Guide::begin);
            }
            one.note_pass(its_rows);
        }
        if self.batch.ids.is_empty() {
            return Ok(None);
        }
        let choices = wanted.iter().flat_map(|wanted| {
            let one = &going[wanted.step];
            (one.begun - wanted.rows..one.begun).map(|new| self.choice(one, new))
        });
        let choices: Option<Vec<Choice>> = choices.collect();
        self.launch(&choices.unwrap_or_default(), is_later)?;
        Ok(Some(Pass { wanted, is_later }))
    }

    /// Lets the device compute the batch, and choose the tokens of the wanted rows like this.
    pub(super) fn launch(&mut self, choices: &[Choice], is_later: bool) -> Result<(), StepError<D::Error>> {
        if choices.iter().any(|choice| choice.temperature > 0.0) {
            self.ops.draw_by(choices);
        }
        if is_later {
            self.ops.choose_later(true);
        }
        let Some((pages, _)) = &mut self.pages.made else { return Err(StepError::NoPages) };
        let pages: &mut Pages<D> = pages;
        self.decoder.forward(&mut self.ops, &self.batch.steps(), pages, &mut self.room);
        Ok(())
    }

    /// Lets the device choose the tokens of a pass of those that constraints allow, once these are known.
    fn choose_under(&mut self, going: &mut [Going<'_>], pass: &Pass) -> Result<(), StepError<D::Error>> {
        if !pass.is_later {
            return Ok(());
        }
        let mut guided = Vec::new();
        for wanted in &pass.wanted {
            let one = &mut going[wanted.step];
            let Some(state) = self.states.get_mut(&one.step.sequence) else { return Err(StepError::StateMissing) };
            let is_masked = one.is_guided && !one.is_chosen_here && !one.new.is_end && state.may_go_on(one);
            guided.extend((0..wanted.rows).map(|_| is_masked.then_some(one.step.sequence)));
        }
        self.choose_for(&guided);
        Ok(())
    }

    /// The same where it is known which sequence's constraint holds for each row, if one does.
    pub(super) fn choose_for(&mut self, guided: &[Option<u64>]) {
        let mask = |sequence: &Option<u64>| self.states.get(&(*sequence)?)?.guide.as_ref()?.mask();
        let masks: Vec<Mask<'_>> = guided.iter().map(mask).collect();
        self.ops.choose_under(&masks);
    }

    /// How the device chooses a new token of a pass that is begun; nothing is drawn for one that is chosen here.
    pub(super) fn choice(&self, one: &Going<'_>, new: usize) -> Option<Choice> {
        let sampler = &self.states.get(&one.step.sequence)?.sampler;
        let none = Choice { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, draw: 0 };
        Some(sampler.choice(one.end(new)).filter(|_| !one.is_chosen_here).unwrap_or(none))
    }

    /// Takes the tokens that the device chose in the oldest pass that is under way; waits for it in any case.
    fn take_chosen(&mut self, going: &mut [Going<'_>], wanted: &[Wanted]) -> Result<(), StepError<D::Error>> {
        let are_all_here = !wanted.is_empty() && wanted.iter().all(|wanted| going[wanted.step].is_chosen_here);
        if are_all_here {
            return Ok(());
        }
        let tokens = self.ops.chosen().map_err(StepError::Device)?;
        let mut rows = tokens.iter();
        for wanted in wanted {
            let one = &mut going[wanted.step];
            let tokens = rows.by_ref().take(wanted.rows);
            if one.is_chosen_here {
                tokens.for_each(drop);
                continue;
            }
            let tokens: Vec<u32> = tokens.copied().collect();
            if tokens.contains(&u32::MAX) {
                return Err(StepError::NotFinite);
            }
            let Some(state) = self.states.get_mut(&one.step.sequence) else { return Err(StepError::StateMissing) };
            let is_right = |(row, token): (usize, u32)| {
                state.add(one, token, &self.ends);
                state.goes_on(one, row, token)
            };
            let _ = tokens.into_iter().enumerate().all(is_right);
            state.settle(one);
        }
        Ok(())
    }

    /// Chooses the other tokens of the pass, by its logits.
    fn choose(&mut self, going: &mut [Going<'_>], wanted: &[Wanted]) -> Result<(), StepError<D::Error>> {
        let (mut first, mut rows) = (0, Vec::new());
        for wanted in wanted {
            if going[wanted.step].is_chosen_here {
                rows.extend(first..first + wanted.rows);
            }
            first += wanted.rows;
        }
        if rows.is_empty() {
            return Ok(());
        }
        let vocab = self.decoder.spec().vocab;
        let mut logits = self.ops.answer_rows(&rows, vocab).map_err(StepError::Device)?;
        let mut logits = logits.chunks_exact_mut(vocab);
        for wanted in wanted {
            let one = &mut going[wanted.step];
            if !one.is_chosen_here {
                continue;
            }
            let Some(state) = self.states.get_mut(&one.step.sequence) else { return Err(StepError::StateMissing) };
            let mut goes_on = true;
            for (row, logits) in logits.by_ref().take(wanted.rows).enumerate() {
                // What follows a proposal that was wrong does not count.
                if !goes_on {
                    continue;
                }
                let plain = state.sampler.plain(logits);
                goes_on = state.restrict(logits, one);
                if !goes_on {
                    continue;
                }
                let token = state.sampler.choose(logits, one.end(one.new.tokens.len()), &mut self.scratch);
                let token = token.ok_or(StepError::NotFinite)?;
                one.new.logprobs.extend(plain.map(|plain| state.sampler.logprobs(&plain, token)));
                state.add(one, token, &self.ends);
                goes_on = state.goes_on(one, row, token);
            }
            state.settle(one);
        }
        Ok(())
    }
}

/// Adds what is next of a step to a batch, and behind it what was proposed.
fn push<O: DecoderOps>(batch: &mut Batch, ops: &O, state: &State, one: &Going<'_>, (ids, start): (&[u32], usize)) {
    let wanted = usize::from(one.wants_tokens());
    if one.drafts.is_empty() || ops.appends_first() {
        batch.push(ids, start, &state.pages, wanted);
        // Each as a step of its own: it is computed as it would be without having been proposed.
        for (id, place) in one.drafts.iter().zip(start + ids.len()..) {
            batch.push(&[*id], place, &state.pages, 1);
        }
        return;
    }
    let ids: Vec<u32> = ids.iter().chain(&one.drafts).copied().collect();
    batch.push(&ids, start, &state.pages, wanted + one.drafts.len());
}

impl State {
    /// Takes note of the tokens that a step begins with.
    pub(super) fn note_known(&mut self, one: &Going<'_>) {
        let from = one.step.from as usize;
        self.note(from, one.step.ids);
        self.guide.iter_mut().for_each(|guide| guide.note(from, one.step.ids));
    }

    /// Takes note of tokens of the sequence; those that are known count once.
    fn note(&mut self, place: usize, ids: &[u32]) {
        self.sampler.note(place, ids);
        self.drafts.iter_mut().for_each(|drafts| drafts.note(place, ids));
    }

    /// Proposes what follows these tokens, where it is one that stands alone and is known.
    fn propose(&self, ids: &[u32], one: &mut Going<'_>) {
        let most = one.new_tokens_max().saturating_sub(1 + one.begun);
        if let (Some(drafts), [_]) = (&self.drafts, ids) {
            drafts.propose(most, &mut one.drafts);
        }
    }

    /// Rules out what the sequence's constraint does not allow. False: no token is to be chosen.
    fn restrict(&mut self, logits: &mut [f32], one: &mut Going<'_>) -> bool {
        let allowed = self.guide.as_mut().map_or(Ok(Allowed::Token), |guide| guide.restrict(logits));
        Self::judge(allowed, one)
    }

    /// Waits until it is known what the sequence's constraint allows. False: no token is to be chosen.
    fn may_go_on(&mut self, one: &mut Going<'_>) -> bool {
        Self::judge(self.guide.as_mut().map_or(Ok(Allowed::Token), Guide::settle), one)
    }

    /// Ends a step whose answer is complete, or cannot go on.
    fn judge(allowed: Result<Allowed, ConstraintError>, one: &mut Going<'_>) -> bool {
        let may_go_on = matches!(allowed, Ok(Allowed::Token));
        if !may_go_on {
            one.new.is_end = true;
            one.is_done = true;
            one.new.problem = allowed.err().map(|error| error.to_string());
        }
        may_go_on
    }

    /// Adds a token to those of a step; what was computed behind its end does not count.
    pub(super) fn add(&mut self, one: &mut Going<'_>, token: u32, ends: &[u32]) {
        if one.new.is_end {
            return;
        }
        one.new.tokens.push(token);
        one.new.is_end = ends.contains(&token) && !self.sampler.ignores_end();
        self.follow(token, one);
        one.is_done |= one.new.is_end;
    }

    /// Tells the sequence's constraint which token was chosen; it may be the last.
    fn follow(&mut self, token: u32, one: &mut Going<'_>) {
        let Some(guide) = self.guide.as_mut().filter(|_| !one.new.is_end) else { return };
        let taken = guide.take(one.end(one.new.tokens.len() - 1), token);
        one.new.is_end = taken.clone().unwrap_or(true);
        one.new.problem = taken.err().map(|error| error.to_string());
        if !one.new.is_end {
            // Beside what the device computes meanwhile.
            guide.begin();
        }
    }

    /// Whether the next row of a pass counts: this row's token is the one that was proposed, and ends nothing.
    fn goes_on(&mut self, one: &mut Going<'_>, row: usize, token: u32) -> bool {
        let is_right = one.drafts.get(row) == Some(&token);
        one.new.accepted += u32::from(is_right);
        if is_right {
            self.note(one.end(one.new.tokens.len() - 1), &[token]);
        }
        is_right && !one.new.is_end
    }

    /// All tokens of a pass are known: the next one begins behind those that were right.
    fn settle(&mut self, one: &mut Going<'_>) {
        let Some(drafts) = &mut self.drafts else { return };
        one.begun = one.new.tokens.len();
        one.is_done = one.new.is_end || one.begun >= one.new_tokens_max() || one.passes >= one.step.passes_max;
        one.new.proposed += one.drafts.len() as u32;
        let right = one.new.accepted - std::mem::replace(&mut one.accepted_before, one.new.accepted);
        drafts.learn(one.drafts.len(), right as usize);
    }
}
