//! The pass that a device computes while this side tells what the last ones gave: it goes on with the sequences of a step before the next
//! step comes, so that it does not idle between two. What it gives counts only where that step goes on from there.

#[cfg(test)]
mod tests;

use super::passes::{Going, Pass, Wanted};
use super::{Sequences, State, StepError};
use crate::executors::SequenceStep;
use crate::executors::guides::{Allowed, Guide};
use magray_device::{CHOSEN, Choice, DecoderDevice, DecoderOps, PAGE_TOKENS};
use std::collections::HashMap;

/// A pass behind the last step.
pub(super) struct Ahead {
    rows: Vec<Row>,
    /// Whether its tokens are to be chosen, under masks.
    is_later: bool,
}

/// A token that it gives.
struct Row {
    sequence: u64,
    /// Where in the sequence.
    place: usize,
    is_guided: bool,
    /// It is none: the answer before it is complete, or cannot go on.
    is_void: bool,
}

/// A device computed a token that is no number.
pub(super) struct NotFinite;

impl SequenceStep<'_> {
    /// Whether a pass is begun behind its own. Steps of one pass are those that others wait beside.
    pub(super) fn runs_on(&self) -> bool {
        self.goes_on && self.passes_max > 1 && self.new_tokens_max > 0
    }
}

impl<D: DecoderDevice> Sequences<D> {
    /// Begins the pass behind the last one of some steps, for the sequences that may go on.
    pub(super) fn begin_ahead(&mut self, going: &[Going<'_>], last: &Pass) -> Result<(), StepError<D::Error>> {
        self.batch.clear();
        let (mut rows, mut choices) = (Vec::new(), Vec::new());
        for one in last.wanted.iter().map(|wanted| &going[wanted.step]) {
            let Some(state) = self.states.get(&one.step.sequence) else { return Err(StepError::StateMissing) };
            let (at, place) = (one.end(one.begun - 1), one.end(one.begun));
            let has_page = at < state.pages.len() * PAGE_TOKENS && place < self.context();
            if one.new.is_end || !one.step.runs_on() || !has_page {
                continue;
            }
            self.batch.push(&[CHOSEN | one.row as u32], at, &state.pages, 1);
            choices.push(self.choice(one, one.begun));
            rows.push(Row { sequence: one.step.sequence, place, is_guided: one.is_guided, is_void: false });
        }
        if rows.is_empty() {
            return Ok(());
        }
        let is_later = rows.iter().any(|row| row.is_guided);
        let choices: Option<Vec<Choice>> = choices.into_iter().collect();
        self.launch(&choices.unwrap_or_default(), is_later)?;
        self.ahead = Some(Ahead { rows, is_later });
        Ok(())
    }

    /// Chooses the tokens of the pass that is ahead, where that waits for masks: all tokens before it are known.
    pub(super) fn choose_ahead(&mut self) -> Result<(), StepError<D::Error>> {
        let Some(ahead) = self.ahead.as_mut().filter(|ahead| ahead.is_later) else { return Ok(()) };
        ahead.is_later = false;
        for row in ahead.rows.iter_mut().filter(|row| row.is_guided) {
            let guide = self.states.get_mut(&row.sequence).and_then(|state| state.guide.as_mut());
            row.is_void = guide.map(Guide::settle) != Some(Ok(Allowed::Token));
        }
        let guided = ahead.rows.iter().map(|row| (row.is_guided && !row.is_void).then_some(row.sequence));
        let guided: Vec<Option<u64>> = guided.collect();
        self.choose_for(&guided);
        Ok(())
    }

    /// Whether steps go on exactly from the pass that is ahead: then they need not wait for it.
    pub(super) fn fits_ahead(&self, steps: &[SequenceStep<'_>]) -> bool {
        let Some(ahead) = &self.ahead else { return false };
        let steps_of: HashMap<u64, &SequenceStep<'_>> = steps.iter().map(|step| (step.sequence, step)).collect();
        let fits = |row: &Row| {
            let step = steps_of.get(&row.sequence).filter(|step| step.from > 0 && step.ids.len() == 1);
            let goes_on = step.is_some_and(|step| step.from as usize + 1 == row.place && step.new_tokens_max > 0);
            goes_on && !row.is_void && self.states.contains_key(&row.sequence)
        };
        ahead.rows.len() == steps.len() && steps_of.len() == steps.len() && ahead.rows.iter().all(fits)
    }

    /// Makes the pass that is ahead the first one of steps that go on from it.
    pub(super) fn take_up_ahead(&mut self, going: &mut [Going<'_>]) -> Result<Option<Pass>, StepError<D::Error>> {
        let Some(Ahead { rows, .. }) = self.ahead.take() else { return Ok(None) };
        let places: HashMap<u64, usize> = going.iter().enumerate().map(|(at, one)| (one.step.sequence, at)).collect();
        let mut wanted = Vec::with_capacity(rows.len());
        for (at, row) in rows.iter().enumerate() {
            let (Some(step), Some(state)) = (places.get(&row.sequence), self.states.get_mut(&row.sequence)) else {
                return Err(StepError::StateMissing);
            };
            let one = &mut going[*step];
            state.note_known(one);
            one.row = at;
            one.note_pass(1);
            wanted.push(Wanted { step: *step, rows: 1 });
        }
        Ok(Some(Pass { wanted, is_later: false }))
    }

    /// Waits for the pass that is ahead. Its tokens are kept for the steps that go on from there.
    pub(super) fn settle_ahead(&mut self) -> Result<(), StepError<D::Error>> {
        let Some(Ahead { rows, .. }) = self.ahead.take() else { return Ok(()) };
        let tokens = self.ops.chosen().map_err(|error| {
            // None of it is taken for that of another pass.
            let _ = self.ops.answer();
            StepError::Device(error)
        })?;
        for (row, token) in rows.iter().zip(tokens).filter(|(row, _)| !row.is_void) {
            if let Some(state) = self.states.get_mut(&row.sequence) {
                state.ahead = Some((row.place, token));
            }
        }
        Ok(())
    }
}

impl State {
    /// Takes the token that was computed before this step came, if it goes on from there. False: there is none.
    pub(super) fn take_ahead(&mut self, one: &mut Going<'_>, ends: &[u32]) -> Result<bool, NotFinite> {
        let known = self.ahead.take().filter(|(place, _)| one.wants_tokens() && *place == one.end(0));
        let Some((_, token)) = known else { return Ok(false) };
        if token == u32::MAX {
            return Err(NotFinite);
        }
        one.note_pass(1);
        self.add(one, token, ends);
        Ok(true)
    }
}
