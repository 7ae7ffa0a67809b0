//! What a world is made of: devices and their true speeds, settings, load, troubles.
//! Only says; nothing here happens by itself.

use crate::load::Load;
use crate::trouble::Trouble;
use magray_core::ledger::{Budget, CollectionId};
use magray_core::schedule::{
    DeviceId, DeviceKind, DeviceSpec, Location, ModelId, ModelPlan, Moment, Options, ResidencyRequest,
};
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    /// The devices; the first of them need not be the CPU.
    pub(crate) devices: Vec<Device>,
    pub(crate) models: Vec<Model>,
    /// How many of them the machine knows from the start; the others are added later, in order.
    pub(crate) models_known: usize,
    pub(crate) options: Options,
    /// The requests.
    pub(crate) load: Load,
    /// What goes wrong, and when.
    pub(crate) troubles: Vec<Trouble>,
    /// What users and other processes do, and when.
    pub(crate) interventions: Vec<(Moment, Intervention)>,
    pub(crate) given_up: Vec<DeviceId>,
    /// The device that is slow for so long that it must be noticed.
    pub(crate) slowed: Option<usize>,
    /// No fault happens after this.
    pub(crate) calm_at: Moment,
    /// Relative variation of computing times, both ways.
    pub(crate) noise: f64,
    /// Longest time that an event of a device takes to reach the machine.
    pub(crate) latency: Duration,
    /// How late the machine is woken.
    pub(crate) lateness: Duration,
    /// Probability for each event that an outdated one is reported too.
    pub(crate) stale: f64,
    /// Probability for each step that the machine is stepped before its wake time; it must find nothing to do.
    pub(crate) early: f64,
    /// Requests before draining starts; later ones are refused.
    pub(crate) drain_after: usize,
    /// How long the world goes on after the last answer, to see that idle weights and workers leave.
    pub(crate) idle_tail: Duration,
}

impl Scenario {
    /// One resident model, no faults, and every request is accepted: for measurements.
    pub(crate) fn without_faults(seed: u64, devices: Vec<Device>, options: Options, load: Load) -> Self {
        Self {
            seed,
            devices,
            models: vec![Model::resident()],
            models_known: 1,
            options,
            drain_after: load.requests,
            load,
            troubles: Vec::new(),
            interventions: Vec::new(),
            given_up: Vec::new(),
            slowed: None,
            calm_at: Moment::START,
            noise: 0.0,
            latency: Duration::ZERO,
            lateness: Duration::ZERO,
            stale: 0.0,
            early: 0.0,
            idle_tail: Duration::ZERO,
        }
    }
}

/// The true properties of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    pub(crate) plan: ModelPlan,
    /// What its weights take of a device's memory.
    pub(crate) bytes: u64,
}

impl Model {
    /// Resident from the start and never evicted: for measurements.
    pub(crate) fn resident() -> Self {
        Self { plan: ModelPlan { idle_timeout: None, ..ModelPlan::default() }, bytes: 0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Intervention {
    /// A user wants a model to come, go or stay.
    ResidencyRequest(ModelId, ResidencyRequest),
    AddModel,
    RemoveModel(ModelId),
    /// Other processes take or free memory of a device: this much is left.
    Memory(DeviceId, u64),
    /// Telemetry says that this many thousandths of a device's memory are in use.
    MemoryUse(DeviceId, u64),
    /// A collection wants this many more bytes of a device for its vectors; 0: it is dropped.
    Vectors(DeviceId, CollectionId, u64),
}

/// The true properties of a device; the machine must find them out.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) spec: DeviceSpec,
    pub(crate) cost: Cost,
    /// How long a worker needs to be ready.
    pub(crate) start: Duration,
    /// How weights come and go.
    pub(crate) loads: Loads,
    /// GPUs that are one device: each has a part of every batch and of all weights, and what happens to one happens to the device.
    pub(crate) ranks: usize,
}

impl Device {
    /// Ready at once, without a limit of memory: for measurements.
    pub(crate) fn unlimited(kind: DeviceKind, slots: usize, batch_tokens_max: u32, cost: Cost) -> Self {
        let location = if kind == DeviceKind::Cpu { Location::InProcess } else { Location::Worker };
        let spec = DeviceSpec {
            kind,
            location,
            slots,
            batch_tokens_max,
            batch_tokens_least: 1,
            memory: Budget::UNBOUNDED,
            is_reserved: false,
        };
        Self { spec, cost, start: Duration::from_millis(1), loads: Loads::QUICK, ranks: 1 }
    }
}

/// How weights come to a device and leave it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Loads {
    /// Independent of the number of bytes.
    pub(crate) fixed: Duration,
    /// From the host's memory.
    pub(crate) bytes_per_s: f64,
    /// How many times longer it takes from files.
    pub(crate) files: f64,
    pub(crate) offload: Duration,
}

impl Loads {
    /// Almost immediate: for measurements of other things.
    pub(crate) const QUICK: Self =
        Self { fixed: Duration::from_micros(10), bytes_per_s: 1e12, files: 1.0, offload: Duration::from_micros(10) };

    /// The time that this many bytes take.
    pub(crate) fn of(self, bytes: u64, is_in_host: bool) -> Duration {
        let from_host = self.fixed + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
        if is_in_host { from_host } else { from_host.mul_f64(self.files) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    pub(crate) fixed_us: f64,
    pub(crate) token_us: f64,
    pub(crate) text_us: f64,
}

impl Cost {
    /// The same device, this many times slower.
    pub(crate) fn slower(self, times: f64) -> Self {
        Self { fixed_us: self.fixed_us * times, token_us: self.token_us * times, text_us: self.text_us * times }
    }

    /// The time that a batch of this many tokens and texts takes.
    pub(crate) fn of(self, tokens: u64, texts: u64) -> Duration {
        let micros = self.fixed_us + self.token_us * tokens as f64 + self.text_us * texts as f64;
        Duration::from_nanos((micros * 1e3) as u64)
    }
}
