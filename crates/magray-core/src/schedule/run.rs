//! Sequences that wait as one: where they stand among others, and from which side they are taken.
//! Words only: the order is made elsewhere.

use super::{Moment, RequestId};

/// A position in the order of a caller's requests, or of sequences that go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    /// When its last step ended, where its state is kept: the one that has waited longest is next. Otherwise the start.
    pub(super) since: Moment,
    /// Where its request would end if all of its caller had an equal part: short ones go before long ones that came a
    /// little earlier.
    pub(super) turn: u64,
    /// The request's number, then its sequence.
    pub(super) arrival: u64,
    pub(super) first: u32,
}

/// Neighbouring sequences that wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) request: RequestId,
    pub(super) end: u32,
    /// Tokens that are to be computed.
    pub(super) tokens: u64,
    /// When it came, when its last step ended, or when a part of it was taken last.
    pub(super) arrived: Moment,
}

/// Which side of the order is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// What goes next.
    Front,
    /// What would wait longest.
    Back,
}
