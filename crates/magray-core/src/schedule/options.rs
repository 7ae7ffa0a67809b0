//! What the decisions may be told: bounds, batches, placement, recovery.
//! Every number has a default that needs no tuning.

use super::{DeviceId, Priority};
use crate::ledger::Budget;
use std::time::Duration;

/// A device, as the decisions see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// What it is.
    pub kind: DeviceKind,
    /// Where its executor runs.
    pub location: Location,
    /// Batches that it may have at once: one that it computes and the next ones, at hand.
    pub slots: usize,
    /// Tokens of a batch at most. A longer text is a batch of its own.
    pub batch_tokens_max: u32,
    /// Tokens of a batch that keep all of it busy: where these take no longer than twice [`Slices`] (four times on a reserved
    /// device), a batch may have them.
    pub batch_tokens_least: u32,
    /// Its memory, until [`super::Event::Memory`] reports less. Without a share for the state of sequences it computes none
    /// of many steps.
    pub memory: Budget,
    /// Whether it computes only models that are at home on it, and no others.
    pub is_reserved: bool,
}

/// What a device is: what callers may ask for, and what its speed is guessed by before it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The processor of this machine.
    Cpu,
    /// A GPU, or what stands for one.
    Gpu,
}

/// Where the executor of a device runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// In this process: always there, the last resort. A batch that fails there says nothing of the device.
    InProcess,
    /// In a worker process, which may fail, is watched and is replaced.
    Worker,
}

/// A model, as the decisions see it, and how it comes and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelPlan {
    /// What its weights are expected to take of a device's memory; what they took is learned when they are there.
    pub bytes: u64,
    /// Whether it is put on the devices before a request needs it.
    pub is_preloaded: bool,
    /// Whether this process has it from the start where it is preloaded; else only workers get it.
    pub is_in_process: bool,
    /// It leaves a GPU when it was not used for this long; `None`: never by itself.
    pub idle_timeout: Option<Duration>,
    /// It leaves the GPUs whenever nothing of it waits or runs.
    pub offload_after_use: bool,
    /// Neither idleness nor other models push it out.
    pub is_pinned: bool,
    /// How much it counts when models compete for memory.
    pub priority: Priority,
    /// New tokens of a step at most: more than one where some are drafted and verified together.
    pub step_tokens_max: u32,
    /// Bytes of a device's memory that the state of one token of a sequence of many steps takes.
    pub kv_token_bytes: u64,
    /// What workers have of it, where that is not all: the CPU computes the rest beside them.
    pub in_workers: Option<PartInWorkers>,
    /// The only device that can compute it; `None`: any that is not reserved.
    pub home: Option<DeviceId>,
}

/// The part of a model that is in the memory of a worker's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartInWorkers {
    /// As [`ModelPlan::bytes`].
    pub bytes: u64,
    /// As [`ModelPlan::kv_token_bytes`].
    pub kv_token_bytes: u64,
}

impl ModelPlan {
    /// What its weights are expected to take of the memory of a device there.
    pub(super) fn bytes_at(&self, location: Location) -> u64 {
        self.part_at(location).map_or(self.bytes, |part| part.bytes)
    }

    /// What the state of one token takes of it.
    pub(super) fn kv_token_bytes_at(&self, location: Location) -> u64 {
        self.part_at(location).map_or(self.kv_token_bytes, |part| part.kv_token_bytes)
    }

    /// Whether devices there have it, or get it, before a request needs it.
    pub(super) fn is_preloaded_at(&self, location: Location) -> bool {
        self.is_preloaded && (self.is_in_process || location == Location::Worker)
    }

    fn part_at(&self, location: Location) -> Option<PartInWorkers> {
        self.in_workers.filter(|_| location == Location::Worker)
    }

    /// Whether this device can compute it at all.
    pub fn suits(&self, id: DeviceId, device: &DeviceSpec) -> bool {
        self.home.map_or(!device.is_reserved, |home| home == id)
    }
}

impl Default for ModelPlan {
    fn default() -> Self {
        Self {
            bytes: 0,
            is_preloaded: true,
            is_in_process: true,
            idle_timeout: Some(Duration::from_secs(60)),
            offload_after_use: false,
            is_pinned: false,
            priority: Priority::Normal,
            step_tokens_max: 1,
            kv_token_bytes: 1,
            in_workers: None,
            home: None,
        }
    }
}

/// How long idle workers and weights are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keeping {
    /// A worker whose device has had no weights for this long is ended, so that it holds no memory of the GPU at all;
    /// `None`: never.
    pub worker: Option<Duration>,
    /// Weights in the host's memory that no GPU has used for this long are let go of; `None`: never.
    pub host: Option<Duration>,
    /// Weights must be on their device within this time, or its worker is replaced.
    pub load_max: Duration,
}

impl Default for Keeping {
    fn default() -> Self {
        Self { worker: Some(Duration::from_secs(300)), host: None, load_max: Duration::from_secs(120) }
    }
}

/// All that can be told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// What is taken at most.
    pub limits: Limits,
    /// How batches are formed.
    pub batching: Batching,
    /// How a device is picked.
    pub placement: Placement,
    /// When devices are given up and taken back.
    pub recovery: Recovery,
    /// How long idle workers and weights are kept.
    pub keeping: Keeping,
    /// How sequences of many steps go on.
    pub generation: Generation,
    /// When a device counts as slow.
    pub speed: SpeedWatch,
}

/// When a device counts as slow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeedWatch {
    /// Whether its speed is watched.
    pub is_on: bool,
    /// It computes below this part of its own best steady speed ...
    pub slow_below: f64,
    /// ... for this long.
    pub window: Duration,
}

impl Default for SpeedWatch {
    fn default() -> Self {
        Self { is_on: true, slow_below: 0.7, window: Duration::from_secs(10) }
    }
}

/// How sequences of many steps go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// A turn of such sequences is predicted to take this long at most: what is ready waits no longer for its next token. Where a pass
    /// takes much of it by itself, a turn may take three times as long as that beside single tokens, and four times without.
    pub turn_max: Duration,
    /// A sequence pauses when its reader has this many tokens to read.
    pub unread_max: u32,
}

impl Default for Generation {
    fn default() -> Self {
        Self { turn_max: Duration::from_millis(50), unread_max: 64 }
    }
}

/// What may wait or be computed at once; more is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests.
    pub requests_max: usize,
    /// Tokens of all of them.
    pub tokens_max: u64,
    /// What goes before a request that is taken, beside its own size, should be computed within this time by the speed
    /// measured lately; `None`: the other bounds will do.
    pub wait_max: Option<Duration>,
}

impl Limits {
    /// Tokens of requests that generate, at most: they leave a quarter to those that do not.
    pub fn tokens_to_generate(&self) -> u64 {
        to_generate(self.tokens_max)
    }
}

/// Of a bound of tokens, the part for requests that generate.
pub(super) fn to_generate(tokens_max: u64) -> u64 {
    tokens_max - tokens_max / 4
}

impl Default for Limits {
    fn default() -> Self {
        Self { requests_max: 16_384, tokens_max: 4 << 20, wait_max: None }
    }
}

/// How batches are formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// How large.
    pub sizing: Sizing,
    /// Texts of a batch at most.
    pub texts_max: u32,
    /// A request that has waited this long is taken before more urgent ones.
    pub age_max: Duration,
    /// How long, so that those who come meanwhile do not wait long; `None`: as long as is efficient.
    pub slices: Option<Slices>,
}

/// How long a batch of more than one text may be expected to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slices {
    /// On a CPU.
    pub cpu: Duration,
    /// On a GPU; longer where more than a quarter of it would be fixed cost.
    pub gpu: Duration,
}

impl Default for Slices {
    fn default() -> Self {
        Self { cpu: Duration::from_millis(20), gpu: Duration::from_millis(1) }
    }
}

impl Default for Batching {
    fn default() -> Self {
        Self { sizing: Sizing::Adaptive, texts_max: 512, age_max: Duration::from_millis(200), slices: None }
    }
}

/// How large a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// By the measured cost of tokens and texts; an idle device never waits.
    Adaptive,
    /// This many texts, or what came within the time.
    Fixed {
        /// Texts.
        texts: u32,
        /// How long the first text of a batch waits for the others.
        timeout: Duration,
    },
}

/// How a device is picked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Where the work is expected to be done first, by measured speeds.
    #[default]
    Weighted,
    /// One after the other, whatever their speeds; kept for comparison.
    RoundRobin,
}

/// When devices are given up and taken back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recovery {
    /// A batch is overdue when it takes this many times what was expected ...
    pub overdue_factor: f64,
    /// ... and at least this long.
    pub overdue_least: Duration,
    /// A worker without a heartbeat for this long is taken for dead.
    pub silence_max: Duration,
    /// So is one without a heartbeat for this long whose batch takes `overdue_factor` times what was expected: it does nothing at all.
    pub late_silence_max: Duration,
    /// A worker must be ready within this time.
    pub start_max: Duration,
    /// Failures up to this number are tried again on the same device.
    pub retries_max: u32,
    /// From one more than this number on, a device is out until it is reset; between the two it is out for a while.
    pub temporary_max: u32,
    /// One failure is forgotten after each such time without another.
    pub decay: Duration,
    /// A device that is out for a while is probed after this time; twice as long after each probe that fails.
    pub probe_after: Duration,
    /// The longest time between two probes.
    pub probe_after_max: Duration,
    /// Workers that may be lost with a request before it is refused.
    pub poison_kills: u32,
}

impl Default for Recovery {
    fn default() -> Self {
        Self {
            overdue_factor: 20.0,
            overdue_least: Duration::from_millis(1000),
            silence_max: Duration::from_millis(1500),
            late_silence_max: Duration::from_millis(600),
            start_max: Duration::from_secs(60),
            retries_max: 3,
            temporary_max: 6,
            decay: Duration::from_secs(60),
            probe_after: Duration::from_millis(500),
            probe_after_max: Duration::from_secs(30),
            poison_kills: 2,
        }
    }
}
