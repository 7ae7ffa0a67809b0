//! The machine: takes an event and the time, says what to do.

use super::{Action, DeviceSpec, Event, Moment, Options, View};

/// All decisions and what they depend on.
#[derive(Debug)]
pub struct Machine {
    devices: Vec<DeviceSpec>,
    options: Options,
}

impl Machine {
    /// A machine for these devices. GPUs are asked for by `Spawn` at the first step.
    pub fn new(devices: Vec<DeviceSpec>, options: Options) -> Self {
        Self { devices, options }
    }

    /// Takes what happened and appends what to do. Time never goes back.
    pub fn step(&mut self, event: Event, now: Moment, actions: &mut Vec<Action>) {
        let _ = (event, now, actions, &self.devices, &self.options);
    }

    /// When the machine wants a [`Event::Tick`] at the latest, if nothing else happens.
    pub fn next_wake(&self) -> Option<Moment> {
        None
    }

    /// How everything is now.
    pub fn view(&self) -> View {
        View { requests: 0, tokens: 0, waiting: 0, devices: Vec::new() }
    }
}
