//! What a world is made of: devices and their true speeds, settings, load, troubles.
//! Only says; nothing here happens by itself.

use crate::load::Load;
use crate::trouble::Trouble;
use magray_core::schedule::{DeviceId, DeviceSpec, Moment, Options};
use std::time::Duration;

/// A world before it begins.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What its chance begins with.
    pub seed: u64,
    /// The devices; the first of them need not be the CPU.
    pub devices: Vec<Device>,
    /// What the machine is told.
    pub options: Options,
    /// Who asks for what.
    pub load: Load,
    /// What goes wrong, and when.
    pub troubles: Vec<Trouble>,
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
