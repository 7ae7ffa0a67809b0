//! Starts an engine to be measured, with workers of this program's own, and a socket by which it can be looked at.
//! Never lets a fault that was planned take a GPU out of service for good.

use std::{env, path::PathBuf, sync::Arc, time::Duration};

use magray_engine::{
    EncoderOptions,
    engine::{DeviceState, Engine, EngineModel, EngineOptions, ModelSource, SimulatedGpu},
};

use crate::{
    config::EngineSettings,
    console::Console,
    control::{ControlSocket, EngineSubject},
    exit::Failure,
    model,
};

/// What is measured.
pub(super) struct Measured {
    /// Each with the name by which people know it.
    pub(super) models: Vec<(String, ModelSource)>,
    pub(super) encoder: EncoderOptions,
    pub(super) settings: EngineSettings,
    pub(super) simulated_gpus: Vec<SimulatedGpu>,
    /// Where its control socket may be.
    pub(super) control_folders: Vec<PathBuf>,
}

impl Measured {
    /// The first model, as people name it.
    pub(super) fn name(&self) -> &str {
        self.models.first().map_or("", |(name, _)| name)
    }
}

/// An engine that can be looked at from outside.
pub(super) struct Started {
    pub(super) engine: Engine,
    /// `None`: it cannot be made here.
    socket: Option<ControlSocket>,
}

impl Started {
    /// Ends it, and waits until its workers are gone.
    pub(super) fn shut_down(self) {
        // Nobody is to ask an engine that ends.
        drop(self.socket);
        self.engine.shut_down();
    }
}

/// A GPU may compile its kernels when it starts for the first time.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);

/// Starts the engine and waits until its GPUs are ready; says which of them are not used.
pub(super) fn start(measured: &Measured, console: &Console) -> Result<Started, Failure> {
    let Measured { models, encoder, settings, simulated_gpus, control_folders } = measured;
    let worker_exe = env::current_exe().map_err(Failure::OwnProgram)?;
    let mut encoder = encoder.clone();
    if settings.faults.is_some() {
        // What is remembered there outlives this process.
        encoder.gpu.state_file = None;
    }
    let options = EngineOptions {
        encoder,
        models: models.iter().map(|(name, source)| engine_model(name, source, settings)).collect(),
        gpus: settings.gpus.clone(),
        schedule: settings.schedule.clone(),
        in_process: None,
        worker_exe,
        simulated_gpus: simulated_gpus.clone(),
        faults: settings.faults.clone(),
        alerts: settings.alerts.clone(),
        monitor_interval: settings.monitor_interval,
    };
    let engine = Engine::start(options).map_err(|reason| model::load_failure(measured.name(), reason))?;
    let subject = EngineSubject { engine: engine.clone(), memory_limit: settings.memory_limit };
    let socket = ControlSocket::open(control_folders, Arc::new(subject));
    let socket =
        socket.inspect_err(|error| console.detail(format_args!("this engine cannot be reached: {error}"))).ok();
    engine.wait_until_settled(SETTLED_WITHIN);
    for device in engine.status().devices {
        if !matches!(device.schedule.state, DeviceState::InRotation | DeviceState::Resting) {
            let error = device.last_error.unwrap_or_else(|| "no error was told".to_owned());
            console.warn(format_args!("{} is not used: {error}", device.name));
        }
    }
    Ok(Started { engine, socket })
}

fn engine_model(name: &str, source: &ModelSource, settings: &EngineSettings) -> EngineModel {
    EngineModel { source: source.clone(), assigned: None, name: name.to_owned(), plan: settings.plans.of(name) }
}
