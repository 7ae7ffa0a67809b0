//! Ways to break the machine on purpose, one for each rule, so that tests of the tests can use them.
//! Without the feature `sabotage` nothing of it is compiled: every question is answered "no" by the compiler.

#[cfg(feature = "sabotage")]
use crate::ledger::Fraud;

/// Declares the ways together with the list of all of them, so that the list cannot miss one.
#[cfg(feature = "sabotage")]
macro_rules! ways {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What to break.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Sabotage {
            $($(#[$doc])* $name,)*
        }

        impl Sabotage {
            /// Every way there is.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

#[cfg(feature = "sabotage")]
ways! {
    /// Texts of a batch that failed are dropped.
    ForgetReplay,
    /// Every answer is given twice.
    AnswerTwice,
    /// However long a request waits, it overtakes none.
    IgnoreAge,
    /// All requests count as one caller's.
    IgnoreCallers,
    /// Each request counts as a caller's: who asks more at a time gets more.
    ShareByRequest,
    /// What a caller has had counts for nothing.
    ForgetServed,
    /// Batches take as long as is efficient, also while others wait.
    OverlongBatch,
    /// Requests wait however long it takes.
    IgnoreWait,
    /// More is taken than the bounds allow.
    IgnoreLimits,
    /// Devices that are out of rotation get batches.
    PlaceOnOut,
    /// Requests that may have ended a worker are not kept apart.
    KeepSuspectsTogether,
    /// A request that ended workers is never refused.
    IgnorePoison,
    /// Every request of a batch that was lost is refused at once.
    BlameEverybody,
    /// Deadlines mean nothing.
    IgnoreDeadline,
    /// A worker that hangs is left alone.
    SkipHangCheck,
    /// Requests of several groups share a batch.
    MixGroups,
    /// Batches are twice as large as they may be.
    OverfillBatch,
    /// A device gets one batch more than it has slots.
    ExceedSlots,
    /// What must be computed on a GPU is computed on the CPU.
    GpuWorkOnCpu,
    /// A device that telemetry rules out stays in rotation.
    IgnoreBad,
    /// A device whose probe passed does not come back.
    NeverReturn,
    /// Nothing that happens by time alone is announced.
    ForgetWake,
    /// Answers come for requests that were cancelled.
    AnswerCancelled,
    /// The last text of a request is never computed, and the request is answered all the same.
    SkipLastText,
    /// Batches start where the weights are not.
    StartWithoutWeights,
    /// Weights leave under a running batch.
    OffloadUnderBatch,
    /// Weights and vectors are granted whatever memory there is.
    IgnoreGrant,
    /// What was granted is booked twice.
    GrantTwice,
    /// What is returned stays in its account.
    LeakAccount,
    /// What workers report of memory is not taken.
    IgnoreReport,
    /// Models that are pinned are pushed out like others.
    PushPinned,
    /// An idle model stays.
    IgnoreIdle,
    /// A worker that rests is not woken by those who need it.
    LetRest,
    /// A worker without weights is kept.
    NeverRest,
    /// A worker rests although it has weights.
    RestWithWeights,
    /// Models are pushed out before they have computed anything.
    PushAtOnce,
    /// A model that gave way to another comes back before that one where its requests are older.
    ComeBackFirst,
    /// However often models came for nothing, they make others leave as soon as before.
    EvictForNothing,
    /// A model that is to be preheated is not brought there.
    IgnorePreheat,
    /// Weights that are on their way are ordered again.
    LoadTwice,
    /// A model that is to leave when its batch has ended is not looked at then.
    LoseResidencyRequest,
    /// That a model is in no memory any more is not told.
    HideRelease,
    /// A worker whose last model is released is kept like any other without weights.
    LingerOn,
    /// Now and then a new token is not delivered.
    LoseToken,
    /// Now and then a new token is delivered twice.
    DoubleToken,
    /// A sequence that lost its state forgets its last token.
    ForgetToken,
    /// A sequence that lost its state goes on as if it had it.
    SkipReplayedPrompt,
    /// A sequence gets more tokens than its limit.
    ExceedNewTokens,
    /// The state of sequences that were cancelled is kept.
    LeakState,
    /// More state is kept on a device than there is room for.
    OverfillKv,
    /// Prompts wait for as long as others go on.
    StarvePrompts,
    /// Turns take as long as they may fill a batch.
    OverlongTurn,
    /// Tokens are generated however few are read.
    IgnoreReader,
    /// A sequence that paused is not resumed.
    NeverResume,
    /// A device whose memory has room again is still avoided.
    NeverRoomy,
    /// A device that became slow keeps its full weight.
    IgnoreSlow,
    /// A device that was slow never gets its full weight back.
    NeverRegain,
}

#[cfg(feature = "sabotage")]
impl Sabotage {
    /// What of it is done in the ledgers of devices.
    pub(super) fn fraud(self) -> Option<Fraud> {
        match self {
            Self::IgnoreGrant => Some(Fraud::NoBounds),
            Self::GrantTwice => Some(Fraud::Double),
            Self::LeakAccount => Some(Fraud::Leak),
            Self::IgnoreReport => Some(Fraud::Deaf),
            Self::OverfillKv => Some(Fraud::NoKvBounds),
            _ => None,
        }
    }
}

#[cfg(feature = "sabotage")]
macro_rules! sabotaged {
    ($context:expr, $what:ident) => {
        $context.sabotage == Some($crate::schedule::Sabotage::$what)
    };
}

#[cfg(not(feature = "sabotage"))]
macro_rules! sabotaged {
    ($context:expr, $what:ident) => {{
        let _ = &$context;
        false
    }};
}

pub(super) use sabotaged;
