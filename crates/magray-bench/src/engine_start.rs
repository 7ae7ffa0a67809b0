//! Starts an engine to be measured, with workers of this program's own.
//! Never lets a fault that was planned take a GPU out of service for good: nothing is remembered.

use std::{env, time::Duration};

use magray_engine::{
    EncoderOptions,
    engine::{DeviceState, Engine, EngineModel, EngineOptions, Gpus, ModelPlan, ModelSource, Options},
    testing::{FaultPlan, SimulatedGpu},
};

use crate::{failure::Failure, terminal::Console};

pub(crate) struct Measured {
    /// Each with its name for messages and reports.
    pub(crate) models: Vec<(String, ModelSource)>,
    pub(crate) encoder: EncoderOptions,
    pub(crate) schedule: Options,
    pub(crate) plan: ModelPlan,
    pub(crate) faults: Option<FaultPlan>,
    pub(crate) simulated_gpus: Vec<SimulatedGpu>,
}

impl Measured {
    /// Models are loaded by their first request; all else is as by default.
    pub(crate) fn new(models: Vec<(String, ModelSource)>, encoder: EncoderOptions) -> Self {
        Self {
            models,
            encoder,
            schedule: Options::default(),
            plan: ModelPlan::default(),
            faults: None,
            simulated_gpus: Vec::new(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.models.first().map_or("", |(name, _)| name)
    }
}

/// A GPU may compile its kernels when it starts for the first time.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);

/// Starts the engine and waits until its GPUs are ready; says which of them are not used.
pub(crate) fn start(measured: &Measured, console: Console) -> Result<Engine, Failure> {
    let Measured { models, encoder, schedule, plan, faults, simulated_gpus } = measured;
    let model = |(name, source): &(String, ModelSource)| EngineModel {
        source: source.clone(),
        assigned: None,
        name: name.clone(),
        plan: *plan,
    };
    let worker_exe = env::current_exe().map_err(Failure::OwnProgram)?;
    let options = EngineOptions {
        encoder: encoder.clone(),
        gpus: Gpus::One,
        schedule: schedule.clone(),
        simulated_gpus: simulated_gpus.clone(),
        faults: faults.clone(),
        ..EngineOptions::with_gpus(models.iter().map(model).collect(), worker_exe)
    };
    let engine = Engine::start(options).map_err(|reason| Failure::load(measured.name(), reason))?;
    engine.wait_until_settled(SETTLED_WITHIN);
    for device in engine.status().devices {
        if !matches!(device.schedule.state, DeviceState::InRotation | DeviceState::Resting) {
            let error = device.last_error.map_or_else(|| "no error was told".to_owned(), |error| error.message);
            console.warn(format_args!("{} is not used: {error}", device.name));
        }
    }
    Ok(engine)
}
