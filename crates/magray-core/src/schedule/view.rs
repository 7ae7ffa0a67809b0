//! What the machine tells of itself to people and metrics.
//! Numbers of one moment: nothing here decides anything.

use super::{DeviceKind, Fallback};
use std::time::Duration;

/// How everything is.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Requests that wait or are computed.
    pub requests: usize,
    /// Their tokens.
    pub tokens: u64,
    /// Requests of which nothing is being computed.
    pub waiting: usize,
    /// The devices, in their order.
    pub devices: Vec<DeviceView>,
}

/// How a device is.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceView {
    /// What it is.
    pub kind: DeviceKind,
    /// Whether and why not it is used.
    pub state: DeviceState,
    /// The part of its speed that it is trusted with: 1 unless it is hot.
    pub weight: f64,
    /// Batches that it has now.
    pub batches: usize,
    /// Batches that it has finished.
    pub batches_finished: u64,
    /// Texts of them.
    pub texts_finished: u64,
    /// Time that it computed.
    pub busy: Duration,
    /// Failures that are not forgotten yet.
    pub failures: u32,
    /// Failures ever.
    pub failures_total: u64,
    /// Workers that were started after the first.
    pub restarts: u64,
    /// Probes and restarts that were tried to bring it back.
    pub recovery_attempts: u64,
}

/// Whether a device is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceState {
    /// Its first worker is on its way.
    Starting,
    /// It is in rotation.
    InRotation,
    /// It is out and a worker or a probe is under way to bring it back.
    Recovering(Fallback),
    /// It is out until somebody resets it.
    Out(Fallback),
}

impl DeviceState {
    /// Whether it stays so by itself: in rotation, or out until somebody resets it.
    pub fn is_settled(self) -> bool {
        matches!(self, Self::InRotation | Self::Out(_))
    }
}
