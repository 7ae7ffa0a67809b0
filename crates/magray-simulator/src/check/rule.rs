//! The rules that always hold, by name.
//! Says what each means; the books beside it say whether it holds.

use std::fmt;

/// A rule that the machine broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The rule.
    pub rule: Rule,
    /// What happened.
    pub message: String,
}

pub(crate) type Verdict = Result<(), Broken>;

/// A verdict: broken unless this is so.
pub(crate) fn holds(is_so: bool, rule: Rule, message: impl FnOnce() -> String) -> Verdict {
    if is_so { Ok(()) } else { Err(Broken { rule, message: message() }) }
}

/// What always holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// The machine does not panic.
    NoPanic,
    /// Only requests that were asked are named.
    AskedOnly,
    /// A request is answered once, and not after it was cancelled.
    AnsweredOnce,
    /// With all faults over, everything is answered.
    AllAnswered,
    /// A request is complete when all its texts are computed, and not before.
    Complete,
    /// A text is in one batch at a time, and never computed again after it was.
    TextsOnce,
    /// The report of an answer says what happened.
    HonestReport,
    /// Not more is taken than the limits say.
    Limits,
    /// A request is refused for a reason that is there.
    HonestRefusal,
    /// No answer and no waiting after a deadline.
    Deadlines,
    /// Batches have one group, and not more texts and tokens than they may.
    BatchBounds,
    /// After a device's memory was full, it gets less at a time.
    MemoryCap,
    /// A request is computed only where it may be.
    Allowed,
    /// Nothing is started on a device that is not in rotation.
    InRotation,
    /// A device has not more batches than slots.
    Slots,
    /// Nothing waits while all devices that may compute it are idle.
    NoIdling,
    /// What waited long enough goes before later requests of other priorities and groups.
    Ages,
    /// While a caller waits, no other gets more of what it waits for, but for some batches.
    Shares,
    /// A batch of several texts on the CPU is predicted to take no longer than it may.
    BatchTime,
    /// No request is taken that would wait far longer than the limit.
    Waits,
    /// Without faults, no request waits longer than the work before it takes.
    Starves,
    /// No request is refused as poison unless workers were lost with it, the last one with it alone.
    Innocent,
    /// One that was there when a worker was lost is computed alone.
    SuspectsAlone,
    /// A poison is refused after it ended as many workers as it may.
    PoisonStopped,
    /// A worker that hangs is ended in time.
    HangsEnd,
    /// A worker is ended for a reason that is there.
    HonestKill,
    /// What is ruled out is ended at once.
    RuledOut,
    /// Workers are started, probed and trimmed when they can be.
    WorkerOrder,
    /// A device that fails is not started again and again without a pause.
    CrashLoop,
    /// A device is given up only after enough failures.
    NotGivenUp,
    /// A device that is in order comes back.
    ComesBack,
    /// Alerts are sent when a device leaves and when it returns.
    Alerts,
    /// Nothing happens by time alone before the wake time, and a wake makes progress.
    HonestWake,
    /// The machine's view of itself is true.
    HonestView,
    /// No batch starts where its model's weights are not.
    HasWeights,
    /// Weights are loaded where they are not, and leave where they are, by workers that are there.
    WeightsOrder,
    /// Nothing leaves under a batch or a probe, no worker rests with weights, no image is dropped that a device needs.
    NotUnderBatch,
    /// No more memory is granted than there is.
    Room,
    /// Every account of a device's memory holds what was granted and not returned; in the end all are empty.
    Accounts,
    /// A pinned model leaves by a request only, and nothing leaves the CPU to make room.
    Pinned,
    /// A model that was loaded for a request computes before others of its priority evict it.
    TakesTurns,
    /// A model that leaves a device for another does not come back before that one, again and again.
    GivesWay,
    /// Weights that requests wait for do not come and go again and again without a batch of theirs.
    MovesForUse,
    /// An idle model leaves in time.
    Idles,
    /// A worker without weights rests in time, and one that rests is gone.
    Rests,
    /// A model that is wanted on a GPU, and fits, gets there.
    Preheats,
    /// A step begins where the state of its sequence on its device ends, and a sequence has one step at a time.
    Steps,
    /// Each new token is delivered once, in order, and is the one that follows from those before it.
    Tokens,
    /// No more state of sequences is kept than there is space for, and none of those that are over.
    KvSpace,
    /// A turn is predicted to take no longer than it may.
    TurnTime,
    /// A sequence whose reader is slow waits for it, and for no one else.
    SlowReader,
    /// A model that is to be released leaves as soon as nothing needs it, and the request for it is confirmed.
    Granted,
    /// A device whose memory has room again is used as before.
    Roomy,
    /// A device has less weight while it is slow, and its full weight otherwise.
    Speeds,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.message)
    }
}

impl std::error::Error for Broken {}
