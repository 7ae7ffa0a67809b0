//! Sequences and their steps: what a request is made of, what a batch computes of it, and what comes of that.
//! Holds counts only: token ids are the caller's.

use super::phase::{Phase, Reach};
use super::{DeviceId, RequestId};
use std::ops::Range;

/// Tokens that are computed together, step by step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Tokens that it begins with; one without any counts as one.
    pub tokens: u32,
    /// New tokens at most. With none it has one step, and its answer is a row.
    pub new_tokens_max: u32,
}

impl Sequence {
    /// A text to embed, or a pair to rerank.
    pub const fn one_step(tokens: u32) -> Self {
        Self { tokens, new_tokens_max: 0 }
    }

    /// A prompt to which tokens are added.
    pub const fn prompt(tokens: u32, new_tokens_max: u32) -> Self {
        Self { tokens, new_tokens_max }
    }

    /// Whether it has many steps.
    pub fn is_generated(&self) -> bool {
        self.new_tokens_max > 0
    }

    /// Tokens that it may have in the end. One without any takes a place in a batch all the same.
    pub fn tokens_max(&self) -> u64 {
        u64::from(self.tokens.max(1)) + u64::from(self.new_tokens_max)
    }
}

/// What a batch computes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The request.
    pub request: RequestId,
    /// Which of its sequences: neighbours where each is computed whole, otherwise one.
    pub sequences: Range<u32>,
    /// What of them.
    pub span: Span,
}

/// What a step computes of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Span {
    /// All of it at once: a row is the answer.
    Whole,
    /// These of its tokens, after which the device keeps its state up to there. It has the state of those before.
    Part {
        /// From the sequence's first token on.
        tokens: Range<u32>,
        /// New tokens that may follow from it; none for a chunk that is not the last of its prompt.
        new_tokens_max: u32,
    },
}

impl Step {
    pub(super) fn sequence(&self) -> SequenceId {
        SequenceId { request: self.request, number: self.sequences.start }
    }
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A row for each sequence.
    Row,
    /// This many new tokens; none after a chunk that is not the last of its prompt.
    Tokens(u32),
    /// The sequence is at its end, with this many new tokens.
    End(u32),
}

/// A sequence of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SequenceId {
    pub(super) request: RequestId,
    pub(super) number: u32,
}

/// How far a sequence of many steps is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Tokens known: those it began with, then new ones.
    pub(super) known: u32,
    /// New tokens so far, and at most.
    pub(super) new: u32,
    pub(super) new_max: u32,
    /// New tokens that its reader has not taken.
    pub(super) unread: u32,
    /// Where its state is kept, and of how many tokens.
    pub(super) held: Option<Held>,
    pub(super) status: Status,
    /// Where it goes if its state is lost.
    pub(super) reach: Reach,
}

/// State of a sequence on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) device: DeviceId,
    pub(super) computed: u32,
}

/// What a sequence of many steps does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// It waits for its next step.
    Waiting,
    /// Its next step is in a batch.
    Running,
    /// Its reader has too much to read.
    Paused,
    /// Another step of its request must end first.
    HeldBack,
    /// It has all its tokens.
    Ended,
}

impl Progress {
    pub(super) fn new(sequence: Sequence, reach: Reach) -> Self {
        Self {
            known: sequence.tokens.max(1),
            new: 0,
            new_max: sequence.new_tokens_max,
            unread: 0,
            held: None,
            status: Status::Waiting,
            reach,
        }
    }

    /// Tokens whose state its device has.
    pub(super) fn computed(&self) -> u32 {
        self.held.map_or(0, |held| held.computed)
    }

    /// Known tokens that are still to be computed.
    pub(super) fn ahead(&self) -> u32 {
        self.known - self.computed()
    }

    /// What its next step is.
    pub(super) fn phase(&self) -> Phase {
        match self.held {
            None => Phase::Fresh,
            Some(held) if self.ahead() > 1 => Phase::Prompt(held.device),
            Some(held) => Phase::Next(held.device),
        }
    }

    /// Tokens whose state is kept after a step that ends with this many new ones at most.
    pub(super) fn kept_after(&self, new_tokens_max: u32) -> u64 {
        u64::from(self.known) + u64::from(new_tokens_max.saturating_sub(1))
    }
}

/// What bounds a step of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepBounds {
    pub(super) step_tokens_max: u32,
    pub(super) unread_max: u32,
    /// What the state of a token takes of a device's memory.
    pub(super) token_bytes: u64,
}

impl StepBounds {
    /// New tokens of the next step of a sequence at most, where it computes all that is known.
    pub(super) fn new_tokens_max(self, progress: &Progress) -> u32 {
        let wanted = progress.new_max.saturating_sub(progress.new);
        self.step_tokens_max.min(wanted).min(self.unread_max.saturating_sub(progress.unread)).max(1)
    }

    /// Bytes of state that are kept after the steps up to the next new token.
    pub(super) fn kept(self, progress: &Progress) -> u64 {
        progress.kept_after(self.new_tokens_max(progress)).saturating_mul(self.token_bytes)
    }
}
