//! Starts an engine to be measured, with workers of this program's own.
//! Never lets a fault that was planned take a GPU out of service for good.

use std::{env, time::Duration};

use magray_engine::{
    EncoderOptions,
    engine::{DeviceState, Engine, EngineModel, EngineOptions, ModelSource, SimulatedGpu},
};

use crate::{config::EngineSettings, console::Console, exit::Failure, model};

/// What is measured.
pub(super) struct Measured {
    pub(super) model: ModelSource,
    /// The model as people name it.
    pub(super) name: String,
    pub(super) encoder: EncoderOptions,
    pub(super) settings: EngineSettings,
    pub(super) simulated_gpus: Vec<SimulatedGpu>,
}

/// A GPU may compile its kernels when it starts for the first time.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);

/// Starts the engine and waits until its GPUs are ready; says which of them are not used.
pub(super) fn start(measured: &Measured, console: &Console) -> Result<Engine, Failure> {
    let Measured { model, name, encoder, settings, simulated_gpus } = measured;
    let worker_exe = env::current_exe().map_err(Failure::OwnProgram)?;
    let mut encoder = encoder.clone();
    if settings.faults.is_some() {
        // What is remembered there outlives this process.
        encoder.gpu.state_file = None;
    }
    let options = EngineOptions {
        encoder,
        models: vec![EngineModel::from(model.clone())],
        gpus: settings.gpus.clone(),
        schedule: settings.schedule.clone(),
        worker_exe,
        simulated_gpus: simulated_gpus.clone(),
        faults: settings.faults.clone(),
        alerts: settings.alerts.clone(),
        monitor_interval: settings.monitor_interval,
    };
    let engine = Engine::start(options).map_err(|reason| model::load_failure(name, reason))?;
    engine.wait_until_settled(SETTLED_WITHIN);
    for device in engine.status().devices {
        if device.schedule.state != DeviceState::InRotation {
            let error = device.last_error.unwrap_or_else(|| "no error was told".to_owned());
            console.warn(format_args!("{} is not used: {error}", device.name));
        }
    }
    Ok(engine)
}
