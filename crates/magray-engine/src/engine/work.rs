//! What callers hand in and what they get: work, answers, and why there is none.
//! Words only: nothing here waits or computes.

use crate::encoder::EmbedError;
pub use crate::executors::Output;
use crate::tokenize::Encoded;
use magray_core::schedule::{Allowed, CallerId, Priority, Refused};
use magray_core::{DeviceName, Precision, Reason};
use std::ops::Range;
use std::time::Duration;

/// Texts to compute.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Which of the engine's models.
    pub model: usize,
    /// The texts, as the model reads them.
    pub texts: Vec<Encoded>,
    /// Leading tokens of each text that are not pooled: those of a prompt that the model leaves out.
    pub skip: usize,
    /// What is wanted of each text.
    pub output: Output,
    /// Who waits for it: callers share the devices, whatever the number of their requests.
    pub caller: CallerId,
    /// How urgent it is.
    pub priority: Priority,
    /// After this time the answer is not wanted any more.
    pub deadline: Option<Duration>,
    /// Where it may be computed.
    pub allowed: Allowed,
}

impl Work {
    /// Texts given as token ids, special tokens included.
    pub fn from_ids(model: usize, texts: Vec<Vec<u32>>) -> Self {
        let texts = texts.into_iter().map(|ids| Encoded { type_ids: Vec::new(), ids, truncated: false }).collect();
        Self { model, texts, ..Self::default() }
    }

    /// Tokens of all texts.
    pub fn tokens(&self) -> usize {
        self.texts.iter().map(|text| text.ids.len()).sum()
    }

    /// Rows of the answer that these of its texts have.
    pub(super) fn rows(&self, texts: Range<usize>) -> usize {
        match self.output {
            Output::Texts | Output::Unscaled => texts.len(),
            Output::Tokens => self.texts[texts].iter().map(|text| text.ids.len()).sum(),
        }
    }
}

/// What came of the work, and how it went.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Numbers of a row.
    pub dimensions: usize,
    /// One row a text (or one a token, where that was wanted), end to end, in the order of the texts.
    pub values: Vec<f32>,
    /// Tokens computed.
    pub tokens: usize,
    /// The device that computed it; the last one, where several did.
    pub device: DeviceName,
    /// The arithmetic of that device.
    pub precision: Precision,
    /// Texts of the batch that ended it, others' included; it may have been computed in several.
    pub batch_texts: u32,
    /// How long it waited.
    pub queued: Duration,
    /// How long it was computed.
    pub computed: Duration,
    /// How often it was started again after a failure.
    pub replays: u32,
    /// Why the CPU computed it although a GPU was to.
    pub fallback: Option<Reason>,
}

impl Answer {
    /// The rows, one a text or a token.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.dimensions.max(1))
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine has no such model.
    #[error("there is no model number {0}")]
    NoModel(usize),
    /// There is nothing to compute.
    #[error("the request has no text")]
    NoText,
    /// The texts cannot be read by the model.
    #[error(transparent)]
    Text(#[from] EmbedError),
    /// Kinds of tokens that do not fit the text or the model.
    #[error("text {text} has kinds of tokens that do not fit: one a token, each below {known}, or none")]
    TokenKinds {
        /// Index of the text.
        text: usize,
        /// Kinds that the model knows.
        known: usize,
    },
    /// Leading tokens are to be left out, and no prompt of the model has as many.
    #[error("{0} leading tokens are to be left out, and no prompt of the model has as many")]
    NoPrompt(usize),
    /// Too much is waiting.
    #[error("too much is waiting: try again in {} ms", retry_after.as_millis())]
    Full {
        /// When there should be room.
        retry_after: Duration,
    },
    /// By itself it is more than is ever taken.
    #[error("the request has more tokens than may wait at once: send fewer texts at a time")]
    TooLarge,
    /// The deadline passed.
    #[error("the deadline passed before the request was computed")]
    Expired,
    /// It ended two workers.
    #[error("the request ended two GPU workers and is not tried again: report it as a defect")]
    Poison,
    /// It must be computed on a device that cannot be used.
    #[error("no device that may compute the request can be used ({code}): {message}")]
    NoDevice {
        /// One word for programs.
        code: &'static str,
        /// What is known of it.
        message: String,
    },
    /// What was asked for has not come about in the time that was given for it; it may still.
    #[error("it is not done after {} s, and goes on", within.as_secs_f32())]
    NotYet {
        /// The time that was given.
        within: Duration,
    },
    /// A later request wanted the opposite, and the last one counts.
    #[error("a later request wanted the opposite: ask again if it is still wanted")]
    Overruled,
    /// What was to be done beside the devices panicked.
    #[error("reading the request failed: report it as a defect")]
    Panicked,
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    Draining,
}

impl EngineError {
    /// What a refusal means to the caller; `last_error` tells what the device said last, if anything.
    pub(super) fn from_refused(refused: Refused, last_error: impl FnOnce() -> Option<String>) -> Self {
        match refused {
            Refused::Full { retry_after } => Self::Full { retry_after },
            Refused::TooLarge => Self::TooLarge,
            Refused::Expired => Self::Expired,
            Refused::Poison => Self::Poison,
            Refused::Draining => Self::Draining,
            Refused::NoDevice(fallback) => {
                Self::NoDevice { code: fallback.code(), message: last_error().unwrap_or_else(|| fallback.to_string()) }
            }
        }
    }
}
