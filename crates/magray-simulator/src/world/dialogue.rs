//! The world's side of sequences of many steps: true tokens, what devices have computed of them, and who reads them.
//! Each token follows from those before it, so that one that is lost, doubled or out of place shows.

use super::{Due, World};
use crate::check::{Broken, Rule};
use crate::sequence::{Name, State, mixed};
use magray_core::schedule::{BatchId, Event, Outcome, Span, Step};
use std::collections::BTreeMap;
use std::time::Duration;

/// One token in this many ends a sequence.
const ENDS: u64 = 40;

#[derive(Debug, Default)]
pub(crate) struct Dialogues {
    dialogues: BTreeMap<Name, Dialogue>,
    /// New tokens by batch, as its device reports them.
    made: BTreeMap<BatchId, Vec<(Name, Vec<u64>)>>,
}

/// A sequence as its client knows it.
#[derive(Debug)]
struct Dialogue {
    ids: Vec<u64>,
    /// Of all its ids.
    digest: u64,
    prompt: usize,
    read: usize,
    pause: Duration,
    /// Whether its reader will go on by itself.
    is_awaited: bool,
}

impl Dialogues {
    pub(crate) fn begin(&mut self, name: Name, prompt: u32, pause: Duration) {
        let ids: Vec<u64> =
            (0..u64::from(prompt)).map(|at| mixed(name.0.0 << 32 ^ u64::from(name.1) << 16 ^ at)).collect();
        let mut state = State::default();
        ids.iter().for_each(|id| state.add(*id));
        let dialogue = Dialogue { prompt: ids.len(), digest: state.digest, ids, read: 0, pause, is_awaited: false };
        self.dialogues.insert(name, dialogue);
    }

    /// How long reading the rest takes.
    pub(crate) fn reading_time(&self, name: Name, tokens: u32) -> Duration {
        self.dialogues.get(&name).map_or(Duration::ZERO, |dialogue| dialogue.pause * tokens)
    }
}

impl World {
    /// A device has computed the steps of a batch: its outcome of each.
    pub(crate) fn compute_steps(
        &mut self,
        device: usize,
        batch: BatchId,
        (steps, passes): (&[Step], u32),
    ) -> Result<Vec<Outcome>, Broken> {
        let mut outcomes = Vec::new();
        for step in steps {
            let Span::Part { tokens, new_tokens_max } = &step.span else { continue };
            let name = (step.request, step.sequences.start);
            let (least, most) = (u64::from(passes.min(*new_tokens_max)), u64::from(*new_tokens_max));
            let drafted = if most > 1 { self.chance.whole(least, most) } else { 1 };
            let dialogue = &self.dialogues.dialogues[&name];
            let state = self.executors[device].states.entry(name).or_default();
            let given = dialogue.ids.get(tokens.start as usize..tokens.end as usize);
            let Some(given) = given.filter(|_| state.tokens == tokens.start as usize) else {
                let message =
                    format!("{step:?}: device {device} has {} tokens, {} are known", state.tokens, dialogue.ids.len());
                return Err(Broken { rule: Rule::Steps, message });
            };
            given.iter().for_each(|id| state.add(*id));
            let mut new = Vec::new();
            while new.len() < *new_tokens_max as usize && new.len() < drafted as usize {
                if let Some(last) = new.last() {
                    state.add(*last);
                }
                new.push(state.next());
                if state.next().is_multiple_of(ENDS) {
                    break;
                }
            }
            let count = new.len() as u32;
            let is_end = new.last().is_some_and(|last| last.is_multiple_of(ENDS));
            outcomes.push(if is_end { Outcome::End(count) } else { Outcome::Tokens(count) });
            self.dialogues.made.entry(batch).or_default().push((name, new));
        }
        Ok(outcomes)
    }

    /// The machine delivers new tokens of a sequence: those of the batch that has just ended.
    pub(crate) fn deliver(&mut self, name: Name, batch: Option<BatchId>) -> Result<(), Broken> {
        let made = batch.and_then(|batch| self.dialogues.made.get(&batch));
        let new = made.and_then(|made| made.iter().find(|(of, _)| *of == name)).map(|(_, new)| new.clone());
        let Some(dialogue) = self.dialogues.dialogues.get_mut(&name) else { return Ok(()) };
        let mut state = State { tokens: dialogue.ids.len(), digest: dialogue.digest };
        for id in new.unwrap_or_default() {
            if id != state.next() {
                let message = format!("token {} of {name:?} does not follow from those before it", state.tokens);
                return Err(Broken { rule: Rule::Tokens, message });
            }
            state.add(id);
            dialogue.ids.push(id);
        }
        dialogue.digest = state.digest;
        if !std::mem::replace(&mut dialogue.is_awaited, true) {
            self.agenda.plan(self.now + dialogue.pause, Due::Read(name));
        }
        Ok(())
    }

    /// A reader takes all that is there.
    pub(crate) fn read(&mut self, name: Name) -> Result<(), Broken> {
        let Some(dialogue) = self.dialogues.dialogues.get_mut(&name) else { return Ok(()) };
        let delivered = dialogue.ids.len() - dialogue.prompt;
        let tokens = (delivered - dialogue.read) as u32;
        dialogue.read = delivered;
        dialogue.is_awaited = false;
        self.tell(Event::Read { request: name.0, sequence: name.1, tokens })
    }

    /// The tokens of a batch are not needed any more.
    pub(crate) fn forget_made(&mut self, batch: BatchId) {
        self.dialogues.made.remove(&batch);
    }
}
