//! What load is put on, as the generator sees it, and the tickets by which answers find back.
//! Knows nothing of engines: the tests put a faulty one in its place.

use std::{
    sync::mpsc::SyncSender,
    time::{Duration, Instant},
};

use magray_engine::{DeviceName, Precision};

use super::pool::Span;

pub(super) trait Target: Sync {
    /// Takes texts; every ticket must be answered exactly once, from any thread.
    fn submit(&self, texts: Vec<Vec<u32>>, ticket: Ticket);

    fn devices(&self) -> Vec<DeviceNow>;

    /// Failures of devices so far.
    fn incidents(&self) -> Vec<Fault>;
}

/// Delivers the answer to one request.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Ticket {
    pub(super) request: Request,
    pub(super) answers: SyncSender<Arrived>,
}

impl Ticket {
    /// Delivers the answer with the time; another thread checks it.
    pub(super) fn answer(&self, outcome: Outcome) {
        let arrived = Arrived { request: self.request, at: Instant::now(), outcome };
        // An answer that comes after the collector has ended is counted as lost.
        let _ = self.answers.send(arrived);
    }
}

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

#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) request: Request,
    pub(super) at: Instant,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Vectors(Vectors),
    Refused {
        /// For programs.
        code: &'static str,
        message: String,
    },
}

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

#[derive(Clone, Debug, PartialEq)]
pub(super) struct DeviceNow {
    pub(super) name: DeviceName,
    /// For people.
    pub(super) state: String,
    /// The process of its worker.
    pub(super) pid: Option<u32>,
    /// Totals since its start.
    pub(super) done: Done,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Done {
    pub(super) batches: u64,
    pub(super) texts: u64,
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

/// A failure of a device.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fault {
    pub(super) device: DeviceName,
    pub(super) code: &'static str,
    pub(super) noticed: Instant,
    pub(super) back: Option<Instant>,
}
