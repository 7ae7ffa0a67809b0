//! What a world is made of: devices and their true speeds, settings, load, troubles.
//! Only says; nothing here happens by itself.

use crate::load::Load;
use crate::trouble::Trouble;
use magray_core::ledger::CollectionId;
use magray_core::schedule::{DeviceId, DeviceSpec, ModelId, ModelPlan, Moment, Options, ResidencyRequest};
use std::time::Duration;

/// A world before it begins.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What its chance begins with.
    pub seed: u64,
    /// The devices; the first of them need not be the CPU.
    pub devices: Vec<Device>,
    /// The models that are asked for.
    pub models: Vec<Model>,
    /// How many of them the machine knows from the start; the others are added later, in their order.
    pub models_known: usize,
    /// What the machine is told.
    pub options: Options,
    /// Who asks for what.
    pub load: Load,
    /// What goes wrong, and when.
    pub troubles: Vec<Trouble>,
    /// What people and other programs do, and when.
    pub interventions: Vec<(Moment, Intervention)>,
    /// GPUs that an earlier process gave up.
    pub given_up: Vec<DeviceId>,
    /// From here on nothing goes wrong any more.
    pub calm_at: Moment,
    /// Times of computing vary by up to this part, both ways.
    pub noise: f64,
    /// How long what a device says is on its way at most.
    pub latency: Duration,
    /// How late the shell is when the machine wanted to be woken.
    pub lateness: Duration,
    /// How often, of all events, something that is not true any more is told as well.
    pub stale: f64,
    /// How often, of all steps, the machine is made to think before it wants to be woken, to see that it finds nothing to do.
    pub early: f64,
    /// Requests that come before nothing is taken any more; the rest comes after and is refused.
    pub drain_after: usize,
    /// How long the world goes on after everything is answered, to see what is done about what nobody uses.
    pub afterglow: Duration,
}

/// A model as it truly is.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// What the machine is told of it.
    pub plan: ModelPlan,
    /// What its weights take of a device's memory.
    pub bytes: u64,
}

impl Model {
    /// One that is there from the start and stays: for measurements.
    pub fn resident() -> Self {
        Self { plan: ModelPlan { idle_timeout: None, ..ModelPlan::default() }, bytes: 0 }
    }
}

/// Something that happens to models or devices from outside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Intervention {
    /// Somebody wants a model to come, go or stay.
    ResidencyRequest(ModelId, ResidencyRequest),
    /// The next model is added.
    AddModel,
    /// A model is removed.
    RemoveModel(ModelId),
    /// Other processes take or leave memory of a device: this is left.
    Memory(DeviceId, u64),
    /// A collection wants so much more of a device's memory for its vectors; nothing: it goes.
    Vectors(DeviceId, CollectionId, u64),
}

/// A device as it truly is; the machine must find out.
#[derive(Clone, Debug)]
pub struct Device {
    /// What the machine is told of it.
    pub spec: DeviceSpec,
    /// What a batch costs.
    pub cost: Cost,
    /// How long a worker needs to be ready.
    pub start: Duration,
    /// How weights come and go.
    pub loads: Loads,
}

/// How weights come to a device and leave it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loads {
    /// However few there are.
    pub fixed: Duration,
    /// From the host's memory.
    pub bytes_per_s: f64,
    /// How many times longer it takes from files.
    pub files: f64,
    /// How long it takes to let go of them.
    pub offload: Duration,
}

impl Loads {
    /// At once, nearly: for measurements of other things.
    pub const QUICK: Self =
        Self { fixed: Duration::from_micros(10), bytes_per_s: 1e12, files: 1.0, offload: Duration::from_micros(10) };

    /// How long so many bytes take.
    pub fn of(self, bytes: u64, is_in_host: bool) -> Duration {
        let from_host = self.fixed + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
        if is_in_host { from_host } else { from_host.mul_f64(self.files) }
    }
}

/// What a batch costs: something however small it is, and something for each token and text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Microseconds of any batch.
    pub fixed_us: f64,
    /// Microseconds of a token.
    pub token_us: f64,
    /// Microseconds of a text.
    pub text_us: f64,
}

impl Cost {
    /// The same device, so many times slower.
    pub fn slower(self, times: f64) -> Self {
        Self { fixed_us: self.fixed_us * times, token_us: self.token_us * times, text_us: self.text_us * times }
    }

    /// How long a batch of so many tokens and texts takes.
    pub fn of(self, tokens: u64, texts: u64) -> Duration {
        let micros = self.fixed_us + self.token_us * tokens as f64 + self.text_us * texts as f64;
        Duration::from_nanos((micros * 1e3) as u64)
    }
}
