//! What the machine tells of itself to people and metrics.
//! Numbers of one moment: nothing here decides anything.

use super::{DeviceKind, Fallback, Location, MemoryStep, ModelPlan};
use crate::ledger::Owner;
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
    /// How long all of them should take, by the speed measured lately; `None` where no speed is known yet.
    pub wait: Option<Duration>,
    /// The devices, in their order.
    pub devices: Vec<DeviceView>,
    /// The models, in their order.
    pub models: Vec<ModelView>,
}

/// How a model is.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelView {
    /// How it comes and goes now; its size is the one that was measured last.
    pub plan: ModelPlan,
    /// How long ago it was used last, or asked for; zero while something of it waits or runs.
    pub idle: Duration,
    /// Requests that wait for it or are computed.
    pub requests: usize,
    /// Where its weights are, by device.
    pub residency: Vec<Residency>,
    /// How often its weights were put on a GPU; on the CPU where there is none.
    pub loads: u64,
    /// How often they left it.
    pub offloads: u64,
    /// By device: how often they were gone from it after they were there or on their way, whatever the reason.
    pub departures: Vec<u64>,
    /// How often they were in no memory after they were to be in none, also where they had been in none before.
    pub releases: u64,
}

/// Why a model's weights came to a device or left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MoveReason {
    /// Requests wait for it.
    Needed,
    /// It was asked to be there before a request needs it.
    Preheated,
    /// It was there before its worker ended, or belongs there from the start.
    Restored,
    /// It was asked to go, or was not used for long in the host's memory.
    Requested,
    /// Its memory was needed.
    Evicted,
    /// Nothing of it came for its idle timeout.
    Idle,
    /// It leaves after each use.
    AfterUse,
}

impl MoveReason {
    /// A stable code for programs.
    pub fn code(self) -> &'static str {
        match self {
            Self::Needed => "needed",
            Self::Preheated => "preheated",
            Self::Restored => "restored",
            Self::Requested => "requested",
            Self::Evicted => "evicted",
            Self::Idle => "idle",
            Self::AfterUse => "after_use",
        }
    }
}

/// Where a model's weights are, seen from one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Residency {
    /// In no memory.
    Unloaded,
    /// On their way to the device.
    Loading,
    /// On the device.
    OnDevice,
    /// On their way off the device.
    Leaving,
    /// In the host's memory, and the device's worker is there.
    OnCpu,
    /// In the host's memory, and the device has no worker: nothing of its memory is taken.
    OnCpuCold,
}

impl Residency {
    /// A stable code for programs.
    pub fn code(self) -> &'static str {
        match self {
            Self::Unloaded => "unloaded",
            Self::Loading => "loading",
            Self::OnDevice => "on_device",
            Self::Leaving => "leaving",
            Self::OnCpu => "on_cpu",
            Self::OnCpuCold => "on_cpu_cold",
        }
    }
}

/// How a device is.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceView {
    /// What it is.
    pub kind: DeviceKind,
    /// Where its executor runs.
    pub location: Location,
    /// Whether it computes only models that are at home on it.
    pub is_reserved: bool,
    /// Whether and why not it is used.
    pub state: DeviceState,
    /// Whether its worker was told to end because no request needs it, or will be as soon as none that waits may.
    pub is_ending: bool,
    /// The part of its speed that it is trusted with: 1 unless it is hot or slow.
    pub weight: f64,
    /// How fast it was lately, as a part of its own best steady speed with batches of the same size; `None` where nothing
    /// could be compared.
    pub speed: Option<f64>,
    /// What is done because its memory is nearly full.
    pub memory_step: MemoryStep,
    /// Batches that it has now.
    pub batches: usize,
    /// Bytes of its memory that may be used.
    pub memory_capacity: u64,
    /// Bytes of it that the state of sequences may take.
    pub kv_max: u64,
    /// What is granted of that, and what passes and the driver take, by owner.
    pub accounts: Vec<(Owner, u64)>,
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
    /// Sequences that gave way to others or to other models: their state is computed again.
    pub preemptions: u64,
}

impl DeviceView {
    /// What the state of sequences takes of its memory.
    pub fn kv_bytes(&self) -> u64 {
        let of_sequences = self.accounts.iter().filter(|(owner, _)| matches!(owner, Owner::Kv(_)));
        of_sequences.map(|(_, bytes)| bytes).sum()
    }
}

/// Whether a device is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceState {
    /// Its first worker is on its way.
    Starting,
    /// It is in rotation.
    InRotation,
    /// Its worker was ended because no request needed it; the next request that does starts one.
    Resting,
    /// It is out and a worker or a probe is under way to bring it back.
    Recovering(Fallback),
    /// It is out until it is reset.
    Out(Fallback),
}

impl DeviceState {
    /// Whether it stays so by itself: in rotation, at rest, or out until it is reset.
    pub fn is_settled(self) -> bool {
        matches!(self, Self::InRotation | Self::Resting | Self::Out(_))
    }
}
