//! What is generated at this moment, for people: each sequence with its progress.
//! Words and figures only, and nothing of the texts.

use super::{Engine, Priority, RequestId};
use crate::decoder::Sampling;
use magray_core::DeviceName;
use std::sync::Arc;
use std::time::Duration;

/// A sequence that is generated, or waits to be.
#[derive(Clone, Debug)]
pub struct SequenceView {
    /// Its name in the engine; no other ever has it.
    pub id: RequestId,
    /// Which of the engine's models.
    pub model: usize,
    /// Where its keys and values are.
    pub device: Option<DeviceName>,
    /// How urgent it is.
    pub priority: Priority,
    /// What it does.
    pub stage: Stage,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Those of them that were not computed: another sequence began with them.
    pub cached_tokens: u32,
    /// New tokens so far.
    pub new_tokens: usize,
    /// New tokens at most.
    pub new_tokens_max: u32,
    /// How its tokens are chosen.
    pub sampling: Arc<Sampling>,
    /// Since it was asked for.
    pub age: Duration,
    /// From then to its first token.
    pub first_token: Option<Duration>,
    /// New tokens a second since the first; `None` before there are several.
    pub tokens_per_s: Option<f64>,
}

/// What a sequence does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No device has it.
    Waits,
    /// A device has it; there is no token yet.
    ReadsPrompt,
    /// Tokens come.
    Generates,
    /// It has a token more than its reader takes: it goes on when they are read.
    Paused,
}

impl Stage {
    /// A word for programs; it never changes its meaning.
    pub fn code(self) -> &'static str {
        match self {
            Self::Waits => "waiting",
            Self::ReadsPrompt => "prompt",
            Self::Generates => "generating",
            Self::Paused => "paused",
        }
    }
}

impl Engine {
    /// What is generated and what waits to be, the oldest first.
    pub fn sequences(&self) -> Vec<SequenceView> {
        self.dispatcher().sequences(self.0.unread_max as usize)
    }

    /// Tokens that would be taken of any caller at this moment, without a look at how long they would wait.
    pub fn free_tokens(&self) -> u64 {
        self.dispatcher().free_tokens()
    }
}
