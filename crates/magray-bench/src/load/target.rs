//! What load is put on, as the generator sees it, and the tickets by which answers find back.
//! Knows nothing of engines: the tests put a faulty one in its place.

use std::{
    sync::mpsc::SyncSender,
    time::{Duration, Instant},
};

use magray_engine::{DeviceName, Precision};

use super::pool::Span;

/// Something that answers requests.
pub(super) trait Target: Sync {
    /// Takes texts; every ticket must be answered exactly once, from any thread.
    fn submit(&self, texts: Vec<Vec<u32>>, ticket: Ticket);

    /// How the devices are now.
    fn devices(&self) -> Vec<DeviceNow>;

    /// What went wrong with devices so far.
    fn incidents(&self) -> Vec<Fault>;
}

/// A request's claim to an answer.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Ticket {
    pub(super) request: Request,
    pub(super) answers: SyncSender<Arrived>,
}

impl Ticket {
    /// Hands the answer over and takes the time. Looking at the answer is left to another thread.
    pub(super) fn answer(&self, outcome: Outcome) {
        let arrived = Arrived { request: self.request, at: Instant::now(), outcome };
        // Nobody listens any more when an answer comes later than lost ones are waited for: it is counted as lost.
        let _ = self.answers.send(arrived);
    }
}

/// A request that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Its number, from 0, without gaps.
    pub(super) number: u64,
    /// Its texts in the pool.
    pub(super) texts: Span,
    /// When it was to be sent: its latency counts from here.
    pub(super) due: Instant,
    /// Whether it holds a token that ends workers.
    pub(super) is_poison: bool,
}

/// An answer that came.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) request: Request,
    pub(super) at: Instant,
    pub(super) outcome: Outcome,
}

/// What came of a request.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Vectors(Vectors),
    Refused {
        /// One word.
        code: &'static str,
        message: String,
    },
}

/// Vectors and how they were computed.
#[derive(Clone, Debug)]
pub(super) struct Vectors {
    pub(super) values: Vec<f32>,
    pub(super) device: DeviceName,
    pub(super) precision: Precision,
    pub(super) queued: Duration,
    pub(super) computed: Duration,
    pub(super) replays: u32,
    /// Why the CPU computed them although a GPU was to.
    pub(super) fallback: Option<&'static str>,
}

/// How a device is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DeviceNow {
    pub(super) name: DeviceName,
    /// Whether it is used, in a word or two.
    pub(super) state: String,
    /// The process of its worker.
    pub(super) pid: Option<u32>,
    /// What it has done since its start.
    pub(super) done: Done,
}

/// What a device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Done {
    pub(super) batches: u64,
    /// The texts of those.
    pub(super) texts: u64,
    /// Time that it has computed.
    pub(super) busy: Duration,
}

impl Done {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            batches: self.batches.saturating_sub(before.batches),
            texts: self.texts.saturating_sub(before.texts),
            busy: self.busy.saturating_sub(before.busy),
        }
    }
}

/// Something that went wrong with a device.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fault {
    pub(super) device: DeviceName,
    pub(super) code: &'static str,
    pub(super) noticed: Instant,
    /// When the device served again.
    pub(super) back: Option<Instant>,
}
