//! What load is put on, as the generator sees it, and the tickets by which answers find back.
//! Knows nothing of engines: the tests put a faulty one in its place.

use std::{
    sync::mpsc::SyncSender,
    time::{Duration, Instant},
};

use magray_core::{DeviceName, Precision};

use crate::pool::Span;

/// What answers requests.
pub trait Target: Sync {
    /// Takes texts; every ticket must be answered exactly once, from any thread.
    fn submit(&self, texts: Vec<Vec<u32>>, ticket: Ticket);

    /// Its devices.
    fn devices(&self) -> Vec<DeviceNow>;

    /// Failures of devices so far.
    fn incidents(&self) -> Vec<Fault>;
}

/// Delivers the answer to one request.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// The request.
    pub request: Request,
    /// Takes the answer.
    pub answers: SyncSender<Arrived>,
}

impl Ticket {
    /// Delivers the answer with the time; another thread checks it.
    pub fn answer(&self, outcome: Outcome) {
        let arrived = Arrived { request: self.request, at: Instant::now(), outcome };
        // An answer that comes after the collector has ended is counted as lost.
        let _ = self.answers.send(arrived);
    }
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its number, from 0, without gaps.
    pub number: u64,
    /// Its texts in the pool.
    pub texts: Span,
    /// When it was to be sent: its latency counts from here.
    pub due: Instant,
    /// Whether it holds a token that ends workers.
    pub is_poison: bool,
}

/// An answer.
#[derive(Debug)]
pub struct Arrived {
    /// The request.
    pub request: Request,
    /// When it came.
    pub at: Instant,
    /// What it is.
    pub outcome: Outcome,
}

/// What an answer is.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Vectors.
    Vectors(Vectors),
    /// An error.
    Refused {
        /// For programs.
        code: &'static str,
        /// For people.
        message: String,
    },
}

/// Vectors, and how they were computed.
#[derive(Clone, Debug)]
pub struct Vectors {
    /// The vectors end to end.
    pub values: Vec<f32>,
    /// The device.
    pub device: DeviceName,
    /// The arithmetic by which they are checked.
    pub precision: Precision,
    /// Time in the queue.
    pub queued: Duration,
    /// Time of computing.
    pub computed: Duration,
    /// How often it was started again after a failure.
    pub replays: u32,
    /// Why the CPU computed them although a GPU was to.
    pub fallback: Option<&'static str>,
}

/// A device at this moment.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceNow {
    /// What it is called.
    pub name: DeviceName,
    /// For people.
    pub state: String,
    /// The process of its worker.
    pub pid: Option<u32>,
    /// Totals since its start.
    pub done: Done,
}

/// What a device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    /// Batches.
    pub batches: u64,
    /// Texts of them.
    pub texts: u64,
    /// Time that it computed.
    pub busy: Duration,
}

impl Done {
    /// What was done after that.
    pub fn since(self, before: Self) -> Self {
        Self {
            batches: self.batches.saturating_sub(before.batches),
            texts: self.texts.saturating_sub(before.texts),
            busy: self.busy.saturating_sub(before.busy),
        }
    }
}

/// A failure of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The device.
    pub device: DeviceName,
    /// One word.
    pub code: &'static str,
    /// When it was noticed.
    pub noticed: Instant,
    /// When the device served again.
    pub back: Option<Instant>,
}
