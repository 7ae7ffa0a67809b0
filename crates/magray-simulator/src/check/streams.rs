//! The book of sequences of many steps: where their state is, what was delivered of them, and what is still to be.
//! Knows counts alone; whether tokens are the right ones, the world sees.

use super::batches::{Batch, Batches};
use super::requests::{Ledger, Text};
use super::rule::{Rule, Verdict, holds};
use super::workers::Workers;
use crate::scenario::Scenario;
use magray_core::ledger::Owner;
use magray_core::schedule::{
    Action, DeviceId, DeviceSpec, Event, Generation, Group, ModelId, Moment, Outcome, RequestId, Span, Step,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Tolerance for times in whole nanoseconds.
const ROUNDING: f64 = 1.0 + 1e-6;

pub(crate) type Name = (RequestId, u32);

/// How long the machine says that a turn may be predicted to take.
pub(crate) type TurnMost<'a> = &'a dyn Fn(DeviceId, Group) -> Duration;

#[derive(Debug)]
pub(crate) struct Streams {
    streams: BTreeMap<Name, Stream>,
    /// By device: bytes of state that it keeps.
    kept: Vec<BTreeMap<Name, u64>>,
    specs: Vec<DeviceSpec>,
    generation: Generation,
    age_max: Duration,
    /// By model: new tokens of a step at most.
    step_tokens_max: Vec<u32>,
    /// By model: bytes of state a token.
    token_bytes: Vec<u64>,
    /// New tokens of the batch that has just ended.
    brought: Vec<Brought>,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    model: ModelId,
    prompt: u32,
    new_max: u32,
    delivered: u32,
    read: u32,
    is_ended: bool,
    /// The device that has its state, and of how many tokens.
    state: Option<(DeviceId, u32)>,
    /// When it arrived, its last step ended, or its reader went on.
    ready_since: Moment,
}

impl Stream {
    fn known(&self) -> u32 {
        self.prompt + self.delivered
    }

    fn unread(&self) -> u32 {
        self.delivered - self.read
    }
}

/// New tokens of a step.
#[derive(Clone, Copy, Debug)]
struct Brought {
    name: Name,
    tokens: u32,
    is_end: bool,
    /// Whether they must be delivered: the machine may have given up the batch.
    is_certain: bool,
}

impl Streams {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            streams: BTreeMap::new(),
            kept: vec![BTreeMap::new(); scenario.devices.len()],
            specs: scenario.devices.iter().map(|device| device.spec).collect(),
            generation: scenario.options.generation,
            age_max: scenario.options.batching.age_max,
            step_tokens_max: scenario.models.iter().map(|model| model.plan.step_tokens_max.max(1)).collect(),
            token_bytes: scenario.models.iter().map(|model| model.plan.kv_token_bytes).collect(),
            brought: Vec::new(),
        }
    }

    /// Records an event that the machine is about to get; called before the book of batches knows of it.
    pub(crate) fn heard(&mut self, event: &Event, batches: &Batches, now: Moment) {
        match event {
            Event::Submitted(request) => {
                for (number, sequence) in (0..).zip(&request.sequences).filter(|(_, one)| one.is_generated()) {
                    let stream = Stream {
                        model: request.group.model,
                        prompt: sequence.tokens,
                        new_max: sequence.new_tokens_max,
                        delivered: 0,
                        read: 0,
                        is_ended: false,
                        state: None,
                        ready_since: now,
                    };
                    self.streams.insert((request.id, number), stream);
                }
            }
            Event::Finished { batch, outcomes, .. } => {
                if let Some(batch) = batches.get(*batch) {
                    self.finished(batch, outcomes, now);
                }
            }
            Event::Failed { batch, .. } => {
                if let Some(batch) = batches.get(*batch) {
                    self.lost(batch, now);
                }
            }
            Event::Down { device, .. } => {
                batches.on(*device).for_each(|(_, batch)| self.lost(batch, now));
                self.forget(*device);
            }
            Event::Read { request, sequence, tokens } => {
                let unread_max = self.generation.unread_max;
                if let Some(stream) = self.streams.get_mut(&(*request, *sequence)) {
                    let was_paused = stream.unread() >= unread_max;
                    stream.read = (stream.read + tokens).min(stream.delivered);
                    if was_paused {
                        stream.ready_since = now;
                    }
                }
            }
            _ => {}
        }
    }

    fn finished(&mut self, batch: &Batch, outcomes: &[Outcome], now: Moment) {
        for (step, outcome) in batch.steps.iter().zip(outcomes) {
            let Span::Part { tokens, .. } = &step.span else { continue };
            let (new, is_end) = match outcome {
                Outcome::Row => continue,
                Outcome::Tokens(new) => (*new, false),
                Outcome::End(new) => (*new, true),
            };
            let name = (step.request, step.sequences.start);
            let Some(stream) = self.streams.get_mut(&name) else { continue };
            if !batch.is_doubtful {
                stream.state = Some((batch.device, tokens.end + new.saturating_sub(1)));
                stream.ready_since = now;
            }
            self.brought.push(Brought { name, tokens: new, is_end, is_certain: !batch.is_doubtful });
        }
    }

    /// A batch was not computed: the state of its sequences on that device is void.
    fn lost(&mut self, batch: &Batch, now: Moment) {
        for step in batch.steps.iter().filter(|_| !batch.is_doubtful) {
            if let Some(stream) = self.streams.get_mut(&(step.request, step.sequences.start)) {
                stream.state = None;
                stream.ready_since = now;
            }
        }
    }

    fn forget(&mut self, device: DeviceId) {
        self.kept[usize::from(device.0)].clear();
        for stream in self.streams.values_mut().filter(|stream| stream.state.is_some_and(|(at, _)| at == device)) {
            stream.state = None;
        }
    }

    /// Judges one action of the machine.
    pub(crate) fn told(
        &mut self,
        action: &Action,
        turn_most: TurnMost<'_>,
        ledger: &mut Ledger,
        now: Moment,
    ) -> Verdict {
        match action {
            Action::Start { device, steps, expected, .. } => {
                let is_turn = |step: &Step| step.span != Span::Whole;
                if !steps.iter().any(is_turn) {
                    return Ok(());
                }
                self.judge_time(steps, *expected, turn_most(*device, ledger.entry(steps[0].request)?.request.group))?;
                self.judge_prompts(*device, steps, ledger, now)?;
                steps.iter().try_for_each(|step| self.start(*device, step))
            }
            Action::Deliver { request, sequence, from, tokens } => {
                self.deliver((*request, *sequence), *from, *tokens, ledger)
            }
            Action::Free { device, request, sequence } => self.free(*device, (*request, *sequence), ledger),
            Action::Kill { device, .. } => {
                self.forget(*device);
                Ok(())
            }
            Action::Offload { device, model } => {
                let mut kept = self.kept[usize::from(device.0)].keys();
                let left = kept.find(|name| self.streams[*name].model == *model);
                holds(left.is_none(), Rule::KvSpace, || {
                    format!("model {} leaves device {}, which keeps state of {left:?}", model.0, device.0)
                })
            }
            _ => Ok(()),
        }
    }

    /// A turn of more than one token keeps to its time.
    fn judge_time(&self, steps: &[Step], expected: Duration, most: Duration) -> Verdict {
        let most = most.mul_f64(ROUNDING) + Duration::from_nanos(1);
        let is_least = steps.len() == 1 && span_of(&steps[0]).is_some_and(|(tokens, _)| tokens.len() == 1);
        holds(expected <= most || is_least, Rule::TurnTime, || {
            format!("a turn of {} steps is predicted to take {expected:?}, more than {most:?}", steps.len())
        })
    }

    /// A turn leaves no prompt out that its device has begun and that has waited long, and longer than some of the turn.
    fn judge_prompts(&self, device: DeviceId, steps: &[Step], ledger: &Ledger, now: Moment) -> Verdict {
        let is_prompt = |step: &Step| match span_of(step) {
            Some((tokens, new_max)) => tokens.start == 0 || tokens.len() > 1 || new_max == 0,
            None => true,
        };
        let leader = ledger.entry(steps[0].request)?;
        if steps.iter().any(is_prompt) || !leader.is_untouched() {
            return Ok(());
        }
        let latest = steps.iter().filter_map(|step| self.streams.get(&(step.request, step.sequences.start)));
        let latest = latest.map(|stream| stream.ready_since).max().unwrap_or(now);
        let waits = |(name, stream): &(&Name, &Stream)| {
            let Ok(entry) = ledger.entry(name.0) else { return false };
            let is_ready = self.is_ready(**name, ledger) && entry.is_untouched();
            let is_old = now.since(stream.ready_since) > self.age_max && stream.ready_since < latest;
            let is_there = stream.state.is_some_and(|(at, computed)| at == device && stream.known() - computed > 1);
            is_ready && is_old && is_there && entry.request.group == leader.request.group
        };
        let starved = self.streams.iter().find(waits);
        holds(starved.is_none(), Rule::Starves, || {
            format!("a turn on device {} leaves the prompt {starved:?} behind, which has waited long", device.0)
        })
    }

    fn start(&mut self, device: DeviceId, step: &Step) -> Verdict {
        let Some((tokens, new_max)) = span_of(step) else { return Ok(()) };
        let name = (step.request, step.sequences.start);
        let Some(stream) = self.streams.get(&name).copied() else {
            return holds(false, Rule::Steps, || format!("{step:?} is a part of a sequence of one step"));
        };
        let begins = stream.state.filter(|(at, _)| *at == device).map_or(0, |(_, computed)| computed);
        let is_so = step.sequences.len() == 1
            && tokens.start == begins
            && tokens.start < tokens.end
            && stream.state.is_none_or(|(at, _)| at == device);
        let is_known = tokens.end <= stream.known() && (new_max > 0) == (tokens.end == stream.known());
        holds(is_known, Rule::Tokens, || format!("{step:?} is not of the tokens that are known: {stream:?}"))?;
        holds(is_so, Rule::Steps, || format!("{step:?} on device {} does not follow from {stream:?}", device.0))?;
        let is_within = stream.delivered + new_max <= stream.new_max && !stream.is_ended;
        holds(is_within, Rule::Tokens, || format!("{step:?} may give more new tokens than {}", stream.new_max))?;
        let unread_max = self.generation.unread_max.max(1);
        let is_read = stream.unread() < unread_max && stream.unread() + new_max <= unread_max;
        holds(is_read, Rule::SlowReader, || format!("{step:?} goes on, and its reader has {stream:?}"))?;
        let at = usize::from(device.0);
        let drafted = self.drafted(&stream);
        let needs = u64::from(stream.known() + drafted) * self.token_bytes[stream.model.0 as usize];
        let kept = self.kept[at].entry(name).or_default();
        *kept = needs.max(*kept);
        let used: u64 = self.kept[at].values().sum();
        let most = self.specs[at].memory.kv_max;
        holds(used <= most, Rule::KvSpace, || format!("device {at} keeps {used} bytes of sequences, and may {most}"))
    }

    /// New tokens whose state is kept after the next step that gives some; the last one's is not.
    fn drafted(&self, stream: &Stream) -> u32 {
        let step = self.step_tokens_max[stream.model.0 as usize].min(stream.new_max - stream.delivered);
        step.min(self.generation.unread_max.saturating_sub(stream.unread())).saturating_sub(1)
    }

    fn deliver(&mut self, name: Name, from: u32, tokens: u32, ledger: &mut Ledger) -> Verdict {
        let at = self.brought.iter().position(|brought| brought.name == name);
        let brought = at.map(|at| self.brought.swap_remove(at));
        let stream = self.streams.get_mut(&name);
        let is_so = match (brought, &stream) {
            (Some(brought), Some(stream)) => brought.tokens == tokens && stream.delivered == from,
            _ => false,
        };
        holds(is_so, Rule::Tokens, || {
            format!("{tokens} tokens of {name:?} are delivered after {from}; there are {stream:?}, {brought:?}")
        })?;
        let (Some(stream), Some(brought)) = (stream, brought) else { return Ok(()) };
        holds(ledger.is_live(name.0), Rule::AnsweredOnce, || format!("tokens of {name:?} come after its end"))?;
        stream.delivered += tokens;
        stream.is_ended = brought.is_end || stream.delivered >= stream.new_max;
        if stream.is_ended
            && let Some(entry) = ledger.entry_mut(name.0)
        {
            entry.end_sequence(name.1 as usize);
        }
        Ok(())
    }

    fn free(&mut self, device: DeviceId, name: Name, ledger: &Ledger) -> Verdict {
        let was_kept = self.kept[usize::from(device.0)].remove(&name).is_some();
        holds(was_kept, Rule::KvSpace, || format!("device {} frees {name:?}, of which it has nothing", device.0))?;
        holds(!is_running(name, ledger), Rule::Steps, || format!("{name:?} is freed while a step of it runs"))?;
        if let Some(stream) =
            self.streams.get_mut(&name).filter(|stream| stream.state.is_some_and(|(at, _)| at == device))
        {
            stream.state = None;
        }
        Ok(())
    }

    /// What the state of sequences takes of a device's memory.
    pub(crate) fn accounts(&self, device: DeviceId) -> BTreeMap<Owner, u64> {
        let mut accounts = BTreeMap::new();
        for (name, bytes) in &self.kept[usize::from(device.0)] {
            *accounts.entry(Owner::Kv(self.streams[name].model)).or_default() += bytes;
        }
        accounts
    }

    /// Whether a sequence could have its next step.
    pub(crate) fn is_ready(&self, name: Name, ledger: &Ledger) -> bool {
        let is_open = |stream: &Stream| !stream.is_ended && stream.unread() < self.generation.unread_max.max(1);
        self.streams.get(&name).is_some_and(is_open) && ledger.is_live(name.0) && !is_running(name, ledger)
    }

    /// Since when a sequence waits for its next step, where it does.
    pub(crate) fn waits_since(&self, name: Name, ledger: &Ledger) -> Option<Moment> {
        self.is_ready(name, ledger).then(|| self.streams[&name].ready_since)
    }

    /// The names of a request's sequences.
    pub(crate) fn of(&self, request: RequestId) -> impl Iterator<Item = Name> {
        self.streams.range((request, 0)..=(request, u32::MAX)).map(|(name, _)| *name)
    }

    /// Tokens of a sequence that would have to be computed again if its state were lost.
    pub(crate) fn known(&self, name: Name) -> u32 {
        self.streams.get(&name).filter(|stream| !stream.is_ended).map_or(0, Stream::known)
    }

    /// Judges the state after all actions for this event.
    pub(crate) fn settle(&mut self, ledger: &Ledger, workers: &Workers) -> Verdict {
        let lost = |brought: &&Brought| brought.is_certain && brought.tokens > 0 && ledger.is_live(brought.name.0);
        let first = self.brought.iter().find(lost);
        holds(first.is_none(), Rule::Tokens, || format!("new tokens are not delivered: {first:?}"))?;
        self.brought.clear();
        for (at, kept) in self.kept.iter().enumerate() {
            let device = DeviceId(at as u16);
            if workers.is_being_ended(device) {
                continue;
            }
            let left = kept.keys().find(|name| {
                let is_over = self.streams[*name].is_ended || !ledger.is_live(name.0);
                is_over && !is_running(**name, ledger)
            });
            holds(left.is_none(), Rule::KvSpace, || format!("device {at} keeps state of {left:?}, which is over"))?;
        }
        Ok(())
    }
}

fn span_of(step: &Step) -> Option<(std::ops::Range<u32>, u32)> {
    match &step.span {
        Span::Whole => None,
        Span::Part { tokens, new_tokens_max } => Some((tokens.clone(), *new_tokens_max)),
    }
}

fn is_running(name: Name, ledger: &Ledger) -> bool {
    let entry = ledger.entry(name.0).ok();
    entry.is_some_and(|entry| matches!(entry.texts.get(name.1 as usize), Some(Text::Running(_))))
}
