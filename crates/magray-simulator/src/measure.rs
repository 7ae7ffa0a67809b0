//! What a world measured: when each request came, began and was answered, and how long devices worked.
//! Says nothing of right or wrong.

use magray_core::schedule::Moment;
use std::time::Duration;

/// What a world measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// All answers, in the order in which they were given.
    pub answers: Vec<Answer>,
    /// Requests that were refused.
    pub refused: usize,
    /// How long each device computed.
    pub busy: Vec<Duration>,
    /// When all was over.
    pub ended: Moment,
    /// Steps of the machine.
    pub steps: u64,
    /// New tokens that were delivered.
    pub tokens: u64,
    /// How often the state of a sequence was freed before its end.
    pub preemptions: u64,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// When it came.
    pub arrived: Moment,
    /// When a device began to compute the batch that answered it.
    pub begun: Moment,
    /// When it was answered.
    pub answered: Moment,
    /// Its texts.
    pub texts: usize,
    /// The device that answered it.
    pub device: usize,
}
