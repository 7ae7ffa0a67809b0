//! What the dispatcher holds under its lock, and what is to be done without it.
//! Calls no caller: an action of the machine becomes an effect, which the dispatcher performs when the lock is open again.

use super::{OnAnswer, residency_requests::MoveCounts};
use crate::decoder::Sampling;
use crate::engine::{
    executor_handle::{Batch, Order, Part, Turn, TurnStep, What},
    incident::{Incidents, RequestEnd},
    model_moves::{ModelMove, ModelMoves, MoveKind},
    token_stream::TokenBuffer,
    work::{Output, Work},
};
use crate::executors::NewTokens;
use magray_core::ledger::CollectionId;
use magray_core::schedule::{
    Action, BatchId, Change, DeviceId, Event, KillCause, Machine, ModelId, Moment, Notice, Refused, Report, Request,
    RequestId, Span, Step,
};
use std::collections::{HashMap, HashSet};
use std::{sync::Arc, task::Waker};

/// All that changes.
pub(super) struct State {
    pub(super) machine: Machine,
    actions: Vec<Action>,
    /// Handed in, and not accepted yet.
    pub(super) submitted: Vec<Submission>,
    /// What the machine does not know yet.
    pub(super) news: Vec<Event>,
    pub(super) requests: HashMap<RequestId, Pending>,
    /// By device: workers that were ordered. An order names the one it is meant for, since orders are carried out
    /// without the lock and may come late.
    workers: Vec<u64>,
    pub(super) incidents: Incidents,
    pub(super) model_moves: ModelMoves,
    /// By model: how often it was asked to come and to go.
    pub(super) move_counts: Vec<MoveCounts>,
    /// New tokens of the turn that has just ended; the machine says which of them count.
    pub(super) new_tokens: HashMap<RequestId, NewTokens>,
    /// Collections whose memory was granted, until the thread that asked looks.
    pub(super) vectors_granted: HashSet<CollectionId>,
    /// When the clock's thread will wake by itself.
    pub(super) alarm: Option<Moment>,
    pub(super) is_closed: bool,
}

/// A request that is not answered yet.
pub(super) struct Pending {
    pub(super) work: Arc<Work>,
    /// Rows of the texts that are computed; empty until the first are.
    pub(super) values: Vec<f32>,
    pub(super) on_answer: OnAnswer,
    /// Its tokens so far, where it is generated.
    pub(super) generated: Option<Generated>,
}

/// A sequence that is generated.
pub(super) struct Generated {
    pub(super) model: usize,
    /// What it began with, then what was delivered.
    pub(super) ids: Vec<u32>,
    /// How many there may be.
    pub(super) tokens_max: u32,
    pub(super) sampling: Arc<Sampling>,
    pub(super) buffer: Arc<TokenBuffer>,
    /// New tokens that its reader has taken, as far as it has told.
    pub(super) read: usize,
    /// What holds its state.
    pub(super) device: Option<DeviceId>,
    pub(super) times: SequenceTimes,
}

/// When what came of a sequence; all of it is kept for people alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct SequenceTimes {
    pub(super) asked: Moment,
    /// The first token, and the last so far.
    pub(super) first: Option<Moment>,
    pub(super) last: Option<Moment>,
}

/// A request on its way to the machine.
pub(super) struct Submission {
    pub(super) request: Request,
    pub(super) pending: Pending,
}

/// What the machine said after a step.
pub(super) struct Decided {
    pub(super) effects: Vec<Effect>,
    /// Whether models or devices came or went.
    pub(super) is_move: bool,
}

/// What is done when the lock is open again.
pub(super) enum Effect {
    Order(DeviceId, Order),
    Complete(RequestId, Pending, Report),
    Refuse(Pending, Refused),
    Tell(DeviceId, Change),
    Notice(DeviceId, Notice),
    Forget(usize),
    Wake(Waker),
}

impl State {
    pub(super) fn new(machine: Machine) -> Self {
        let view = machine.view();
        let (devices, models) = (view.devices.len(), view.models.len());
        Self {
            machine,
            actions: Vec::new(),
            submitted: Vec::new(),
            news: Vec::new(),
            requests: HashMap::new(),
            workers: vec![0; devices],
            incidents: Incidents::new(devices),
            model_moves: ModelMoves::default(),
            move_counts: vec![MoveCounts::default(); models],
            new_tokens: HashMap::new(),
            vectors_granted: HashSet::new(),
            alarm: None,
            is_closed: false,
        }
    }

    /// Takes what was handed in; the machine hears of it at the next step.
    pub(super) fn accept(&mut self) {
        for Submission { request, pending } in self.submitted.drain(..) {
            self.requests.insert(request.id, pending);
            self.news.push(Event::Submitted(request));
        }
    }

    /// Steps the machine with what was accepted, and then with an event.
    pub(super) fn step(&mut self, event: Option<Event>, now: Moment) -> Vec<Effect> {
        if let Some(event) = &event {
            self.record(event, now);
        }
        let (mut actions, mut news) = (std::mem::take(&mut self.actions), std::mem::take(&mut self.news));
        self.machine.step_all(news.drain(..).chain(event), now, &mut actions);
        let effects = actions.drain(..).filter_map(|action| self.prepare(action, now)).collect();
        (self.actions, self.news) = (actions, news);
        effects
    }

    /// Notes for people what an event means for requests and moves that are under way.
    fn record(&mut self, event: &Event, now: Moment) {
        match *event {
            Event::Finished { batch, .. } => self.incidents.finished(batch),
            Event::Failed { batch, .. } => self.incidents.lost_batch(batch),
            Event::Down { device, .. } => {
                self.incidents.lost_worker(device);
                self.model_moves.lost_worker(device, now);
            }
            Event::Cancelled(request) => self.incidents.ended_request(request, RequestEnd::Cancelled),
            Event::Loaded { device, model, .. } | Event::Offloaded { device, model } => {
                self.model_moves.ended(Some(device), model, true, now);
            }
            Event::NotLoaded { device, model, .. } => self.model_moves.ended(Some(device), model, false, now),
            Event::Forgotten { model } => self.model_moves.ended(None, model, true, now),
            _ => {}
        }
    }

    fn began_move(&mut self, device: Option<DeviceId>, model: ModelId, kind: MoveKind, began: Moment) {
        let reason = device.and_then(|device| self.machine.moved_for(device, model));
        self.model_moves.began(ModelMove { device, model, kind, reason, began, ended: None });
    }

    /// Something went wrong with a device.
    pub(super) fn note(&mut self, device: DeviceId, code: &'static str, now: Moment) {
        // An engine that ends ends its workers.
        if !self.is_closed {
            self.incidents.noticed(device, code, now);
        }
    }

    pub(super) fn note_end(&mut self, device: DeviceId, code: &'static str, now: Moment) {
        if !self.is_closed {
            self.incidents.ended(device, code, now);
        }
    }

    /// The worker that a device has now.
    pub(super) fn worker(&self, device: DeviceId) -> u64 {
        self.workers[usize::from(device.0)]
    }

    /// An order for the worker that the device has now.
    fn order(&self, device: DeviceId, what: What) -> Order {
        Order { worker: self.worker(device), what }
    }

    /// Makes of an action what is needed to do it without the lock.
    fn prepare(&mut self, action: Action, now: Moment) -> Option<Effect> {
        Some(match action {
            Action::Start { device, batch, steps, passes, is_followed, .. } => {
                self.incidents.started(device, batch, steps.iter().map(|step| step.request));
                if steps.first().is_some_and(|step| step.span != Span::Whole) {
                    self.place(device, &steps);
                    let what = What::Turn(self.turn(batch, &steps, passes));
                    return Some(Effect::Order(device, self.order(device, what)));
                }
                let mut count = 0;
                let parts: Vec<Part> = steps
                    .into_iter()
                    .filter_map(|step| {
                        let work = self.requests.get(&step.request)?.work.clone();
                        let texts = step.sequences.start as usize..step.sequences.end as usize;
                        let first = count;
                        count += texts.len();
                        Some(Part { request: step.request, work, texts, first })
                    })
                    .collect();
                let none = (0, 0, Output::Texts);
                let (model, skip, output) =
                    parts.first().map_or(none, |part| (part.work.model, part.work.skip, part.work.output));
                let what = What::Start(Batch { id: batch, model, skip, output, parts, is_followed });
                Effect::Order(device, self.order(device, what))
            }
            Action::Deliver { request, .. } => Effect::Wake(self.deliver(request, now)?),
            Action::Free { device, request, .. } => {
                if let Some(generated) = self.generated(request).filter(|one| one.device == Some(device)) {
                    generated.device = None;
                }
                let what = What::Free { sequence: request.0 };
                Effect::Order(device, self.order(device, what))
            }
            Action::Complete { request, report } => {
                self.note_problem(request);
                self.incidents.ended_request(request, RequestEnd::Answered);
                Effect::Complete(request, self.requests.remove(&request)?, report)
            }
            Action::Refuse { request, refused } => {
                self.incidents.ended_request(request, RequestEnd::Refused);
                Effect::Refuse(self.requests.remove(&request)?, refused)
            }
            Action::Kill { device, cause } => {
                match cause {
                    KillCause::Overdue | KillCause::Silent | KillCause::LoadOverdue => {
                        self.note(device, cause.code(), now);
                    }
                    KillCause::Sticky | KillCause::RuledOut | KillCause::StartOverdue => {
                        self.note_end(device, cause.code(), now);
                    }
                }
                Effect::Order(device, self.order(device, What::Kill(cause)))
            }
            Action::Spawn { device } => {
                self.workers[usize::from(device.0)] += 1;
                Effect::Order(device, self.order(device, What::Spawn))
            }
            Action::Trim { device } => Effect::Order(device, self.order(device, What::Trim)),
            Action::Probe { device } => Effect::Order(device, self.order(device, What::Probe)),
            Action::Load { device, model } => {
                self.began_move(Some(device), model, MoveKind::Load, now);
                Effect::Order(device, self.order(device, What::Load(model.0 as usize)))
            }
            Action::Offload { device, model } => {
                self.began_move(Some(device), model, MoveKind::Offload, now);
                Effect::Order(device, self.order(device, What::Offload(model.0 as usize)))
            }
            Action::Rest { device } => Effect::Order(device, self.order(device, What::Rest)),
            Action::Forget { model } => {
                self.began_move(None, model, MoveKind::Forget, now);
                Effect::Forget(model.0 as usize)
            }
            Action::GrantVectors { collection, .. } => {
                self.vectors_granted.insert(collection);
                return None;
            }
            Action::RefuseVectors { .. } => return None,
            Action::DropVectors { device, collection } => {
                Effect::Order(device, self.order(device, What::DropVectors(collection)))
            }
            Action::Alert { device, change } => Effect::Tell(device, change),
            Action::Notice { device, notice } => Effect::Notice(device, notice),
        })
    }
}

impl State {
    fn generated(&mut self, request: RequestId) -> Option<&mut Generated> {
        self.requests.get_mut(&request)?.generated.as_mut()
    }

    /// Notes what a reader has taken; gives how many tokens it had left unread before. `None` where the sequence is over.
    pub(super) fn note_read(&mut self, request: RequestId, tokens: usize) -> Option<usize> {
        let generated = self.generated(request)?;
        let unread = generated.new_tokens().saturating_sub(generated.read);
        generated.read += tokens;
        Some(unread)
    }

    /// Notes where sequences are computed now.
    fn place(&mut self, device: DeviceId, steps: &[Step]) {
        for step in steps {
            if let Some(generated) = self.generated(step.request) {
                generated.device = Some(device);
            }
        }
    }

    /// The steps of a turn, with their tokens.
    fn turn(&self, id: BatchId, steps: &[Step], passes_max: u32) -> Turn {
        let generated = |request: RequestId| self.requests.get(&request)?.generated.as_ref();
        let step = |step: &Step| {
            let Span::Part { tokens, new_tokens_max } = &step.span else { return None };
            let Generated { ids, tokens_max, sampling, .. } = generated(step.request)?;
            Some(TurnStep {
                request: step.request,
                from: tokens.start,
                ids: ids[tokens.start as usize..tokens.end as usize].to_vec(),
                new_tokens_max: *new_tokens_max,
                passes_max,
                goes_on: tokens.end.saturating_add(*new_tokens_max) < *tokens_max,
                sampling: (tokens.start == 0).then(|| Arc::clone(sampling)),
                logprobs: sampling.logprobs,
            })
        };
        let model = steps.iter().find_map(|step| generated(step.request)).map_or(0, |generated| generated.model);
        Turn { id, model, steps: steps.iter().filter_map(step).collect() }
    }

    /// What ends a sequence may come without a token to deliver.
    fn note_problem(&mut self, request: RequestId) {
        let new = self.new_tokens.remove(&request).filter(|new| new.tokens.is_empty());
        let generated = self.requests.get(&request).and_then(|pending| pending.generated.as_ref());
        if let (Some(new), Some(generated)) = (new, generated) {
            // Its reader is woken by the end.
            let _ = generated.buffer.push(new);
        }
    }

    /// Hands the new tokens of a sequence to its reader, in order because the lock is held; the reader is woken later.
    fn deliver(&mut self, request: RequestId, now: Moment) -> Option<Waker> {
        let new = self.new_tokens.remove(&request)?;
        let generated = self.generated(request)?;
        generated.ids.extend_from_slice(&new.tokens);
        generated.times.first.get_or_insert(now);
        generated.times.last = Some(now);
        generated.buffer.push(new)
    }
}

impl Generated {
    /// Those that were delivered.
    pub(super) fn new_tokens(&self) -> usize {
        self.ids.len() - self.sampling.prompt_tokens as usize
    }
}

impl Pending {
    /// Keeps rows where their texts belong. The same rows may come twice, from a batch that was given up.
    pub(super) fn keep(&mut self, part: &Part, rows: Vec<f32>, outputs: usize) {
        if part.texts.len() == self.work.texts.len() {
            self.values = rows;
            return;
        }
        self.values.resize(self.work.rows(0..self.work.texts.len()) * outputs, 0.0);
        let from = self.work.rows(0..part.texts.start) * outputs;
        self.values[from..from + rows.len()].copy_from_slice(&rows);
    }
}
