//! The device of an overload: computes batches one after the other, and knows at which token each answer ends.
//! Never fails.

use super::costs;
use crate::scenario::Cost;
use magray_core::ledger::Budget;
use magray_core::schedule::{BatchId, DeviceKind, DeviceSpec, Event, Location, Moment, Outcome, RequestId, Span, Step};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Device {
    is_gpu: bool,
    space: u64,
    costs: [Cost; 2],
    batches: VecDeque<Batch>,
    /// New tokens that a request gets, and has.
    answers: BTreeMap<RequestId, (u32, u32)>,
}

#[derive(Debug)]
struct Batch {
    id: BatchId,
    steps: Vec<Step>,
    takes: Duration,
}

impl Device {
    pub(super) fn new(is_gpu: bool, space: u64) -> Self {
        Self { is_gpu, space, costs: costs(is_gpu), batches: VecDeque::new(), answers: BTreeMap::new() }
    }

    pub(super) fn spec(&self) -> DeviceSpec {
        DeviceSpec {
            kind: if self.is_gpu { DeviceKind::Gpu } else { DeviceKind::Cpu },
            location: Location::InProcess,
            slots: 2,
            batch_tokens_max: if self.is_gpu { 65_536 } else { 4_096 },
            batch_tokens_least: 1,
            memory: Budget { kv_max: self.space, ..Budget::UNBOUNDED },
            is_reserved: false,
        }
    }

    pub(super) fn expect(&mut self, request: RequestId, ends_at: u32) {
        self.answers.insert(request, (ends_at, 0));
    }

    /// Takes a batch. When it ends, if it is the only one.
    pub(super) fn start(&mut self, id: BatchId, steps: Vec<Step>, now: Moment) -> Option<Moment> {
        let is_turn = steps.iter().any(|step| step.span != Span::Whole);
        let tokens: u64 = steps
            .iter()
            .map(|step| match &step.span {
                Span::Whole => 32 * step.sequences.len() as u64,
                Span::Part { tokens, .. } => tokens.len() as u64,
            })
            .sum();
        let takes = self.costs[usize::from(!is_turn)].of(tokens, steps.len() as u64);
        self.batches.push_back(Batch { id, steps, takes });
        (self.batches.len() == 1).then_some(now + takes)
    }

    /// The first batch is computed: what came of it, and when the next one ends.
    pub(super) fn computed(&mut self, now: Moment) -> (Event, Option<Moment>) {
        let batch = self.batches.pop_front().expect("a batch that ends was started");
        let outcomes = batch.steps.iter().map(|step| self.outcome(step)).collect();
        let next = self.batches.front().map(|next| now + next.takes);
        (Event::Finished { batch: batch.id, compute: batch.takes, outcomes }, next)
    }

    fn outcome(&mut self, step: &Step) -> Outcome {
        let Span::Part { new_tokens_max, .. } = step.span else { return Outcome::Row };
        if new_tokens_max == 0 {
            return Outcome::Tokens(0);
        }
        let Some((ends_at, has)) = self.answers.get_mut(&step.request) else { return Outcome::End(1) };
        *has += 1;
        if *has < *ends_at { Outcome::Tokens(1) } else { Outcome::End(1) }
    }
}
